"""The real-gated linear recurrent unit for CPUs, of which a decode step is a case.

A task is 64 channels of one sequence. It brings their states onto the stack, walks its tokens on
full vectors, and writes the states back. A decode step is the same with one token: a prompt and its
steps give the same bits.
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
    u8_at,
)
from blockstride.kernels.common.cpu.slack import zero_slack
from blockstride.kernels.common.cpu.state_tile import (
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
    float_vector,
    result_like,
)
from blockstride.kernels.common.cpu.vector_math import (
    EXPM1_SMALL,
    ONE,
    TWO,
    exp,
    fma,
    gelu_tanh,
    minus_expm1,
    sigmoid,
    sqrt,
)

# decode tasks, each a microsecond or so, that are worth waking a thread
GRAIN = 32


@inlined
def _advance(state, inputs, recurrence_gate, input_gate, rates, is_first):
    """Advance a block of channels by one token; a first input is not weighed.

    Where a decay is slow, and so 1 in all but its last digits, it is left out for what it takes.
    """
    for lane in range(LANES):
        y = -rates[lane] * sigmoid(recurrence_gate[lane])
        decay = exp(-y)
        slowly, fast = minus_expm1(y), ONE - decay
        lost = slowly if y < EXPM1_SMALL else fast
        weight = ONE if is_first else sqrt(lost * (TWO - lost))
        added = weight * sigmoid(input_gate[lane]) * inputs[lane]
        slow, fast = state[lane] + fma(-lost, state[lane], added), fma(decay, state[lane], added)
        state[lane] = slow if y < EXPM1_SMALL else fast


@inlined
def _load_gate(gate, row, bias, width):
    """Read a gate of a block of channels, and add its bias."""
    load(gate, row, width)
    for lane in range(LANES):
        gate[lane] += bias[lane]


@inlined
def _multiply_by_gelu(y, gate, row, width):
    """Multiply a block of outputs by `gelu` of its gate."""
    load(gate, row, width)
    for lane in range(LANES):
        y[lane] *= gelu_tanh(gate[lane])


@Program
def _scan(address):
    (
        x, recurrence_gate, input_gate, A, ssm_state, state_indices, query_start_loc,
        has_initial_state, recurrence_bias, input_bias, z, out, checkpoint_tokens,
        checkpoint_indices, num_checkpoints, keeps_last, num_blocks, dim, stride_x,
        stride_recurrence, stride_input, stride_z, stride_out, stride_block, stride_channel,
    ) = arguments(address, 25)  # fmt: skip
    state, rates, inputs, y = (
        stack_f32(LANES), stack_f32(LANES), stack_f32(LANES), stack_f32(LANES)
    )  # fmt: skip
    r, i, gate = stack_f32(LANES), stack_f32(LANES), stack_f32(LANES)
    r_bias, i_bias = stack_f32(LANES), stack_f32(LANES)
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
        pool = ssm_state + 4 * channel * stride_channel
        page = f32_at(pool + 4 * block * stride_block)
        initial_states(state, page, has_initial_state, sequence, width, 1, stride_channel, 0)
        is_fresh = has_initial_state != 0 and u8_at(has_initial_state)[sequence] == 0
        load(rates, f32_at(A + 4 * channel), width)
        load_or_zero(r_bias, recurrence_bias, channel, width)
        load_or_zero(i_bias, input_bias, channel, width)
        checkpoint = next_checkpoint(checkpoint_tokens, num_checkpoints, 0, start)
        for t in range(start, end):
            load(inputs, f32_at(x + 4 * (t * stride_x + channel)), width)
            r_row = f32_at(recurrence_gate + 4 * (t * stride_recurrence + channel))
            i_row = f32_at(input_gate + 4 * (t * stride_input + channel))
            _load_gate(r, r_row, r_bias, width)
            _load_gate(i, i_row, i_bias, width)
            _advance(state, inputs, r, i, rates, is_fresh and t == start)
            for lane in range(LANES):
                y[lane] = state[lane]
            if z != 0:
                _multiply_by_gelu(y, gate, f32_at(z + 4 * (t * stride_z + channel)), width)
            store(f32_at(out + 4 * (t * stride_out + channel)), y, width)
            upto = next_checkpoint(checkpoint_tokens, num_checkpoints, checkpoint, t + 1)
            keep_states(
                address, state, pool, checkpoint_indices, checkpoint, upto, num_blocks, width, 1,
                stride_block, stride_channel, 0,
            )  # fmt: skip
            checkpoint = upto
        if keeps_last != 0:
            scatter_states(page, state, width, 1, stride_channel, 0)


def rg_lru(
    x: Tensor,
    recurrence_gate: Tensor,
    input_gate: Tensor,
    A: Tensor,
    ssm_state: Tensor,
    state_indices: Tensor,
    query_start_loc: Tensor | None,
    has_initial_state: Tensor | None,
    *,
    recurrence_bias: Tensor | None,
    input_bias: Tensor | None,
    z: Tensor | None,
    out: Tensor | None,
    checkpoint_tokens: Tensor | None = None,
    checkpoint_indices: Tensor | None = None,
    keeps_last: bool = True,
) -> Tensor:
    """See `blockstride.kernels.rg_lru`; without the two it is one token a sequence.

    Without `keeps_last` the state after the last token goes to checkpoints alone.
    """
    if ssm_state.dtype is not torch.float32:
        with float_states_of_step(
            ssm_state, state_indices, query_start_loc, checkpoint_tokens, checkpoint_indices
        ) as (states, blocks, kept):
            return rg_lru(
                x, recurrence_gate, input_gate, A, states, blocks, query_start_loc,
                has_initial_state, recurrence_bias=recurrence_bias, input_bias=input_bias, z=z,
                out=out, checkpoint_tokens=checkpoint_tokens, checkpoint_indices=kept,
                keeps_last=keeps_last,
            )  # fmt: skip
    result, dtype = result_like(x, out), x.dtype
    x, recurrence_gate, input_gate = map(float_rows, (x, recurrence_gate, input_gate))
    A, state_indices = A.contiguous(), state_indices.contiguous()
    recurrence_bias, r_bias = float_vector(recurrence_bias)
    input_bias, i_bias = float_vector(input_bias)
    gate, stride_z = 0, 0
    if z is not None:
        z = float_rows(z)
        gate, stride_z = z.data_ptr(), z.stride()[0]
    query_start_loc, starts = dense_vector(query_start_loc)
    has_initial_state, initial = dense_vector(has_initial_state)
    checkpoint_tokens, tokens = dense_vector(checkpoint_tokens)
    checkpoint_indices, blocks = dense_vector(checkpoint_indices)
    num_checkpoints = 0 if checkpoint_tokens is None else len(checkpoint_tokens)
    num_blocks, dim = ssm_state.shape
    fault = _scan(
        len(state_indices) * ((dim + LANES - 1) // LANES), 1 if starts else GRAIN,
        x.data_ptr(), recurrence_gate.data_ptr(), input_gate.data_ptr(), A.data_ptr(),
        ssm_state.data_ptr(), state_indices.data_ptr(), starts, initial, r_bias, i_bias, gate,
        result.data_ptr(), tokens, blocks, num_checkpoints, keeps_last, num_blocks, dim,
        x.stride()[0], recurrence_gate.stride()[0], input_gate.stride()[0], stride_z,
        result.stride()[0], *ssm_state.stride(),
    )  # fmt: skip
    if fault:
        expect(False, "state_indices", f"ids below {num_blocks}", fault)
    if query_start_loc is not None:
        zero_slack(result, query_start_loc)
    return delivered(result, out, dtype)
