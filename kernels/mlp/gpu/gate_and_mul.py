"""The gate of a gated layer: one program takes a tile of one row, or of a few narrow ones.

Bytes per element of the result: two read, one written. Source: Shazeer, "GLU Variants Improve
Transformer", 2.
"""

import triton
import triton.language as tl
from torch import Tensor

from blockstride.kernels.common.gpu.activations import sigmoid, widened
from blockstride.kernels.common.gpu.launching import next_power_of_2, warps_for
from blockstride.kernels.mlp.gate import SILU, Gate

TILE = 1024


@triton.jit
def gated(
    gate, up,
    SLOPE: tl.constexpr, CUBIC: tl.constexpr, LIMIT: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """See `Gate`; what leaves a number as it is costs nothing."""
    if float("inf") != LIMIT:
        # a comparison with NaN is false, so that it stays what it is
        gate = tl.where(gate > LIMIT, LIMIT, gate)
        up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
    if OFFSET != 0.0:
        up += OFFSET
    steep = gate
    if CUBIC != 0.0:
        steep = gate * (SLOPE + CUBIC * gate * gate)
    elif SLOPE != 1.0:
        steep = gate * SLOPE
    return gate * sigmoid(steep) * up


@triton.jit(do_not_specialize=["num_rows"])
def gate_and_mul_kernel(
    gate_up_ptr,
    out_ptr,
    # sizes
    num_rows,
    # strides, in elements
    stride_gate_up_row,
    stride_gate_up_column,
    stride_out_row,
    stride_out_column,
    # meta-parameters
    SLOPE: tl.constexpr,
    CUBIC: tl.constexpr,
    LIMIT: tl.constexpr,
    OFFSET: tl.constexpr,
    INNER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One tile of the result."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = tl.full([BLOCK_R, BLOCK_C], True, tl.int1)
    if BLOCK_R > 1:
        mask &= (rows < num_rows)[:, None]
    if INNER % BLOCK_C != 0:
        mask &= (offs_c < INNER)[None, :]
    columns = offs_c.to(tl.int64)[None, :]
    gate_ptr = gate_up_ptr + rows[:, None] * stride_gate_up_row + columns * stride_gate_up_column
    up_ptr = gate_up_ptr + rows[:, None] * stride_gate_up_row
    up_ptr += (columns + INNER) * stride_gate_up_column
    gate = widened(tl.load(gate_ptr, mask=mask, other=0.0))
    up = widened(tl.load(up_ptr, mask=mask, other=0.0))
    out_ptr += rows[:, None] * stride_out_row + columns * stride_out_column
    result = gated(gate, up, SLOPE, CUBIC, LIMIT, OFFSET)
    tl.store(out_ptr, result.to(out_ptr.dtype.element_ty), mask=mask)


def gate_and_mul(
    gate_up: Tensor,
    gate: Gate = SILU,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """See `blockstride.kernels.gate_and_mul`, which validates."""
    *batch, twice_inner = gate_up.shape
    inner = twice_inner // 2
    result = gate_up.new_empty(*batch, inner) if out is None else out
    if result.numel() == 0:
        return result
    source, target = gate_up.reshape(-1, twice_inner), result.reshape(-1, inner)
    num_rows = source.shape[0]
    block_c = min(next_power_of_2(inner), TILE)
    block_r = TILE // block_c
    gate_and_mul_kernel[(-(-num_rows // block_r), -(-inner // block_c))](
        source,
        target,
        num_rows,
        *source.stride(),
        *target.stride(),
        SLOPE=gate.slope,
        CUBIC=gate.cubic,
        LIMIT=gate.limit,
        OFFSET=gate.offset,
        INNER=inner,
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        # 8 elements a lane: 16 bytes of a half-precision row
        num_warps=warps_for(block_r * block_c * 4, lane_bytes=32),
        enable_fp_fusion=False,
    )
    if target.data_ptr() != result.data_ptr():
        result.copy_(target.view(result.shape))
    return result
