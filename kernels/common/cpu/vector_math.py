"""Functions of one float32 that LLVM vectorises, accurate to float32.

Calls into a mathematics library would keep a loop scalar; these are range reductions and minimax
polynomials without branches. NaN stays NaN.
"""

import numpy as np
from llvmlite import ir

from blockstride.kernels.common.cpu.native import inlined, primitive, types

FLOAT, INT32 = ir.FloatType(), ir.IntType(32)

ONE = np.float32(1)
TWO = np.float32(2)
ZERO = np.float32(0)
# outside these the exponent of the result would leave the range of normal numbers
EXP_MIN, EXP_MAX = np.float32(-87), np.float32(88)
LOG2_E = np.float32(1.4426950408889634)
# adding this rounds to an integer, which then stands in the low bits of the sum
ROUND = np.float32(1.5 * 2**23)
# ln 2 in two pieces; the first is short, so that its product with an exponent is exact
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# exp(r) = 1 + r + r**2 * sum(E[k] * r**k) for |r| <= ln(2) / 2, relative error 3e-9
E0, E1, E2, E3, E4 = (
    np.float32(c) for c in (0.49999994, 0.1666652, 0.041668393, 0.008368781, 0.0013814467)
)
# log(1 + u) = u + u**2 * sum(L[k] * u**k) for 0 <= u <= 1, relative error 2e-8
L0, L1, L2, L3, L4, L5, L6, L7, L8 = (
    np.float32(c)
    for c in (
        *(-0.499999315, 0.333305091, -0.249585688, 0.196952954, -0.153550625),
        *(0.106799401, -0.0576578788, 0.0202008337, -0.00331758452),
    )
)
# tanh(x) = x + x * w * sum(T[k] * w**k) with w = x**2 for |x| <= TANH_SMALL, relative error 3e-9
T0, T1, T2, T3, T4 = (
    np.float32(c) for c in (-0.33333299, 0.13331924, -0.05378383, 0.02079597, -0.00589516)
)
TANH_SMALL = np.float32(0.6)
# (1 + tanh(u)) / 2 is the sigmoid of 2 * u: 2 * sqrt(2 / pi), and that times 0.044715
GELU_LINEAR, GELU_CUBIC = np.float32(1.5957691216057308), np.float32(0.07135481627159942)
# 1 - exp(-y) = y + y**2 * sum(M[k] * y**(k - 1)) for 0 <= y <= EXPM1_SMALL, relative error 3e-9
M1, M2, M3, M4, M5 = (
    np.float32(c) for c in (-0.499999821, 0.166662425, -0.0416300744, 0.00818961393, -0.00112340425)
)
EXPM1_SMALL = np.float32(0.5)


@primitive
def fma(typing_context, a, b, c):
    """`a * b + c`, rounded once."""

    def generate(context, builder, signature, values):
        return builder.fma(*values)

    f32 = types.float32
    return f32(f32, f32, f32), generate


@primitive
def sqrt(typing_context, x):
    """The square root, which a call into a library would keep scalar."""

    def generate(context, builder, signature, values):
        kind = ir.FunctionType(FLOAT, (FLOAT,))
        root = builder.module.declare_intrinsic("llvm.sqrt.f32", fnty=kind)
        return builder.call(root, values)

    return types.float32(types.float32), generate


@primitive
def scale_by_power(typing_context, value, rounded):
    """`value * 2 ** n`, where `rounded` is `n + ROUND`."""

    def generate(context, builder, signature, values):
        value, rounded = (builder.bitcast(operand, INT32) for operand in values)
        exponent = builder.shl(rounded, INT32(23))
        return builder.bitcast(builder.add(value, exponent), FLOAT)

    f32 = types.float32
    return f32(f32, f32), generate


@inlined
def exp(x):
    """The exponential, clamped to normal numbers at both ends."""
    x = EXP_MIN if x < EXP_MIN else x
    x = EXP_MAX if x > EXP_MAX else x
    rounded = fma(x, LOG2_E, ROUND)
    n = rounded - ROUND
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))
    p = fma(fma(fma(fma(E4, r, E3), r, E2), r, E1), r, E0)
    return scale_by_power(fma(fma(p, r, ONE), r, ONE), rounded)


@inlined
def softplus(x):
    """`log(1 + exp(x))` without overflow, with small results as accurate as large ones."""
    magnitude = x if x > ZERO else -x
    u = exp(-magnitude)
    p = fma(fma(fma(fma(L8, u, L7), u, L6), u, L5), u, L4)
    p = fma(fma(fma(fma(p, u, L3), u, L2), u, L1), u, L0)
    return (x if x > ZERO else ZERO) + fma(u * u, p, u)


@inlined
def silu(x):
    """`x / (1 + exp(-x))`."""
    return x / (ONE + exp(-x))


@inlined
def sigmoid(x):
    """`1 / (1 + exp(-x))`."""
    return ONE / (ONE + exp(-x))


@inlined
def gelu_tanh(x):
    """`x * (1 + tanh(s * (x + 0.044715 * x**3))) / 2` with `s = sqrt(2 / pi)`."""
    return x / (ONE + exp(-fma(x * x, x * GELU_CUBIC, x * GELU_LINEAR)))


@inlined
def minus_expm1(y):
    """`1 - exp(-y)` for `0 <= y <= EXPM1_SMALL`."""
    return fma(y * y, fma(fma(fma(fma(M5, y, M4), y, M3), y, M2), y, M1), y)


@inlined
def tanh(x):
    """The hyperbolic tangent, with small results as accurate as large ones."""
    magnitude = x if x > ZERO else -x
    w = x * x
    small = fma(x * w, fma(fma(fma(fma(T4, w, T3), w, T2), w, T1), w, T0), x)
    large = ONE - TWO / (exp(TWO * magnitude) + ONE)
    return small if magnitude < TANH_SMALL else (large if x > ZERO else -large)
