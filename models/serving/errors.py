"""Errors as OpenAI's clients know them, and what they are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

MARK = ": expected "
"""What stands between an argument and its fault in a message of `blockstride.checks.expect`."""

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    499: "client_closed_request",
    503: "service_unavailable_error",
    504: "timeout_error",
}
LEFT = 499
"""What logs and metrics call the end of a request whose client has left; nobody is sent it."""


class ApiError(HTTPException):
    """A request that isn't answered, and why.

    Args:
        status: HTTP status.
        message: Why, for a person.
        param: The field of the request that it is about.
        code: The same reason for a program.
        retry_after: After how many seconds it may be worth another try.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        headers = None if retry_after is None else {"Retry-After": str(retry_after)}
        super().__init__(status, message, headers)
        self.param, self.code = param, code

    @property
    def body(self) -> bytes:
        """The error object, as JSON."""
        return error_body(self.status_code, str(self.detail), self.param, self.code)


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> bytes:
    """The error object of a status, as JSON; halves of surrogate pairs in it are escaped."""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error}).encode()


def error_response(error: ApiError) -> Response:
    """What a client is sent."""
    headers = dict(error.headers or {})
    return Response(error.body, error.status_code, headers, "application/json")


def refusal(error: Exception, names: Mapping[str, str] | None = None) -> ApiError:
    """What an exception about an argument says, about the field that the argument came from.

    Args:
        error: A `ValueError` or `TypeError` of this package.
        names: Argument -> field, where they differ.
    """
    message = str(error)
    argument, mark, fault = message.partition(MARK)
    if not mark:
        return ApiError(400, message)
    field = (names or {}).get(argument, argument)
    is_too_long = field in {"prompt", "messages"} and "tokens, as" in fault
    code = "context_length_exceeded" if is_too_long else "invalid_value"
    return ApiError(400, f"{field}{mark}{fault}", param=field, code=code)


def field_error(errors: Sequence[Any]) -> ApiError:
    """What pydantic has found wrong with a body."""
    first = errors[0]
    # behind "body", the name of the field, and where in it
    place = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return ApiError(400, f"body: expected JSON, got {first['ctx']['error']}", code="bad_json")
    if first["type"] == "extra_forbidden":
        name = place[-1]
        return ApiError(400, f"{name}: this server knows no such field", param=name, code="unknown")
    if not place:
        return ApiError(400, "body: expected a JSON object", code="bad_json")
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{'.'.join(place)}: {message}", param=place[0], code="invalid_value")
