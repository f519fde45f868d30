"""Answers of `/v1/completions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import Tokenizer

from blockstride.models.engine import TokenLogprobs
from blockstride.models.generation import Generation
from blockstride.models.serving.fields import CompletionRequest
from blockstride.models.serving.reading import Piece
from blockstride.models.serving.shape import Shape
from blockstride.models.serving.token_texts import TokenText


class CompletionShape(Shape):
    """Makes JSON of completions.

    Args:
        body: What the client asked for.
        model: What it calls the model.
        request_id: The name of its request.
        text_of: Tells the text of a token.
        tokenizer: Tells the text of a prompt of tokens, for `echo`; None: there is none.
    """

    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"
    body: CompletionRequest

    def __init__(
        self,
        body: CompletionRequest,
        model: str,
        request_id: str,
        text_of: Callable[[int], TokenText],
        tokenizer: Tokenizer | None,
    ) -> None:
        super().__init__(body, model, request_id)
        self._text_of, self._tokenizer = text_of, tokenizer
        # of each answer, where the next token's text begins
        self._offsets: dict[int, int] = {}

    def choice(self, generation: Generation, piece: Piece) -> dict[str, Any]:
        """See `Shape`."""
        return self._choice(generation, piece)

    def deltas(self, generation: Generation, piece: Piece) -> list[dict[str, Any]]:
        """See `Shape`."""
        tells_nothing = not piece.text and piece.finish_reason is None and piece.logprobs is None
        if tells_nothing and not piece.is_first and not self.body.return_token_ids:
            return []
        return [self._choice(generation, piece)]

    def _choice(self, generation: Generation, piece: Piece) -> dict[str, Any]:
        is_wanted = self.body.max_tokens != 0
        text = piece.text if is_wanted else ""
        if self.body.echo and piece.is_first:
            text = self._prompt_text(generation) + text
        return {
            "index": piece.answer,
            "text": text,
            "logprobs": self._logprobs(generation, piece, is_wanted),
            "finish_reason": piece.finish_reason,
            **self.tokens_of(generation, piece),
        }

    def _prompt_text(self, generation: Generation) -> str:
        prompt = generation.completion.prompt
        if isinstance(prompt, str):
            return prompt
        return self._tokenizer.decode(list(prompt)) if self._tokenizer is not None else ""

    def _logprobs(
        self, generation: Generation, piece: Piece, is_wanted: bool
    ) -> dict[str, Any] | None:
        if self.body.logprobs is None:
            return None
        told: list[TokenLogprobs | None] = []
        if self.body.echo and piece.is_first:
            told += generation.completion.prompt_logprobs or ()
        of_prompt: Sequence[int] = generation.prompt_ids[: len(told)]
        if is_wanted:
            told += piece.logprobs or ()
        tokens = [self._text_of(i).text for i in (*of_prompt, *piece.token_ids)][: len(told)]
        return {
            "tokens": tokens,
            "token_logprobs": [None if each is None else each.logprob for each in told],
            "top_logprobs": [None if each is None else self._top(each) for each in told],
            "text_offset": self._offsets_of(piece.answer, tokens),
        }

    def _top(self, told: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens by text, and the one that came."""
        pairs = [(told.token_id, told.logprob), *told.top]
        by_text: dict[str, float] = {}
        for token_id, logprob in pairs:
            by_text.setdefault(self._text_of(token_id).text, logprob)
        return by_text

    def _offsets_of(self, index: int, tokens: Sequence[str]) -> list[int]:
        offsets, offset = [], self._offsets.get(index, 0)
        for text in tokens:
            offsets.append(offset)
            offset += len(text)
        self._offsets[index] = offset
        return offsets
