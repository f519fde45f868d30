"""Keys and queries of some tokens, of unit length if that is asked for."""

import triton
import triton.language as tl

from blockstride.kernels.common.gpu.rows import load_rows

NORM_EPS: tl.constexpr = tl.constexpr(1e-6)


@triton.jit
def inverse_lengths(keys):
    """What brings rows to unit length."""
    wide = keys.to(tl.float32)
    return tl.rsqrt(tl.sum(wide * wide, 1) + NORM_EPS)[:, None]


@triton.jit
def load_keys(
    ptr, tokens, offs_k, mask_t, stride_token, stride_dim,
    KEY_DIM: tl.constexpr, L2_NORM: tl.constexpr,
):  # fmt: skip
    """Whole keys or queries."""
    keys = load_rows(ptr, tokens, offs_k, mask_t, stride_token, stride_dim, KEY_DIM)
    if L2_NORM:
        keys = (keys.to(tl.float32) * inverse_lengths(keys)).to(keys.dtype)
    return keys


@triton.jit
def load_factors(
    ptr, tokens, offs_k, mask_t, stride_token, stride_dim,
    KEY_DIM: tl.constexpr, L2_NORM: tl.constexpr,
):  # fmt: skip
    """What some channels of keys or queries are to be multiplied by."""
    factors = 1.0
    if L2_NORM:
        keys = load_rows(ptr, tokens, offs_k, mask_t, stride_token, stride_dim, KEY_DIM)
        factors = inverse_lengths(keys)
    return factors
