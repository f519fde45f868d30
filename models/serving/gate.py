"""What every request passes first: it gets a name, needs a key, and may be only so large."""

from __future__ import annotations

import hmac
import logging
import re
import time
from collections.abc import Sequence
from secrets import token_hex
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blockstride.models.logs import REQUEST_ID
from blockstride.models.serving.errors import ApiError, error_response
from blockstride.models.serving.state import ServerState

ID_HEADER = b"x-request-id"
FIT_FOR_A_NAME = re.compile(rb"[!-~]{1,128}")
API = "/v1"
PATHS = {
    *("/v1/completions", "/v1/chat/completions", "/v1/models", "/metrics", "/health"),
    *("/health/live", "/health/ready"),
}
"""Paths that metrics tell apart."""

logger = logging.getLogger("blockstride.models.serving.access")


class Gate:
    """Lets requests in, and says what became of them.

    Args:
        app: What answers them.
        state: The server.
    """

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app, self._state = app, state
        self._keys = [key.encode() for key in state.settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(ID_HEADER, b"")
        name = given if FIT_FOR_A_NAME.fullmatch(given) else token_hex(16).encode()
        log: dict[str, Any] = {"method": scope["method"], "path": scope["path"], "status": 499}
        scope.setdefault("state", {})
        scope["state"] |= {"log": log, "request_id": name.decode()}
        token = REQUEST_ID.set(name.decode())
        began = time.monotonic()

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                log["status"] = message["status"]
                named = (ID_HEADER, name)
                message = {**message, "headers": [*message.get("headers", ()), named]}
            await send(message)

        try:
            self._check(scope, headers)
            await self._app(scope, self._counted(receive), send_named)
        except ApiError as error:
            await error_response(error)(scope, receive, send_named)
        except Exception:
            log["status"] = 500
            raise
        finally:
            log["seconds"] = round(time.monotonic() - began, 4)
            self._tell(log)
            REQUEST_ID.reset(token)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Raise `ApiError` unless a request may come in."""
        if not scope["path"].startswith(f"{API}/"):
            return
        if self._keys and not _has_key(headers.get(b"authorization", b""), self._keys):
            raise ApiError(401, "a valid API key is missing", code="invalid_api_key")
        if scope["method"] != "POST":
            return
        self._state.expect_running()
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            raise ApiError(415, "content-type: expected application/json")
        size = headers.get(b"content-length", b"0")
        if size.isdigit() and int(size) > self._state.settings.max_body_bytes:
            raise self._too_large()

    def _counted(self, receive: Receive) -> Receive:
        """`receive`, up to as many bytes as a body may have."""
        count = 0

        async def receive_some() -> Message:
            nonlocal count
            message = await receive()
            count += len(message.get("body", b""))
            if count > self._state.settings.max_body_bytes:
                raise self._too_large()
            return message

        return receive_some

    def _too_large(self) -> ApiError:
        most = self._state.settings.max_body_bytes
        return ApiError(413, f"body: expected at most {most} bytes", code="body_too_large")

    def _tell(self, log: dict[str, Any]) -> None:
        path = log["path"] if log["path"] in PATHS else "other"
        self._state.metrics.responded(path, log["status"])
        # what asks all the time is no news
        level = logging.INFO if path.startswith(API) or path == "other" else logging.DEBUG
        logger.log(
            level, "%s %s %d", log["method"], log["path"], log["status"], extra={"fields": log}
        )


def _has_key(authorization: bytes, keys: Sequence[bytes]) -> bool:
    scheme, _, given = authorization.partition(b" ")
    # all are compared, each in the same time
    found = [hmac.compare_digest(given.strip(), key) for key in keys]
    return scheme.lower() == b"bearer" and any(found)
