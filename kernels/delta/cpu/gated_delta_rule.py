"""The gated delta rule for CPUs, token by token, of which a decode step is a case.

A task is 64 value columns of one head of one sequence. It brings their state onto the stack, walks
the sequence's tokens, and writes the state back. A pass over it applies a token's change and, in
the same breath, finds what the next one's key holds; all operations are on full vectors, and no
sum crosses lanes. A prompt and its steps give the same bits.
"""

import torch
from torch import Tensor

from blockstride.checks import expect
from blockstride.kernels.common.cpu.checkpoints import float_states_of_step
from blockstride.kernels.common.cpu.lanes import LANES, ZERO, fill, load, store, zero_rows
from blockstride.kernels.common.cpu.native import (
    Program,
    arguments,
    claim,
    f32_at,
    float_bits,
    float_of,
    i32_at,
    is_padding,
    num_tasks,
    shifted,
    stack_f32,
)
from blockstride.kernels.common.cpu.slack import zero_slack
from blockstride.kernels.common.cpu.state_tile import (
    STATE_FLOATS,
    initial_states,
    keep_states,
    next_checkpoint,
    rows_of,
    scatter_states,
)
from blockstride.kernels.common.cpu.tensors import (
    delivered,
    dense_vector,
    float_rows,
    result_like,
)
from blockstride.kernels.delta.cpu.token import (
    TOKEN_FLOATS,
    TWO_TOKENS,
    correct,
    correct_and_predict,
    load_token,
    predict,
)

# states of a decode step that are worth waking a thread
GRAIN = 2**16


