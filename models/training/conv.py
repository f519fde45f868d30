"""Causal depthwise convolution followed by silu, with a hand-written backward pass, for CPUs.

`out[t] = silu(bias + sum over k of weight[k] x[t - width + 1 + k])`, zeros before the first token.
The backward pass recomputes the value before silu. One task takes one block of channels of one
sequence, in one pass over its tokens.
Source: Mamba (Gu and Dao, 2023), section 3.4.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy import float32
from torch import Tensor

from blockstride.models.training.lanes import (
    LANES,
    in_blocks,
    jit,
    out_of_blocks,
    run_tasks,
    sigmoid,
)


@jit
def _convolve(seq, block, t, x, weight, bias, total):
    """The value before silu of one token, into `total`."""
    width = weight.shape[0]
    for i in range(LANES):
        total[i] = bias[block, i]
    for k in range(max(0, width - 1 - t), width):
        source = t - width + 1 + k
        for i in range(LANES):
            total[i] += weight[k, block, i] * x[seq, source, block, i]


@jit
def _conv_forward(first, last, x, weight, bias, out):
    num_blocks = bias.shape[0]
    total = np.empty(LANES, float32)
    for task in range(first, last):
        seq, block = task // num_blocks, task % num_blocks
        for t in range(x.shape[1]):
            _convolve(seq, block, t, x, weight, bias, total)
            for i in range(LANES):
                out[seq, t, block, i] = total[i] * sigmoid(total[i])


@jit
def _conv_backward(first, last, x, weight, bias, dout, dx, dweight, dbias):
    num_blocks, width = bias.shape[0], weight.shape[0]
    total = np.empty(LANES, float32)
    grad = np.empty(LANES, float32)
    for task in range(first, last):
        seq, block = task // num_blocks, task % num_blocks
        for t in range(x.shape[1]):
            _convolve(seq, block, t, x, weight, bias, total)
            for i in range(LANES):
                opened = sigmoid(total[i])
                slope = opened * (float32(1) + total[i] * (float32(1) - opened))
                grad[i] = dout[seq, t, block, i] * slope
                dbias[seq, block, i] += grad[i]
            for k in range(max(0, width - 1 - t), width):
                source = t - width + 1 + k
                for i in range(LANES):
                    dx[seq, source, block, i] += grad[i] * weight[k, block, i]
                    dweight[seq, k, block, i] += grad[i] * x[seq, source, block, i]


class _CausalConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        x, weight, bias = inputs
        ctx.d_inner = x.shape[2]
        x, weight, bias = saved = (in_blocks(x), in_blocks(weight.T), in_blocks(bias))
        out = torch.empty_like(x)
        run_tasks(_conv_forward, x.shape[0] * bias.shape[0], *saved, out)
        ctx.save_for_backward(*saved)
        return out_of_blocks(out, ctx.d_inner)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, weight, bias = saved = ctx.saved_tensors
        dx = torch.zeros_like(x)
        dweight = x.new_zeros(x.shape[0], *weight.shape)
        dbias = x.new_zeros(x.shape[0], *bias.shape)
        dout = in_blocks(grads[0])
        run_tasks(_conv_backward, x.shape[0] * bias.shape[0], *saved, dout, dx, dweight, dbias)
        dx, dweight, dbias = (out_of_blocks(t, ctx.d_inner) for t in (dx, dweight, dbias))
        return dx, dweight.sum(dim=0).T, dbias.sum(dim=0)


def causal_conv(
    x: Float[Tensor, "batch num_tokens d_inner"],
    weight: Float[Tensor, "d_inner d_conv"],
    bias: Float[Tensor, " d_inner"],
) -> Float[Tensor, "batch num_tokens d_inner"]:
    """Causal depthwise convolution and silu of whole sequences, differentiable in every input.

    Args:
        x: Input; tokens before the first count as zeros.
        weight: One filter per channel, its last tap on the current token.
        bias: Added before silu.

    Returns:
        A new tensor of float32, whatever the dtype of the inputs.
    """
    inputs = (tensor.float() for tensor in (x, weight, bias))
    return _CausalConv.apply(*inputs)  # pyright: ignore[reportReturnType]
