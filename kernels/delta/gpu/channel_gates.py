"""Chunks of the gated delta rule whose gates are those of channels, as in Kimi Delta Attention.

How token `i` sees the change of an earlier token `j` is a sum over channels,
`k[i] * k[j] * exp(sum of g[j + 1 .. i])`. The decay is no factor of the sum, and split as
`exp(G[i]) * exp(-G[j])` it overflows. It is split at a token between the two instead, so that each
factor is the decay of some tokens. Blocks of one token, then two, four and so on are joined: a
token of the later half decays since the half began, one of the earlier half until it ends, and a
product of matrices gives all pairs. What is added are gates, never differences of sums: a gate of
minus infinity is zero here as in the recurrence, and large gates cost small ones no digits.

Source: Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture", 3.2.
"""

import triton
import triton.language as tl

from blockstride.kernels.common.gpu.activations import LOG2_E
from blockstride.kernels.common.gpu.rows import load_rows, store_rows
from blockstride.kernels.delta.gpu.keys import load_factors

# channels whose decays, keys and queries fit the registers at once
CHANNELS: tl.constexpr = tl.constexpr(32)


@triton.jit
def load_gates(
    g_ptr, tokens, offs_k, mask_t, stride_token, stride_dim, KEY_DIM: tl.constexpr
):  # fmt: skip
    """The log decays of some tokens, in powers of two."""
    g = load_rows(g_ptr, tokens, offs_k, mask_t, stride_token, stride_dim, KEY_DIM)
    return g.to(tl.float32) * LOG2_E


