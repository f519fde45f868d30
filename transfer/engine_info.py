"""An engine as its peers know it: what its caches are, how they are cut, and where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from blockstride.checks import expect
from blockstride.layouts import (
    CacheGroup,
    CacheSpec,
    GroupPlacement,
    Interval,
    KVCacheLayout,
    KVCachePool,
    PoolLayout,
    PoolPolicy,
    group_layers,
)
from blockstride.transfer.rank_cache import GroupCache, RankCache, tokens_are_outermost
from blockstride.transfer.tokens import TokenAxis


class RankCoordinates(NamedTuple):
    """Where a rank stands in its engine: `rank = (pp * cp_size + cp) * tp_size + tp`.

    Attributes:
        tp: Position in its tensor-parallel group, which cuts heads and channels.
        cp: Position in its context-parallel group, which deals out tokens.
        pp: Pipeline stage, which holds an interval of the layers.
    """

    tp: int
    cp: int = 0
    pp: int = 0


def even_stages(num_layers: int, pp_size: int) -> tuple[Interval, ...]:
    """Pipeline stages of as equal numbers of layers as possible, the longer ones first.

    Raises:
        ValueError: More stages than layers.
    """
    expect(0 < pp_size <= num_layers, "pp_size", f"1 to {num_layers} layers", pp_size)
    size, longer = divmod(num_layers, pp_size)
    cuts = [stage * size + min(stage, longer) for stage in range(pp_size + 1)]
    return tuple(Interval(*cut) for cut in pairwise(cuts))


@dataclass(frozen=True)
class EngineTransferInfo:
    """What a peer must know of an engine to plan transfers with it.

    Groups are those of the whole model, numbered as `group_layers` makes them, so that one set of
    block tables serves all ranks. Under `split` the pools carry the numbers of the groups; under
    `unified` there is one, number 0.

    Attributes:
        engine_id: Unique name.
        specs: Layer name -> spec of the whole model, in layer order.
        layout: Stride order of every pool.
        policy: `unified` or `split`.
        block_size: Tokens per block.
        num_blocks: Blocks of each pool, null blocks included.
        kernel_block_size: Tokens per kernel block; None: a block is not split.
        tp_size: Tensor-parallel ranks.
        cp_size: Context-parallel ranks; token `t` lives on rank `t // cp_interleave % cp_size`, and
            a block id stands for `block_size` tokens on each.
        cp_interleave: Consecutive tokens that stay together.
        stages: Layers of each pipeline stage, intervals of `specs` in order; () for a single stage.
        model_fingerprint: What tells the model's weights, and all that bears on caches, from any
            other's. Nothing here reads it, but caches are exchanged between equal ones only; ""
            for an engine that is only planned with.

    Raises:
        ValueError: Sizes that contradict each other, or a parallel size the model can't have; the
            message names the field and both values.
    """

    engine_id: str
    specs: Mapping[str, CacheSpec]
    layout: KVCacheLayout
    policy: PoolPolicy
    block_size: int
    num_blocks: tuple[int, ...]
    kernel_block_size: int | None = None
    tp_size: int = 1
    cp_size: int = 1
    cp_interleave: int = 1
    stages: tuple[Interval, ...] = ()
    model_fingerprint: str = ""
    _caches: dict[int, RankCache] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for name, spec in self.specs.items():
            part = f"rank {spec.tp_rank} of {spec.tp_size}"
            expect(spec.tp_size == 1, name, "the spec of the whole model", part)
        for name in ("tp_size", "cp_size", "cp_interleave", "block_size"):
            expect(getattr(self, name) > 0, name, "at least 1", getattr(self, name))
        for group in self.groups:
            group.spec.tp_shard(0, self.tp_size)
        pools = 1 if self.policy == "unified" else len(self.groups)
        got = len(self.num_blocks)
        expect(got == pools, "num_blocks", f"{pools} counts, one a pool", self.num_blocks)
        whole = self.cp_size == 1 or self.block_size % self.cp_interleave == 0
        expect(whole, "cp_interleave", f"a divisor of {self.block_size}", self.cp_interleave)
        ends = [0, *(stage.stop for stage in self.stages)] if self.stages else [len(self.specs)]
        tiles = ends[-1] == len(self.specs) and all(
            stage.start == end < stage.stop for stage, end in zip(self.stages, ends, strict=False)
        )
        expect(tiles, "stages", f"intervals that tile {len(self.specs)} layers", self.stages)

    @classmethod
    def of(
        cls,
        pools: Sequence[KVCachePool | PoolLayout],
        specs: Mapping[str, CacheSpec],
        engine_id: str,
        *,
        tp_size: int = 1,
        model_fingerprint: str = "",
    ) -> EngineTransferInfo:
        """The engine whose ranks have pools such as these.

        Args:
            pools: What `plan_pools` made for one of its ranks, and all that it made; or their
                memory.
            specs: Layer name -> spec of the whole model, in layer order.
            engine_id: Unique name.
            tp_size: Tensor-parallel ranks.
            model_fingerprint: See the class.
        """
        layouts = [pool.layout if isinstance(pool, KVCachePool) else pool for pool in pools]
        placements = [placement for layout in layouts for placement in layout.groups]
        block_size = placements[0].block_size
        kernel_blocks = max(placement.kernel_blocks for placement in placements)
        return cls(
            engine_id,
            specs,
            layouts[0].layout,
            # a single pool of a single group lies alike under both
            "unified" if len(layouts) == 1 else "split",
            block_size,
            tuple(layout.num_blocks for layout in layouts),
            kernel_block_size=block_size // kernel_blocks if kernel_blocks > 1 else None,
            tp_size=tp_size,
            model_fingerprint=model_fingerprint,
        )

    @cached_property
    def groups(self) -> tuple[CacheGroup, ...]:
        """Groups of the whole model."""
        return group_layers(self.specs, self.policy)

    @property
    def pp_size(self) -> int:
        """Number of pipeline stages."""
        return max(1, len(self.stages))

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.pp_size * self.cp_size * self.tp_size

    @property
    def kernel_blocks(self) -> int:
        """Kernel blocks (physical blocks) per logical block with tokens."""
        return self.block_size // (self.kernel_block_size or self.block_size)

    @property
    def block_bytes(self) -> tuple[int, ...]:
        """Bytes of a block of each pool on rank 0, padding included."""
        pools = self.rank_cache(0).pool_bytes
        return tuple(nbytes // self.num_blocks[pool] for pool, nbytes in pools.items())

    def __str__(self) -> str:
        """Name, parallel sizes, stride order, policy and block size, for a log."""
        sizes = [f"tp {self.tp_size}"]
        sizes += [f"pp {self.pp_size}"] if self.pp_size > 1 else []
        sizes += [f"cp {self.cp_size}"] if self.cp_size > 1 else []
        kernel = f" of {self.kernel_blocks} kernel blocks" if self.kernel_blocks > 1 else ""
        return (
            f"{self.engine_id} ({', '.join(sizes)}, {self.layout}, {self.policy}, "
            f"blocks of {self.block_size} tokens{kernel})"
        )

    def coordinates(self, rank: int) -> RankCoordinates:
        """Where rank number `rank` stands."""
        expect(0 <= rank < self.world_size, "rank", f"0 to {self.world_size - 1}", rank)
        rest, tp = divmod(rank, self.tp_size)
        pp, cp = divmod(rest, self.cp_size)
        return RankCoordinates(tp, cp, pp)

    def rank(self, at: RankCoordinates) -> int:
        """The number of the rank that stands there."""
        return (at.pp * self.cp_size + at.cp) * self.tp_size + at.tp

    def rank_cache(self, rank: int) -> RankCache:
        """All that one rank caches; made at the first call."""
        if rank not in self._caches:
            self._caches[rank] = self._make_rank_cache(self.coordinates(rank))
        return self._caches[rank]

    def _make_rank_cache(self, at: RankCoordinates) -> RankCache:
        names = list(self.specs)
        stage = self.stages[at.pp] if self.stages else Interval(0, len(names))
        held = set(names[stage.start : stage.stop])
        parts: dict[int, CacheGroup] = {}
        for index, group in enumerate(self.groups):
            layers = tuple(name for name in group.layer_names if name in held)
            if layers:
                parts[index] = CacheGroup(group.spec.tp_shard(at.tp, self.tp_size), layers)
        shared = self.policy == "unified"
        pools = {0: list(parts)} if shared else {index: [index] for index in parts}
        caches: dict[int, GroupCache] = {}
        pool_bytes = {}
        for pool, indices in pools.items():
            planned = PoolLayout.of(
                [parts[index] for index in indices],
                layout=self.layout,
                num_blocks=self.num_blocks[pool],
                block_size=self.block_size,
                kernel_block_size=self.kernel_block_size,
            )
            pool_bytes[pool] = planned.nbytes
            for index, placement in zip(indices, planned.groups, strict=True):
                caches[index] = GroupCache(index, pool, placement, self._tokens(placement, at.cp))
        return RankCache(caches, pool_bytes)

    def _tokens(self, placement: GroupPlacement, cp_rank: int) -> TokenAxis | None:
        if not placement.group.spec.has_tokens:
            return None
        split = 1 if tokens_are_outermost(placement) else placement.kernel_blocks
        run_size = self.block_size // split
        return TokenAxis(self.block_size, run_size, cp_rank, self.cp_size, self.cp_interleave)
