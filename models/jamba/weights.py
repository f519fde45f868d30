"""The tensors of one layer of a checkpoint, by the names that Hugging Face gives them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blockstride import kernels
from blockstride.models.checkpoint import Checkpoint


@dataclass(frozen=True)
class LayerWeights:
    """Reads tensors under a common prefix.

    Attributes:
        checkpoint: Where they are.
        prefix: What their names begin with.
        dtype: What they are converted to unless asked otherwise.
        device: Where they go.
    """

    checkpoint: Checkpoint
    prefix: str
    dtype: torch.dtype
    device: torch.device

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor `prefix + name`, of exactly `shape`.

        Raises:
            ValueError: It is missing, damaged, or has another shape.
        """
        dtype = self.dtype if dtype is None else dtype
        return self.checkpoint.tensor(self.prefix + name, shape, dtype).to(self.device)

    def matrix(self, name: str, dim_out: int, dim: int) -> Tensor:
        """The matrix `prefix + name` for `kernels.linear`, packed for its device.

        Raises:
            ValueError: It is missing, damaged, or has another shape.
        """
        return kernels.pack_weight(self.tensor(name, dim_out, dim))
