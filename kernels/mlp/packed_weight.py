"""Matrices in the form that products on CPUs read them in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PANEL = 16


@dataclass(frozen=True)
class PackedWeight:
    """A matrix, or one of each of several experts, cut into panels of 16 outputs.

    A panel has the 16 weights of its outputs side by side for each input, so that one input
    multiplies a vector of them, and a product reads a matrix from end to end in long strides. It
    serves one row as well as thousands.

    Attributes:
        panels: The matrix, its last panel filled up with zeros `[*experts, num_panels, dim, 16]`.
        shape: That of the matrix as it was, `(*experts, dim_out, dim)`.
        dtype: What it held. Panels hold the same values: those of float16 as float32, and those of
            float32 as bfloat16 where that has all of them, as of many published files.
    """

    panels: Tensor
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.panels.device

    @classmethod
    def of(cls, matrices: tuple[Tensor, ...], *experts: int) -> PackedWeight:
        """One matrix, or as many of one shape as there are `experts`."""
        dim_out, dim = matrices[0].shape
        dtype = matrices[0].dtype
        kept = dtype
        if dtype is torch.float16:
            kept = torch.float32
        elif dtype is torch.float32 and all(map(_is_narrow, matrices)):
            kept = torch.bfloat16
        num_panels = -(-dim_out // PANEL)
        panels = torch.empty(len(matrices), num_panels, dim, PANEL, dtype=kept)
        whole = dim_out // PANEL
        for target, matrix in zip(panels, matrices, strict=True):
            full = matrix[: whole * PANEL]
            target[:whole].copy_(full.view(whole, PANEL, dim).transpose(1, 2))
            if whole < num_panels:
                rest = matrix[whole * PANEL :]
                target[whole].zero_()[:, : len(rest)] = rest.T
        return cls(panels.view(*experts, num_panels, dim, PANEL), (*experts, dim_out, dim), dtype)

    def to_dense(self) -> Tensor:
        """The matrix as it was, or all of them in a stack."""
        *experts, dim_out, dim = self.shape
        rows = self.panels.transpose(-1, -2).reshape(*experts, -1, dim)
        return rows[..., :dim_out, :].to(self.dtype)


def _is_narrow(matrix: Tensor) -> bool:
    """Whether all values are some of bfloat16, of which half the bytes tell everything."""
    return all(torch.equal(rows.bfloat16().float(), rows) for rows in matrix.split(64))
