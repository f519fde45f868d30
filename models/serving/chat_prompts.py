"""From the messages of a chat to the tokens of a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from blockstride.models.serving.errors import ApiError, refusal
from blockstride.models.serving.fields import ChatRequest
from blockstride.models.serving.state import ServerState

ROLES = ("assistant", "developer", "function", "system", "tool", "user")


async def chat_prompt(state: ServerState, body: ChatRequest) -> tuple[int, ...]:
    """The tokens of a conversation, which another thread makes.

    Raises:
        ApiError: Messages that can't be, or that the chat template refuses.
    """
    messages = [_message(at, message) for at, message in enumerate(body.messages)]
    variables = dict(body.chat_template_kwargs or {})
    if body.documents is not None:
        variables["documents"] = body.documents
    begins_answer = body.add_generation_prompt is not False
    try:
        return await asyncio.to_thread(
            state.llm.chat_prompt,
            messages,
            tools=body.tools,
            add_generation_prompt=begins_answer,
            variables=variables,
        )
    except (TypeError, ValueError) as error:
        raise refusal(error, {"prompt": "messages"}) from error


def _message(at: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose content is text, or None where a call stands instead of it."""
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise _wrong(at, f"a role of {', '.join(ROLES)}", role)
    if content is None and role != "assistant":
        raise _wrong(at, "content", None)
    if isinstance(content, list):
        content = "".join(_text(at, part) for part in content)
    elif not isinstance(content, str | None):
        raise _wrong(at, "content of text", content)
    return {**message, "content": content}


def _text(at: int, part: Any) -> str:
    if isinstance(part, str):
        return part
    is_text = isinstance(part, dict) and part.get("type") == "text"
    if not is_text or not isinstance(text := part.get("text"), str):
        raise _wrong(at, "parts of text alone", part)
    return text


def _wrong(at: int, expected: str, got: Any) -> ApiError:
    message = f"messages.{at}: expected {expected}, got {repr(got)[:80]}"
    return ApiError(400, message, param="messages", code="invalid_value")
