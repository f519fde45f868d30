"""The tensors of one layer of a checkpoint, by the names that Hugging Face gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from blockstride import kernels
from blockstride.layouts import Interval
from blockstride.models.checkpoint import Checkpoint, Part
from blockstride.models.parallel import TensorParallel


@dataclass(frozen=True)
class LayerWeights:
    """Reads tensors under a common prefix.

    Attributes:
        checkpoint: Where they are.
        prefix: What their names begin with.
        dtype: What they are converted to unless asked otherwise.
        device: Where they go.
        parallel: The rank whose parts are read.
        factors: Name of a tensor -> what it is multiplied by as it is read: one number, or one for
            each of its rows.
    """

    checkpoint: Checkpoint
    prefix: str
    dtype: torch.dtype
    device: torch.device
    parallel: TensorParallel
    factors: Mapping[str, float | Tensor] = field(default_factory=dict)

    def under(self, name: str) -> LayerWeights:
        """Those whose names go on with `name` and a full stop."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def times(self, factors: Mapping[str, float | Tensor]) -> LayerWeights:
        """The same, of which those that go on with a name are multiplied by its factor.

        Files of models that scale what goes into a projection, or comes out of one, are read so
        that nothing is left to scale.
        """
        named = {self.prefix + name: factor for name, factor in factors.items()}
        return replace(self, factors={**self.factors, **named})

    def tensor(
        self, name: str, *shape: int, dtype: torch.dtype | None = None, part: Part | None = None
    ) -> Tensor:
        """The tensor `prefix + name`, whose shape as a whole is exactly `shape`.

        Args:
            name: The rest of its name.
            shape: Its shape.
            dtype: Its type; that of all weights when None.
            part: What is read of it; all when None.

        Raises:
            ValueError: It is missing, damaged, or has another shape.
        """
        dtype, name = self.dtype if dtype is None else dtype, self.prefix + name
        if name not in self.factors:
            return self.checkpoint.tensor(name, shape, dtype, part).to(self.device)
        factor, wide = self.factors[name], torch.float32
        if isinstance(factor, Tensor):
            rows = slice(None) if part is None or part.dim else slice(*part.interval)
            factor = factor[rows].view(-1, *[1] * (len(shape) - 1)).to(self.device)
        read = self.checkpoint.tensor(name, shape, wide, part).to(self.device)
        return (read * factor).to(dtype)

    def matrix(self, name: str, dim_out: int, dim: int, part: Part | None = None) -> Tensor:
        """The matrix `prefix + name` for `kernels.linear`, packed for its device.

        Raises:
            ValueError: It is missing, damaged, or has another shape.
        """
        return kernels.pack_weight(self.tensor(name, dim_out, dim, part=part))

    def rows(self, name: str, parts: Sequence[Interval], dim_out: int, dim: int) -> Tensor:
        """Some rows of the matrix `prefix + name` one after the other, packed as one matrix.

        Raises:
            ValueError: It is missing, damaged, or has another shape.
        """
        read = [self.tensor(name, dim_out, dim, part=Part(0, part)) for part in parts]
        return kernels.pack_weight(torch.cat(read))

    def addend(self, name: str, size: int) -> Tensor | None:
        """A bias of what ranks add up: the first one's, so that it is added once.

        Raises:
            ValueError: It is missing, damaged, or has another shape.
        """
        bias = self.tensor(name, size)
        return bias if self.parallel.rank == 0 else None

    def gated_mlp(self, prefix: str, hidden_size: int, inner: int) -> tuple[Tensor, Tensor]:
        """A rank's part of the matrices of a `GatedMLP`, from `gate_proj`, `up_proj`, `down_proj`.

        Raises:
            ValueError: One is missing, damaged, or has another shape, or can't be shared.
        """
        share = self.parallel.share("intermediate_size", inner)
        gate, up = (
            self.tensor(f"{prefix}{name}.weight", inner, hidden_size, part=Part(0, share))
            for name in ("gate_proj", "up_proj")
        )
        down = self.tensor(f"{prefix}down_proj.weight", hidden_size, inner, part=Part(1, share))
        return torch.cat([gate, up]), down

    def plain_mlp(
        self, prefix: str, hidden_size: int, inner: int, has_bias: bool
    ) -> Mapping[str, Any]:
        """A rank's part of the tensors of an `MLP` without a gate, `up_proj` and `down_proj`.

        Raises:
            ValueError: As `gated_mlp`.
        """
        share = self.parallel.share("intermediate_size", inner)
        up, down = f"{prefix}up_proj", f"{prefix}down_proj"
        read = {
            "up": self.tensor(f"{up}.weight", inner, hidden_size, part=Part(0, share)),
            "down": self.tensor(f"{down}.weight", hidden_size, inner, part=Part(1, share)),
        }
        if not has_bias:
            return read
        bias = self.tensor(f"{up}.bias", inner, part=Part(0, share))
        return {**read, "up_bias": bias, "down_bias": self.addend(f"{down}.bias", hidden_size)}

    def joined_mlps(
        self, gate_up: str, down: str, count: tuple[int, ...], hidden_size: int, inner: int
    ) -> tuple[Tensor, Tensor]:
        """As `gated_mlp`, where gate and up are one matrix, or one of each of `count` experts.

        Raises:
            ValueError: As `gated_mlp`.
        """
        dim, share = len(count), self.parallel.share(f"{gate_up} rows", inner)
        halves = (share, Interval(inner + share.start, inner + share.stop))
        parts = [
            self.tensor(gate_up, *count, 2 * inner, hidden_size, part=Part(dim, half))
            for half in halves
        ]
        down_part = self.tensor(down, *count, hidden_size, inner, part=Part(dim + 1, share))
        return torch.cat(parts, dim=dim), down_part

    def either(self, name: str, *others: str) -> str:
        """The first of some names that the checkpoint has; the first of all where it has none."""
        there = (each for each in (name, *others) if self.prefix + each in self.checkpoint)
        return next(there, name)
