"""What writing and copying keys and values does, in plain torch: read this first.

The Triton kernels and the programs for CPUs do the same, bit for bit but for the last digits of a
rotation, and the tests of both hold them to this file, with which they share no code.
`kv_cache_update.py`, `block_copy.py` and `copy_runs.py` come next; states are in
`state_reference.py`.
"""

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int8, Int32, Int64, Num
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn


def kv_cache_update(
    key: Float[Tensor, "num_tokens num_kv_heads head_size"],
    value: Float[Tensor, "num_tokens num_kv_heads value_size"],
    key_cache: Num[Tensor, "num_blocks num_kv_heads block_size head_size"],
    value_cache: Num[Tensor, "num_blocks num_kv_heads block_size value_size"],
    slot_mapping: Int64[Tensor, " num_tokens"],
    *,
    k_scale: Float[Tensor, ""] | None = None,
    v_scale: Float[Tensor, ""] | None = None,
    rotary: tuple[Float[Tensor, "num_tokens half"], Float[Tensor, "num_tokens half"]] | None = None,
    query: Float[Tensor, "num_tokens num_heads head_size"] | None = None,
    zero_tail: bool = False,
) -> None:
    """See `blockstride.kernels.kv_cache_update`: each token goes to its slot."""
    if rotary is not None:
        key = turned(key, *rotary)
        if query is not None:
            query.copy_(turned(query, *rotary))
    slots, block_size = slot_mapping.tolist(), key_cache.shape[2]
    for new, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
        for token, slot in enumerate(slots):
            block, offset = divmod(slot, block_size)
            if block > 0:
                cache[block, :, offset] = quantised(new[token], cache.dtype, scale)
                # what this call began is nobody else's, and its later tokens are yet to come
                if zero_tail and slot - offset in slots:
                    cache[block, :, offset + 1 :] = 0


def turned(
    x: Float[Tensor, "num_tokens num_heads head_size"],
    cos: Float[Tensor, "num_tokens half"],
    sin: Float[Tensor, "num_tokens half"],
) -> Float[Tensor, "num_tokens num_heads head_size"]:
    """Element `i` and element `i + half` are the two parts of a number that is turned."""
    half = cos.shape[1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = (rearrange(angle, "token half -> token 1 half") for angle in (cos, sin))
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), 2)


def quantised(x: Tensor, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    """What a cache of `dtype` holds of `x`; the quotient is one of float32."""
    if scale is not None:
        # whatever is stored under a scale of zero is read back as zero
        x = x.float() * 0 if scale == 0 else x.float() / scale
    return x.round().clamp(-128, 127).to(dtype) if dtype is torch.int8 else cast(x, dtype)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to `dtype`; fp8 saturates."""
    if dtype is FLOAT8 and x.dtype is not FLOAT8:
        x = x.float().clamp(-448, 448)
    return x.to(dtype)


def block_copy(
    source: Num[Tensor, "num_layers num_source_blocks num_heads source_block_size content"],
    destination: Num[Tensor, "num_layers num_blocks num_heads block_size content"],
    source_blocks: Int32[Tensor, " num_reads"],
    destination_blocks: Int32[Tensor, " num_writes"],
) -> None:
    """See `blockstride.kernels.block_copy`: a stream of tokens is read, recut and written."""
    stream = "layer block head token content -> layer (block token) head content"
    tokens, old = (
        rearrange(pool[:, blocks], stream)
        for pool, blocks in ((source, source_blocks), (destination, destination_blocks))
    )
    is_read = repeat(source_blocks > 0, "block -> (block token)", token=source.shape[3])
    new = torch.where(
        rearrange(is_read, "token -> token 1 1"), cast(tokens, destination.dtype), old
    )
    recut = "layer (block token) head content -> block layer head token content"
    new = rearrange(new, recut, token=destination.shape[3])
    for block, page in zip(destination_blocks.tolist(), new, strict=True):
        if block > 0:
            destination[:, block] = page


def copy_runs(
    source: Int8[Tensor, " source_bytes"],
    destination: Int8[Tensor, " destination_bytes"],
    source_starts: Int64[Tensor, " num_runs"],
    destination_starts: Int64[Tensor, " num_runs"],
    lengths: Int64[Tensor, " num_runs"],
) -> None:
    """See `blockstride.kernels.copy_runs`."""
    columns = (source_starts.tolist(), destination_starts.tolist(), lengths.tolist())
    for start, into, length in zip(*columns, strict=True):
        destination[into : into + length] = source[start : start + length]
