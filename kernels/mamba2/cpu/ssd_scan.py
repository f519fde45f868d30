"""Mamba-2's recurrence for CPUs, token by token, of which a decode step is a case.

A task is 64 channels of one head of one sequence. It brings their states onto the stack with the
channels innermost, so that every operation is on full vectors and no sum crosses lanes, walks its
tokens, and writes the states back. A decode step of one token does the same operations on the
states where they lie: a prompt and its steps give the same bits.

A token takes three operations a state. Chunks by products of matrices would take two, and those
that make the products' operands.
"""

import torch
from llvmlite import ir
from torch import Tensor

from blockstride.checks import expect
from blockstride.kernels.common.cpu.checkpoints import float_states_of_step
from blockstride.kernels.common.cpu.lanes import (
    FLOAT,
    INT32,
    LANES,
    ZERO,
    load,
    store,
    vector_function,
    zero_rows,
)
from blockstride.kernels.common.cpu.native import (
    Program,
    arguments,
    claim,
    columns_of,
    f32_at,
    i32_at,
    inlined,
    is_padding,
    num_tasks,
    primitive,
    shifted,
    stack_f32,
    types,
)
from blockstride.kernels.common.cpu.slack import zero_slack
from blockstride.kernels.common.cpu.state_tile import (
    SQUARE,
    STATE_FLOATS,
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

# tokens whose step sizes are computed at once
STEPS = 16
# states of a decode step that are worth waking a thread
GRAIN = 2**17


@inlined
def _advance(y, state, decay, inputs, b_row, c_row, d_state):
    """Advance a block of channels by one token, and add what the states give to its output."""
    for n in range(d_state):
        b, c = b_row[n], c_row[n]
        for lane in range(LANES):
            i = n * LANES + lane
            state[i] = fma(decay, state[i], inputs[lane] * b)
            y[lane] = fma(c, state[i], y[lane])


@primitive
def _advance_square(typing_context, y, states, stride_channel, decay, inputs, b_row, c_row):
    """Advance 16 states of each of 16 channels where they lie; in all else it is `_advance`."""

    def generate(context, builder, signature, values):
        y, states, stride_channel, decay, inputs, b_row, c_row = values
        kind, index = ir.VectorType(FLOAT, SQUARE), stride_channel.type
        fma = vector_function(builder, f"fma.v{SQUARE}f32", kind, (kind, kind, kind))

        def splat(value):
            first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, INT32(0))
            return builder.shuffle_vector(first, first, ir.VectorType(INT32, SQUARE)([0] * SQUARE))

        def number(row, place):
            return splat(builder.load(builder.gep(row, [index(place)])))

        def sixteen(base, offset):
            return builder.bitcast(builder.gep(base, [offset]), kind.as_pointer())

        decay, b = splat(decay), builder.load(sixteen(b_row, index(0)), align=4)
        rows = []
        for channel in range(SQUARE):
            place = sixteen(states, builder.mul(stride_channel, index(channel)))
            added = builder.fmul(number(inputs, channel), b)
            rows.append(builder.call(fma, (decay, builder.load(place, align=4), added)))
            builder.store(rows[-1], place, align=4)
        place = sixteen(y, index(0))
        total = builder.load(place, align=4)
        for n, column in enumerate(columns_of(builder, rows)):
            total = builder.call(fma, (number(c_row, n), column, total))
        builder.store(total, place, align=4)
        return context.get_dummy_value()

    return types.void(y, states, types.int64, types.float32, inputs, b_row, c_row), generate


@inlined
def _advance_page(y, page, decay, inputs, b_row, c_row, width, d_state, stride_channel):
    """Advance a block of channels by one token where their states lie."""
    for lane in range(0, width, SQUARE):
        for n in range(0, d_state, SQUARE):
            _advance_square(
                shifted(y, lane), shifted(page, lane * stride_channel + n), stride_channel,
                decay, shifted(inputs, lane), shifted(b_row, n), shifted(c_row, n),
            )  # fmt: skip


@inlined
def _load_steps(step, decay, dt, stride_dt, count, bias, rate, dt_softplus):
    """Step sizes of some tokens, and what each of them leaves of a state."""
    for lane in range(STEPS):
        step[lane] = dt[lane * stride_dt] if lane < count else ZERO
    for lane in range(STEPS):
        step[lane] += bias
    if dt_softplus != 0:
        for lane in range(STEPS):
            step[lane] = softplus(step[lane])
    for lane in range(STEPS):
        decay[lane] = exp(step[lane] * rate)


@inlined
def _begin(y, inputs, row, width, skip, size):
    """A token's inputs, times its step, and what of them goes past the states to its output."""
    load(inputs, row, width)
    for lane in range(LANES):
        y[lane] = skip * inputs[lane]
        inputs[lane] *= size


@inlined
def _number_or_zero(row, place):
    """A number of a vector, or zero if its address is 0."""
    return f32_at(row)[place] if row != 0 else ZERO


