"""Turning heads by the angles of their tokens, for CPUs. A task is a few tokens, all heads."""

import torch
from torch import Tensor

from blockstride.kernels.common.cpu.lanes import LANES, load, store
from blockstride.kernels.common.cpu.native import (
    Program,
    arguments,
    claim,
    f32_at,
    num_tasks,
    shifted,
    stack_f32,
)
from blockstride.kernels.common.cpu.tensors import float_rows, is_float_rows

TOKENS_PER_TASK = 32


@Program
def _turn(address):
    (
        x, cos, sin, out, num_tokens, num_heads, head_size, half,
        stride_x_token, stride_x_head, stride_cos, stride_sin, stride_out_token, stride_out_head,
    ) = arguments(address, 14)  # fmt: skip
    first, second, turned = stack_f32(LANES), stack_f32(LANES), stack_f32(LANES)
    c, s = stack_f32(LANES), stack_f32(LANES)
    task = claim(address)
    while task < num_tasks(address):
        start = task * TOKENS_PER_TASK
        task = claim(address)
        for token in range(start, min(start + TOKENS_PER_TASK, num_tokens)):
            for head in range(num_heads):
                row = f32_at(x + 4 * (token * stride_x_token + head * stride_x_head))
                target = f32_at(out + 4 * (token * stride_out_token + head * stride_out_head))
                for i in range(0, half, LANES):
                    width = min(LANES, half - i)
                    load(c, f32_at(cos + 4 * (token * stride_cos + i)), width)
                    load(s, f32_at(sin + 4 * (token * stride_sin + i)), width)
                    load(first, shifted(row, i), width)
                    load(second, shifted(row, half + i), width)
                    for lane in range(LANES):
                        turned[lane] = first[lane] * c[lane] - second[lane] * s[lane]
                    store(shifted(target, i), turned, width)
                    for lane in range(LANES):
                        turned[lane] = second[lane] * c[lane] + first[lane] * s[lane]
                    store(shifted(target, half + i), turned, width)
                for i in range(2 * half, head_size, LANES):
                    width = min(LANES, head_size - i)
                    load(turned, shifted(row, i), width)
                    store(shifted(target, i), turned, width)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads with their first `2 * half` elements turned, in float32.

    Args:
        x: `[num_tokens, num_heads, head_size]`.
        cos: `[num_tokens, half]`.
        sin: The same.
    """
    result = torch.empty(x.shape)
    _write_turned(x, cos, sin, result)
    return result


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Do the same to `x` itself."""
    if is_float_rows(x):
        _write_turned(x, cos, sin, x)
    else:
        x.copy_(turned(x, cos, sin))


def _write_turned(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """Turn into `out`, which has float32 rows and may be `x`."""
    x, cos, sin = float_rows(x), float_rows(cos), float_rows(sin)
    num_tokens, num_heads, head_size = x.shape
    _turn(
        -(-num_tokens // TOKENS_PER_TASK), 4,
        x.data_ptr(), cos.data_ptr(), sin.data_ptr(), out.data_ptr(),
        num_tokens, num_heads, head_size, cos.shape[1],
        *x.stride()[:2], cos.stride()[0], sin.stride()[0], *out.stride()[:2],
    )  # fmt: skip
