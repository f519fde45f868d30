"""Check and time every kernel on one GPU, in under 8 minutes.

    python bench/gpu.py --out results

Each row is first held to float64 on random data, then timed, next to torch's own attention where
there is one, and as a share of what the machine was just measured to do: a large copy for bytes, a
large matrix product for operations. Writes `<out>.json` and `<out>.txt`. Runs from a checkout,
nothing installed but torch, Triton and numpy. `--smoke` runs everything small in Triton's
interpreter and times nothing of meaning.
"""

import argparse
import json
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from triton.testing import do_bench

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "kernels" / "gpu")]
DEADLINE_S = 7 * 60


class AnyShape:
    """Stands for `Float[Tensor, "..."]` where jaxtyping is not installed."""

    def __class_getitem__(cls, item: tuple) -> type:
        return item[0]


try:
    import jaxtyping  # noqa: F401
except ImportError:
    stand_in = types.ModuleType("jaxtyping")
    for kind in ("Bool", "Float", "Int", "Int32", "Int64", "Num", "Shaped", "UInt8", "Int8"):
        setattr(stand_in, kind, AnyShape)
    sys.modules["jaxtyping"] = stand_in

from gpu_cases import Case, cases  # noqa: E402
from support import interpreter  # noqa: E402

COLUMNS = (
    "case", "check", "us", "GB/s", "of copy", "TFLOP/s", "of matmul", "torch us", "flex us",
)  # fmt: skip


def timer(smoke: bool) -> Callable[[Callable[[], object]], float]:
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


def ceilings(
    time_us: Callable[[Callable[[], object]], float], device: str, smoke: bool
) -> dict[str, float]:
    """GB/s of a large copy, bytes read and written, and TFLOP/s of a large bfloat16 product."""
    size, side = (2**20, 256) if smoke else (2**32, 8192)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    a, b = torch.randn(2, side, side, device=device, dtype=torch.bfloat16)
    copy_us, product_us = time_us(lambda: target.copy_(source)), time_us(lambda: a @ b)
    return {"GB/s": 2 * size / copy_us / 1e3, "TFLOP/s": 2 * side**3 / product_us / 1e6}


def measure(
    case: Case, time_us: Callable[[Callable[[], object]], float], peaks: dict[str, float]
) -> dict[str, Any]:
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


def table(rows: list[dict[str, Any]]) -> str:
    cells = [
        [_text(row.get(column, "")) for column in COLUMNS]
        for row in [dict(zip(COLUMNS, COLUMNS, strict=True)), *rows]
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def _text(value: object) -> str:
    return (
        f"{value:.3g}"
        if isinstance(value, float) and value < 100
        else (f"{value:.0f}" if isinstance(value, float) else str(value)[:40])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        interpreter.repair()
    device = "cpu" if options.smoke else "cuda"
    begin, time_us = time.monotonic(), timer(options.smoke)
    peaks = ceilings(time_us, device, options.smoke)
    rows = []
    for case in cases(device, options.smoke):
        if time.monotonic() - begin > DEADLINE_S:
            rows.append({"case": case.name, "check": "not reached in time"})
            continue
        rows.append(measure(case, time_us, peaks))
        print(rows[-1], flush=True)
        if not options.smoke:
            torch.cuda.empty_cache()
    machine = "Triton's interpreter" if options.smoke else torch.cuda.get_device_name()
    result = {
        "machine": machine,
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "ceilings": peaks,
        "seconds": time.monotonic() - begin,
        "rows": rows,
    }
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    head = f"{machine}, {result['versions']}, measured ceilings {peaks}\n"
    options.out.with_suffix(".txt").write_text(head + table(rows) + "\n")
    print(head + table(rows))
    if any(row["check"] != "ok" for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