@Program
def _scan(address):
    (
        x, dt, A, B, C, ssm_state, state_indices, query_start_loc, has_initial_state,
        D, z, dt_bias, out, checkpoint_tokens, checkpoint_indices, num_checkpoints,
        num_blocks, num_heads, heads_per_group, head_dim, d_state, dt_softplus,
        stride_x_token, stride_x_head, stride_dt, stride_B_token, stride_B_group,
        stride_C_token, stride_C_group, stride_z_token, stride_z_head,
        stride_out_token, stride_out_head,
        stride_state_block, stride_state_head, stride_state_channel, stride_state_state,
    ) = arguments(address, 37)  # fmt: skip
    state = stack_f32(STATE_FLOATS)
    inputs, y, gate = stack_f32(LANES), stack_f32(LANES), stack_f32(LANES)
    step, decay = stack_f32(STEPS), stack_f32(STEPS)
    channel_blocks = (head_dim + LANES - 1) // LANES
    task = claim(address)
    while task < num_tasks(address):
        row, channel = task // channel_blocks, task % channel_blocks * LANES
        sequence, head = row // num_heads, row % num_heads
        width, group = min(LANES, head_dim - channel), head // heads_per_group
        task = claim(address)
        start, end = rows_of(query_start_loc, sequence)
        block = int(i32_at(state_indices)[sequence])
        target = out + 4 * (start * stride_out_token + head * stride_out_head + channel)
        if is_padding(address, block, num_blocks):
            zero_rows(target, stride_out_token, end - start, width)
            continue
        if start == end:
            continue
        pool = ssm_state + 4 * (head * stride_state_head + channel * stride_state_channel)
        page = f32_at(pool + 4 * block * stride_state_block)
        by_squares = d_state % SQUARE == 0 and width % SQUARE == 0 and stride_state_state == 1
        is_in_place = query_start_loc == 0 and by_squares
        if not is_in_place:
            initial_states(
                state, page, has_initial_state, sequence, width, d_state,
                stride_state_channel, stride_state_state,
            )  # fmt: skip
        bias, skip, rate = _number_or_zero(dt_bias, head), _number_or_zero(D, head), f32_at(A)[head]
        checkpoint = next_checkpoint(checkpoint_tokens, num_checkpoints, 0, start)
        for t in range(start, end):
            i = (t - start) % STEPS
            if i == 0:
                ahead, count = f32_at(dt + 4 * (t * stride_dt + head)), min(STEPS, end - t)
                _load_steps(step, decay, ahead, stride_dt, count, bias, rate, dt_softplus)
            place = t * stride_x_token + head * stride_x_head + channel
            _begin(y, inputs, f32_at(x + 4 * place), width, skip, step[i])
            b = f32_at(B + 4 * (t * stride_B_token + group * stride_B_group))
            c = f32_at(C + 4 * (t * stride_C_token + group * stride_C_group))
            if is_in_place:
                _advance_page(y, page, decay[i], inputs, b, c, width, d_state, stride_state_channel)
            else:
                _advance(y, state, decay[i], inputs, b, c, d_state)
            if z != 0:
                place = t * stride_z_token + head * stride_z_head + channel
                multiply_by_silu(y, gate, f32_at(z + 4 * place), width)
            store(f32_at(target + 4 * (t - start) * stride_out_token), y, width)
            upto = next_checkpoint(checkpoint_tokens, num_checkpoints, checkpoint, t + 1)
            keep_states(
                address, state, pool, checkpoint_indices, checkpoint, upto, num_blocks, width,
                d_state, stride_state_block, stride_state_channel, stride_state_state,
            )  # fmt: skip
            checkpoint = upto
        if not is_in_place:
            scatter_states(page, state, width, d_state, stride_state_channel, stride_state_state)


def ssd_scan(
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
    chunk_size: int | None = None,
    checkpoint_tokens: Tensor | None = None,
    checkpoint_indices: Tensor | None = None,
) -> Tensor:
    """See `blockstride.kernels.ssd_scan`; without the two it is one token a sequence."""
    if ssm_state.dtype is not torch.float32:
        with float_states_of_step(
            ssm_state, state_indices, query_start_loc, checkpoint_tokens, checkpoint_indices
        ) as (states, blocks, kept):
            return ssd_scan(
                x, dt, A, B, C, states, blocks, query_start_loc, has_initial_state,
                D=D, z=z, dt_bias=dt_bias, dt_softplus=dt_softplus, out=out,
                checkpoint_tokens=checkpoint_tokens, checkpoint_indices=kept,
            )  # fmt: skip
    result, dtype = result_like(x, out), x.dtype
    x, dt, A, B, C = float_rows(x), float_rows(dt), float_rows(A), float_rows(B), float_rows(C)
    (D, skip), (dt_bias, bias) = float_vector(D), float_vector(dt_bias)
    gate, stride_z = 0, (0, 0)
    if z is not None:
        z = float_rows(z)
        gate, stride_z = z.data_ptr(), z.stride()[:2]
    query_start_loc, starts = dense_vector(query_start_loc)
    has_initial_state, initial = dense_vector(has_initial_state)
    checkpoint_tokens, tokens = dense_vector(checkpoint_tokens)
    checkpoint_indices, blocks = dense_vector(checkpoint_indices)
    num_checkpoints = 0 if checkpoint_tokens is None else len(checkpoint_tokens)
    state_indices = state_indices.contiguous()
    _, num_heads, head_dim = x.shape
    _, num_groups, d_state = B.shape
    num_blocks, (num_seqs,) = ssm_state.shape[0], state_indices.shape
    fault = _scan(
        num_seqs * num_heads * ((head_dim + LANES - 1) // LANES),
        1 if starts else GRAIN // (LANES * d_state),
        x.data_ptr(), dt.data_ptr(), A.data_ptr(), B.data_ptr(), C.data_ptr(),
        ssm_state.data_ptr(), state_indices.data_ptr(), starts, initial, skip, gate, bias,
        result.data_ptr(), tokens, blocks, num_checkpoints, num_blocks,
        num_heads, num_heads // num_groups, head_dim, d_state, dt_softplus,
        *x.stride()[:2], dt.stride()[0], *B.stride()[:2], *C.stride()[:2],
        *stride_z, *result.stride()[:2], *ssm_state.stride(),
    )  # fmt: skip
    if fault:
        expect(False, "state_indices", f"ids below {num_blocks}", fault)
    if query_start_loc is not None:
        zero_slack(result, query_start_loc)
    return delivered(result, out, dtype)
