"""A request on its way through the engine, and what comes out of it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Int32

from blockstride.models.engine.logit_changes import LogitChanges
from blockstride.models.engine.sampling import SamplingParams
from blockstride.models.engine.token_logprobs import TokenLogprobs

FinishReason = Literal["stop", "length", "abort", "error"]
"""`stop`: an end token or a stop text. `length`: `max_tokens`, or the longest sequence that the
model, the engine or its cache can have. `abort`: whoever asked wanted no more. `error`:
something that `Request.error` names, or tokens that its tokenizer makes no text of."""


@dataclass(eq=False)
class Request:
    """One sequence of tokens, from prompt to finish.

    Attributes:
        request_id: Its name in logs, block tables and leases, in whatever engine; one that begins
            anew in another engine gets a new one.
        prompt_ids: Tokens of the prompt.
        params: How to continue it.
        max_len: Most tokens, prompt included, that it may reach.
        output_ids: Tokens generated so far.
        changes: What is done to its logits before a token is chosen; None: nothing.
        hands_over: Whether it goes on elsewhere once it has its next token.
        num_cached: Tokens whose keys, values and states are in the cache; falls to 0 when the
            request is preempted, and is made up for by computing them again.
        num_stored: Tokens whose keys and values are in the cache where those of all tokens are;
            more than `num_cached` where only the states after them are missing.
        num_resumed: `num_cached` when it was last admitted: what others had computed.
        present: Of each group, how many tokens its blocks have that others have filled, before it
            is filled from elsewhere.
        has_loaded: Whether it has waited for a tier to bring back what it begins with.
        num_in_tiers: Tokens that a tier knows of it, whether it can go on after them or not.
        keep_after: Numbers of tokens after which what is in the cache is kept for other requests,
            and at which its steps end therefore, the next first.
        seed: That of `params`, or one of its own.
        logprobs: Of the tokens that were generated here, where `params` ask for them.
        scores_prompt: Whether to tell how likely its prompt was; whoever generated tokens before
            has done so.
        prompt_logprobs: Of the tokens of the prompt but the first, as far as they are computed.
        num_preemptions: How often it has lost its blocks.
        finish_reason: Why it ended; None while it runs.
        error: What went wrong, in words, when it ended with an error.
    """

    request_id: int
    prompt_ids: list[int]
    params: SamplingParams
    max_len: int
    output_ids: list[int] = field(default_factory=list)
    changes: LogitChanges | None = None
    hands_over: bool = False
    num_cached: int = 0
    num_stored: int = 0
    num_resumed: int = 0
    present: list[int] = field(default_factory=list)
    has_loaded: bool = False
    num_in_tiers: int = 0
    keep_after: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    error: str = ""

    def __post_init__(self) -> None:
        seed = self.params.seed
        self.seed: int = secrets.randbits(63) if seed is None else seed
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.scores_prompt = self.params.prompt_logprobs is not None and not self.output_ids

    @cached_property
    def prompt(self) -> Int32[np.ndarray, " num_tokens"]:
        """The prompt, to be compared with others."""
        return np.array(self.prompt_ids, np.int32)

    @property
    def num_tokens(self) -> int:
        """Tokens known so far."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def num_uncached(self) -> int:
        """Tokens still to be computed before the next one can be sampled."""
        return self.num_tokens - self.num_cached

    def unscored(self, stop: int) -> range:
        """Positions before `stop` whose next token is one of the prompt and has no `logprobs` yet.

        They are computed in the order of their positions, once, whatever is computed again.
        """
        if not self.scores_prompt:
            return range(0)
        return range(len(self.prompt_logprobs), min(stop, len(self.prompt_ids) - 1))

    def tokens(self, start: int, stop: int) -> list[int]:
        """The known tokens from `start` to `stop`."""
        split = len(self.prompt_ids)
        if start >= split:
            return self.output_ids[start - split : stop - split]
        return (self.prompt_ids[start:stop] + self.output_ids[: max(0, stop - split)])[
            : stop - start
        ]
