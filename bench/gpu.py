"""Check and time every kernel on one GPU, in under 8 minutes, whatever becomes of any of them.

    python bench/gpu.py --out results

Each row is first held to float64 on random data, then timed, next to torch's own attention where
there is one, and as a share of what the machine was just measured to do: a large copy for bytes, a
large matrix product for operations. A family of kernels has processes and a time of its own: a case
that crashes, hangs or leaves the device unusable costs its row, and a fresh process goes on behind
it. `<out>.json` and `<out>.txt` are written anew after every row. Runs from a checkout, nothing
installed but torch, Triton, numpy and einops, and offline. `--smoke` runs everything small in
Triton's interpreter and times nothing of meaning.
"""

import argparse
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DEADLINE_S, FAMILY_S, START_S, CASE_S = 7 * 60, 200, 60, 90
COLUMNS = (
    "case", "check", "us", "GB/s", "of copy", "TFLOP/s", "of matmul", "torch us", "flex us",
)  # fmt: skip


class Child:
    """A process of `gpu_child.py`, and the lines that it says."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "gpu_child.py"), *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def says(self, seconds: float, until: float = math.inf) -> Iterator[dict[str, Any]]:
        """Its lines until it ends, or one takes so many seconds, or it is so late."""
        patience = max(seconds, START_S)
        while True:
            patience = min(patience, until - time.monotonic())
            try:
                line = self._lines.get(timeout=max(0.0, patience))
            except queue.Empty:
                return
            if line is None:
                self._process.wait()
                return
            patience = seconds
            if line.startswith("{"):
                yield json.loads(line)

    def end(self) -> str:
        """Ends it, with all that it has started, and says how it had ended by itself."""
        code = self._process.poll()
        if code is None:
            # what hangs in a driver may outlive even this, but is not waited for
            os.killpg(self._process.pid, signal.SIGKILL)
            return "no answer in time"
        return f"ended by signal {-code}" if code < 0 else f"ended with code {code}"


class Results:
    """Rows, on disk as soon as they are known."""

    def __init__(self, out: Path) -> None:
        self._out, self.begin = out, time.monotonic()
        self.facts: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        print(row, flush=True)
        self.rows.append(row)
        self.write()

    def write(self) -> str:
        seconds = time.monotonic() - self.begin
        result = self.facts | {"seconds": seconds, "rows": self.rows}
        text = f"{self.facts}\n{table(self.rows)}\n"
        for suffix, content in ((".json", json.dumps(result, indent=1) + "\n"), (".txt", text)):
            partial = self._out.with_suffix(suffix + ".partial")
            partial.write_text(content)
            partial.replace(self._out.with_suffix(suffix))
        return text


def run_family(family: str, options: argparse.Namespace, results: Results, until: float) -> None:
    """All cases of a family: as many processes as it takes."""
    names: list[str] | None = None
    done = 0
    while names is None or done < len(names):
        child = Child(*_arguments(family, options, results, done))
        begun, before = False, done
        try:
            for line in child.says(options.case_seconds, until):
                names = line.get("names", names)
                begun |= "begins" in line
                if "row" in line:
                    begun, done = False, done + 1
                    results.add(line["row"])
        finally:
            ending = child.end()
        if names is None:
            results.add({"case": family, "check": f"no cases: {ending}"})
            return
        if time.monotonic() > until:
            for name in names[done:]:
                results.add({"case": name, "check": "not reached in time"})
            return
        # one that ends between two cases, again and again, must not be started for ever
        if begun or done == before < len(names):
            results.add({"case": names[done], "check": ending})
            done += 1


def _arguments(
    family: str, options: argparse.Namespace, results: Results, first: int
) -> Iterator[str]:
    yield from (family, "--cases", options.cases, "--first", str(first))
    yield from ("--peaks", json.dumps(results.facts["peaks"]))
    if options.smoke:
        yield "--smoke"


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
    if not isinstance(value, float):
        return str(value)[:40]
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--cases", default="gpu_cases", help="module that has FAMILIES")
    parser.add_argument("--family", action="append", help="only this one; repeat for several")
    parser.add_argument("--case-seconds", type=float, default=CASE_S)
    parser.add_argument("--family-seconds", type=float, default=FAMILY_S)
    options = parser.parse_args()
    if options.smoke:
        os.environ["TRITON_INTERPRET"] = "1"
    results = Results(options.out)
    child = Child("ceilings", "--cases", options.cases, *(["--smoke"] if options.smoke else []))
    results.facts = next(child.says(DEADLINE_S / 3), {})
    ending = child.end()
    if not results.facts:
        print(f"no device: {ending}", file=sys.stderr)
        return 1
    for family in options.family or results.facts["families"]:
        limits = (results.begin + DEADLINE_S, time.monotonic() + options.family_seconds)
        run_family(family, options, results, min(limits))
    print(results.write())
    return int(any(row["check"] != "ok" for row in results.rows))


if __name__ == "__main__":
    sys.exit(main())
