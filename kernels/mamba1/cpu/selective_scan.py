"""Selective scan for CPUs, of which a decode step is a case.

A task is 64 channels of one sequence. It brings their states onto the stack with the channels
innermost, so that every operation is on full vectors, walks its tokens, and writes the states back.
A decode step is the same with one token: a prompt and its steps give the same bits.
"""

import torch
from torch import Tensor

from blockstride.checks import expect
from blockstride.kernels.common.cpu.checkpoints import float_states_of_step
from blockstride.kernels.common.cpu.lanes import LANES, load, load_or_zero, store, zero_rows
from blockstride.kernels.common.cpu.native import (
    Program,
    arguments,
    claim,
    f32_at,
    i32_at,
    inlined,
    is_padding,
    num_tasks,
    stack_f32,
)
from blockstride.kernels.common.cpu.slack import zero_slack
from blockstride.kernels.common.cpu.state_tile import (
    STATE_FLOATS,
    gather_states,
    initial_states,
    keep_states,
    multiply_by_silu,
    next_checkpoint,
    rows_of,
    scatter_states,
)
from blockstride.kernels.common.cpu.tensors import (
    delivered,
    dense_vector,
    float_rows,
    float_vector,
    result_like,
)
from blockstride.kernels.common.cpu.vector_math import exp, fma, softplus

# decode tasks, each a microsecond or so, that are worth waking a thread
GRAIN = 32


@inlined
def _load_step(step, row, bias, width, dt_softplus):
    """Step sizes of a block of channels."""
    load(step, row, width)
    for lane in range(LANES):
        step[lane] += bias[lane]
    if dt_softplus != 0:
        for lane in range(LANES):
            step[lane] = softplus(step[lane])


@inlined
def _advance(y, state, decay, step, inputs, b_row, c_row, d_state):
    """Advance a block of channels by one token and add what the states give to its output."""
    for n in range(d_state):
        b, c = b_row[n], c_row[n]
        for lane in range(LANES):
            i = n * LANES + lane
            state[i] = fma(exp(step[lane] * decay[i]), state[i], inputs[lane] * b)
            y[lane] = fma(c, state[i], y[lane])


@Program
def _scan(address):
    (
        x, dt, A, B, C, ssm_state, state_indices, query_start_loc, has_initial_state,
        D, z, dt_bias, out, checkpoint_tokens, checkpoint_indices, num_checkpoints,
        num_blocks, dim, d_state, dt_softplus,
        stride_x, stride_dt, stride_A, stride_B, stride_C, stride_z, stride_out,
        stride_state_block, stride_state_channel, stride_state_state,
    ) = arguments(address, 30)  # fmt: skip
    state, decay = stack_f32(STATE_FLOATS), stack_f32(STATE_FLOATS)
    inputs, step, y = stack_f32(LANES), stack_f32(LANES), stack_f32(LANES)
    bias, skip, gate = stack_f32(LANES), stack_f32(LANES), stack_f32(LANES)
    channel_blocks = (dim + LANES - 1) // LANES
    task = claim(address)
    while task < num_tasks(address):
        sequence, channel = task // channel_blocks, task % channel_blocks * LANES
        width = min(LANES, dim - channel)
        task = claim(address)
        start, end = rows_of(query_start_loc, sequence)
        block = int(i32_at(state_indices)[sequence])
        if is_padding(address, block, num_blocks):
            zero_rows(out + 4 * (start * stride_out + channel), stride_out, end - start, width)
            continue
        if start == end:
            continue
        gather_states(decay, f32_at(A + 4 * channel * stride_A), width, d_state, stride_A, 1)
        pool = ssm_state + 4 * channel * stride_state_channel
        page = f32_at(pool + 4 * block * stride_state_block)
        initial_states(
            state, page, has_initial_state, sequence, width, d_state,
            stride_state_channel, stride_state_state,
        )  # fmt: skip
        load_or_zero(bias, dt_bias, channel, width)
        load_or_zero(skip, D, channel, width)
        checkpoint = next_checkpoint(checkpoint_tokens, num_checkpoints, 0, start)
        for t in range(start, end):
            load(inputs, f32_at(x + 4 * (t * stride_x + channel)), width)
            _load_step(step, f32_at(dt + 4 * (t * stride_dt + channel)), bias, width, dt_softplus)
            for lane in range(LANES):
                y[lane] = skip[lane] * inputs[lane]
                inputs[lane] *= step[lane]
            b_row, c_row = f32_at(B + 4 * t * stride_B), f32_at(C + 4 * t * stride_C)
            _advance(y, state, decay, step, inputs, b_row, c_row, d_state)
            if z != 0:
                multiply_by_silu(y, gate, f32_at(z + 4 * (t * stride_z + channel)), width)
            store(f32_at(out + 4 * (t * stride_out + channel)), y, width)
            upto = next_checkpoint(checkpoint_tokens, num_checkpoints, checkpoint, t + 1)
            keep_states(
                address, state, pool, checkpoint_indices, checkpoint, upto, num_blocks, width,
                d_state, stride_state_block, stride_state_channel, stride_state_state,
            )  # fmt: skip
            checkpoint = upto
        scatter_states(page, state, width, d_state, stride_state_channel, stride_state_state)


