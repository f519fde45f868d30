"""Which prompts an engine can continue: how long they may be, and of which tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blockstride.checks import expect
from blockstride.models.engine.sampling import SamplingParams


@dataclass(frozen=True)
class PromptLimits:
    """What an engine can take.

    Attributes:
        max_len: Most tokens of a sequence, prompt and output.
        reason: What sets that limit, for a message.
        vocab_size: Tokens that there are.
    """

    max_len: int
    reason: str
    vocab_size: int

    @classmethod
    def of(
        cls, max_len: int | None, model_len: int, cache_len: int, vocab_size: int
    ) -> PromptLimits:
        """The smallest of all limits.

        Args:
            max_len: What the engine was told; instead of `model_len`, and None for that.
            model_len: Positions that the model was made for.
            cache_len: Most tokens of one sequence that the caches hold.
            vocab_size: Tokens that there are.
        """
        wanted = model_len if max_len is None else max_len
        if cache_len < wanted:
            return cls(cache_len, f"the cache holds {cache_len}", vocab_size)
        if max_len is None:
            return cls(model_len, f"the model's longest sequence has {model_len}", vocab_size)
        return cls(max_len, f"max_len is {max_len}", vocab_size)

    def longest(self, prompt_ids: Sequence[int], params: SamplingParams) -> int:
        """Most tokens that a request may reach, prompt and output."""
        most = params.max_tokens
        return self.max_len if most is None else min(self.max_len, len(prompt_ids) + most)

    def check(self, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        """Raise `ValueError` unless a prompt can be continued by a token, as is asked.

        Args:
            prompt_ids: Tokens of the prompt.
            params: How to continue it, which may name tokens.
        """
        expect(len(prompt_ids) > 0, "prompt", "at least one token", "an empty prompt")
        room = self.max_len - 1
        expect(
            len(prompt_ids) <= room,
            "prompt",
            f"at most {room} tokens, as {self.reason}",
            f"{len(prompt_ids)} tokens",
        )
        outside = [token for token in prompt_ids if not 0 <= token < self.vocab_size]
        expect(not outside, "prompt", f"tokens from 0 to {self.vocab_size - 1}", outside[:1])
        params.check_tokens(self.vocab_size)
        expect(params.n == 1, "n", "1 of a request, which has one answer", params.n)
