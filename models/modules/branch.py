"""One step of the residual stream: a norm, parts side by side, and what they add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from blockstride.models.modules.module import FeedForward, Mixer


@dataclass(frozen=True)
class Branch:
    """Parts that see the same normed tokens, and whose sum is added to the residual stream.

    Attributes:
        parts: Mixers or feed-forward parts, at least one.
        norm: Gain of the norm before them; None for no norm.
        post_norm: Gain of a norm of what they give, before it is added; None for none.
    """

    parts: Sequence[Mixer | FeedForward]
    norm: Tensor | None
    post_norm: Tensor | None = None
