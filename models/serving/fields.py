"""The bodies of requests: OpenAI's fields, and those that vLLM's clients add to them.

Types are strict, and a name that isn't known is refused: what a client asks for is done, or it is
told that it isn't. A field that can't be done here has the one value that asks for nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_STOP = 256
"""Characters of a stop text."""

MAX_LOGPROBS = 20

WORDS_OF_OTHERS = {
    "metadata",
    "priority",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
"""Fields that are for whoever keeps books, and don't bear on an answer; any value is taken."""

Penalty = Annotated[float, Field(ge=-2, le=2)]
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Strict(BaseModel):
    """A JSON object with no other fields than those that it declares."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(Strict):
    """What a stream tells beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None


class SamplingFields(Strict):
    """What completions and chats have in common; None is as if a field weren't there."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: StopText | list[StopText] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    # what OpenAI doesn't have
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=1e6)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    stop_token_ids: list[TokenId] | None = None
    bad_token_ids: list[TokenId] | None = None
    allowed_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: Literal[True] | None = None
    spaces_between_special_tokens: Literal[True] | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None

    @model_validator(mode="before")
    @classmethod
    def drop_words_of_others(cls, given: Any) -> Any:
        """Leaves out what asks for nothing."""
        if isinstance(given, dict):
            return {key: value for key, value in given.items() if key not in WORDS_OF_OTHERS}
        return given

    @model_validator(mode="after")
    def expect_stream(self) -> SamplingFields:
        """Options of a stream need one."""
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: expected stream to be true beside it")
        return self


class CompletionRequest(SamplingFields):
    """The body of `/v1/completions`."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: Literal[""] | None = None

    @model_validator(mode="after")
    def expect_possible(self) -> CompletionRequest:
        """What fields say of each other."""
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("best_of: expected n, as all answers are sent")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: expected at least 1, or echo beside 0")
        return self


class ChatRequest(SamplingFields):
    """The body of `/v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    # for the chat template
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none"] | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    # nothing but text, as the model writes it
    response_format: dict[Literal["type"], Literal["text"]] | None = None
    modalities: list[Literal["text"]] | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def expect_possible(self) -> ChatRequest:
        """What fields say of each other."""
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: expected logprobs to be true beside it")
        if self.tools and self.tool_choice != "none":
            told = 'expected "none" beside tools: calls are not read out of answers'
            raise ValueError(f"tool_choice: {told}")
        return self
