"""`blockstride train`: train a small hybrid on any text from the command line."""

import argparse
import atexit
import dataclasses
import math
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from blockstride.models.commands.output import Output
from blockstride.models.commands.values import real, whole
from blockstride.models.training.config import CONFIGS
from blockstride.models.training.options import TrainingOptions
from blockstride.models.training.trainer import Progress, train

TYPES = {int: whole, float: real, str: str}

COLUMNS = (
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[loss]:.3f} bits/byte, {task.fields[speed]:,.0f} tokens/s"),
    TimeRemainingColumn(),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `blockstride train`: one for each of `TrainingOptions`, and three."""
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
        flag, kind = "--" + field.name.replace("_", "-"), TYPES[type(field.default)]
        parser.add_argument(flag, type=kind, default=field.default, help=f"default {field.default}")


def option_names(_: argparse.Namespace) -> dict[str, str]:
    """What the user types, for arguments of other names."""
    return {}


def run(args: argparse.Namespace) -> int:
    """Train as the arguments say, behind a progress bar where standard output is a terminal.

    Returns:
        0, the exit status.

    Raises:
        ValueError: An argument is out of range, or as `train` raises.
    """
    names = [field.name for field in dataclasses.fields(TrainingOptions)]
    options = TrainingOptions(**{name: getattr(args, name) for name in names})
    console = Output(soft_wrap=True, highlight=False)
    bar = ProgressBar(*COLUMNS, console=console, disable=not console.is_terminal)
    task = bar.add_task("train", total=options.steps, loss=math.nan, speed=0.0)
    if console.is_terminal:
        # it hides the cursor
        atexit.register(bar.stop)

    def on_resume(done: int, seconds: float) -> None:
        spent = f"{seconds / 60:.1f} minutes"
        console.print(f"{args.out}: going on after {done} of {options.steps} steps, {spent} so far")

    def show(progress: Progress) -> None:
        # not before the first step: an error about the input stands alone
        bar.start()
        loss, held_out = progress.train_bits_per_byte, progress.held_out_bits_per_byte
        speed = progress.tokens_per_second
        bar.update(task, completed=progress.step, loss=loss, speed=speed)
        if held_out is not None:
            line = f"step {progress.step}: {loss:.3f} bits/byte, {held_out:.3f} held out"
            console.print(f"{line}, {speed:,.0f} tokens/s")

    config = CONFIGS[args.config]
    try:
        bits = train(
            args.text, args.out, config=config, options=options, report=show, on_resume=on_resume
        )
    finally:
        if bar.live.is_started:
            bar.stop()
        atexit.unregister(bar.stop)
    console.print(f"{args.out}: {bits:.3f} bits/byte on held-out text")
    return 0
