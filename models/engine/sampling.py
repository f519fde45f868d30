"""How a request wants its next token to be chosen, and what it wants to be told of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral
from typing import Any

import numpy as np

from blockstride.checks import expect
from blockstride.models.engine.values import expect_type, real, whole

ALL_TOKENS = (1 << 31) - 1
"""More than any vocabulary has, and still a number that tensors hold."""

LARGEST = 1e6
"""More than any logit is changed by, and little enough that it stays finite."""

MAX_LOGPROBS = 100
"""Most likely tokens that are told beside a chosen one, at most."""

MAX_ANSWERS = 1024
"""Answers to one prompt, at most."""


@dataclass(frozen=True)
class SamplingParams:
    """What a request asks of the sampler.

    Logits are changed in this order: `logit_bias`, `repetition_penalty`, `presence_penalty` and
    `frequency_penalty`, then what can't be chosen, `temperature`, `top_k`, `top_p`, `min_p`. All
    but the last four also bear on the most likely token, which temperature 0 takes.

    Attributes:
        max_tokens: Most tokens to generate; None for as many as the model and the cache allow.
        temperature: Divides the logits; 0 takes the most likely token.
        top_k: Choose among so many most likely tokens; 0 for all.
        top_p: Choose among the most likely tokens that together have this probability.
        seed: Makes a request repeatable, in whatever batch it runs; None draws one.
        stop: Texts that end a generation, or one.
        stop_token_ids: Tokens that end a generation beside the model's own, or one.
        ignore_eos: Whether to go on after the model's end-of-text token.
        min_tokens: Tokens to generate before anything but `max_tokens` ends it: no end token is
            chosen, and no stop text is looked for.
        include_stop: Whether the text has what ended it, a stop text or the text of a stop token.
        min_p: Choose among the tokens that have this share of the likeliest one's probability.
        repetition_penalty: Divides the positive logits of tokens that are in the prompt or the
            answer so far, and multiplies the negative ones, as in transformers.
        presence_penalty: Taken from the logits of tokens that are in the answer so far, as OpenAI
            has it.
        frequency_penalty: The same, for each time that they are in it.
        logit_bias: Token -> what is added to its logit.
        bad_token_ids: Tokens that are never chosen, or one.
        allowed_token_ids: The only tokens that are chosen; None for all.
        logprobs: Tell the log-probability of every new token, and so many most likely tokens there;
            None tells nothing. They are of the model's own distribution at temperature 1: nothing
            here changes them.
        prompt_logprobs: The same for the tokens of the prompt, all of whose logits are computed
            then: an engine's `prefill_chunk` says how many at a time.
        n: Independent answers to each prompt, which is computed about once where an engine has
            prefix caching. All of one seed are reproducible: the first is that of the seed alone,
            the others have seeds made of it (`answer_seed`).
        cache_salt: What a request has computed serves those alone that have the same one.

    Raises:
        TypeError: A parameter of another type; numbers may be numpy's.
        ValueError: A parameter out of its range, or two that contradict each other.

    Source: the repetition penalty is of Keskar et al., "CTRL"; min_p of Nguyen et al., "Turning up
    the heat".
    """

    max_tokens: int | None = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Collection[int] = frozenset()
    ignore_eos: bool = False
    _: KW_ONLY
    min_tokens: int = 0
    include_stop: bool = False
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    bad_token_ids: Collection[int] = frozenset()
    allowed_token_ids: Collection[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    cache_salt: str = ""

    def __post_init__(self) -> None:
        for name, value in {**self._numbers(), **self._counts(), **self._sets()}.items():
            object.__setattr__(self, name, value)
        allowed = self.allowed_token_ids
        some = allowed is None or bool(set(allowed) - set(self.bad_token_ids))
        expect(some, "allowed_token_ids", "None, or a token that is not bad", allowed)

    def _numbers(self) -> dict[str, Any]:
        """The fields that are real numbers."""
        temperature = real(self.temperature, "temperature", "0 or finite and positive")
        warm = temperature >= 0
        expect(warm, "temperature", "0 or a finite positive number", temperature)
        top_p = real(self.top_p, "top_p", "above 0 and at most 1")
        expect(0 < top_p <= 1, "top_p", "above 0 and at most 1", top_p)
        min_p = real(self.min_p, "min_p", "from 0 to 1")
        expect(0 <= min_p <= 1, "min_p", "from 0 to 1", min_p)
        repetition = real(self.repetition_penalty, "repetition_penalty", "a positive number")
        moderate = 1 / LARGEST <= repetition <= LARGEST
        span = f"from {1 / LARGEST:g} to {LARGEST:g}"
        expect(moderate, "repetition_penalty", span, repetition)
        return {
            "temperature": temperature,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition,
            "presence_penalty": _addend(self.presence_penalty, "presence_penalty"),
            "frequency_penalty": _addend(self.frequency_penalty, "frequency_penalty"),
        }

    def _counts(self) -> dict[str, Any]:
        """The fields that are whole numbers, or True or False."""
        expect_type(self.cache_salt, "cache_salt", str, "a text")
        for name in ("ignore_eos", "include_stop"):
            expect_type(getattr(self, name), name, (bool, np.bool_), "True or False")
        most, seed, least = self.max_tokens, self.seed, self.min_tokens
        top_k = whole(self.top_k, "top_k", 0, "0 (all tokens) or more")
        n = whole(self.n, "n", 1, "at least 1")
        expect(n <= MAX_ANSWERS, "n", f"at most {MAX_ANSWERS}", n)
        return {
            "max_tokens": None if most is None else whole(most, "max_tokens", 1, "at least 1"),
            "top_k": min(top_k, ALL_TOKENS),
            "seed": None if seed is None else whole(seed, "seed", 0, "None, 0 or more"),
            "ignore_eos": bool(self.ignore_eos),
            "include_stop": bool(self.include_stop),
            "min_tokens": whole(least, "min_tokens", 0, "0 or more"),
            "logprobs": _num_logprobs(self.logprobs, "logprobs"),
            "prompt_logprobs": _num_logprobs(self.prompt_logprobs, "prompt_logprobs"),
            "n": n,
        }

    def _sets(self) -> dict[str, Any]:
        """The fields that have several values."""
        allowed = self.allowed_token_ids
        return {
            "stop": _stops(self.stop),
            "stop_token_ids": _token_ids(self.stop_token_ids, "stop_token_ids"),
            "bad_token_ids": _token_ids(self.bad_token_ids, "bad_token_ids"),
            "allowed_token_ids": None
            if allowed is None
            else _token_ids(allowed, "allowed_token_ids"),
            "logit_bias": _biases(self.logit_bias),
        }

    @property
    def penalises(self) -> bool:
        """Whether logits depend on the tokens before."""
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        return penalties != (1.0, 0.0, 0.0)

    @property
    def changes_logits(self) -> bool:
        """Whether anything is done to logits before they are divided by the temperature."""
        limited = self.allowed_token_ids is not None or self.min_tokens > 0
        return limited or self.penalises or bool(self.logit_bias or self.bad_token_ids)

    def check_tokens(self, vocab_size: int) -> None:
        """Raise `ValueError` if a token that logits are changed of is not in a vocabulary."""
        changed = {
            "logit_bias": self.logit_bias,
            "bad_token_ids": self.bad_token_ids,
            "allowed_token_ids": self.allowed_token_ids or (),
        }
        for name, ids in changed.items():
            outside = sorted(token for token in ids if token >= vocab_size)
            expect(not outside, name, f"tokens from 0 to {vocab_size - 1}", outside[:1])


def answers(params: SamplingParams) -> list[SamplingParams]:
    """The parameters of each of the `n` answers to a prompt."""
    if params.n == 1:
        return [params]
    seeds = (answer_seed(params.seed, index) for index in range(params.n))
    return [replace(params, n=1, seed=seed) for seed in seeds]


def answer_seed(seed: int | None, index: int) -> int | None:
    """The seed of one of several answers to a prompt; that of the first is the prompt's own.

    Args:
        seed: Of the prompt; None: each answer draws one.
        index: Which answer, from 0.
    """
    if seed is None or index == 0:
        return seed
    # noise is made of a seed's words of 64 bits; this adds one, so no other answer has this seed,
    # and no prompt whose seed is shorter than that
    words = -(-max(seed.bit_length(), 1) // 64)
    return seed | index << (64 * words)


def _num_logprobs(count: object, name: str) -> int | None:
    if count is None:
        return None
    number = whole(count, name, 0, "None, 0 or more")
    expect(number <= MAX_LOGPROBS, name, f"at most {MAX_LOGPROBS}", number)
    return number


def _stops(stop: object) -> tuple[str, ...]:
    expected = "a text or several, none empty"
    expect_type(stop, "stop", (Sequence, Set), expected)
    stops = (stop,) if isinstance(stop, str) else tuple(stop)  # type: ignore[arg-type]
    for text in stops:
        expect_type(text, "stop", str, expected)
    expect(all(stops), "stop", "texts that are not empty", stops)
    return stops


def _token_ids(ids: object, name: str) -> frozenset[int]:
    expected = "a token or several"
    if isinstance(ids, Integral):
        ids = [ids]
    expect_type(ids, name, (Sequence, Set, np.ndarray), expected)
    return frozenset(whole(i, name, 0, expected) for i in ids)  # type: ignore[union-attr]


def _biases(biases: object) -> dict[int, float]:
    name, expected = "logit_bias", "a mapping from tokens to numbers"
    expect_type(biases, name, Mapping, expected)
    given: Mapping[Any, Any] = biases  # type: ignore[assignment]
    return {whole(i, name, 0, expected): _addend(bias, name) for i, bias in given.items()}


def _addend(value: object, name: str) -> float:
    """What is added to a logit, and leaves it finite however often."""
    expected = f"from {-LARGEST:g} to {LARGEST:g}"
    number = real(value, name, expected)
    expect(abs(number) <= LARGEST, name, expected, number)
    return number
