"""What one token of the gated delta rule does with 64 value columns of a state.

The state is a tile with the columns innermost: row `n` is what it holds along channel `n` of the
keys. A token is its key, its query and its decay, one after the other.
"""

import numpy as np

from blockstride.kernels.common.cpu.lanes import LANES, ZERO, load, sum_lanes
from blockstride.kernels.common.cpu.native import f32_at, inlined, shifted, stack_f32
from blockstride.kernels.common.cpu.vector_math import exp, fma
from blockstride.kernels.delta.gated_delta_rule import MAX_KEY_DIM

QUERY, DECAY, TOKEN_FLOATS = MAX_KEY_DIM, 2 * MAX_KEY_DIM, 3 * MAX_KEY_DIM
TWO_TOKENS = 2 * TOKEN_FLOATS
NORM_EPS = np.float32(1e-6)
ONE = np.float32(1)
# its exponential is taken for zero, as that of minus infinity
LOWEST = np.float32(-87)


@inlined
def _forget(decay):
    """The exponential of a log decay, which is zero where it is no normal number."""
    return exp(decay) if not decay < LOWEST else ZERO


@inlined
def _load_row(target, row, key_dim, factor, l2_norm):
    """A key or a query, times a factor, zeros after it."""
    squares = stack_f32(LANES)
    for lane in range(LANES):
        squares[lane] = ZERO
    for n in range(0, key_dim, LANES):
        part = shifted(target, n)
        load(part, shifted(row, n), min(LANES, key_dim - n))
        for lane in range(LANES):
            squares[lane] = fma(part[lane], part[lane], squares[lane])
    if l2_norm != 0:
        factor /= np.sqrt(sum_lanes(squares) + NORM_EPS)
    for n in range(0, key_dim, LANES):
        part = shifted(target, n)
        for lane in range(LANES):
            part[lane] *= factor


@inlined
def load_token(token, q, k, g, key_dim, scale, l2_norm, by_channel):
    """Read a token's key, query and decay from their addresses."""
    _load_row(token, f32_at(k), key_dim, ONE, l2_norm)
    _load_row(shifted(token, QUERY), f32_at(q), key_dim, scale, l2_norm)
    for n in range(0, key_dim, LANES):
        decay = shifted(token, DECAY + n)
        if by_channel != 0:
            load(decay, shifted(f32_at(g), n), min(LANES, key_dim - n))
            for lane in range(LANES):
                decay[lane] = _forget(decay[lane])
        else:
            same = _forget(f32_at(g)[0])
            for lane in range(LANES):
                decay[lane] = same


@inlined
def predict(held, state, token, key_dim):
    """Let a state decay, and add up what it then holds for a token's key."""
    for n in range(key_dim):
        key, decay = token[n], token[DECAY + n]
        for lane in range(LANES):
            i = n * LANES + lane
            state[i] *= decay
            held[lane] = fma(key, state[i], held[lane])


@inlined
def correct(y, state, token, change, key_dim):
    """Apply a token's change to a state, and add up what its query then finds."""
    for n in range(key_dim):
        key, query = token[n], token[QUERY + n]
        for lane in range(LANES):
            i = n * LANES + lane
            state[i] = fma(key, change[lane], state[i])
            y[lane] = fma(query, state[i], y[lane])


@inlined
def correct_and_predict(y, held, state, token, ahead, change, key_dim):
    """Both for one token and the next, by one pass over the state."""
    for n in range(key_dim):
        key, query = token[n], token[QUERY + n]
        next_key, next_decay = ahead[n], ahead[DECAY + n]
        for lane in range(LANES):
            i = n * LANES + lane
            state[i] = fma(key, change[lane], state[i])
            y[lane] = fma(query, state[i], y[lane])
            state[i] *= next_decay
            held[lane] = fma(next_key, state[i], held[lane])
