"""Engines of every kind, tagged storages, and the direct re-shard that a transfer must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise, permutations, product
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from blockstride.layouts import (
    NAMED_LAYOUTS,
    CacheSpec,
    Field,
    Interval,
    KVCacheLayout,
    PoolPolicy,
    full_attention,
    gated_delta_net,
    group_layers,
    latent_attention,
    mamba1,
    mamba2,
    rg_lru,
    short_conv,
    sliding_window_attention,
)
from blockstride.transfer import (
    BlockIds,
    EngineTransferInfo,
    EngineTransferPlan,
    StrategyChoice,
    TransferRequest,
    plan_transfer,
)
from blockstride.transfer.rank_cache import GroupCache
from tests.transfer.executor import Storages, execute

BF16, F32 = torch.bfloat16, torch.float32
POISON = 0xEE
ALL_LAYOUTS = tuple(KVCacheLayout("".join(order)) for order in permutations("LBHNC"))
TP_SIZES = (1, 2, 3, 4, 6, 8, 16)
KV_HEADS = (1, 2, 3, 4, 8, 12)
GROUPS = (1, 2, 8)
POLICIES: tuple[PoolPolicy, ...] = ("unified", "split")
BLOCK_SIZES = ((4, 4), (4, 16), (16, 4), (8, 12))
"""Tokens per block (local, remote)."""

NUM_TOKENS = 29
WEIGHTS = "the weights of a test"
"""What the engines of a test agree on beside shapes."""


def hybrid(
    kv_heads: int, groups: int, *, packed: bool = True, order: str = "DS"
) -> dict[str, CacheSpec]:
    """A model with every kind of layer, as few elements each as keep their axes apart."""
    full = full_attention(kv_heads, 2, BF16, packed=packed)
    window = sliding_window_attention(kv_heads, 2, BF16, window=9, packed=packed)
    latent = latent_attention(3, 1, BF16)
    conv = {"conv_dtype": BF16, "conv_order": order}
    two = mamba2(48, 1, 2, 3, n_groups=groups, **conv)
    return {
        "full.0": full,
        "mamba2.0": two,
        "mamba2.1": two,
        "window.0": window,
        "full.1": full,
        "latent.0": latent,
        "mamba2.2": two,
        "mamba1.0": mamba1(48, 2, 3, **conv),
        "delta.0": gated_delta_net(groups, 48, 2, 1, 3, **conv),
        "lru.0": rg_lru(48, 1, 3, **conv),
        "conv.0": short_conv(48, 3, **conv),
    }


MAX_TOKENS = 256
"""Tokens that have tags, more than any sequence here has blocks for."""


def put(group: GroupCache, storage: np.ndarray, ids: Sequence[int], positions: np.ndarray) -> None:
    """Writes the tags of a sequence into a rank's storage, element by element, without a plan.

    Args:
        group: A group of the rank.
        storage: Bytes of its pool.
        ids: Block of every position of the table; for states, block of every snapshot.
        positions: Tokens of the sequence to write; for states, snapshots.
    """
    rows = np.asarray(ids)
    if group.tokens is None:
        at: tuple[np.ndarray, ...] = (rows[positions],)
    else:
        deal, ranks = group.tokens.interleave, group.tokens.cp_size
        positions = positions[positions // deal % ranks == group.tokens.cp_rank]
        mine = positions // (deal * ranks) * deal + positions % deal
        kernel_block_size = group.placement.block_size // group.placement.kernel_blocks
        block, rest = np.divmod(mine, group.placement.block_size)
        kernel, token = np.divmod(rest, kernel_block_size)
        at = (rows[block] * group.placement.kernel_blocks + kernel, token)
    for layer, slot in group.slots.items():
        for placed in group.placement.fields:
            memory = torch.from_numpy(storage.view(np.int8))
            view = group.placement.byte_view(memory, placed, slot).numpy().view(np.uint8)
            _by_name(view, placed.field)[at] = _held(layer, placed.field)[positions]


def _by_name(view: np.ndarray, field: Field) -> np.ndarray:
    """`[blocks, (token,) *axes in the order of their names, byte]` of a view of a field."""
    names = [axis.name for axis in field.axes]
    order = [axis.name for axis in field.axes if axis.logical == "N"]
    order += sorted(set(names) - set(order))
    return view.transpose(0, *(1 + names.index(name) for name in order), view.ndim - 1)


@cache
def _held(layer: str, field: Field) -> np.ndarray:
    """Tags of the part of a field that a rank holds, `[position, *axes by name, byte]`."""
    shard = field.shard
    axes = sorted((axis.name, axis.extent) for axis in field.axes if axis.logical != "N")
    shape = [shard.extent if shard and name == shard.axis else size for name, size in axes]
    seed = [ord(letter) for letter in f"{layer}/{field.name}"]
    whole = np.random.default_rng(seed).integers(
        0, 256, (MAX_TOKENS, *shape, field.dtype.itemsize), dtype=np.uint8
    )
    if shard is None:
        return whole
    axis = 1 + [name for name, _ in axes].index(shard.axis)
    return whole.take(range(*shard.interval), axis)


@cache
def model(kv_heads: int, groups: int, packed: bool, order: str) -> Mapping[str, CacheSpec]:
    """`hybrid`, made once."""
    return MappingProxyType(hybrid(kv_heads, groups, packed=packed, order=order))


class Side(NamedTuple):
    """One engine of a case, by what the cross product varies."""

    kv_heads: int
    groups: int
    tp_size: int
    layout: KVCacheLayout
    policy: PoolPolicy
    block_size: int
    packed: bool
    order: str

    def engine(self) -> EngineTransferInfo:
        """The engine, with about as many blocks as `NUM_TOKENS` need."""
        specs = model(self.kv_heads, self.groups, self.packed, self.order)
        blocks = -(-NUM_TOKENS // self.block_size)
        groups = group_layers(specs, self.policy)
        counts = [blocks + 3 if group.spec.has_tokens else 4 for group in groups]
        return EngineTransferInfo(
            repr(self),
            specs,
            self.layout,
            self.policy,
            self.block_size,
            (sum(counts),) if self.policy == "unified" else tuple(counts),
            tp_size=self.tp_size,
            model_fingerprint=WEIGHTS,
        )


def tp_sizes(kv_heads: int, groups: int) -> list[int]:
    """The tensor-parallel sizes that a model allows."""
    return [
        size
        for size in TP_SIZES
        if all(units % size == 0 or size % units == 0 for units in (kv_heads, groups))
    ]


def sides(kv_heads: int, groups: int, tp_size: int, *, reads: bool) -> list[Side]:
    """Every engine of a model and size: readers pack K and V, and keep channels outermost."""
    return [
        Side(kv_heads, groups, tp_size, layout, policy, size, reads, "DS" if reads else "SD")
        for layout, policy, size in product(NAMED_LAYOUTS, POLICIES, (4, 16, 8 if reads else 12))
        # groups with pages of their own can't share blocks whose bytes interleave
        if policy == "split" or layout != KVCacheLayout.LHBNC
    ]


def blocks_of(info: EngineTransferInfo, num_tokens: int, snapshots: int = 1) -> list[list[int]]:
    """Scattered blocks for one sequence: a full table for every group, or its snapshots."""
    rng = np.random.default_rng(info.block_size)
    free = {
        pool: rng.permutation(np.arange(1, n)).tolist() for pool, n in enumerate(info.num_blocks)
    }
    tables = []
    for index, group in enumerate(info.groups):
        span = info.block_size * info.cp_size
        needed = -(-num_tokens // span) if group.spec.has_tokens else snapshots
        pool = free[0 if info.policy == "unified" else index]
        tables.append([pool.pop() for _ in range(needed)])
    return tables


def storages(info: EngineTransferInfo, rank: int) -> dict[int, np.ndarray]:
    """Poisoned storages of a rank."""
    pools = info.rank_cache(rank).pool_bytes
    return {pool: np.full(nbytes, POISON, dtype=np.uint8) for pool, nbytes in pools.items()}


@dataclass(frozen=True)
class HandOver:
    """One sequence that a reading engine takes over from a producing one.

    Attributes:
        local: The reader.
        remote: The producer.
        num_tokens: Tokens of the sequence.
        present: Tokens that the reader has already; they are not asked for.
        snapshots: States that each side lists.
    """

    local: EngineTransferInfo
    remote: EngineTransferInfo
    num_tokens: int
    present: int = 0
    snapshots: int = 1

    @cached_property
    def tables(self) -> tuple[list[list[int]], list[list[int]]]:
        """Whole block tables of the reader and of the producer."""
        return (
            blocks_of(self.local, self.num_tokens, self.snapshots),
            blocks_of(self.remote, self.num_tokens, self.snapshots),
        )

    def first_blocks(self, info: EngineTransferInfo, present: int) -> list[int]:
        """Position of the first block that each group of an engine lists."""
        span = info.block_size * info.cp_size
        firsts = []
        for group in info.groups:
            spec = group.spec
            live = spec.live_blocks(self.num_tokens, span).start if spec.has_tokens else 0
            firsts.append(max(live, present // span) if spec.has_tokens else 0)
        return firsts

    def request(self) -> TransferRequest:
        """The request: what is live, and not present on the reader."""
        sides = []
        for info, table, present in zip(
            (self.local, self.remote), self.tables, (self.present, 0), strict=True
        ):
            firsts = self.first_blocks(info, present)
            span = info.block_size * info.cp_size
            sides.append(
                [
                    BlockIds(ids[first:], first, self._in_part(group.spec, present - first * span))
                    for group, ids, first in zip(info.groups, table, firsts, strict=True)
                ]
            )
        return TransferRequest(self.num_tokens, *sides)

    def _in_part(self, spec: CacheSpec, present: int) -> int:
        """Tokens of a first block that are present."""
        return max(0, present) if spec.has_tokens else 0

    def source(self, rank: int) -> dict[int, np.ndarray]:
        """Storages of a producing rank: its live blocks hold tags to their end."""
        memory = storages(self.remote, rank)
        firsts = self.first_blocks(self.remote, 0)
        span = self.remote.block_size * self.remote.cp_size
        for index, group in self.remote.rank_cache(rank).groups.items():
            ids = self.tables[1][index]
            tokens = np.arange(firsts[index] * span, len(ids) * span)
            put(group, memory[group.pool], ids, tokens if group.tokens else np.arange(len(ids)))
        return memory

    def expected(self, rank: int) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
        """Storages of a reading rank: with just what it needs, and with all that may come along.

        The rest of a block that holds a needed token may come along, since it is the request's own.
        """
        least, most = storages(self.local, rank), storages(self.local, rank)
        firsts = self.first_blocks(self.local, self.present)
        span = self.local.block_size * self.local.cp_size
        for index, group in self.local.rank_cache(rank).groups.items():
            ids = self.tables[0][index]
            if group.tokens is None:
                put(group, least[group.pool], ids, np.arange(len(ids)))
                put(group, most[group.pool], ids, np.arange(len(ids)))
                continue
            start, stop = firsts[index] * span, len(ids) * span
            live = max(start, self.present)
            if group.spec.window is not None:
                live = max(live, self.num_tokens + 1 - group.spec.window)
            put(group, least[group.pool], ids, np.arange(live, self.num_tokens))
            put(group, most[group.pool], ids, np.arange(start, stop))
        return least, most

    def plan(self, rank: int, strategy: StrategyChoice = "direct") -> EngineTransferPlan:
        """The plan of one reading rank."""
        return plan_transfer(
            self.local,
            rank,
            self.remote,
            strategy=strategy,
            num_tokens=self.num_tokens,
            num_states=self.snapshots,
        )

    def run(self, plan: EngineTransferPlan, source: Callable[[int], Storages]) -> Storages:
        """The storages of a reading rank after all steps of its plan.

        Args:
            plan: Its plan.
            source: Gives the storages of a producing rank.
        """
        got = storages(self.local, plan.local_rank)
        for peer, read in zip(plan.peers, plan.reads(self.request()), strict=True):
            memory = source(read.remote_rank)
            if peer.staging and peer.pack and read.pack:
                area = storages(peer.staging, plan.local_rank)
                execute(peer.pack, read.pack, area, memory)
                memory = area
            if peer.staging and peer.convert and read.convert:
                area = storages(peer.staging, peer.remote_rank)
                execute(peer.wire, read.wire, area, memory)
                execute(peer.convert, read.convert, got, area)
            else:
                execute(peer.wire, read.wire, got, memory)
        return got

    def check(
        self, strategy: StrategyChoice = "direct", ranks: Iterable[int] | None = None
    ) -> None:
        """Runs the plan of every reading rank and compares whole storages with the re-shard."""
        source = cache(self.source)
        for rank in ranks or range(self.local.world_size):
            self.compare(rank, self.run(self.plan(rank, strategy), source), *self.expected(rank))

    @staticmethod
    def compare(rank: int, got: Storages, least: Storages, most: Storages) -> None:
        """Every needed byte is right, and every other is poison or the rest of a needed block."""
        for pool, memory in got.items():
            right = (memory == least[pool]) | (memory == most[pool])
            assert right.all(), f"rank {rank}, pool {pool}: {np.flatnonzero(~right)[:8]}"


def random_engine(
    rng: np.random.Generator, name: str, specs: Mapping[str, CacheSpec], tp_size: int, tokens: int
) -> EngineTransferInfo:
    """Any engine that can hold `tokens` tokens of a model: all that may differ, differs."""
    while True:
        block_size = int(rng.choice([4, 6, 8, 12, 16]))
        kernel = int(rng.choice([size for size in (1, 2, 4, 8, 16) if block_size % size == 0]))
        cp_size = int(rng.choice([1, 1, 1, 2, 3]))
        policy = POLICIES[rng.integers(2)]
        count = len(group_layers(specs, policy))
        blocks = -(-tokens // (block_size * cp_size)) + 3
        cuts = sorted({0, len(specs), *rng.integers(1, len(specs), rng.choice([0, 0, 2])).tolist()})
        try:
            info = EngineTransferInfo(
                name,
                specs,
                ALL_LAYOUTS[rng.integers(len(ALL_LAYOUTS))],
                policy,
                block_size,
                (blocks * count,) if policy == "unified" else (blocks,) * count,
                kernel_block_size=kernel if rng.integers(2) else None,
                tp_size=tp_size,
                cp_size=cp_size,
                cp_interleave=int(rng.choice([1, 2])),
                stages=tuple(Interval(*cut) for cut in pairwise(cuts)) if len(cuts) > 2 else (),
                model_fingerprint=WEIGHTS,
            )
            for rank in range(info.world_size):
                info.rank_cache(rank)
        except ValueError:  # an order that these pages can't have
            continue
        return info


def random_hand_over(seed: int) -> HandOver:
    """Two random engines of one model, and a sequence between them."""
    rng = np.random.default_rng(seed)
    kv_heads, groups = (int(rng.choice(values)) for values in (KV_HEADS, GROUPS))
    tokens = int(rng.integers(1, 60))
    engines = []
    for name in ("reader", "producer"):
        specs = model(kv_heads, groups, bool(rng.integers(2)), ("DS", "SD")[rng.integers(2)])
        tp_size = int(rng.choice(tp_sizes(kv_heads, groups)))
        engines.append(random_engine(rng, name, specs, tp_size, tokens))
    present = int(rng.integers(0, tokens + 1)) if rng.integers(3) == 0 else 0
    return HandOver(engines[0], engines[1], tokens, present, int(rng.integers(1, 3)))
