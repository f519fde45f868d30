"""Small specs of every kind, any stride order, random pools, and the address of every element."""

from collections.abc import Callable, Iterable, Mapping
from itertools import permutations
from typing import NamedTuple

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.vendor.pretty import for_type_by_name
from torch import Tensor

from blockstride.layouts import (
    CacheSpec,
    KVCacheLayout,
    PoolLayout,
    StateSpec,
    full_attention,
    gated_delta_net,
    latent_attention,
    mamba1,
    mamba2,
    plan_pools,
    rg_lru,
    short_conv,
    sliding_window_attention,
)

# two fifths of what the profile asks for: 40, and 2,000 in `make prove`
LAW = settings(max_examples=settings().max_examples * 2 // 5, deadline=None)
"""How hard a law is tried; no deadline, since a busy machine breaks no law."""

# hypothesis would print class attributes as if they were fields, each with all the others in it
for_type_by_name(
    KVCacheLayout.__module__, "KVCacheLayout", lambda layout, printer, _: printer.text(repr(layout))
)

ALL_LAYOUTS = tuple(KVCacheLayout("".join(order)) for order in permutations("LBHNC"))
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn

ATTENTION: Mapping[str, Callable[[torch.dtype], CacheSpec]] = {
    "mha": lambda dtype: full_attention(8, 4, dtype),
    "gqa": lambda dtype: full_attention(2, 8, dtype),
    "mqa": lambda dtype: full_attention(1, 24, dtype),
    "key-wider-than-value": lambda dtype: full_attention(4, 12, dtype, value_size=4),
    "planes": lambda dtype: full_attention(4, 8, dtype, packed=False),
    "unaligned-planes": lambda dtype: full_attention(3, 5, dtype, packed=False),
    "window": lambda dtype: sliding_window_attention(4, 8, dtype, window=5),
    "mla": lambda dtype: latent_attention(24, 8, dtype),
}
TOKENS: Mapping[str, CacheSpec] = {
    **{f"{name}-bf16": make(BF16) for name, make in ATTENTION.items()},
    "gqa-fp32": full_attention(2, 8, torch.float32),
    "gqa-fp16": full_attention(2, 8, torch.float16),
    "gqa-fp8": full_attention(2, 8, FP8),
    "gqa-int8": full_attention(2, 8, torch.int8),
}


def states(order: str) -> dict[str, StateSpec]:
    """A recurrent cache of every kind, its convolution in memory order `DS` or `SD`."""
    conv = {"conv_dtype": BF16, "conv_order": order}
    return {
        f"mamba-1-{order}": mamba1(16, 4, 4, **conv),
        f"unaligned-mamba-1-{order}": mamba1(15, 3, 4, **conv),
        f"mamba-2-{order}": mamba2(16, 4, 8, 4, n_groups=2, ssm_dtype=BF16, **conv),
        f"gated-delta-net-{order}": gated_delta_net(4, 16, 4, 2, 4, **conv),
        f"rg-lru-{order}": rg_lru(4, 12, 4, **conv),
        f"short-conv-{order}": short_conv(48, 3, conv_dtype=torch.float32, conv_order=order),
    }


STATES: Mapping[str, StateSpec] = {**states("DS"), **states("SD")}
SPECS: Mapping[str, CacheSpec] = {**TOKENS, **STATES}


def addresses(view: Tensor, storage: Tensor) -> Tensor:
    """Byte of every element of a view, counted from the start of a storage; shaped as the view."""
    grid = torch.tensor(view.data_ptr() - storage.data_ptr())
    for extent, stride in zip(view.shape, view.stride(), strict=True):
        grid = grid[..., None] + torch.arange(extent) * stride * view.element_size()
    return grid


def byte_addresses(view: Tensor, storage: Tensor) -> Tensor:
    """The same for every byte of every element, flat."""
    return (addresses(view, storage)[..., None] + torch.arange(view.element_size())).flatten()


def can_be_cut(spec: CacheSpec, tp_size: int) -> bool:
    """Whether every field can be dealt to `tp_size` ranks, told from its shard alone."""
    for field in spec.page(1).fields:
        if field.shard is not None:
            units = field.shard.extent // field.shard.unit
            shared = field.shard.replicate and tp_size % units == 0
            if units % tp_size and not shared:
                return False
    return True


TP_SIZES = {kind: [n for n in range(1, 17) if can_be_cut(spec, n)] for kind, spec in SPECS.items()}


class PoolCase(NamedTuple):
    """A random pool in numbers and names, so that a failing example can be read."""

    kinds: tuple[str, ...]
    order: str
    policy: str
    tp_size: int
    tp_rank: int
    num_blocks: int
    kernel_block_size: int
    kernel_blocks: int
    which: int

    def layers(self) -> dict[str, CacheSpec]:
        """The layers of one rank."""
        return {
            f"{i}.{kind}": SPECS[kind].tp_shard(self.tp_rank, self.tp_size)
            for i, kind in enumerate(self.kinds)
        }

    def plan(self) -> PoolLayout:
        """One of the pools that the layers get."""
        pools = plan_pools(
            self.layers(),
            layout=KVCacheLayout(self.order),
            policy=self.policy,
            num_blocks=self.num_blocks,
            block_size=self.kernel_block_size * self.kernel_blocks,
            kernel_block_size=self.kernel_block_size,
        )
        return pools[self.which % len(pools)]


def can_hold(order: str, kinds: Iterable[str], policy: str) -> bool:
    """Whether a stride order can hold a model: states and blocks of other groups forbid some."""
    states = any(kind not in TOKENS for kind in kinds)
    alike = policy == "split" or len(set(kinds)) == 1
    whole = order[0] == "B" or set(order[:2]) == set("LB")
    return (order[-1] == "C" or not states) and (alike or whole)


@st.composite
def pool_cases(draw: st.DrawFn) -> PoolCase:
    """Any order, policy, rank, block size and kernel block for one to three kinds of layers."""
    kinds = draw(st.lists(st.sampled_from(sorted(SPECS)), min_size=1, max_size=3, unique=True))
    layers = [kind for kind in kinds for _ in range(draw(st.integers(1, 3)))]
    policy = draw(st.sampled_from(["unified", "split"]))
    orders = [layout.order for layout in ALL_LAYOUTS if can_hold(layout.order, kinds, policy)]
    common = [n for n in range(1, 17) if all(n in TP_SIZES[kind] for kind in kinds)]
    tp_size = draw(st.sampled_from(common))
    return PoolCase(
        kinds=tuple(draw(st.permutations(layers))),
        order=draw(st.sampled_from(orders)),
        policy=policy,
        tp_size=tp_size,
        tp_rank=draw(st.integers(0, tp_size - 1)),
        num_blocks=draw(st.integers(1, 3)),
        kernel_block_size=draw(st.integers(1, 4)),
        kernel_blocks=draw(st.integers(1, 3)),
        which=draw(st.integers(0, 2)),
    )
