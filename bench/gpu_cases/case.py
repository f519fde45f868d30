"""One thing that `bench/gpu.py` checks and times."""

from collections.abc import Callable
from dataclasses import dataclass

Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A timed call. `check` raises if the kernel is wrong; the others build inputs, then a call."""

    name: str
    check: Callable[[], None]
    prepare: Callable[[], Call]
    bytes: int = 0
    flop: float = 0.0
    torch: Callable[[], Call] | None = None
    flex: Callable[[], Call] | None = None
