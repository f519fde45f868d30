"""Causal convolution and its decode step for CPUs.

A task is 64 channels of one sequence. It keeps their last `width` inputs on the stack, as a ring in
which input `t` has place `t % width`; the inputs before the first token come from the state, and
the last ones go there.
"""

import torch
from torch import Tensor

from blockstride.checks import expect
from blockstride.kernels.common.cpu.lanes import LANES, ZERO, load, load_or_zero, store, zero_rows
from blockstride.kernels.common.cpu.native import (
    Program,
    arguments,
    claim,
    f32_at,
    i32_at,
    inlined,
    is_padding,
    num_tasks,
    shifted,
    stack_f32,
    u8_at,
)
from blockstride.kernels.common.cpu.slack import zero_slack
from blockstride.kernels.common.cpu.tensors import (
    delivered,
    float_rows,
    float_states,
    float_vector,
    result_like,
)
from blockstride.kernels.common.cpu.vector_math import fma, silu
from blockstride.kernels.conv.causal_conv1d import MAX_WIDTH

RING_FLOATS = LANES * MAX_WIDTH
# decode tasks, each a third of a microsecond, that are worth waking a thread
GRAIN = 64


@inlined
def _gather(rows, source, width, num_rows, stride_channel, stride_row):
    """Read a few numbers of each channel of a block, channels becoming innermost."""
    for k in range(num_rows):
        row, first = shifted(rows, k * LANES), shifted(source, k * stride_row)
        if stride_channel == 1:
            load(row, first, width)
        else:
            for lane in range(LANES):
                row[lane] = first[lane * stride_channel] if lane < width else ZERO


@inlined
def _convolve(y, ring, taps, bias, t, width):
    """Weigh the last inputs, the oldest first."""
    for lane in range(LANES):
        y[lane] = bias[lane]
    for k in range(width):
        row, weight = shifted(ring, (t + 1 + k) % width * LANES), shifted(taps, k * LANES)
        for lane in range(LANES):
            y[lane] = fma(weight[lane], row[lane], y[lane])


