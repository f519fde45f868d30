"""What the gates of one token make of each channel: how its state decays, and what is added.

States that decay slowly are sums over thousands of tokens. There a decay is 1 in all but its last
digits, so what is computed with is what it takes away, which has digits of its own.
"""

import triton
import triton.language as tl

from blockstride.kernels.common.gpu.activations import LOG2_E, widened

# a gate that isn't 0 decays everything at this rate, and its multiples are finite
LOWEST_RATE: tl.constexpr = tl.constexpr(-1e38)
MINUS_LN2: tl.constexpr = tl.constexpr(-0.6931471805599453)
# 1 - exp(-y) = y + y**2 * sum(S[k] * y**(k - 1)) for 0 <= y <= SLOW, relative error 3e-9:
# interpolated at Chebyshev nodes
SLOW: tl.constexpr = tl.constexpr(0.5)
S1: tl.constexpr = tl.constexpr(-0.499999821)
S2: tl.constexpr = tl.constexpr(0.166662425)
S3: tl.constexpr = tl.constexpr(-0.0416300744)
S4: tl.constexpr = tl.constexpr(0.00818961393)
S5: tl.constexpr = tl.constexpr(-0.00112340425)


@triton.jit
def openness(gate):
    """The sigmoid of a gate.

    It multiplies nothing infinite, so that its power needs no bound, which would pass over NaN.
    """
    root = tl.rsqrt(1.0 + tl.math.exp2(gate * -LOG2_E))
    return root * root


@triton.jit
def load_rates(A_ptr, offs, mask):
    """Logarithms to base 2 of each channel's decay under an open gate."""
    return tl.maximum(tl.load(A_ptr + offs, mask=mask, other=0.0) * LOG2_E, LOWEST_RATE)


@triton.jit
def decay_of(log_decay):
    """A decay, what it takes away, and whether it is slow."""
    decay = tl.math.exp2(log_decay)
    y = log_decay * MINUS_LN2
    u = tl.minimum(y, SLOW)
    p = tl.fma(tl.fma(tl.fma(tl.fma(S5, u, S4), u, S3), u, S2), u, S1)
    is_slow = y < SLOW
    return decay, tl.where(is_slow, tl.fma(u * u, p, u), 1.0 - decay), is_slow


@triton.jit
def fold(state, log_decay, added):
    """`exp2(log_decay) * state + added`."""
    decay, lost, is_slow = decay_of(log_decay)
    return tl.where(is_slow, state + tl.fma(-lost, state, added), tl.fma(decay, state, added))


@triton.jit
def next_state(state, x, recurrence_gate, input_gate, rates, is_first):
    """The state after a token, and the logarithm of its decay; a first input is not weighed."""
    log_decay = rates * openness(recurrence_gate)
    decay, lost, is_slow = decay_of(log_decay)
    # the square of the decay takes this much away
    weight = tl.where(is_first, 1.0, tl.sqrt(lost * (2.0 - lost)))
    added = weight * openness(input_gate) * widened(x)
    slow, fast = state + tl.fma(-lost, state, added), tl.fma(decay, state, added)
    return tl.where(is_slow, slow, fast), log_decay
