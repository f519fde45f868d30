"""Attention, cache writes, copies of blocks and runs: launchers on tensors without memory."""

from typing import Any

import torch
from aot import meta

from blockstride.kernels.attention.gpu import attention_schedule, paged_attention
from blockstride.kernels.cache.gpu import block_copy, copy_runs, kv_cache_update
from variants.variant import BF16, FP8, FP16, FP32, INT8, Variant, ids

QUANTISED = (FP8, INT8)


def scales(cache_dtype: torch.dtype) -> dict[str, torch.Tensor]:
    names = ("k_scale", "v_scale") if cache_dtype in QUANTISED else ()
    return {name: meta(dtype=FP32) for name in names}


def attention(
    name: str,
    num_seqs: int,
    query_len: int,
    *,
    num_heads: int = 32,
    num_kv_heads: int = 4,
    head_size: int = 128,
    block_size: int = 16,
    dtype: torch.dtype = BF16,
    cache_dtype: torch.dtype | None = None,
    latent_size: int = 0,
    sinks: bool = False,
    **options,
) -> Variant:
    """Equal sequences; `latent_size` makes the values the first part of the keys."""
    cache_dtype = cache_dtype or dtype
    content = head_size if latent_size else 2 * head_size

    def arguments():
        cache = meta(4096, num_kv_heads, block_size, content, dtype=cache_dtype)
        values = cache[..., :latent_size] if latent_size else cache[..., head_size:]
        query = meta(num_seqs * query_len, num_heads, head_size, dtype=dtype)
        table = meta(num_seqs, 512, dtype=torch.int32)
        return query, cache[..., :head_size], values, table, ids(num_seqs), ids(num_seqs + 1)

    def call():
        plan = attention_schedule(
            *arguments(), window=options.get("window"), max_query_len=query_len
        )
        # the last list is the one that this variant is about
        paged_attention(
            *arguments(),
            scale=0.1,
            sinks=meta(num_heads) if sinks else None,
            schedule=plan[-1:],
            **scales(cache_dtype),
            **options,
        )

    return Variant(name, call, content * cache_dtype.itemsize, cache_dtype == FP8)


def cache_write(
    name: str,
    cache_dtype: torch.dtype = BF16,
    heads_outside: bool = True,
    rotary: bool = False,
    **options,
) -> Variant:
    def call():
        shape = (4096, 4, 16, 256) if heads_outside else (4096, 16, 4, 256)
        cache = meta(*shape, dtype=cache_dtype)
        cache = cache if heads_outside else cache.transpose(1, 2)
        angles = (meta(256, 64, dtype=FP32), meta(256, 64, dtype=FP32)) if rotary else None
        query = meta(256, 32, 128) if rotary else None
        kv_cache_update(
            meta(256, 4, 128), meta(256, 4, 128), cache[..., :128], cache[..., 128:],
            ids(256, torch.int64), rotary=angles, query=query, **scales(cache_dtype), **options,
        )  # fmt: skip

    return Variant(name, call, needs_fp8=cache_dtype == FP8)


def copy(
    name: str, source_size: int = 16, size: int = 16, dtype: torch.dtype = BF16, content: int = 128
) -> Variant:
    """Blocks of heads outside tokens into blocks of tokens outside heads."""
    heads = 8 if content == 128 else 1

    def call():
        # these have memory, since a copy within one pool takes another way
        source = torch.empty((4, 8, heads, source_size, content), dtype=BF16)
        destination = torch.empty((4, 8, size, heads, content), dtype=dtype).transpose(2, 3)
        reads, writes = (torch.empty(n, dtype=torch.int32) for n in (size, source_size))
        block_copy(source, destination, reads, writes)

    return Variant(name, call, needs_fp8=dtype == FP8)


def permute_in_place() -> Variant:
    def call():
        source = torch.empty((4, 8, 8, 16, 128), dtype=BF16)
        destination = source.as_strided(source.shape, (*source.stride()[:2], 128, 1024, 1))
        blocks = torch.empty(4, dtype=torch.int32)
        block_copy(source, destination, blocks, blocks)

    return Variant("permute in place", call)


def copy_of_runs(name: str, num_runs: int) -> Variant:
    def call():
        places = (ids(num_runs, torch.int64) for _ in range(3))
        copy_runs(meta(2**30, dtype=INT8), meta(2**30, dtype=INT8), *places)

    return Variant(name, call)


def variants() -> list[Variant]:
    """A headline of each kernel, then one changed factor a variant."""
    extras: dict[str, Any] = {"window": 4096, "soft_cap": 30.0, "sinks": True, "return_lse": True}
    mla: dict[str, Any] = {
        "num_heads": 128,
        "num_kv_heads": 1,
        "head_size": 576,
        "latent_size": 512,
    }
    return [
        attention("decode", 64, 1),
        attention("decode page 64", 64, 1, block_size=64),
        attention("decode fp8", 64, 1, cache_dtype=FP8),
        attention("decode int8", 64, 1, cache_dtype=INT8),
        attention("decode MLA", 64, 1, **mla),
        attention("decode fp32", 64, 1, dtype=FP32),
        attention("decode fp16 MHA", 64, 1, dtype=FP16, num_kv_heads=32),
        attention("decode head 8", 64, 1, head_size=8),
        attention("decode head 64", 64, 1, head_size=64),
        attention("decode head 80", 64, 1, head_size=80),
        attention("decode head 256", 64, 1, head_size=256),
        attention("decode page 528", 64, 1, block_size=528),
        attention("decode window cap sinks", 64, 1, **extras),
        attention("4 new tokens", 64, 4),
        attention("8 new tokens", 64, 8),
        attention("prefill", 4, 1024),
        attention("prefill page 64", 4, 1024, block_size=64),
        attention("prefill page 128", 4, 1024, block_size=128),
        attention("prefill fp8", 4, 1024, cache_dtype=FP8),
        attention("prefill int8", 4, 1024, cache_dtype=INT8),
        attention("prefill MLA", 4, 1024, **mla),
        attention("prefill fp32", 4, 1024, dtype=FP32),
        attention("prefill head 64", 4, 1024, head_size=64),
        attention("prefill head 256", 4, 1024, head_size=256),
        attention("prefill window cap sinks", 4, 1024, **extras),
        cache_write("cache write"),
        cache_write("cache write NHD", heads_outside=False),
        cache_write("cache write fp8", FP8),
        cache_write("cache write int8", INT8),
        cache_write("cache write rotary", rotary=True),
        cache_write("cache write zero tail", zero_tail=True),
        permute_in_place(),
        copy("copy and permute"),
        copy("copy 16 to 64", 16, 64),
        copy("copy 64 to 16", 64, 16),
        copy("copy to fp8", dtype=FP8),
        copy("copy of pages", content=133_120, source_size=1, size=1),
        copy_of_runs("copy of runs", 4096),
        copy_of_runs("copy of one run", 1),
    ]  # fmt: skip
