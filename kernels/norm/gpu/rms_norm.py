"""Root mean square normalisation, with a residual addition before it, a gate before or after it.

One program takes a few rows, or one, and holds them in registers between the sum of their squares
and the scaling. Where channels are normalised in groups, a program takes one group of its rows.
Bytes per element: one read and one written; with a residual two and two, with a gate two and one.
Source: Zhang and Sennrich, "Root Mean Square Layer Normalization"; Mamba-2's gated norm.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockstride.kernels.common.gpu.activations import silu, widened
from blockstride.kernels.common.gpu.launching import next_power_of_2, warps_for

# elements of a program where a row has fewer; how many rows that is must not depend on the batch,
# or the order of a row's sum would
TILE = 2048


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x_ptr,
    weight_ptr,
    residual_ptr,
    gate_ptr,
    out_ptr,
    # sizes
    num_rows,
    eps,
    # strides, in elements
    stride_x_row,
    stride_x_channel,
    stride_residual_row,
    stride_residual_channel,
    stride_gate_row,
    stride_gate_channel,
    stride_out_row,
    stride_out_channel,
    # meta-parameters
    GROUP_SIZE: tl.constexpr,
    NORM_BEFORE_GATE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One group of channels of some rows."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    offs_d = tl.arange(0, BLOCK_D)
    channels = tl.program_id(1) * GROUP_SIZE + offs_d
    mask = tl.full([BLOCK_R, BLOCK_D], True, tl.int1)
    mask_d = tl.full([BLOCK_D], True, tl.int1)
    if BLOCK_R > 1:
        mask &= (rows < num_rows)[:, None]
    if BLOCK_D != GROUP_SIZE:
        mask_d = offs_d < GROUP_SIZE
        mask &= mask_d[None, :]
    rows, channels = rows[:, None], channels.to(tl.int64)[None, :]
    x_ptrs = x_ptr + rows * stride_x_row + channels * stride_x_channel
    x = widened(tl.load(x_ptrs, mask=mask, other=0.0))  # [BLOCK_R, BLOCK_D]
    if residual_ptr is not None:
        residual_ptrs = residual_ptr + rows * stride_residual_row
        residual_ptrs += channels * stride_residual_channel
        x += widened(tl.load(residual_ptrs, mask=mask, other=0.0))
        total = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptrs, total, mask=mask)
        x = total.to(tl.float32)
    if gate_ptr is not None:
        gate_ptrs = gate_ptr + rows * stride_gate_row + channels * stride_gate_channel
        gate = silu(widened(tl.load(gate_ptrs, mask=mask, other=0.0)))
        if not NORM_BEFORE_GATE:
            x *= gate
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / GROUP_SIZE + eps)
    weight = widened(tl.load(weight_ptr + channels, mask=mask_d[None, :], other=0.0))
    y = x * scale[:, None] * weight
    if gate_ptr is not None and NORM_BEFORE_GATE:
        y *= gate
    out_ptrs = out_ptr + rows * stride_out_row + channels * stride_out_channel
    tl.store(out_ptrs, y.to(out_ptr.dtype.element_ty), mask=mask)


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    norm_before_gate: bool = False,
    group_size: int | None = None,
    out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `blockstride.kernels.rms_norm`, which validates."""
    dim = x.shape[-1]
    result = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    if x.numel() > 0:
        x_rows, out_rows = x.reshape(-1, dim), result.reshape(-1, dim)
        residual_rows = None if residual is None else residual.reshape(-1, dim)
        gate_rows = None if gate is None else gate.reshape(-1, dim)
        _launch(
            x_rows,
            weight,
            residual_rows,
            gate_rows,
            norm_before_gate,
            out_rows,
            eps,
            group_size or dim,
        )
        _deliver(out_rows, result)
        if residual is not None and residual_rows is not None:
            _deliver(residual_rows, residual)
    return result if residual is None else (result, residual)


def _launch(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    gate: Tensor | None,
    norm_before_gate: bool,
    out: Tensor,
    eps: float,
    group_size: int,
) -> None:
    num_rows, dim = x.shape
    block_d = next_power_of_2(group_size)
    block_r = max(1, TILE // block_d)
    rms_norm_kernel[(-(-num_rows // block_r), dim // group_size)](
        x,
        weight.contiguous(),
        residual,
        gate,
        out,
        num_rows,
        eps,
        *x.stride(),
        *(residual.stride() if residual is not None else (0, 0)),
        *(gate.stride() if gate is not None else (0, 0)),
        *out.stride(),
        GROUP_SIZE=group_size,
        NORM_BEFORE_GATE=norm_before_gate,
        BLOCK_R=block_r,
        BLOCK_D=block_d,
        # 16 elements a lane
        num_warps=warps_for(block_r * block_d * 4, lane_bytes=64),
        enable_fp_fusion=False,
    )


def _deliver(rows: Tensor, target: Tensor) -> None:
    """Copy rows back, where a tensor of any strides could not be seen as rows."""
    if rows.data_ptr() != target.data_ptr():
        target.copy_(rows.view(target.shape))
