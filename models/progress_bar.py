"""A progress bar for long generations."""

from __future__ import annotations

import atexit
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from blockstride.models.generation import Generation

LONG_PROMPT = 4096
"""Tokens from which a single prompt gets a progress bar."""

SECONDS = 0.1
"""Between two looks."""


class ProgressBar:
    """How far requests are, prompt tokens and at most `max_tokens` of each, on standard error.

    It is seen only while somebody waits, and only on a terminal.

    Args:
        generations: The requests.
        max_len: Most tokens of one.
    """

    def __init__(self, generations: Sequence[Generation], max_len: int) -> None:
        self._goals = {
            each: min(max_len, len(each.prompt_ids) + (each.params.max_tokens or max_len))
            for each in generations
        }
        console = Console(stderr=True)
        long = any(len(each.prompt_ids) >= LONG_PROMPT for each in generations)
        self._is_shown = console.is_terminal and (len(generations) > 1 or long)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens"),
            TimeRemainingColumn(),
            console=console,
            disable=not self._is_shown,
            transient=True,
            # what is written meanwhile goes where it is meant to
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("generating", total=sum(self._goals.values()))

    def wait(self, generation: Generation) -> None:
        """Shows itself until a request is done."""
        if generation.done.wait(SECONDS if self._is_shown else None):
            return
        # it hides the cursor, also from whoever comes after a signal
        atexit.register(self._progress.stop)
        try:
            self._progress.start()
            while not generation.done.wait(SECONDS):
                self._progress.update(self._task, completed=self._num_done())
        finally:
            self._progress.stop()
            atexit.unregister(self._progress.stop)

    def _num_done(self) -> int:
        """Tokens; a request that is over counts whole."""
        return sum(
            goal if each.done.is_set() else each.num_computed for each, goal in self._goals.items()
        )
