"""`blockstride train`: train a small hybrid on any text from the command line."""

import argparse
import dataclasses
import math
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from blockstride.models.training.config import CONFIGS
from blockstride.models.training.options import TrainingOptions
from blockstride.models.training.trainer import Progress, train

COLUMNS = (
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[loss]:.3f} bits/byte, {task.fields[speed]:,.0f} tokens/s"),
    TimeRemainingColumn(),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `blockstride train`: one for each of `TrainingOptions`, and three."""
    parser.add_argument("--text", type=Path, required=True, help="the text to learn from")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--config", choices=CONFIGS, default="tiny", help="sizes of the model")
    for field in dataclasses.fields(TrainingOptions):
        flag = "--" + field.name.replace("_", "-")
        kind, help = type(field.default), f"default {field.default}"
        parser.add_argument(flag, type=kind, default=field.default, help=help)


def option_names(args: argparse.Namespace) -> dict[str, str]:
    """What the user types, for arguments of other names."""
    return {}


def run(args: argparse.Namespace) -> int:
    """Train as the arguments say, behind a progress bar.

    Returns:
        0, the exit status.

    Raises:
        ValueError: An argument is out of range, or as `train` raises.
    """
    names = [field.name for field in dataclasses.fields(TrainingOptions)]
    options = TrainingOptions(**{name: getattr(args, name) for name in names})
    console = Console(soft_wrap=True, highlight=False)
    bar = ProgressBar(*COLUMNS, console=console)
    task = bar.add_task("train", total=options.steps, loss=math.nan, speed=0.0)

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
        bits = train(args.text, args.out, config=config, options=options, report=show)
    finally:
        if bar.live.is_started:
            bar.stop()
    console.print(f"{args.out}: {bits:.3f} bits/byte on held-out text")
    return 0
