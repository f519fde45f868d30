"""How frequencies of rotary positions are changed for sequences longer than those of a training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

Frequencies = Float[Tensor, "*rows half"]


def geometric_row(theta: float, size: int, device: torch.device) -> Frequencies:
    """The frequencies of `size` elements, which turn in pairs.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 3.4.
    """
    powers = torch.arange(0, size, 2, dtype=torch.float32, device=device) / size
    return 1.0 / theta**powers


@dataclass(frozen=True)
class Scaling:
    """No change, and what those that are some are asked.

    Attributes:
        scale: What cosines and sines are multiplied by.
        depends_on_length: Whether sequences of different lengths have different frequencies.
    """

    scale: float = 1.0
    depends_on_length: ClassVar[bool] = False

    def frequencies(self, theta: float, size: int, device: torch.device) -> Frequencies:
        """Those of any sequence, or what `of_lengths` makes them of."""
        return geometric_row(theta, size, device)

    def of_lengths(
        self, lengths: Int[Tensor, " num_seqs"], theta: float, rows: Frequencies
    ) -> Float[Tensor, "num_seqs half"]:
        """Those of sequences of some lengths, given what `frequencies` gives."""
        raise NotImplementedError


@dataclass(frozen=True)
class Linear(Scaling):
    """Positions lie closer together.

    Source: Chen et al., "Extending Context Window of Large Language Models via Positional
    Interpolation", 2.
    """

    factor: float = 1.0

    def frequencies(self, theta: float, size: int, device: torch.device) -> Frequencies:
        """All divided by the factor."""
        return geometric_row(theta, size, device) / self.factor


@dataclass(frozen=True)
class Dynamic(Scaling):
    """The base grows with a sequence, from `max_len` tokens on.

    Source: Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 3.3
    and B.1, for the idea of others.
    """

    factor: float = 1.0
    max_len: int = 2048
    depends_on_length: ClassVar[bool] = True

    def of_lengths(
        self, lengths: Int[Tensor, " num_seqs"], theta: float, rows: Frequencies
    ) -> Float[Tensor, "num_seqs half"]:
        """By a base for each sequence."""
        size = 2 * len(rows)
        excess = lengths.clamp(min=self.max_len).float() / self.max_len
        growth = (self.factor * excess - (self.factor - 1)) ** (size / (size - 2))
        powers = torch.arange(0, size, 2, dtype=torch.float32, device=rows.device) / size
        return 1.0 / (theta * growth[:, None]) ** powers


@dataclass(frozen=True)
class Llama3(Scaling):
    """Slow frequencies are divided, fast ones stay, those between are mixed.

    Attributes:
        factor: By what slow ones are divided.
        slow: Turns within `original` tokens, up to which a frequency is slow,
        fast: and those from which it is fast.
        original: Tokens of the training's sequences.

    Source: Grattafiori et al., "The Llama 3 Herd of Models", 3.4.2.
    """

    factor: float = 8.0
    slow: float = 1.0
    fast: float = 4.0
    original: int = 8192

    def frequencies(self, theta: float, size: int, device: torch.device) -> Frequencies:
        """Those and these, by how often they turn."""
        row = geometric_row(theta, size, device)
        turns = self.original * row / (2 * math.pi)
        kept = ((turns - self.slow) / (self.fast - self.slow)).clamp(0, 1)
        return row * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class Yarn(Scaling):
    """As `Llama3`, but mixed by where a frequency stands in the row.

    Attributes:
        factor: By what slow ones are divided.
        slow: Turns within `original` tokens, up to which a frequency is slow,
        fast: and those from which it is fast.
        original: Tokens of the training's sequences.
        is_rounded: Whether the two bounds in the row are rounded outwards.

    Source: Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 3.2.
    """

    factor: float = 1.0
    slow: float = 1.0
    fast: float = 32.0
    original: int = 2048
    is_rounded: bool = True

    def frequencies(self, theta: float, size: int, device: torch.device) -> Frequencies:
        """Those and these, by their places."""

        def place(turns: float) -> float:
            wavelength = self.original / (2 * math.pi * turns)
            return size * math.log(wavelength) / (2 * math.log(theta))

        first, last = place(self.fast), place(self.slow)
        if self.is_rounded:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, size - 1)
        # a step, where there is no place between the two
        width = 0.001 if first == last else last - first
        row = geometric_row(theta, size, device)
        places = torch.arange(len(row), dtype=torch.float32, device=device)
        divided = ((places - first) / width).clamp(0, 1)
        return row * (1 - divided) + row / self.factor * divided


@dataclass(frozen=True)
class LongRope(Scaling):
    """Each frequency has a divisor of its own, and another in long sequences.

    Attributes:
        short: Divisors in sequences of up to `original` tokens,
        long: and in longer ones.
        original: Tokens of the training's sequences.

    Source: Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", 3.
    """

    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()
    original: int = 2048
    depends_on_length: ClassVar[bool] = True

    def frequencies(self, theta: float, size: int, device: torch.device) -> Frequencies:
        """Those of a short sequence, and those of a long one."""
        divisors = torch.tensor([self.short, self.long], device=device)
        return geometric_row(theta, size, device) / divisors

    def of_lengths(
        self, lengths: Int[Tensor, " num_seqs"], theta: float, rows: Frequencies
    ) -> Float[Tensor, "num_seqs half"]:
        """One of the two rows for each sequence."""
        return torch.where((lengths > self.original)[:, None], rows[1], rows[0])
