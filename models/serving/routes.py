"""What a server answers: OpenAI's completions, chats and models, its health, and its metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from blockstride.models.async_batch import AsyncBatch
from blockstride.models.engine import SamplingParams
from blockstride.models.serving.answering import Answering
from blockstride.models.serving.chat_prompts import chat_prompt
from blockstride.models.serving.chat_shape import ChatShape
from blockstride.models.serving.completion_shape import CompletionShape
from blockstride.models.serving.errors import ApiError, refusal
from blockstride.models.serving.fields import ChatRequest, CompletionRequest
from blockstride.models.serving.sampling import chat_params, completion_params
from blockstride.models.serving.state import ServerState

router = APIRouter()


def _state(request: Request) -> ServerState:
    return request.app.state.server


@router.post("/v1/completions", response_class=JSONResponse)
async def completions(body: CompletionRequest, request: Request) -> Any:
    """Continues prompts."""
    state = _state(request)
    _expect_model(state, body.model)
    prompts: list[Any] = _listed(body.prompt)
    if len(prompts) > state.settings.max_prompts:
        most = state.settings.max_prompts
        raise ApiError(400, f"prompt: expected at most {most}, got {len(prompts)}", param="prompt")
    params = completion_params(body, state.llm.default_params, state.settings)
    name = request.state.request_id
    shape = CompletionShape(body, state.settings.model_name, name, state.text_of, state.tokenizer)

    async def submit() -> AsyncBatch:
        return await _submit(state, prompts, params, body.max_tokens, "prompt", "max_tokens")

    return Answering(state, shape, submit, params, len(prompts))


@router.post("/v1/chat/completions", response_class=JSONResponse)
async def chat(body: ChatRequest, request: Request) -> Any:
    """Answers a conversation."""
    state = _state(request)
    _expect_model(state, body.model)
    params = chat_params(body, state.llm.default_params, state.settings)
    shape = ChatShape(body, state.settings.model_name, request.state.request_id, state.text_of)

    async def submit() -> AsyncBatch:
        prompt = await chat_prompt(state, body)
        limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        return await _submit(state, [prompt], params, params.max_tokens, "messages", limit)

    return Answering(state, shape, submit, params, 1)


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """The one model that there is."""
    return {"object": "list", "data": [_card(_state(request))]}


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> dict[str, Any]:
    """The model, if that is its name."""
    state = _state(request)
    _expect_model(state, name)
    return _card(state)


@router.get("/health/live")
async def live(request: Request) -> Response:
    """200 unless this process had better be started anew."""
    return _health(503 if _state(request).is_failed else 200)


@router.get("/health/ready")
@router.get("/health")
async def ready(request: Request) -> Response:
    """200 while requests are taken."""
    return _health(200 if _state(request).is_ready else 503)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Numbers for Prometheus."""
    return Response(
        generate_latest(_state(request).metrics.registry), 200, None, CONTENT_TYPE_LATEST
    )


def _health(status: int) -> Response:
    return JSONResponse({"status": "ok" if status == 200 else "unavailable"}, status)


def _card(state: ServerState) -> dict[str, Any]:
    return {
        "id": state.settings.model_name,
        "object": "model",
        "created": state.created,
        "owned_by": "blockstride",
        "root": state.settings.model_name,
        "parent": None,
        "max_model_len": state.deployment.limits.max_len,
    }


def _expect_model(state: ServerState, name: str | None) -> None:
    """Raise `ApiError` unless a request means the model that there is."""
    if name is not None and name != state.settings.model_name:
        message = f"model: expected {state.settings.model_name!r}, got {name[:200]!r}"
        raise ApiError(404, message, param="model", code="model_not_found")


def _listed(prompt: Any) -> list[Any]:
    """One prompt or several as a list."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ApiError(400, "prompt: expected at least one", param="prompt", code="invalid_value")
    return [prompt] if isinstance(prompt[0], int) else list(prompt)


async def _submit(
    state: ServerState,
    prompts: list[Any],
    params: SamplingParams,
    most: int | None,
    field: str,
    limit: str,
) -> AsyncBatch:
    """Queues prompts.

    Args:
        state: The server.
        prompts: Texts or tokens.
        params: How to continue them.
        most: The number of new tokens that the client gave; None: it gave none.
        field: Where prompts were given.
        limit: Where that number was.

    Raises:
        ApiError: Something that can't be.
    """
    state.expect_running()
    try:
        batch = await state.async_llm.submit(prompts, params)
    except (TypeError, ValueError) as error:
        raise refusal(error, {"prompt": field, "prompts": field}) from error
    except RuntimeError as error:
        raise ApiError(503, str(error), code="engine_failed") from error
    longest = max(len(each.prompt_ids) for each in batch.generations)
    room = state.deployment.limits.max_len - longest
    if most is not None and most > room:
        batch.abort()
        told = f"{longest} tokens of the prompt leave room for {room}"
        message = f"{limit}: expected at most {room}, as {told}, got {most}"
        raise ApiError(400, message, param=limit, code="context_length_exceeded")
    return batch
