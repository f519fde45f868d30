"""Attention caches: full, sliding-window and latent, as specs and as bound views."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor

from blockstride.checks import expect
from blockstride.layouts.field import Axis, Field, Shard
from blockstride.layouts.page import Segment
from blockstride.layouts.spec import CacheSpec


@dataclass(frozen=True)
class AttentionViews:
    """What attention kernels take. Both share memory with the pool.

    Attributes:
        key_cache: `[num_blocks, num_kv_heads, block_size, head_size]`, any strides.
        value_cache: `[num_blocks, num_kv_heads, block_size, value_size]`, any strides.
    """

    key_cache: Shaped[Tensor, "num_blocks num_kv_heads block_size head_size"]
    value_cache: Shaped[Tensor, "num_blocks num_kv_heads block_size value_size"]


@dataclass(frozen=True)
class AttentionSpec(CacheSpec[AttentionViews]):
    """A cache with one entry a token; made by the functions below.

    Attributes:
        key: Name of the field or segment that queries are compared with.
        value: Name of the field or segment that is summed.
    """

    key: str = "k"
    value: str = "v"

    def __post_init__(self) -> None:
        super().__post_init__()
        wholes = {(s.dtype, s.whole.axes) for s in self.segments}
        expect(len(wholes) == 1, "segments", "planes equal in shape and dtype", wholes)
        names = {s.name for s in self.segments} | {f.name for f in self.page(1).fields}
        for role in (self.key, self.value):
            expect(role in names, "key and value", f"among {sorted(names)}", repr(role))

    def bind_kv_cache(self, raw: Tensor) -> AttentionViews:
        """Key and value views of a layer's raw storage.

        Args:
            raw: `[num_blocks, num_kv_heads, block_size, content]` in the cache's dtype, or
                `[num_blocks, planes, num_kv_heads, block_size, content]` where K and V are planes.

        Raises:
            ValueError: The shape is not one of this spec's pages.
            TypeError: Another dtype than the cache's.
        """
        whole = [segment.whole for segment in self.segments]
        planes = (len(whole),) if len(whole) > 1 else ()
        heads, content = whole[0].extent("H"), whole[0].extent("C")
        expect(raw.dtype == whole[0].dtype, "raw.dtype", whole[0].dtype, raw.dtype, TypeError)
        # the token extent is the pool's to choose
        got = (*raw.shape[1:-2], *raw.shape[-1:])
        wanted = ["num_blocks", *planes, heads, "block_size", content]
        fits = raw.dim() == len(wanted) and got == (*planes, heads, content)
        expect(fits, "raw.shape", wanted, list(raw.shape))
        views = {}
        for i, segment in enumerate(self.segments):
            plane = raw[:, i] if planes else raw
            views[segment.name] = plane
            for field, start in segment.starts().items():
                size = next(f for f in segment.fields if f.name == field).extent("C")
                views[field] = plane[..., start : start + size]
        return AttentionViews(views[self.key], views[self.value])


def _field(name: str, heads: int | None, size: int, dtype: torch.dtype) -> Field:
    """A field (head, token, content) cut by heads, or (token, content) that every rank holds."""
    axes = (Axis("token", 1, "N"), Axis("content", size, "C"))
    if heads is None:
        return Field(name, axes, dtype)
    return Field(
        name, (Axis("head", heads, "H"), *axes), dtype, Shard("head", heads, replicate=True)
    )


def full_attention(
    total_num_kv_heads: int,
    head_size: int,
    dtype: torch.dtype,
    *,
    value_size: int | None = None,
    packed: bool = True,
) -> AttentionSpec:
    """Attention over all tokens: MHA, GQA or MQA, which differ in `total_num_kv_heads` alone.

    Args:
        total_num_kv_heads: KV heads of the whole model. With fewer heads than ranks, ranks share.
        head_size: Elements of a key.
        dtype: Cache dtype; fp8 and int8 go with per-tensor scales given to the kernels.
        value_size: Elements of a value; `head_size` when None.
        packed: K then V of one (head, token) in one content row; else K and V are two planes of the
            block, the `(num_blocks, 2, block_size, heads, head_size)` form.

    Raises:
        ValueError: A size that is not positive, or planes of different sizes.
        TypeError: A dtype that a cache can't hold.
    """
    value_size = head_size if value_size is None else value_size
    k = _field("k", total_num_kv_heads, head_size, dtype)
    v = _field("v", total_num_kv_heads, value_size, dtype)
    if packed:
        return AttentionSpec("full attention", (Segment("kv", (k, v), join="content"),))
    expect(head_size == value_size, "value_size", f"{head_size}, as for keys", value_size)
    return AttentionSpec("full attention", (Segment("k", (k,)), Segment("v", (v,))))


def sliding_window_attention(
    total_num_kv_heads: int,
    head_size: int,
    dtype: torch.dtype,
    *,
    window: int,
    value_size: int | None = None,
    packed: bool = True,
) -> AttentionSpec:
    """Attention over the last `window` tokens, the current one included; see `full_attention`."""
    spec = full_attention(
        total_num_kv_heads, head_size, dtype, value_size=value_size, packed=packed
    )
    return AttentionSpec(f"window {window} attention", spec.segments, window=window)


def latent_attention(latent_size: int, rope_size: int, dtype: torch.dtype) -> AttentionSpec:
    """Multi-head latent attention (MLA): one latent row a token, held whole by every rank.

    Keys are the latent and its rotary part, values the latent alone: two views of the same bytes.
    """
    latent = _field("latent", None, latent_size, dtype)
    rope = _field("rope", None, rope_size, dtype)
    segment = Segment("latent_kv", (latent, rope), join="content")
    return AttentionSpec("latent attention", (segment,), key="latent_kv", value="latent")
