"""The tensors of one layer of a checkpoint, by the names that Hugging Face gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from blockstride import kernels
from blockstride.checks import expect
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

    def joined(self, names: Sequence[str], extent: int, *shape: int) -> Tensor:
        """Tensors one after the other, wherever files cut what has `extent` rows as a whole.

        Raises:
            ValueError: One is missing, damaged, or has another shape, or they don't add up.
        """
        if len(names) == 1:
            return self.tensor(names[0], extent, *shape)
        extents = [self.checkpoint.shape(self.prefix + name)[:1] for name in names]
        whole, expected = f"{self.prefix}{names[0]} and the like", f"{extent} rows in all"
        rows = sum(sum(rows) for rows in extents)
        expect(rows == extent, whole, expected, rows)
        return torch.cat(
            [self.tensor(name, *rows, *shape) for name, rows in zip(names, extents, strict=True)]
        )

    def matrix(
        self, name: str, dim_out: int, dim: int, part: Part | None = None
    ) -> Tensor | kernels.PackedWeight:
        """The matrix `prefix + name` for `kernels.linear`, packed for its device.

        Raises:
            ValueError: It is missing, damaged, or has another shape.
        """
        return kernels.pack_weight(self.tensor(name, dim_out, dim, part=part))

    def rows(
        self, name: str, parts: Sequence[Interval], dim_out: int, dim: int
    ) -> Tensor | kernels.PackedWeight:
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

    def gated_mlp(
        self,
        prefix: str,
        hidden_size: int,
        inner: int,
        names: Sequence[str] = ("gate_proj", "up_proj", "down_proj"),
    ) -> tuple[Tensor, Tensor]:
        """A rank's part of the matrices of a `GatedMLP`, which tensors call by three `names`.

        Raises:
            ValueError: One is missing, damaged, or has another shape, or can't be shared.
        """
        share = self.parallel.share("intermediate_size", inner)
        gate, up = (
            self.tensor(f"{prefix}{name}.weight", inner, hidden_size, part=Part(0, share))
            for name in names[:2]
        )
        down = self.tensor(f"{prefix}{names[2]}.weight", hidden_size, inner, part=Part(1, share))
        return torch.cat([gate, up]), down

    def gated_mlp_biases(
        self, prefix: str, hidden_size: int, inner: int
    ) -> dict[str, Tensor | None]:
        """A rank's part of the biases of a `GatedMLP`, by its keywords.

        Raises:
            ValueError: As `gated_mlp`.
        """
        part = Part(0, self.parallel.share("intermediate_size", inner))
        up = [self.tensor(f"{prefix}{n}_proj.bias", inner, part=part) for n in ("gate", "up")]
        return {
            "up_bias": torch.cat(up),
            "down_bias": self.addend(f"{prefix}down_proj.bias", hidden_size),
        }

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

    def experts(
        self,
        prefix: str,
        count: int,
        hidden_size: int,
        inner: int,
        names: Sequence[str] = ("gate_proj", "up_proj", "down_proj"),
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """As `gated_mlp`, of each expert; files have them one by one, or all in one tensor.

        Raises:
            ValueError: As `gated_mlp`.
        """
        joined = [f"{prefix}{name}" for name in ("gate_up_proj", "down_proj")]
        if self.prefix + joined[0] in self.checkpoint:
            gate_ups, downs = self.joined_mlps(joined[0], joined[1], (count,), hidden_size, inner)
            return list(gate_ups), list(downs)
        sizes = (hidden_size, inner, names)
        apart = [self.gated_mlp(f"{prefix}{i}.", *sizes) for i in range(count)]
        return [gate_up for gate_up, _ in apart], [down for _, down in apart]

    def either(self, name: str, *others: str) -> str:
        """The first of some names that the checkpoint has; the first of all where it has none."""
        there = (each for each in (name, *others) if self.prefix + each in self.checkpoint)
        return next(there, name)
