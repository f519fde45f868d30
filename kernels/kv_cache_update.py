"""Writing new keys and values into a paged cache."""

from jaxtyping import Float, Int64, Num
from torch import Tensor

from blockstride.kernels.checks import (
    CACHE_DTYPES,
    FLOAT32,
    FLOATS,
    INT64,
    expect,
    expect_tensor,
)
from blockstride.kernels.dispatch import implementation, runs_on_triton

# a slot that is not to be written
PAD_SLOT_ID = -1


def kv_cache_update(
    key: Float[Tensor, "num_tokens num_kv_heads head_size"],
    value: Float[Tensor, "num_tokens num_kv_heads value_size"],
    key_cache: Num[Tensor, "num_blocks num_kv_heads block_size head_size"],
    value_cache: Num[Tensor, "num_blocks num_kv_heads block_size value_size"],
    slot_mapping: Int64[Tensor, " num_tokens"],
    *,
    k_scale: Float[Tensor, ""] | None = None,
    v_scale: Float[Tensor, ""] | None = None,
) -> None:
    """Store each token's key and value in the slot that the block manager gave it.

    A cache of fp8 (e4m3) or int8 holds `x / scale`, saturated to the range of its dtype and
    rounded to the nearest value, ties to even. Any other cache holds `x` rounded to its dtype.

    Args:
        key: New keys.
        value: New values; their size may differ from the keys'.
        key_cache: Pool of keys with any strides, written in place.
        value_cache: Pool of values with any strides, written in place.
        slot_mapping: `block * block_size + offset` of each token. Nothing is written for a
            negative slot (`PAD_SLOT_ID`) or one in the null block. Of tokens that share a slot
            one is kept, any one.
        k_scale: What a stored key is multiplied by when it is read; 1 if not given. Only for fp8
            and int8.
        v_scale: The same for values.

    Raises:
        ValueError: A shape or a device does not fit, or a scale comes with a cache that has none.
        TypeError: A dtype is not accepted.
    """
    num_tokens, num_kv_heads, head_size = key.shape
    num_blocks, _, block_size, _ = key_cache.shape
    value_size, device = value.shape[-1], key.device
    pool = (num_blocks, num_kv_heads, block_size)
    expect_tensor(key, "key", (num_tokens, num_kv_heads, head_size), FLOATS, device)
    expect_tensor(value, "value", (num_tokens, num_kv_heads, value_size), FLOATS, device)
    expect_tensor(key_cache, "key_cache", (*pool, head_size), CACHE_DTYPES, device)
    expect_tensor(value_cache, "value_cache", (*pool, value_size), CACHE_DTYPES, device)
    expect_tensor(slot_mapping, "slot_mapping", (num_tokens,), INT64, device)
    expect_scale(k_scale, "k_scale", key_cache)
    expect_scale(v_scale, "v_scale", value_cache)
    run = implementation("kv_cache_update", "kv_cache_update", runs_on_triton(key))
    run(key, value, key_cache, value_cache, slot_mapping, k_scale=k_scale, v_scale=v_scale)


def expect_scale(scale: Tensor | None, name: str, cache: Tensor) -> None:
    """Raise unless a scale belongs to a quantised cache: elsewhere it would be lost in silence."""
    if scale is None:
        return
    expect_tensor(scale, name, (), FLOAT32, cache.device)
    if cache.dtype in FLOATS:
        expect(False, name, f"None, for a cache of {cache.dtype} is not scaled", "a tensor")
