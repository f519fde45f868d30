"""The application: routes, and what becomes of whatever goes wrong."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from blockstride import __version__
from blockstride.models.serving.errors import ApiError, error_response, field_error
from blockstride.models.serving.gate import Gate
from blockstride.models.serving.routes import router
from blockstride.models.serving.state import ServerState

logger = logging.getLogger(__name__)


def make_app(state: ServerState) -> FastAPI:
    """An ASGI application that serves a model.

    Args:
        state: The model, and what its requests share.
    """
    app = FastAPI(title="Blockstride", version=__version__, redoc_url=None)
    app.state.server = state
    app.include_router(router)
    app.add_middleware(Gate, state=state)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_fault)
    return app


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these"
    if not isinstance(error, ApiError):
        error = ApiError(error.status_code, str(error.detail))
    return _refused(request, error)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), "it is registered for these"
    return _refused(request, field_error(error.errors()))


def _refused(request: Request, error: ApiError) -> Response:
    request.state.log["error"] = str(error.detail)
    return error_response(error)


async def _on_fault(_: Request, __: Exception) -> Response:
    """What nobody has foreseen is in the log, and no client's business."""
    return error_response(ApiError(500, "this server has failed", code="internal_error"))
