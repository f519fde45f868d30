"""The operations in plain torch, one sequence at a time, in any precision; float64 is exact."""

import torch
from torch import Tensor


def attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Causal attention over the tokens that the block table names, each intermediate in `dtype`."""
    num_tokens, num_heads, _ = query.shape
    _, num_kv_heads, block_size, value_size = value_cache.shape
    out = torch.zeros((num_tokens, num_heads, value_size), dtype=dtype, device=query.device)
    lse = torch.full((num_tokens, num_heads), -torch.inf, dtype=dtype, device=query.device)
    group = num_heads // num_kv_heads
    starts = query_start_loc.tolist()
    for sequence, seq_len in enumerate(seq_lens.tolist()):
        begin, end = starts[sequence], starts[sequence + 1]
        if begin == end:
            continue
        position = torch.arange(seq_len, device=query.device)
        block = block_table[sequence].long()[position // block_size]
        is_missing = block <= 0
        block = block.clamp(min=0)
        key = key_cache[block, :, position % block_size].to(dtype)
        value = value_cache[block, :, position % block_size].to(dtype)
        key[is_missing], value[is_missing] = 0, 0
        key = key if k_scale is None else key * k_scale.to(dtype)
        value = value if v_scale is None else value * v_scale.to(dtype)
        # [heads, tokens, size]
        q = query[begin:end].to(dtype).transpose(0, 1)
        key = key.repeat_interleave(group, dim=1).permute(1, 2, 0)
        value = value.repeat_interleave(group, dim=1).transpose(0, 1)
        scores = (q @ key) * scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        row = torch.arange(seq_len - (end - begin), seq_len, device=query.device)[:, None]
        seen = (position <= row) & ~is_missing
        if window is not None:
            seen = seen & (position > row - window)
        scores = scores.masked_fill(~seen, -torch.inf)
        joined = scores
        if sinks is not None:
            column = sinks.to(dtype)[:, None, None].expand(-1, end - begin, 1)
            joined = torch.cat((scores, column), dim=2)
        denominator = joined.logsumexp(2, keepdim=True)
        # values outside the window may be poison
        value = value.masked_fill(~seen.any(0)[None, :, None], 0)
        weights = (scores - denominator).exp().masked_fill(~seen, 0)
        out[begin:end] = (weights @ value).transpose(0, 1)
        lse[begin:end] = denominator[..., 0].transpose(0, 1)
    return out, lse
