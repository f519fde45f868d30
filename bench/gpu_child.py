"""One family of cases, in a process of its own, for `bench/gpu.py`: a line of JSON for each step.

The first line has the names of all cases; each case then has one when it begins, and one with its
row when it ends. A kernel that fails may leave the device unusable: the process ends then, and
another one goes on with the next case. Without ceilings to compare with, it says what they are.
"""

import argparse
import json
import sys
import time
import types
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import triton
from triton.testing import do_bench

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "kernels" / "gpu")]
UNUSABLE = 3

Timer = Callable[[Callable[[], object]], float]


class AnyShape:
    """Stands for `Float[Tensor, "..."]` where jaxtyping is not installed."""

    def __class_getitem__(cls, item: tuple) -> type:
        return item[0]


class StandIn(types.ModuleType):
    """Stands for jaxtyping, which kernels name shapes with and do not call."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyShape


try:
    import jaxtyping  # noqa: F401
except ImportError:
    sys.modules["jaxtyping"] = StandIn("jaxtyping")


def timer(smoke: bool) -> Timer:
    """A function that gives the median time of a call, in us."""
    if smoke:
        return _once_us

    def median_us(call: Callable[[], object]) -> float:
        # the cache of 60 MB is flushed before every run
        milliseconds: Any = do_bench(call, warmup=20, rep=60, return_mode="median")
        return 1e3 * milliseconds

    return median_us


def _once_us(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e6


def ceilings(time_us: Timer, device: str, smoke: bool) -> dict[str, float]:
    """GB/s of a large copy, bytes read and written, and TFLOP/s of a large bfloat16 product."""
    size, side = (2**20, 256) if smoke else (2**32, 8192)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    a, b = torch.randn(2, side, side, device=device, dtype=torch.bfloat16)
    copy_us, product_us = time_us(lambda: target.copy_(source)), time_us(lambda: a @ b)
    return {"GB/s": 2 * size / copy_us / 1e3, "TFLOP/s": 2 * side**3 / product_us / 1e6}


def measure(case: Any, time_us: Timer, peaks: dict[str, float]) -> dict[str, Any]:
    """One row: the check's verdict, then times if it passed; an error is a row too."""
    row: dict[str, Any] = {"case": case.name, "check": "ok"}
    try:
        case.check()
        row["us"] = time_us(case.prepare())
    except Exception as error:  # one kernel's failure must not hide the others
        row["check"] = f"{type(error).__name__}: {error}"[:300]
        return row
    if case.bytes:
        row["GB/s"] = case.bytes / row["us"] / 1e3
        row["of copy"] = row["GB/s"] / peaks["GB/s"]
    if case.flop:
        row["TFLOP/s"] = case.flop / row["us"] / 1e6
        row["of matmul"] = row["TFLOP/s"] / peaks["TFLOP/s"]
    for column, prepare in (("torch us", case.torch), ("flex us", case.flex)):
        if prepare is not None:
            try:
                row[column] = time_us(prepare())
            except Exception as error:  # a baseline that a torch version lacks
                row[column] = f"{type(error).__name__}: {error}"[:200]
    return row


def is_usable(smoke: bool) -> bool:
    """Whether the device still does what it is asked, after an illegal access for one."""
    if smoke:
        return True
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception:  # of whatever class the driver's errors are
        return False
    return True


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family")
    parser.add_argument("--cases", default="gpu_cases")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--peaks", type=json.loads)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    smoke, device = options.smoke, "cpu" if options.smoke else "cuda"
    time_us = timer(smoke)
    if options.peaks is None:
        machine = "Triton's interpreter" if smoke else torch.cuda.get_device_name()
        versions = {"torch": torch.__version__, "triton": triton.__version__}
        families = list(import_module(options.cases).FAMILIES)
        peaks = ceilings(time_us, device, smoke)
        say(machine=machine, versions=versions, peaks=peaks, families=families)
        return 0
    if smoke:
        import_module("support.interpreter").repair()
    cases = list(import_module(options.cases).FAMILIES[options.family](device, smoke))
    say(names=[case.name for case in cases])
    for case in cases[options.first :]:
        say(begins=case.name)
        say(row=measure(case, time_us, options.peaks))
        if not is_usable(smoke):
            return UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
