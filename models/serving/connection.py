"""Connections that don't stay open for nothing: every wait for a client has a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from blockstride.models.serving.errors import error_body
from blockstride.models.serving.settings import ServerSettings

REASONS = {400: b"Bad Request", 408: b"Request Timeout", 503: b"Service Unavailable"}


class Connection(HttpToolsProtocol):
    """A connection whose client has to say what it wants in time.

    It is given its settings as a class attribute, since uvicorn makes objects of it.

    Attributes:
        settings: Limits and deadlines.
    """

    settings: ServerSettings
    _timer: asyncio.TimerHandle | None = None
    _is_in_request = False

    def connection_made(self, transport: Any) -> None:
        """A client is there; it has to begin a request in time."""
        super().connection_made(transport)
        if len(self.connections) > self.settings.max_connections:
            self._refuse(503, "no room for another connection")
            return
        self._expect_within(self.settings.head_seconds)

    def data_received(self, data: bytes) -> None:
        """Bytes of a client, perhaps the first ones of another request."""
        is_idle = self.cycle is not None and self.cycle.response_complete
        if is_idle and not self._is_in_request and self._timer is None:
            self._expect_within(self.settings.head_seconds)
        super().data_received(data)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._is_in_request = True
        # for whoever finds that the client reads nothing
        self.scope.setdefault("state", {})["abort"] = self.transport.abort

    def on_headers_complete(self) -> None:
        """The head of a request is there; its body has to follow in time."""
        super().on_headers_complete()
        self._expect_within(self.settings.body_seconds)

    def on_message_complete(self) -> None:
        """All of a request is there."""
        self._is_in_request = False
        self._forget_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """All of a response is written; it has to be read in time."""
        super().on_response_complete()
        if self.transport.get_write_buffer_size() > 0:
            self.loop.call_later(self.settings.send_seconds, self._abort_unread, self.cycle)

    def _abort_unread(self, cycle: object) -> None:
        """Closing would wait for a client that reads nothing."""
        if cycle is self.cycle and self.transport.get_write_buffer_size() > 0:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left."""
        self._forget_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuses what isn't HTTP."""
        self._refuse(400, msg)

    def _expect_within(self, seconds: float) -> None:
        self._forget_timer()
        late: Callable[[], None] = self._on_late
        self._timer = self.loop.call_later(seconds, late)

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_late(self) -> None:
        self._timer = None
        if self.cycle is not None and self.cycle.response_started and self._is_in_request:
            # it has its answer, and goes on sending
            self.transport.abort()
        else:
            self._refuse(408, "the request didn't come in time")

    def _refuse(self, status: int, message: str) -> None:
        """Answers what no application sees, and closes the connection."""
        if self.transport.is_closing():
            return
        self._forget_timer()
        body = error_body(status, message)
        head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n" % (status, REASONS[status])
        length = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(head + length + body)
        self.transport.close()
