"""The window of a causal convolution: a few channels' taps and last inputs, in registers."""

import triton
import triton.language as tl

from blockstride.kernels.common.gpu.activations import silu, widened

# channels of a program: 16 bytes a lane of a half-precision input
BLOCK_D = 256


@triton.jit
def load_taps(weight_ptr, stride_tap, mask, WIDTH: tl.constexpr):
    """The taps of each channel, the oldest input's first."""
    taps = ()
    for _ in tl.static_range(WIDTH):
        taps += (widened(tl.load(weight_ptr, mask=mask, other=0.0)),)
        weight_ptr += stride_tap
    return taps


@triton.jit
def load_rows(rows_ptr, stride, mask, COUNT: tl.constexpr, AS_IS: tl.constexpr):
    """Some rows of channels, in float32 or as they are."""
    rows = ()
    for _ in tl.static_range(COUNT):
        row = tl.load(rows_ptr, mask=mask, other=0.0)
        rows += (row if AS_IS else widened(row),)
        rows_ptr += stride
    return rows


@triton.jit
def store_rows(rows_ptr, stride, rows, mask, COUNT: tl.constexpr):
    """Write rows of channels, rounded to the dtype that they go to."""
    for k in tl.static_range(COUNT):
        tl.store(rows_ptr, rows[k].to(rows_ptr.dtype.element_ty), mask=mask)
        rows_ptr += stride


@triton.jit
def convolve(taps, window, x, bias, WIDTH: tl.constexpr, SILU: tl.constexpr):
    """Weigh the window and the newest input, the oldest first."""
    y = bias
    for k in tl.static_range(WIDTH - 1):
        y = tl.fma(taps[k], widened(window[k]), y)
    y = tl.fma(taps[WIDTH - 1], x, y)
    return silu(y) if SILU else y


@triton.jit
def channels_of(pid, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """A program's channels, and which of them exist; the compiler drops a mask that is all true."""
    offs_d = pid * BLOCK_D + tl.arange(0, BLOCK_D)
    mask = tl.full([BLOCK_D], True, tl.int1)
    if DIM % BLOCK_D != 0:
        mask = offs_d < DIM
    return offs_d, mask


@triton.jit
def load_bias(bias_ptr, offs_d, mask):
    """The bias of each channel, or zero."""
    bias = tl.zeros(offs_d.shape, tl.float32)
    if bias_ptr is not None:
        bias = widened(tl.load(bias_ptr + offs_d, mask=mask, other=0.0))
    return bias