@triton.jit
def joined(before, after, offs_t, size):
    """Decays within blocks of twice the size, from those within blocks of `size` tokens."""
    is_later = (offs_t // size % 2 == 1)[:, None]
    # each half of a block passes on what it decays by as a whole: the other one's last token has it
    last = ((offs_t // size) ^ 1) * size + size - 1
    passed = tl.gather(before, tl.broadcast_to(last[:, None], before.shape), 0)
    return before + tl.where(is_later, passed, 0.0), after + tl.where(is_later, 0.0, passed)


@triton.jit
def overlaps_of_halves(q, k, before, after, offs_t, size, PRECISION: tl.constexpr):
    """Overlaps of the tokens of every other block of `size` with the block before it."""
    row, column = offs_t[:, None], offs_t[None, :]
    decay = tl.math.exp2(tl.where(row // size % 2 == 1, before, after))
    keys = (k.to(tl.float32) * decay).to(k.dtype)
    queries = (q.to(tl.float32) * decay).to(q.dtype)
    is_joined = (row // (2 * size) == column // (2 * size)) & (row // size > column // size)
    of_keys = tl.dot(keys, keys.T, input_precision=PRECISION)
    of_queries = tl.dot(queries, keys.T, input_precision=PRECISION)
    return tl.where(is_joined, of_keys, 0.0), tl.where(is_joined, of_queries, 0.0)


@triton.jit
def decayed_rows(
    decayed_ptr, which: tl.constexpr, num_tokens, value_head, NUM_VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
):  # fmt: skip
    """Where one of the three tensors of decayed rows has those of a head."""
    first = tl.cast(which, tl.int64) * num_tokens * NUM_VALUE_HEADS + value_head
    return decayed_ptr + first * KEY_DIM


@triton.jit
def store_decayed(
    q, k, before, after, decayed_ptr, passed_ptr, tokens, num_tokens, value_head, offs_k, mask_t,
    NUM_VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr,
):  # fmt: skip
    """Write keys and queries decayed since the chunk began, keys as decayed when it ends.

    And what of the state before the chunk is left there.
    """
    wide_k = k.to(tl.float32)
    since = tl.math.exp2(before)
    stride: tl.constexpr = NUM_VALUE_HEADS * KEY_DIM
    for which in tl.static_range(3):
        if which == 0:
            rows = wide_k * since
        elif which == 1:
            rows = q.to(tl.float32) * since
        else:
            rows = wide_k * tl.math.exp2(after)
        ptr = decayed_rows(decayed_ptr, which, num_tokens, value_head, NUM_VALUE_HEADS, KEY_DIM)
        store_rows(rows, ptr, tokens, offs_k, mask_t, stride, 1, KEY_DIM)
    is_last = tl.arange(0, since.shape[0])[:, None] == since.shape[0] - 1
    tl.store(passed_ptr + offs_k, tl.sum(tl.where(is_last, since, 0.0), 0), mask=offs_k < KEY_DIM)


@triton.jit
def overlaps_by_channel(
    q_ptr, k_ptr, g_ptr, decayed_ptr, passed_ptr, tokens, num_tokens, value_head, offs_t, mask_t,
    stride_q_token, stride_q_dim, stride_k_token, stride_k_dim, stride_g_token, stride_g_dim,
    NUM_VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, L2_NORM: tl.constexpr,
    BLOCK_K: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """How keys, and queries, of tokens overlap with the keys of earlier ones, with the decay.

    Some channels at a time, of which it also hands on what `store_decayed` does.
    """
    offs_k = tl.arange(0, BLOCK_K)
    of_keys = load_factors(
        k_ptr, tokens, offs_k, mask_t, stride_k_token, stride_k_dim, KEY_DIM, L2_NORM
    )  # fmt: skip
    of_queries = load_factors(
        q_ptr, tokens, offs_k, mask_t, stride_q_token, stride_q_dim, KEY_DIM, L2_NORM
    )  # fmt: skip
    overlap = tl.zeros([offs_t.shape[0], offs_t.shape[0]], tl.float32)
    scores = tl.zeros([offs_t.shape[0], offs_t.shape[0]], tl.float32)
    for first in tl.range(0, KEY_DIM, CHANNELS):
        offs = first + tl.arange(0, CHANNELS)
        k = load_rows(k_ptr, tokens, offs, mask_t, stride_k_token, stride_k_dim, KEY_DIM)
        q = load_rows(q_ptr, tokens, offs, mask_t, stride_q_token, stride_q_dim, KEY_DIM)
        k = (k.to(tl.float32) * of_keys).to(k.dtype)
        q = (q.to(tl.float32) * of_queries).to(q.dtype)
        before = load_gates(g_ptr, tokens, offs, mask_t, stride_g_token, stride_g_dim, KEY_DIM)
        after = tl.zeros_like(before)
        own = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1)
        scores += tl.where(offs_t[:, None] == offs_t[None, :], own[:, None], 0.0)
        for level in tl.range(LEVELS):
            more_overlap, more_scores = overlaps_of_halves(
                q, k, before, after, offs_t, 1 << level, PRECISION
            )  # fmt: skip
            overlap += more_overlap
            scores += more_scores
            before, after = joined(before, after, offs_t, 1 << level)
        store_decayed(
            q, k, before, after, decayed_ptr, passed_ptr, tokens, num_tokens, value_head, offs,
            mask_t, NUM_VALUE_HEADS, KEY_DIM,
        )  # fmt: skip
    return overlap, scores


@triton.jit
def load_decayed(
    decayed_ptr, which: tl.constexpr, tokens, num_tokens, value_head, offs_k, mask_t,
    NUM_VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr,
):  # fmt: skip
    """Rows of `store_decayed`: 0 for keys, 1 for queries, 2 for keys until the end of the chunk."""
    ptr = decayed_rows(decayed_ptr, which, num_tokens, value_head, NUM_VALUE_HEADS, KEY_DIM)
    stride: tl.constexpr = NUM_VALUE_HEADS * KEY_DIM
    return load_rows(ptr, tokens, offs_k, mask_t, stride, 1, KEY_DIM)


@triton.jit
def state_at_end(
    state, change, decayed_ptr, passed_ptr, tokens, num_tokens, value_head, offs_k, mask_t,
    NUM_VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The state after a chunk, from the one before it and the changes."""
    keys = load_decayed(
        decayed_ptr, 2, tokens, num_tokens, value_head, offs_k, mask_t, NUM_VALUE_HEADS, KEY_DIM
    )  # fmt: skip
    passed = tl.load(passed_ptr + offs_k, mask=offs_k < KEY_DIM, other=0.0)
    return tl.dot(keys.T, change, state * passed[:, None], input_precision=PRECISION)