def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    ssm_state: Tensor,
    state_indices: Tensor,
    query_start_loc: Tensor | None,
    has_initial_state: Tensor | None,
    *,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    out: Tensor | None,
    checkpoint_tokens: Tensor | None = None,
    checkpoint_indices: Tensor | None = None,
) -> Tensor:
    """See `blockstride.kernels.selective_scan`; without the two it is one token a sequence."""
    if ssm_state.dtype is not torch.float32:
        with float_states_of_step(
            ssm_state, state_indices, query_start_loc, checkpoint_tokens, checkpoint_indices
        ) as (states, blocks, kept):
            return selective_scan(
                x, dt, A, B, C, states, blocks, query_start_loc, has_initial_state,
                D=D, z=z, dt_bias=dt_bias, dt_softplus=dt_softplus, out=out,
                checkpoint_tokens=checkpoint_tokens, checkpoint_indices=kept,
            )  # fmt: skip
    result, dtype = result_like(x, out), x.dtype
    x, dt, A, B, C = float_rows(x), float_rows(dt), float_rows(A), float_rows(B), float_rows(C)
    (D, skip), (dt_bias, bias) = float_vector(D), float_vector(dt_bias)
    gate, stride_z = 0, 0
    if z is not None:
        z = float_rows(z)
        gate, stride_z = z.data_ptr(), z.stride()[0]
    query_start_loc, starts = dense_vector(query_start_loc)
    has_initial_state, initial = dense_vector(has_initial_state)
    checkpoint_tokens, tokens = dense_vector(checkpoint_tokens)
    checkpoint_indices, blocks = dense_vector(checkpoint_indices)
    num_checkpoints = 0 if checkpoint_tokens is None else len(checkpoint_tokens)
    state_indices = state_indices.contiguous()
    dim, d_state = A.shape
    num_blocks, (num_seqs,) = ssm_state.shape[0], state_indices.shape
    fault = _scan(
        num_seqs * ((dim + LANES - 1) // LANES), 1 if starts else GRAIN,
        x.data_ptr(), dt.data_ptr(), A.data_ptr(), B.data_ptr(), C.data_ptr(),
        ssm_state.data_ptr(), state_indices.data_ptr(), starts, initial, skip, gate, bias,
        result.data_ptr(), tokens, blocks, num_checkpoints, num_blocks, dim, d_state, dt_softplus,
        x.stride()[0], dt.stride()[0], A.stride()[0], B.stride()[0], C.stride()[0],
        stride_z, result.stride()[0], *ssm_state.stride(),
    )  # fmt: skip
    if fault:
        expect(False, "state_indices", f"ids below {num_blocks}", fault)
    if query_start_loc is not None:
        zero_slack(result, query_start_loc)
    return delivered(result, out, dtype)
