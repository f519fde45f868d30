"""From the fields of a body to the parameters of the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blockstride.models.engine import SamplingParams
from blockstride.models.serving.errors import ApiError, refusal
from blockstride.models.serving.fields import ChatRequest, CompletionRequest, SamplingFields
from blockstride.models.serving.settings import ServerSettings

COMPLETION_TOKENS = 16
"""What OpenAI's completions have where a client doesn't say."""

SAME = (
    *("top_p", "presence_penalty", "frequency_penalty", "min_p", "repetition_penalty"),
    *("min_tokens", "stop_token_ids", "bad_token_ids", "allowed_token_ids", "ignore_eos"),
    *("cache_salt", "n"),
)
"""Fields that `SamplingParams` calls the same."""

NAMES = {"include_stop": "include_stop_str_in_output"}
"""Parameter -> field, where they differ."""


def completion_params(
    body: CompletionRequest, defaults: SamplingParams, settings: ServerSettings
) -> SamplingParams:
    """How a completion is to be continued.

    Raises:
        ApiError: A value that can't be.
    """
    # there is no request without a token; the one that nobody wants isn't sent
    most = COMPLETION_TOKENS if body.max_tokens is None else max(1, body.max_tokens)
    of_prompt = body.logprobs if body.echo else None
    more = {"logprobs": body.logprobs, "prompt_logprobs": of_prompt}
    return _params(body, defaults, settings, max_tokens=most, **more)


def chat_params(
    body: ChatRequest, defaults: SamplingParams, settings: ServerSettings
) -> SamplingParams:
    """How a conversation is to be continued: without a limit as far as the model goes.

    Raises:
        ApiError: A value that can't be.
    """
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _params(body, defaults, settings, max_tokens=most, logprobs=logprobs)


def _params(
    body: SamplingFields, defaults: SamplingParams, settings: ServerSettings, **more: Any
) -> SamplingParams:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop
    if stops is not None and len(stops) > settings.max_stops:
        raise _too_many("stop", settings.max_stops, "texts", len(stops))
    if (body.n or 1) > settings.max_answers:
        raise _too_many("n", settings.max_answers, "answers", body.n)
    given: dict[str, Any] = {name: getattr(body, name) for name in SAME}
    given |= {
        "temperature": _temperature(body, defaults),
        "top_k": None if body.top_k is None else max(0, body.top_k),
        # OpenAI's seeds have a sign
        "seed": None if body.seed is None else body.seed % (1 << 64),
        "stop": stops,
        "include_stop": body.include_stop_str_in_output,
        "logit_bias": _biases(body.logit_bias),
    }
    try:
        known = {name: value for name, value in given.items() if value is not None}
        return replace(defaults, **known, **more)
    except (TypeError, ValueError) as error:
        raise refusal(error, NAMES) from error


def _temperature(body: SamplingFields, defaults: SamplingParams) -> float:
    """As the client says, or the checkpoint; OpenAI's 1 where neither does."""
    if body.temperature is not None:
        return body.temperature
    return defaults.temperature or 1.0


def _biases(given: dict[str, float] | None) -> dict[int, float] | None:
    """Biases by token, which JSON has as text."""
    if given is None:
        return None
    wrong = [key for key in given if not (key.isascii() and key.isdecimal() and len(key) < 12)]
    if wrong:
        message = f"logit_bias: expected tokens as keys, got {wrong[0][:40]!r}"
        raise ApiError(400, message, param="logit_bias", code="invalid_value")
    return {int(key): bias for key, bias in given.items()}


def _too_many(field: str, most: int, of_what: str, given: object) -> ApiError:
    message = f"{field}: expected at most {most} {of_what}, got {given}"
    return ApiError(400, message, param=field, code="invalid_value")
