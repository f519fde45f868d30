"""What `bench/gpu.py` runs: kernels at the sizes of real steps, with checks and baselines."""

from collections.abc import Callable, Iterator

from gpu_cases import attention, conv, norm, pages, runs, scan, state, steps
from gpu_cases.case import Case

__all__ = ["FAMILIES", "Case"]


def _attention(device: str, smoke: bool) -> Iterator[Case]:
    return (case for case in attention.cases(device, smoke) if not _is_specialised(case))


def _specialised(device: str, smoke: bool) -> Iterator[Case]:
    return (case for case in attention.cases(device, smoke) if _is_specialised(case))


def _is_specialised(case: Case) -> bool:
    return case.name.startswith("prefill") and "page 128" in case.name


# the kernel that is most likely to hang, whose warps wait for each other, is the last one
FAMILIES: dict[str, Callable[[str, bool], Iterator[Case]]] = {
    "attention": _attention,
    "conv": conv.cases,
    "state": state.cases,
    "scan": scan.cases,
    "pages": pages.cases,
    "runs": runs.cases,
    "norm": norm.cases,
    "steps": steps.cases,
    "warp-specialised attention": _specialised,
}
