"""What paged attention computes, in plain torch: read this first.

The Triton kernels and the programs for CPUs compute the same, and the tests of both hold them to
this file, with which they share no code. It computes in the dtype of the query: float64 is as good
as exact, and a kernel's own dtype shows what rounding alone costs. `paged_attention.py` comes next.
"""

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Int32, Num
from torch import Tensor


def paged_attention(
    query: Float[Tensor, "num_tokens num_heads head_size"],
    key_cache: Num[Tensor, "num_blocks num_kv_heads block_size head_size"],
    value_cache: Num[Tensor, "num_blocks num_kv_heads block_size value_size"],
    block_table: Int32[Tensor, "num_seqs max_blocks"],
    seq_lens: Int32[Tensor, " num_seqs"],
    query_start_loc: Int32[Tensor, " num_seqs_plus_1"],
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Float[Tensor, " num_heads"] | None = None,
    k_scale: Float[Tensor, ""] | None = None,
    v_scale: Float[Tensor, ""] | None = None,
) -> tuple[Float[Tensor, "num_tokens num_heads value_size"], Float[Tensor, "num_tokens num_heads"]]:
    """See `blockstride.kernels.paged_attention`: outputs, and logarithms of the denominators."""
    num_tokens, num_heads, _ = query.shape
    block_size, dtype, device = key_cache.shape[2], query.dtype, query.device
    # a head without a sink has one that weighs nothing
    sinks = torch.full((num_heads,), -torch.inf, device=device) if sinks is None else sinks
    sinks = sinks.to(dtype)
    out = torch.zeros(num_tokens, num_heads, value_cache.shape[3], dtype=dtype, device=device)
    lse = repeat(sinks, "head -> token head", token=num_tokens).clone()
    starts = query_start_loc.tolist()
    for seq, seq_len in enumerate(seq_lens.tolist()):
        keys = cached_tokens(key_cache, block_table[seq], k_scale, dtype)
        values = cached_tokens(value_cache, block_table[seq], v_scale, dtype)
        is_there = repeat(block_table[seq] > 0, "block -> (block token)", token=block_size)
        positions = torch.arange(len(keys), device=device)
        for token in range(starts[seq], starts[seq + 1]):
            # the new tokens of a sequence are its last ones
            position = seq_len - (starts[seq + 1] - token)
            seen = is_there & (positions <= position)
            if window is not None:
                seen &= positions > position - window
            if seen.any():
                out[token], lse[token] = attend(
                    query[token], keys[seen], values[seen], scale, soft_cap, sinks
                )
    return out, lse


def cached_tokens(
    cache: Num[Tensor, "num_blocks num_kv_heads block_size size"],
    blocks: Int32[Tensor, " max_blocks"],
    scale: Float[Tensor, ""] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "max_tokens num_kv_heads size"]:
    """The pages that a row of the block table names, one after the other."""
    tokens = rearrange(cache[blocks], "block head token size -> (block token) head size").to(dtype)
    return tokens if scale is None else tokens * scale.to(dtype)


def attend(
    query: Float[Tensor, "num_heads head_size"],
    keys: Float[Tensor, "num_seen num_kv_heads head_size"],
    values: Float[Tensor, "num_seen num_kv_heads value_size"],
    scale: float,
    soft_cap: float | None,
    sinks: Float[Tensor, " num_heads"],
) -> tuple[Float[Tensor, "num_heads value_size"], Float[Tensor, " num_heads"]]:
    """One token over all that it sees; neighbouring query heads share a key-value head."""
    query = rearrange(query, "(kv group) size -> kv group size", kv=keys.shape[1])
    scores = scale * einsum(query, keys, "kv group size, seen kv size -> kv group seen")
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    sinks = rearrange(sinks, "(kv group) -> kv group 1", kv=keys.shape[1])
    logits = torch.cat((scores, sinks), 2)
    weights = logits.softmax(2)[..., :-1]
    out = einsum(weights, values, "kv group seen, seen kv size -> kv group size")
    return (
        rearrange(out, "kv group size -> (kv group) size"),
        rearrange(logits.logsumexp(2), "kv group -> (kv group)"),
    )
