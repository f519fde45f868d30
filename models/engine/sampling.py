"""How a request wants its next token to be chosen."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from blockstride.checks import expect
from blockstride.models.engine.values import expect_type, real, whole

ALL_TOKENS = (1 << 31) - 1
"""More than any vocabulary has, and still a number that tensors hold."""


@dataclass(frozen=True)
class SamplingParams:
    """What a request asks of the sampler.

    Attributes:
        max_tokens: Most tokens to generate.
        temperature: Divides the logits; 0 takes the most likely token.
        top_k: Choose among so many most likely tokens; 0 for all.
        top_p: Choose among the most likely tokens that together have this probability.
        seed: Makes a request repeatable, in whatever batch it runs; None draws one.
        stop: Texts that end a generation, or one; they are not part of the result.
        stop_token_ids: Tokens that end a generation beside the model's own, or one.
        ignore_eos: Whether to go on after the model's end-of-text token.

    Raises:
        TypeError: A parameter of another type; numbers may be numpy's.
        ValueError: A parameter out of its range.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Collection[int] = frozenset()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        temperature = real(self.temperature, "temperature", "0 or finite and positive")
        warm = temperature >= 0
        expect(warm, "temperature", "0 or a finite positive number", temperature)
        top_p = real(self.top_p, "top_p", "above 0 and at most 1")
        expect(0 < top_p <= 1, "top_p", "above 0 and at most 1", top_p)
        top_k = whole(self.top_k, "top_k", 0, "0 (all tokens) or more")
        seed = self.seed
        expect_type(self.ignore_eos, "ignore_eos", (bool, np.bool_), "True or False")
        values = {
            "max_tokens": whole(self.max_tokens, "max_tokens", 1, "at least 1"),
            "temperature": temperature,
            "top_k": min(top_k, ALL_TOKENS),
            "top_p": top_p,
            "seed": None if seed is None else whole(seed, "seed", 0, "None, 0 or more"),
            "stop": _stops(self.stop),
            "stop_token_ids": _token_ids(self.stop_token_ids),
            "ignore_eos": bool(self.ignore_eos),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _stops(stop: object) -> tuple[str, ...]:
    expected = "a text or several, none empty"
    expect_type(stop, "stop", (Sequence, Set), expected)
    stops = (stop,) if isinstance(stop, str) else tuple(stop)  # type: ignore[arg-type]
    for text in stops:
        expect_type(text, "stop", str, expected)
    expect(all(stops), "stop", "texts that are not empty", stops)
    return stops


def _token_ids(ids: object) -> frozenset[int]:
    expected = "a token or several"
    if isinstance(ids, Integral):
        ids = [ids]
    expect_type(ids, "stop_token_ids", (Sequence, Set, np.ndarray), expected)
    return frozenset(whole(i, "stop_token_ids", 0, expected) for i in ids)  # type: ignore[union-attr]
