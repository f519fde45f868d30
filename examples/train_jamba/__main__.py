"""`python -m train_jamba`: trains a small hybrid on any text."""

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from train_jamba.config import CONFIGS
from train_jamba.options import TrainingOptions
from train_jamba.trainer import Progress, train

COLUMNS = (
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[loss]:.3f} bits/byte, {task.fields[speed]:,.0f} tokens/s"),
    TimeRemainingColumn(),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Trains as the arguments say; exits with 2 and one sentence where they can't be."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        _run(args)
    except ValueError as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    """One argument for each of `TrainingOptions`, and three."""
    parser = argparse.ArgumentParser(prog="train_jamba", description="Train a hybrid on a text.")
    parser.add_argument("--text", type=Path, required=True, help="the text to learn from")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder for the checkpoint; a run that was stopped goes on from its state there",
    )
    parser.add_argument(
        "--config", choices=CONFIGS, default="tiny", help="sizes of the model (default tiny)"
    )
    for field in dataclasses.fields(TrainingOptions):
        flag, kind = "--" + field.name.replace("_", "-"), type(field.default)
        parser.add_argument(flag, type=kind, default=field.default, help=f"default {field.default}")
    return parser


def _run(args: argparse.Namespace) -> None:
    """Trains behind a progress bar, which is seen only where standard output is a terminal."""
    names = [field.name for field in dataclasses.fields(TrainingOptions)]
    options = TrainingOptions(**{name: getattr(args, name) for name in names})
    console = Console(soft_wrap=True, highlight=False)
    bar = ProgressBar(*COLUMNS, console=console, disable=not console.is_terminal)
    task = bar.add_task("train", total=options.steps, loss=math.nan, speed=0.0)

    def tell_of_resume(done: int, seconds: float) -> None:
        spent = f"{seconds / 60:.1f} minutes"
        console.print(f"{args.out}: going on after {done} of {options.steps} steps, {spent} so far")

    def show(progress: Progress) -> None:
        loss, held_out = progress.train_bits_per_byte, progress.held_out_bits_per_byte
        speed = progress.tokens_per_second
        bar.update(task, completed=progress.step, loss=loss, speed=speed)
        if held_out is not None:
            line = f"step {progress.step}: {loss:.3f} bits/byte, {held_out:.3f} held out"
            console.print(f"{line}, {speed:,.0f} tokens/s")

    with bar:
        bits = train(
            args.text,
            args.out,
            config=CONFIGS[args.config],
            options=options,
            report=show,
            on_resume=tell_of_resume,
        )
    console.print(f"{args.out}: {bits:.3f} bits/byte on held-out text")


if __name__ == "__main__":
    sys.exit(main())
