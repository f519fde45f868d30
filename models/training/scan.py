"""Selective scan with a hand-written backward pass, for training on CPUs.

`h[t] = exp(dt[t] A) h[t-1] + dt[t] x[t] B[t]`, then `y[t] = C[t] h[t] + D x[t]`, gated by
`silu(z[t])`. The forward pass keeps the state before every `CHUNK` tokens. The backward pass takes
the chunks last to first, recomputes the states of one chunk into a buffer that stays in the
processor's cache, and walks it back. One forward task scans one block of channels of one sequence;
one backward task all channels of one sequence, block by block within a chunk, so that dB and dC,
which sum over channels, need no atomics.
Source: Mamba (Gu and Dao, 2023), sections 3.2 and 3.3.2.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy import float32
from torch import Tensor

from blockstride.models.training.lanes import (
    LANES,
    exp2,
    in_blocks,
    jit,
    out_of_blocks,
    run_tasks,
    sigmoid,
    sum_of,
)

CHUNK = 8  # tokens
_LOG2_E = 1 / np.log(2)
_LN_2 = float32(np.log(2))


@jit
def _scan_forward(first, last, x, dt, rates, B, C, D, z, y, starts, out):
    num_tokens, num_states, num_blocks = B.shape[1], B.shape[2], D.shape[0]
    h = np.empty((num_states, LANES), float32)
    step = np.empty(LANES, float32)
    total = np.empty(LANES, float32)
    for task in range(first, last):
        seq, block = task // num_blocks, task % num_blocks
        rate = rates[block]
        h[:] = float32(0)
        for t in range(num_tokens):
            if t % CHUNK == 0:
                starts[seq, t // CHUNK, block] = h
            for i in range(LANES):
                step[i] = dt[seq, t, block, i] * x[seq, t, block, i]
                total[i] = D[block, i] * x[seq, t, block, i]
            for n in range(num_states):
                b, c = B[seq, t, n], C[seq, t, n]
                for i in range(LANES):
                    h[n, i] = exp2(dt[seq, t, block, i] * rate[n, i]) * h[n, i] + step[i] * b
                    total[i] += h[n, i] * c
            for i in range(LANES):
                gate = z[seq, t, block, i]
                y[seq, t, block, i] = total[i]
                out[seq, t, block, i] = total[i] * gate * sigmoid(gate)


@jit
def _scan_backward(
    first, last, x, dt, rates, B, C, D, z, y, starts, dout, dx, ddt, dA, dB, dC, dD, dz
):
    num_tokens, num_states, num_blocks = B.shape[1], B.shape[2], D.shape[0]
    dh = np.empty((num_blocks, num_states, LANES), float32)
    h = np.empty((CHUNK + 1, num_states, LANES), float32)
    decay = np.empty((CHUNK, num_states, LANES), float32)
    dy = np.empty((CHUNK, LANES), float32)
    dB_lanes = np.empty((CHUNK, num_states, LANES), float32)
    dC_lanes = np.empty((CHUNK, num_states, LANES), float32)
    for seq in range(first, last):
        dh[:] = float32(0)
        for chunk in range(starts.shape[1] - 1, -1, -1):
            begin = chunk * CHUNK
            now = slice(begin, min(begin + CHUNK, num_tokens))
            dB_lanes[:] = float32(0)
            dC_lanes[:] = float32(0)
            for block in range(num_blocks):
                h[0] = starts[seq, chunk, block]
                _ungate(block, dout[seq, now], z[seq, now], y[seq, now], dy, dz[seq, now])
                _recompute(block, x[seq, now], dt[seq, now], rates[block], B[seq, now], h, decay)
                _walk_back(
                    block, x[seq, now], dt[seq, now], rates[block], B[seq, now], C[seq, now],
                    D[block], h, decay, dy, dh[block], dx[seq, now], ddt[seq, now],
                    dA[seq, block], dB_lanes, dC_lanes, dD[seq, block],
                )  # fmt: skip
            for t in range(begin, now.stop):
                for n in range(num_states):
                    dB[seq, t, n] = sum_of(dB_lanes[t - begin, n])
                    dC[seq, t, n] = sum_of(dC_lanes[t - begin, n])


@jit
def _ungate(block, dout, z, y, dy, dz):
    for t in range(dout.shape[0]):
        for i in range(LANES):
            grad, gate = dout[t, block, i], z[t, block, i]
            opened = sigmoid(gate)
            slope = opened * (float32(1) + gate * (float32(1) - opened))
            dy[t, i] = grad * gate * opened
            dz[t, block, i] = grad * y[t, block, i] * slope


@jit
def _recompute(block, x, dt, rates, B, h, decay):
    for t in range(x.shape[0]):
        for n in range(rates.shape[0]):
            b = B[t, n]
            for i in range(LANES):
                decay[t, n, i] = exp2(dt[t, block, i] * rates[n, i])
                h[t + 1, n, i] = decay[t, n, i] * h[t, n, i] + dt[t, block, i] * x[t, block, i] * b


@jit
def _walk_back(block, x, dt, rates, B, C, D, h, decay, dy, dh, dx, ddt, dA, dB, dC, dD):
    """Gradients of one chunk of one block; `dh`, that of the state, goes on to the chunk before."""
    into_step = np.empty(LANES, float32)  # gradient of dt x
    into_decay = np.empty(LANES, float32)  # gradient of dt log2(e) through the decay
    for t in range(x.shape[0] - 1, -1, -1):
        into_step[:] = float32(0)
        into_decay[:] = float32(0)
        for n in range(rates.shape[0]):
            b, c = B[t, n], C[t, n]
            for i in range(LANES):
                grad = dh[n, i] + dy[t, i] * c
                dC[t, n, i] += dy[t, i] * h[t + 1, n, i]
                dB[t, n, i] += grad * dt[t, block, i] * x[t, block, i]
                into_step[i] += grad * b
                dh[n, i] = grad * decay[t, n, i]
                through_decay = grad * decay[t, n, i] * h[t, n, i]
                into_decay[i] += through_decay * rates[n, i]
                dA[n, i] += through_decay * dt[t, block, i]
        for i in range(LANES):
            dD[i] += dy[t, i] * x[t, block, i]
            dx[t, block, i] = dy[t, i] * D[i] + into_step[i] * dt[t, block, i]
            ddt[t, block, i] = into_step[i] * x[t, block, i] + into_decay[i] * _LN_2


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        x, dt, A, B, C, D, z = inputs
        ctx.d_inner = x.shape[2]
        x, dt, D, z = (in_blocks(tensor) for tensor in (x, dt, D, z))
        # [blocks, d_state, lanes], for exp2 instead of exp
        rates = in_blocks(A.T * _LOG2_E).transpose(0, 1).contiguous()
        out, y = torch.empty_like(x), torch.empty_like(x)
        starts = x.new_empty(x.shape[0], -(-x.shape[1] // CHUNK), *rates.shape)
        saved = (x, dt, rates, B.contiguous(), C.contiguous(), D, z, y, starts)
        run_tasks(_scan_forward, x.shape[0] * D.shape[0], *saved, out)
        ctx.save_for_backward(*saved)
        return out_of_blocks(out, ctx.d_inner)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, _, rates, B, C, D, *_ = saved = ctx.saved_tensors
        dx, ddt, dz = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
        dB, dC = torch.empty_like(B), torch.empty_like(C)
        dA, dD = x.new_zeros(x.shape[0], *rates.shape), x.new_zeros(x.shape[0], *D.shape)
        dout = in_blocks(grads[0])
        run_tasks(_scan_backward, x.shape[0], *saved, dout, dx, ddt, dA, dB, dC, dD, dz)
        dA = out_of_blocks(dA.sum(dim=0).transpose(0, 1), ctx.d_inner).T
        dx, ddt, dD, dz = (out_of_blocks(t, ctx.d_inner) for t in (dx, ddt, dD.sum(dim=0), dz))
        return dx, ddt, dA, dB, dC, dD, dz


def selective_scan(
    x: Float[Tensor, "batch num_tokens d_inner"],
    dt: Float[Tensor, "batch num_tokens d_inner"],
    A: Float[Tensor, "d_inner d_state"],
    B: Float[Tensor, "batch num_tokens d_state"],
    C: Float[Tensor, "batch num_tokens d_state"],
    D: Float[Tensor, " d_inner"],
    z: Float[Tensor, "batch num_tokens d_inner"],
) -> Float[Tensor, "batch num_tokens d_inner"]:
    """Mamba-1 scan of whole sequences from a zero state, differentiable in every input.

    Args:
        x: Input, after the convolution.
        dt: Step sizes, positive: after the softplus.
        A: Decay rates, negative: `-exp(A_log)`.
        B: What of the input enters the states.
        C: What of the states enters the output.
        D: Skip weight of every channel.
        z: Gate, before its silu.

    Returns:
        `(C h + D x) * silu(z)`, a new tensor of float32 whatever the dtype of the inputs.
    """
    inputs = (tensor.float() for tensor in (x, dt, A, B, C, D, z))
    return _SelectiveScan.apply(*inputs)  # pyright: ignore[reportReturnType]
