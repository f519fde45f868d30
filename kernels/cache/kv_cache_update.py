"""Writing new keys and values into a paged cache."""

from jaxtyping import Float, Int64, Num
from torch import Tensor

from blockstride.checks import (
    CACHE_DTYPES,
    FLOATS,
    INT64,
    expect,
    expect_ids,
    expect_own_memory,
    expect_scale,
    expect_tensor,
    shape_of,
    values_are_readable,
)
from blockstride.kernels.common.dispatch import implementation, runs_on_triton

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
    rotary: tuple[Float[Tensor, "num_tokens half"], Float[Tensor, "num_tokens half"]] | None = None,
    query: Float[Tensor, "num_tokens num_heads head_size"] | None = None,
    zero_tail: bool = False,
) -> None:
    """Store each token's key and value in the slot that the block manager gave it.

    A cache of fp8 (e4m3) or int8 holds `x / scale`, saturated to the range of its dtype and
    rounded to the nearest value, ties to even. Any other cache holds `x` rounded to its dtype.
    A rotary embedding, if asked for, costs no pass of its own over the keys.

    Args:
        key: New keys.
        value: New values; their size may differ from the keys'.
        key_cache: Pool of keys with any strides, written in place.
        value_cache: Pool of values with any strides, written in place.
        slot_mapping: `block * block_size + offset` of each token. Nothing is written for a
            negative slot (`PAD_SLOT_ID`) or one in the null block. Of tokens that share a slot
            one is kept, any one. Slots are checked where they are on the host.
        k_scale: What a stored key is multiplied by when it is read; 1 if not given. Only for fp8
            and int8. With a scale of 0 zeros are stored.
        v_scale: The same for values.
        rotary: Cosine and sine of each token's angles. Element `i` of the first `2 * half` of a
            head turns with element `i + half`, in float32; the rest stays. Keys turn on their way
            into the cache, and `key` stays as it is.
        query: The queries of these tokens, to be turned in place by `rotary`.
        zero_tail: Whether to zero the rest of each block that this call began, so that a kernel
            which loads whole blocks does not meet what an earlier owner left there. The tokens of
            a sequence then lie one after the other.

    Raises:
        ValueError: A shape or a device does not fit, a slot is past the pool, a scale comes with a
            cache that has none, or `query` without `rotary`.
        TypeError: A dtype is not accepted.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 3.4.
    """
    given = {**locals()}
    num_tokens, num_kv_heads, head_size = shape_of(key, "key", 3)
    num_blocks, _, block_size, _ = shape_of(key_cache, "key_cache", 4)
    (_, _, value_size), device = shape_of(value, "value", 3), key.device
    pool = (num_blocks, num_kv_heads, block_size)
    expect_tensor(key, "key", (num_tokens, num_kv_heads, head_size), FLOATS, device)
    expect_tensor(value, "value", (num_tokens, num_kv_heads, value_size), FLOATS, device)
    expect_tensor(key_cache, "key_cache", (*pool, head_size), CACHE_DTYPES, device)
    expect_tensor(value_cache, "value_cache", (*pool, value_size), CACHE_DTYPES, device)
    expect_own_memory(key_cache, "key_cache")
    expect_own_memory(value_cache, "value_cache")
    expect_tensor(slot_mapping, "slot_mapping", (num_tokens,), INT64, device)
    expect_scale(k_scale, "k_scale", key_cache)
    expect_scale(v_scale, "v_scale", value_cache)
    if rotary is not None:
        _expect_rotary(rotary, key)
    if query is not None:
        expect(rotary is not None, "query", "None, as there is no rotary to turn it", "a tensor")
        _, num_heads, _ = shape_of(query, "query", 3)
        expect_tensor(query, "query", (num_tokens, num_heads, head_size), FLOATS, device)
        expect_own_memory(query, "query")
    on_triton = runs_on_triton(key)
    if on_triton and values_are_readable(slot_mapping):
        expect_ids(slot_mapping, "slot_mapping", num_blocks * block_size, what="slots")
    implementation(kv_cache_update, on_triton)(**given)


def _expect_rotary(rotary: tuple[Tensor, Tensor], key: Tensor) -> None:
    num_tokens, _, head_size = key.shape
    _, half = shape_of(rotary[0], "rotary[0]", 2)
    for part, name in zip(rotary, ("rotary[0]", "rotary[1]"), strict=True):
        expect_tensor(part, name, (num_tokens, half), FLOATS, key.device)
    if not 0 < 2 * half <= head_size:
        expect(False, "rotary", f"1 to {head_size // 2} angles a token", half)
