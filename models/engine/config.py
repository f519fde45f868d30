"""How an engine keeps its caches and forms its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blockstride.kernels.checks import expect
from blockstride.layouts import KVCacheLayout
from blockstride.layouts.groups import check_policy


@dataclass(frozen=True)
class EngineConfig:
    """How an engine keeps its caches and forms its steps.

    Attributes:
        layout: Stride order of the pools.
        policy: One pool for all groups, or one a group.
        block_size: Tokens per block; inflated under `unified` until a page holds a state.
        kernel_block_size: Tokens per block that kernels see; a whole block when None.
        kv_cache_dtype: What keys and values are cached as, also `"float8_e4m3fn"`; `"auto"` as
            the model computes.
        ssm_dtype: What recurrent states are cached as; `"auto"` as float32.
        conv_order: Memory order of convolution states, `"DS"` or `"SD"`.
        cache_bytes: Memory of each rank for all its pools; mapped when first written.
        num_blocks: Blocks of each pool, null block included, instead of `cache_bytes`.
        max_num_seqs: Requests that run at once.
        max_num_batched_tokens: Most tokens of a step.
        prefill_chunk: Most tokens of one request in a step; a whole step when None.
        max_len: Most tokens of a request; what the model and the cache allow when None.
        tp_size: Tensor-parallel ranks, each a process.
        poison: Debugging mode: fill what no kernel may read with NaN.

    Raises:
        ValueError: A number that is not positive, an unknown layout or policy.
    """

    layout: str = "BLHNC"
    policy: str = "split"
    block_size: int = 16
    kernel_block_size: int | None = None
    kv_cache_dtype: str = "auto"
    ssm_dtype: str = "auto"
    conv_order: str = "DS"
    cache_bytes: int = 1 << 30
    num_blocks: int | Sequence[int] | None = None
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 2048
    prefill_chunk: int | None = None
    max_len: int | None = None
    tp_size: int = 1
    poison: bool = False

    def __post_init__(self) -> None:
        KVCacheLayout.parse(self.layout)
        check_policy(self.policy)
        names = ("block_size", "kernel_block_size", "cache_bytes", "max_num_seqs", "tp_size")
        for name in (*names, "max_num_batched_tokens", "prefill_chunk", "max_len"):
            value = getattr(self, name)
            expect(value is None or value > 0, name, "a positive number", value)
