"""How a program walks tokens: eight at a time, whose loads are all on their way at once."""

import triton
import triton.language as tl

from blockstride.kernels.common.gpu.activations import gelu_tanh, widened
from blockstride.kernels.lru.gpu.gates import next_state

# tokens whose loads are in flight together
UNROLL: tl.constexpr = tl.constexpr(8)


@triton.jit
def load_tokens(channel_ptrs, stride_token, first, end, mask):
    """Some channels of `UNROLL` tokens from `first` on; zeros from `end` on."""
    rows, row_ptrs = (), channel_ptrs + tl.cast(first, tl.int64) * stride_token
    for i in tl.static_range(UNROLL):
        rows += (tl.load(row_ptrs, mask=mask & (first + i < end), other=0.0),)
        row_ptrs += stride_token
    return rows


@triton.jit
def advance(
    state, total, x_ptrs, recurrence_ptrs, input_ptrs, rates, recurrence_bias, input_bias,
    first, end, fresh, mask, stride_x_token, stride_recurrence_token, stride_input_token,
):  # fmt: skip
    """States after each of `UNROLL` tokens, and `total` with the logarithms of their decays.

    Those from `end` on change nothing. `fresh` is the token that has no state before it.
    """
    xs = load_tokens(x_ptrs, stride_x_token, first, end, mask)
    recurrence_gates = load_tokens(recurrence_ptrs, stride_recurrence_token, first, end, mask)
    input_gates = load_tokens(input_ptrs, stride_input_token, first, end, mask)
    states = ()
    for i in tl.static_range(UNROLL):
        after, log_decay = next_state(
            state, xs[i], widened(recurrence_gates[i]) + recurrence_bias,
            widened(input_gates[i]) + input_bias, rates, first + i == fresh,
        )  # fmt: skip
        state = tl.where(first + i < end, after, state)
        total += tl.where(first + i < end, log_decay, 0.0)
        states += (state,)
    return states, total


@triton.jit
def write_outputs(states, z_ptrs, out_ptrs, first, end, mask, stride_z_token, stride_out_token):
    """States, gated, as the outputs of those of `UNROLL` tokens that are before `end`."""
    if z_ptrs is not None:
        gates = load_tokens(z_ptrs, stride_z_token, first, end, mask)
    row_ptrs = out_ptrs + tl.cast(first, tl.int64) * stride_out_token
    for i in tl.static_range(UNROLL):
        y = states[i]
        if z_ptrs is not None:
            y *= gelu_tanh(widened(gates[i]))
        tl.store(row_ptrs, y.to(out_ptrs.dtype.element_ty), mask=mask & (first + i < end))
        row_ptrs += stride_out_token