@Program
def _rule(address):
    (
        q, k, v, g, beta, ssm_state, state_indices, query_start_loc, has_initial_state, out,
        checkpoint_tokens, checkpoint_indices, num_checkpoints, keeps_last,
        num_blocks, num_value_heads, value_heads_per_head, key_dim, value_dim, scale, l2_norm,
        stride_q_token, stride_q_head, stride_k_token, stride_k_head,
        stride_v_token, stride_v_head, stride_g_token, stride_g_head, by_channel,
        stride_beta, stride_out_token, stride_out_head,
        stride_state_block, stride_state_head, stride_state_key, stride_state_value,
    ) = arguments(address, 37)  # fmt: skip
    state, tokens = stack_f32(STATE_FLOATS), stack_f32(TWO_TOKENS)
    held, change, y = stack_f32(LANES), stack_f32(LANES), stack_f32(LANES)
    column_blocks = (value_dim + LANES - 1) // LANES
    task = claim(address)
    while task < num_tasks(address):
        row, column = task // column_blocks, task % column_blocks * LANES
        sequence, value_head = row // num_value_heads, row % num_value_heads
        width, head = min(LANES, value_dim - column), value_head // value_heads_per_head
        task = claim(address)
        start, end = rows_of(query_start_loc, sequence)
        block = int(i32_at(state_indices)[sequence])
        target = out + 4 * (start * stride_out_token + value_head * stride_out_head + column)
        if is_padding(address, block, num_blocks):
            zero_rows(target, stride_out_token, end - start, width)
            continue
        if start == end:
            continue
        pool = ssm_state + 4 * (value_head * stride_state_head + column * stride_state_value)
        page = f32_at(pool + 4 * block * stride_state_block)
        initial_states(
            state, page, has_initial_state, sequence, width, key_dim,
            stride_state_value, stride_state_key,
        )  # fmt: skip
        queries, keys = q + 4 * head * stride_q_head, k + 4 * head * stride_k_head
        gates = g + 4 * value_head * stride_g_head
        checkpoint = next_checkpoint(checkpoint_tokens, num_checkpoints, 0, start)
        is_predicted = False
        for t in range(start, end):
            now = shifted(tokens, t % 2 * TOKEN_FLOATS)
            ahead = shifted(tokens, (t + 1) % 2 * TOKEN_FLOATS)
            if not is_predicted:
                load_token(
                    now, queries + 4 * t * stride_q_token, keys + 4 * t * stride_k_token,
                    gates + 4 * t * stride_g_token, key_dim, float_of(scale), l2_norm, by_channel,
                )  # fmt: skip
                fill(held, ZERO)
                predict(held, state, now, key_dim)
            place = t * stride_v_token + value_head * stride_v_head + column
            load(change, f32_at(v + 4 * place), width)
            strength = f32_at(beta + 4 * (t * stride_beta + value_head))[0]
            for lane in range(LANES):
                change[lane] = strength * (change[lane] - held[lane])
                y[lane], held[lane] = ZERO, ZERO
            upto = next_checkpoint(checkpoint_tokens, num_checkpoints, checkpoint, t + 1)
            is_predicted = upto == checkpoint and t + 1 < end
            if is_predicted:
                i = t + 1
                load_token(
                    ahead, queries + 4 * i * stride_q_token, keys + 4 * i * stride_k_token,
                    gates + 4 * i * stride_g_token, key_dim, float_of(scale), l2_norm, by_channel,
                )  # fmt: skip
                correct_and_predict(y, held, state, now, ahead, change, key_dim)
            else:
                correct(y, state, now, change, key_dim)
            store(f32_at(target + 4 * (t - start) * stride_out_token), y, width)
            keep_states(
                address, state, pool, checkpoint_indices, checkpoint, upto, num_blocks, width,
                key_dim, stride_state_block, stride_state_value, stride_state_key,
            )  # fmt: skip
            checkpoint = upto
        if keeps_last != 0:
            scatter_states(page, state, width, key_dim, stride_state_value, stride_state_key)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    ssm_state: Tensor,
    state_indices: Tensor,
    query_start_loc: Tensor | None,
    has_initial_state: Tensor | None,
    *,
    scale: float,
    qk_l2norm: bool,
    checkpoint_tokens: Tensor | None,
    checkpoint_indices: Tensor | None,
    out: Tensor | None,
    keeps_last: bool = True,
) -> Tensor:
    """See `blockstride.kernels.gated_delta_rule`; without the two it is one token a sequence."""
    if ssm_state.dtype is not torch.float32:
        with float_states_of_step(
            ssm_state, state_indices, query_start_loc, checkpoint_tokens, checkpoint_indices
        ) as (states, blocks, kept):
            return gated_delta_rule(
                q, k, v, g, beta, states, blocks, query_start_loc, has_initial_state,
                scale=scale, qk_l2norm=qk_l2norm, checkpoint_tokens=checkpoint_tokens,
                checkpoint_indices=kept, out=out, keeps_last=keeps_last,
            )  # fmt: skip
    result, dtype = result_like(v, out), v.dtype
    q, k, v, g, beta = float_rows(q), float_rows(k), float_rows(v), float_rows(g), float_rows(beta)
    query_start_loc, starts = dense_vector(query_start_loc)
    has_initial_state, initial = dense_vector(has_initial_state)
    checkpoint_tokens, tokens = dense_vector(checkpoint_tokens)
    checkpoint_indices, blocks = dense_vector(checkpoint_indices)
    num_checkpoints = 0 if checkpoint_tokens is None else len(checkpoint_tokens)
    state_indices = state_indices.contiguous()
    _, num_heads, key_dim = q.shape
    _, num_value_heads, value_dim = v.shape
    num_blocks, (num_seqs,) = ssm_state.shape[0], state_indices.shape
    fault = _rule(
        num_seqs * num_value_heads * ((value_dim + LANES - 1) // LANES),
        1 if starts else GRAIN // (LANES * key_dim),
        q.data_ptr(), k.data_ptr(), v.data_ptr(), g.data_ptr(), beta.data_ptr(),
        ssm_state.data_ptr(), state_indices.data_ptr(), starts, initial, result.data_ptr(),
        tokens, blocks, num_checkpoints, keeps_last, num_blocks,
        num_value_heads, num_value_heads // num_heads, key_dim, value_dim,
        float_bits(scale), qk_l2norm,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *g.stride()[:2], g.dim() == 3,
        beta.stride()[0], *result.stride()[:2], *ssm_state.stride(),
    )  # fmt: skip
    if fault:
        expect(False, "state_indices", f"ids below {num_blocks}", fault)
    if query_start_loc is not None:
        zero_slack(result, query_start_loc)
    return delivered(result, out, dtype)
