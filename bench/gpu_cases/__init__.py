"""What `bench/gpu.py` runs: kernels at the sizes of real steps, with checks and baselines."""

from collections.abc import Iterator

from gpu_cases import attention, conv, norm, pages, runs, scan, state
from gpu_cases.case import Case

__all__ = ["Case", "cases"]


def cases(device: str, smoke: bool) -> Iterator[Case]:
    for family in (attention, conv, state, scan, pages, runs, norm):
        yield from family.cases(device, smoke)