@Program
def _convolution(address):
    (
        x, weight, bias, conv_state, state_indices, query_start_loc, has_initial_state, out,
        num_blocks, dim, width, num_new, activation,
        stride_x_sequence, stride_x_token, stride_out_sequence, stride_out_token,
        stride_weight_channel, stride_weight_tap,
        stride_state_block, stride_state_channel, stride_state_tap,
    ) = arguments(address, 22)  # fmt: skip
    ring, taps = stack_f32(RING_FLOATS), stack_f32(RING_FLOATS)
    offset, y = stack_f32(LANES), stack_f32(LANES)
    channel_blocks = (dim + LANES - 1) // LANES
    task = claim(address)
    while task < num_tasks(address):
        sequence, channel = task // channel_blocks, task % channel_blocks * LANES
        lanes = min(LANES, dim - channel)
        task = claim(address)
        source = x + 4 * (sequence * stride_x_sequence + channel)
        target = out + 4 * (sequence * stride_out_sequence + channel)
        length = num_new
        if query_start_loc != 0:
            start = int(i32_at(query_start_loc)[sequence])
            length = int(i32_at(query_start_loc)[sequence + 1]) - start
            source += 4 * start * stride_x_token
            target += 4 * start * stride_out_token
        block = int(i32_at(state_indices)[sequence])
        if is_padding(address, block, num_blocks):
            zero_rows(target, stride_out_token, length, lanes)
            continue
        if length == 0:
            continue
        place = block * stride_state_block + channel * stride_state_channel
        page = f32_at(conv_state + 4 * place)
        # input 1 - width, the oldest that is used, has place 1
        if has_initial_state == 0 or u8_at(has_initial_state)[sequence] != 0:
            past = shifted(ring, LANES)
            _gather(past, page, lanes, width - 1, stride_state_channel, stride_state_tap)
        else:
            for i in range(width * LANES):
                ring[i] = ZERO
        kernel = f32_at(weight + 4 * channel * stride_weight_channel)
        _gather(taps, kernel, lanes, width, stride_weight_channel, stride_weight_tap)
        load_or_zero(offset, bias, channel, lanes)
        for t in range(length):
            row = shifted(ring, t % width * LANES)
            load(row, f32_at(source + 4 * t * stride_x_token), lanes)
            _convolve(y, ring, taps, offset, t, width)
            if activation != 0:
                for lane in range(LANES):
                    y[lane] = silu(y[lane])
            store(f32_at(target + 4 * t * stride_out_token), y, lanes)
        for k in range(width - 1):
            row = shifted(ring, (length + 1 + k) % width * LANES)
            first = shifted(page, k * stride_state_tap)
            for lane in range(lanes):
                first[lane * stride_state_channel] = row[lane]


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_state: Tensor,
    state_indices: Tensor,
    query_start_loc: Tensor,
    has_initial_state: Tensor,
    *,
    activation: str | None,
    out: Tensor | None,
) -> Tensor:
    """See `blockstride.kernels.causal_conv1d`."""
    if conv_state.dtype is not torch.float32:
        touched = (state_indices > 0) & (query_start_loc.diff() > 0)
        with float_states(conv_state, state_indices, touched) as (states, indices):
            return causal_conv1d(
                x, weight, bias, states, indices, query_start_loc, has_initial_state,
                activation=activation, out=out,
            )  # fmt: skip
    result, rows = result_like(x, out), float_rows(x)
    starts, initial = query_start_loc.contiguous(), has_initial_state.contiguous()
    _run(
        weight, bias, conv_state, state_indices, 1,
        (starts.data_ptr(), initial.data_ptr()), 0, activation,
        (rows.data_ptr(), 0, rows.stride()[0]), (result.data_ptr(), 0, result.stride()[0]),
    )  # fmt: skip
    zero_slack(result, query_start_loc)
    return delivered(result, out, x.dtype)


def causal_conv1d_update(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_state: Tensor,
    state_indices: Tensor,
    *,
    activation: str | None,
    out: Tensor | None,
) -> Tensor:
    """See `blockstride.kernels.causal_conv1d_update`."""
    if conv_state.dtype is not torch.float32:
        with float_states(conv_state, state_indices, state_indices > 0) as (states, indices):
            return causal_conv1d_update(
                x, weight, bias, states, indices, activation=activation, out=out
            )
    result, rows = result_like(x, out), float_rows(x)
    _run(
        weight, bias, conv_state, state_indices, GRAIN, (0, 0), x.shape[1], activation,
        (rows.data_ptr(), *rows.stride()[:2]), (result.data_ptr(), *result.stride()[:2]),
    )  # fmt: skip
    return delivered(result, out, x.dtype)


def _run(
    weight: Tensor,
    bias: Tensor | None,
    conv_state: Tensor,
    state_indices: Tensor,
    grain: int,
    starts: tuple[int, int],
    num_new: int,
    activation: str | None,
    source: tuple[int, ...],
    target: tuple[int, ...],
) -> None:
    """Call the program; `source` and `target` are an address, sequence stride and token stride."""
    weight, (bias, offset) = weight.float(), float_vector(bias)
    state_indices = state_indices.contiguous()
    (dim, width), (num_seqs,), num_blocks = weight.shape, state_indices.shape, conv_state.shape[0]
    fault = _convolution(
        num_seqs * ((dim + LANES - 1) // LANES), grain,
        source[0], weight.data_ptr(), offset, conv_state.data_ptr(), state_indices.data_ptr(),
        *starts, target[0], num_blocks, dim, width, num_new, activation is not None,
        *source[1:], *target[1:], *weight.stride(), *conv_state.stride(),
    )  # fmt: skip
    if fault:
        expect(False, "state_indices", f"ids below {num_blocks}", fault)
