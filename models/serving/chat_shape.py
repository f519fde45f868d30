"""Answers of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockstride.models.generation import Generation
from blockstride.models.serving.fields import ChatRequest
from blockstride.models.serving.reading import Piece
from blockstride.models.serving.shape import Shape
from blockstride.models.serving.token_texts import TokenText


class ChatShape(Shape):
    """Makes JSON of answers to a conversation.

    Args:
        body: What the client asked for.
        model: What it calls the model.
        request_id: The name of its request.
        text_of: Tells the text of a token.
    """

    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"
    body: ChatRequest

    def __init__(
        self,
        body: ChatRequest,
        model: str,
        request_id: str,
        text_of: Callable[[int], TokenText],
    ) -> None:
        super().__init__(body, model, request_id)
        self._text_of = text_of

    def choice(self, generation: Generation, piece: Piece) -> dict[str, Any]:
        """See `Shape`."""
        return {
            "index": piece.answer,
            "message": {"role": "assistant", "content": piece.text, "refusal": None},
            "logprobs": self._logprobs(piece),
            "finish_reason": piece.finish_reason,
            **self.tokens_of(generation, piece),
        }

    def deltas(self, generation: Generation, piece: Piece) -> list[dict[str, Any]]:
        """See `Shape`; who speaks comes first, with the first token."""
        deltas = []
        if piece.is_first:
            beginning = {"role": "assistant", "content": ""}
            deltas.append(self._delta(piece.answer, beginning))
        says_something = piece.text or piece.logprobs or piece.finish_reason is not None
        if says_something or self.body.return_token_ids:
            deltas.append(
                {
                    **self._delta(piece.answer, {"content": piece.text} if piece.text else {}),
                    "logprobs": self._logprobs(piece),
                    "finish_reason": piece.finish_reason,
                    **self.tokens_of(generation, piece),
                }
            )
        return deltas

    def _delta(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        if piece.logprobs is None:
            return None
        content = [
            {
                **self._likelihood(told.token_id, told.logprob),
                "top_logprobs": [self._likelihood(*pair) for pair in told.top],
            }
            for told in piece.logprobs
        ]
        return {"content": content, "refusal": None}

    def _likelihood(self, token_id: int, logprob: float) -> dict[str, Any]:
        token = self._text_of(token_id)
        return {"token": token.text, "logprob": logprob, "bytes": list(token.data)}
