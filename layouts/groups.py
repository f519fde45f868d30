"""Groups: layers that share a block table; and the block size that makes their pages meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from blockstride.checks import expect
from blockstride.layouts.spec import CacheSpec

PoolPolicy = Literal["unified", "split"]
"""`unified`: all groups share one block id space and page size. `split`: each group has its own.

Functions take any string and refuse others by name, as it often comes from a command line."""


@dataclass(frozen=True)
class CacheGroup:
    """Layers with equal specs that always own the same blocks, so that one block table serves all.

    Attributes:
        spec: The spec they share.
        layer_names: The layers; layer `i` of every group of a pool lies in slot `i`.
    """

    spec: CacheSpec
    layer_names: tuple[str, ...]


def check_policy(policy: str) -> None:
    """Raise `ValueError` unless `policy` is one of `PoolPolicy`."""
    known = get_args(PoolPolicy)
    expect(policy in known, "policy", f"one of {known}", repr(policy))


def group_layers(layers: Mapping[str, CacheSpec], policy: str) -> tuple[CacheGroup, ...]:
    """Groups the layers of a model, in layer order.

    `split` makes one group of each distinct spec. `unified` cuts those into groups of at most as
    many layers as the rarest spec has, so that a block of a pool, which spans one slot for each
    layer of a group, is filled by every group: 4 attention and 28 Mamba layers make 1 + 7 groups.

    Raises:
        ValueError: No layers, or an unknown policy.
    """
    check_policy(policy)
    expect(len(layers) > 0, "layers", "at least one layer", len(layers))
    by_spec: dict[CacheSpec, list[str]] = {}
    for name, spec in layers.items():
        by_spec.setdefault(spec, []).append(name)
    slots = min(len(names) for names in by_spec.values())
    groups = []
    for spec, names in by_spec.items():
        step = len(names) if policy == "split" else slots
        groups += [CacheGroup(spec, tuple(names[i : i + step])) for i in range(0, len(names), step)]
    return tuple(groups)


def choose_block_size(layers: Mapping[str, CacheSpec], policy: str, block_size: int = 16) -> int:
    """Tokens per block, decided on the whole model: it does not depend on the tensor-parallel size.

    `split` takes `block_size`. `unified` inflates it, in multiples of itself, until the largest
    page with tokens holds the largest state, so that states and tokens can share block ids without
    wasting most of a page. Two engines of one model therefore agree, whatever ranks they run on; a
    rank whose state outgrows its tokens (groups that are replicated) pads the page instead.

    Args:
        layers: Layer name -> spec of the whole model.
        policy: `unified` or `split`.
        block_size: Tokens per block that kernels want.

    Raises:
        ValueError: A spec that is one rank's part, or a block size that is not positive.
    """
    check_policy(policy)
    expect(block_size > 0, "block_size", "a positive number of tokens", block_size)
    for name, spec in layers.items():
        expect(
            spec.tp_size == 1, name, "the spec of the whole model", f"one of {spec.tp_size} parts"
        )
    tokens = max((spec.token_bytes for spec in layers.values()), default=0)
    states = [spec.page(1).nbytes for spec in layers.values() if not spec.has_tokens]
    if policy == "split" or not states or not tokens:
        return block_size
    return max(1, -(-max(states) // (tokens * block_size))) * block_size
