"""Random numbers that a token has by itself: its seed, its position in the text, and its id."""

from __future__ import annotations

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

MASK = (1 << 64) - 1
STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def noise_key(seed: int, position: int) -> int:
    """What the noise of one draw starts from, as a signed integer of 64 bits.

    Args:
        seed: Of the request; 0 or more, of any size.
        position: Tokens that it has drawn before.
    """
    key = _mixed(position)
    while True:
        key = _mixed(key ^ (seed & MASK))
        seed >>= 64
        if seed == 0:
            return _signed(key)


def exponential(
    keys: Int64[Tensor, " num_rows"], count: int
) -> Float32[Tensor, "num_rows {count}"]:
    """Numbers drawn from the exponential distribution: one for each key and id below `count`.

    They are the same on every device up to the rounding of a logarithm, and no two ids share any.
    Small numbers, which are those that win, are as fine as float32 can say.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (SplitMix64).
    """
    steps = torch.arange(1, count + 1, device=keys.device) * _signed(STEP)
    bits = keys[:, None] + steps
    # shifts keep the sign, which is as good: each of these can be undone
    bits ^= bits >> 30
    bits *= _signed(FIRST)
    bits ^= bits >> 27
    bits *= _signed(SECOND)
    bits ^= bits >> 31
    uniform = bits.float().abs_().mul_(2.0**-63)
    return uniform.clamp_(2.0**-64, 1 - 2.0**-24).neg_().log1p_().neg_()


def _mixed(number: int) -> int:
    number = (number + STEP) & MASK
    number = ((number ^ (number >> 30)) * FIRST) & MASK
    number = ((number ^ (number >> 27)) * SECOND) & MASK
    return number ^ (number >> 31)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
