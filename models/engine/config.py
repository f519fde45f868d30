"""How an engine keeps its caches and forms its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from os import PathLike, fspath

import numpy as np

from blockstride.checks import expect
from blockstride.layouts import KVCacheLayout
from blockstride.layouts.groups import check_policy
from blockstride.models.engine.values import expect_type, whole

PASSING_BYTES = 1 << 28
"""Host memory that files pass through, where none is asked for."""


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
        prefix_caching: Whether what one request has computed serves others that begin alike.
        host_cache_bytes: Host memory of each rank for prefixes that its pools have no room for;
            none when None, but for what files pass through.
        file_cache: Folder of files that prefixes are kept in, for other processes and other times;
            "" for none.
        file_cache_bytes: Most bytes of these files.
        record_steps: Whether decode steps are recorded, and replayed without the Python between
            launches.
        poison: Debugging mode: fill what no kernel may read with NaN.

    Raises:
        TypeError: A value of another type.
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
    prefix_caching: bool = True
    host_cache_bytes: int | None = None
    file_cache: str = ""
    file_cache_bytes: int = 1 << 34
    record_steps: bool = True
    poison: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            checked = _checked(field.name, getattr(self, field.name), field.default)
            object.__setattr__(self, field.name, checked)
        KVCacheLayout.parse(self.layout)
        check_policy(self.policy)
        is_sound = self.prefix_caching or not self.has_tiers
        expect(is_sound, "prefix_caching", "True with a host or file cache", False)

    @property
    def has_tiers(self) -> bool:
        """Whether prefixes are kept outside of the pools."""
        return self.host_bytes > 0

    @property
    def host_bytes(self) -> int:
        """Host memory of each rank for prefixes."""
        return self.host_cache_bytes or (PASSING_BYTES if self.file_cache else 0)


def _checked(name: str, value: object, default: object) -> object:
    """A value of the type that its default has; where that is None, a number or None."""
    if name == "layout" and isinstance(value, KVCacheLayout):
        value = value.order
    if name == "file_cache" and isinstance(value, PathLike):
        value = fspath(value)
    if isinstance(default, str):
        expect_type(value, name, str, "a name")
        return value
    if isinstance(default, bool):
        expect_type(value, name, bool, "True or False")
        return value
    if value is None and default is None:
        return None
    if name == "num_blocks" and not isinstance(value, Integral):
        expect_type(value, name, (list, tuple, np.ndarray), "a number of blocks, or one a pool")
        return tuple(whole(n, name, 1, "positive numbers") for n in value)  # type: ignore[union-attr]
    return whole(value, name, 1, "a positive number")
