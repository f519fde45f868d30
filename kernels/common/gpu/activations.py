"""Activations of float32, each with one exponential, accurate to a few units in the last place."""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
# log(1 + u) = u + u**2 * sum(L[k] * u**k) for 0 <= u <= 1, relative error 3e-8: interpolated at
# Chebyshev nodes. 1 + u would lose the digits of a small u, and with them those of a small step
L0: tl.constexpr = tl.constexpr(-0.499995023)
L1: tl.constexpr = tl.constexpr(0.333192706)
L2: tl.constexpr = tl.constexpr(-0.248443693)
L3: tl.constexpr = tl.constexpr(0.191114306)
L4: tl.constexpr = tl.constexpr(-0.136747703)
L5: tl.constexpr = tl.constexpr(0.0783616677)
L6: tl.constexpr = tl.constexpr(-0.0295885075)
L7: tl.constexpr = tl.constexpr(0.00525345793)
# (1 + tanh(u)) / 2 is the sigmoid of 2 * u: 2 * sqrt(2 / pi), and that times 0.044715
GELU_LINEAR: tl.constexpr = tl.constexpr(1.5957691216057308)
GELU_CUBIC: tl.constexpr = tl.constexpr(0.07135481627159942)


@triton.jit
def widened(x):
    """The same numbers in float32; of two bfloat16 in a register, both by one instruction each."""
    if x.dtype == tl.bfloat16:
        bits = x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        x = bits.to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit
def sigmoid(x):
    """`1 / (1 + exp(-x))`, by no power that overflows and no division.

    A division would first scale its operands, at the price of all the rest.
    """
    root = tl.rsqrt(1.0 + tl.math.exp2(tl.minimum(x * -LOG2_E, 126.0)))
    return root * root


@triton.jit
def silu(x):
    """`x / (1 + exp(-x))`."""
    return x * sigmoid(x)


@triton.jit
def gelu_tanh(x):
    """`x * (1 + tanh(s * (x + 0.044715 * x**3))) / 2` with `s = sqrt(2 / pi)`."""
    inner = tl.fma(x * x, x * GELU_CUBIC, x * GELU_LINEAR)
    return x * sigmoid(inner)


@triton.jit
def softplus(x):
    """`log(1 + exp(x))` without overflow, with small results as accurate as large ones."""
    u = tl.math.exp2(tl.abs(x) * -LOG2_E)
    p = tl.fma(tl.fma(tl.fma(L7, u, L6), u, L5), u, L4)
    p = tl.fma(tl.fma(tl.fma(tl.fma(p, u, L3), u, L2), u, L1), u, L0)
    return tl.maximum(x, 0.0) + tl.fma(u * u, p, u)
