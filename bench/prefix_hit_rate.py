"""How much of prompts needn't be computed again: by workload, memory, and what is kept.

    python -m bench.prefix_hit_rate [--sizes granite-13M nemotron-h-8B] [--json FILE]

Traces run through the engine's own scheduler, block manager and prefix cache, without a model, one
request after the other. A cache without limits is compared with what is possible, and those with a
half, a quarter and an eighth of what it holds in the end with other policies in as many bytes.
Under `split` a quarter of the bytes are for states.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.prefix_policies import Costs, Marconi, SequenceLRU
from bench.prefix_traces import WORKLOADS, Ask, bounds, make_trace
from blockstride.layouts import (
    CacheSpec,
    PoolLayout,
    choose_block_size,
    full_attention,
    mamba2,
    plan_pools,
)
from blockstride.models import SamplingParams
from blockstride.models.engine.block_manager import BlockManager
from blockstride.models.engine.prefix_cache import PrefixCache
from blockstride.models.engine.request import Request
from blockstride.models.engine.scheduler import Scheduler
from blockstride.transfer.atomic_file import write_json

SIZES: dict[str, Sequence[CacheSpec]] = {
    # that of models_vs_peers.py: states are as large as the keys and values of 406 tokens
    "granite-13M": [mamba2(8, 64, 64, 4, conv_dtype=torch.float32)] * 6
    + [full_attention(2, 64, torch.float32)] * 2,
    # 6,234 tokens
    "nemotron-h-8B": [mamba2(128, 64, 128, 4, n_groups=8, conv_dtype=torch.bfloat16)] * 24
    + [full_attention(8, 128, torch.bfloat16)] * 4,
}
FRACTIONS = (2, 4, 8)
ALPHAS = (0.0, 0.1, 0.3, 1.0, 3.0)
PLENTY = 1 << 20
BLOCK_SIZE = 16
STEP = 2048


class Replay:
    """A trace through our prefix cache, without a model: what is scheduled counts as computed.

    Args:
        pools: Where caches would lie.
        max_len: Most tokens of a request.
    """

    def __init__(self, pools: Sequence[PoolLayout], max_len: int) -> None:
        self.blocks = BlockManager(pools, 16, max_len)
        self.cache = PrefixCache(self.blocks)
        self.scheduler = Scheduler(self.blocks, STEP, STEP, lambda freed: None, self.cache)
        self._asks: dict[int, Ask] = {}
        self._hits: dict[int, int] = {}

    def run(self, trace: Sequence[Ask], at_once: bool = False) -> list[int]:
        """Tokens of each prompt that were not computed, one request after the other or together."""
        for i, ask in enumerate(trace):
            params = SamplingParams(max_tokens=len(ask.answer))
            request = Request(i, ask.prompt.tolist(), params, len(ask.prompt) + len(ask.answer))
            self._asks[i] = ask
            self.scheduler.add(request)
            if not at_once:
                self._finish()
        self._finish()
        return [self._hits[i] for i in range(len(trace))]

    def _finish(self) -> None:
        while self.scheduler.has_work:
            step = self.scheduler.schedule()
            assert step, "one request always fits"
            requests = [scheduled.request for scheduled in step]
            for request in requests:
                self._hits.setdefault(request.request_id, request.num_resumed)
            self.scheduler.on_computed()
            for request in requests:
                if request.num_uncached == 0:
                    self._answer(request)

    def _answer(self, request: Request) -> None:
        """All of an answer is computed in a step but its last token, which never is."""
        answer, known = self._asks[request.request_id].answer.tolist(), len(request.output_ids)
        request.output_ids += answer[known : max(len(answer) - 1, known + 1)]
        if len(request.output_ids) == len(answer):
            request.finish_reason = "length"
            self.scheduler.remove(request)

    def kept_bytes(self) -> int:
        """Bytes of the blocks that are kept."""
        kept = zip(self.cache.store.kept_blocks(), self.blocks.pools, strict=True)
        return sum(len(set(np.concatenate(ids)) - {0}) * pool.block_bytes for ids, pool in kept)


@dataclass(frozen=True)
class Case:
    """A trace, and the caches of the model that it is for."""

    layers: Mapping[str, CacheSpec]
    trace: Sequence[Ask]

    @classmethod
    def of(cls, size: str, workload: str, scale: float = 1.0, share: float = 1.0) -> Case:
        layers = {str(i): layer for i, layer in enumerate(SIZES[size])}
        return cls(layers, make_trace(workload, scale=scale, share=share))

    @property
    def max_len(self) -> int:
        return max(len(ask.prompt) + len(ask.answer) for ask in self.trace)

    @property
    def costs(self) -> Costs:
        pools = self.pools("split", num_blocks=1)
        has = [pool.groups[0].group.spec.has_tokens for pool in pools]
        both = zip(pools, has, strict=True)
        nbytes = [(pool.block_bytes, tokens) for pool, tokens in both]
        return Costs(
            sum(n for n, tokens in nbytes if tokens) / BLOCK_SIZE,
            sum(n for n, tokens in nbytes if not tokens),
        )

    def pools(self, policy: str, **given: int) -> tuple[PoolLayout, ...]:
        size = choose_block_size(self.layers, policy, BLOCK_SIZE)
        return plan_pools(self.layers, layout="BLHNC", policy=policy, block_size=size, **given)

    def rate(self, hits: Iterable[int]) -> float:
        """Share of all tokens of prompts."""
        return sum(hits) / sum(len(ask.prompt) for ask in self.trace)

    def unlimited(self) -> tuple[list[int], int]:
        """Hits of a cache that never evicts, and the bytes that it keeps."""
        replay = Replay(self.pools("split", num_blocks=PLENTY), self.max_len)
        hits = replay.run(self.trace)
        return hits, replay.kept_bytes()

    def ours(self, policy: str, nbytes: int) -> float:
        """Our hit rate in so many bytes."""
        pools = self.pools(policy, memory_bytes=nbytes, num_seqs=1, kept_states=PLENTY)
        replay = Replay(pools, self.max_len)
        rate = self.rate(replay.run(self.trace))
        replay.blocks.check()
        return rate

    def limited(self, nbytes: int) -> dict[str, float]:
        """Hit rates in so many bytes."""
        others = {
            "whole": SequenceLRU(self.costs, nbytes, parts=False),
            "LRU": SequenceLRU(self.costs, nbytes, parts=True),
            **{f"Marconi {a}": Marconi(self.costs, nbytes, a) for a in ALPHAS},
        }
        rates = {name: self.rate(map(other.ask, self.trace)) for name, other in others.items()}
        best = max(rates.pop(f"Marconi {alpha}") for alpha in ALPHAS)
        ours = {policy: self.ours(policy, nbytes) for policy in ("split", "unified")}
        return {**ours, "Marconi": best, **rates}


def measure(case: Case) -> dict[str, dict[str, float]]:
    """Hit rates by memory."""
    bound = bounds(case.trace)
    hits, nbytes = case.unlimited()
    without = {"bound": bound.anywhere, "seen": bound.seen, "ours": hits}
    found = {"unlimited": {name: case.rate(each) for name, each in without.items()}}
    return found | {f"1/{n}": case.limited(nbytes // n) for n in FRACTIONS}


def show(size: str, results: Mapping[str, dict[str, dict[str, float]]]) -> None:
    """Prints a table."""
    title = f"{size}: tokens of prompts that needn't be computed, %"
    table = Table(title=title)
    columns = ("split", "unified", "Marconi", "LRU", "whole")
    for name in ("workload", "memory", "bound", "seen", *columns):
        table.add_column(name, justify="left" if name == "workload" else "right")
    for workload, found in results.items():
        first = found["unlimited"]
        known = [f"{100 * first[name]:.1f}" for name in ("bound", "seen", "ours")]
        table.add_row(workload, "no limit", *known)
        for memory in (f"1/{n}" for n in FRACTIONS):
            rates = [f"{100 * found[memory][name]:.1f}" for name in columns]
            table.add_row("", memory, "", "", *rates)
        table.add_section()
    Console(width=110).print(table)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="how much of prompts is found in a cache")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--json", type=Path, help="write all rates to this file")
    args = parser.parse_args()
    results = {}
    for size in args.sizes:
        console = Console(stderr=True)
        names = track(WORKLOADS, size, console=console, transient=True)
        results[size] = {name: measure(Case.of(size, name)) for name in names}
        show(size, results[size])
    if args.json:
        write_json(args.json, results, indent=1)


if __name__ == "__main__":
    main()
