"""A server as a process: its socket, its signals, and its end."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import uvicorn

from blockstride.checks import expect
from blockstride.models.llm import LLM
from blockstride.models.serving.app import make_app
from blockstride.models.serving.connection import Connection
from blockstride.models.serving.errors import ApiError
from blockstride.models.serving.settings import ServerSettings
from blockstride.models.serving.state import ServerState, watch_engines

BACKLOG = 4096
SPARE_FILES = 256
"""Descriptors that aren't for clients: pipes, files, and what libraries open."""

LAST_WORDS_SECONDS = 2.0
"""From when answers are cut off to when their connections are."""

logger = logging.getLogger(__name__)


def bind(host: str, port: int) -> socket.socket:
    """The socket of a server, which nobody can connect to yet.

    Args:
        host: A name or address.
        port: 0 for any that is free.

    Raises:
        ValueError: There is no such address.
        OSError: The port is taken, or may not be.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ValueError(f"host: expected a name or address of this machine, got {host}") from error
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
    return bound


def serve(llm: LLM, bound: socket.socket, settings: ServerSettings) -> int:
    """Serves a model until a signal comes or no engine is left.

    Args:
        llm: The model, whose engines are processes of their own.
        bound: See `bind`.
        settings: Names, limits and deadlines.

    Returns:
        0 after a signal, 1 when no engine is left.

    Raises:
        ValueError: The engine is in this process, where it would wait for clients.
    """
    apart = hasattr(llm.engine, "engines")
    expect(apart, "llm", "engines in processes of their own", type(llm.engine).__name__)
    state = ServerState(llm, replace(settings, max_connections=_max_connections(settings)))
    connection = type("ServerConnection", (Connection,), {"settings": state.settings})
    config = uvicorn.Config(
        make_app(state),
        http=connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        proxy_headers=False,
        timeout_keep_alive=int(settings.idle_seconds),
        timeout_graceful_shutdown=int(settings.drain_seconds + LAST_WORDS_SECONDS) + 1,
    )
    _Server(config, state).run([bound])
    return int(state.is_failed)


def _max_connections(settings: ServerSettings) -> int:
    """As many as there may be, and as this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(1, min(settings.max_connections, hard - SPARE_FILES if hard > 0 else soft))


class _Server(uvicorn.Server):
    """Ends as it is told to by a signal, after the answers that were begun, or without engines."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Says where the server is when it can be connected to."""
        await super().startup(sockets)
        for bound in sockets or ():
            name, address = self._state.settings.model_name, bound.getsockname()
            logger.info("%s at http://%s:%d", name, *address[:2])

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal drains, the second ends at once, as whoever had it before does."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.getsignal(number) for number in numbers}
        loop = asyncio.get_running_loop()

        def drain(number: int) -> None:
            for each in numbers:
                loop.remove_signal_handler(each)
                signal.signal(each, before[each])
            logger.info("signal %d: ends when all answers have, at most in %g s", number, seconds)
            self._drain(loop)

        seconds = self._state.settings.drain_seconds
        for number in numbers:
            if before[number] is not signal.SIG_IGN:
                loop.add_signal_handler(number, drain, number)
        watch = loop.create_task(self._end_without_engines())
        try:
            yield
        finally:
            watch.cancel()

    def _drain(self, loop: asyncio.AbstractEventLoop) -> None:
        self._state.is_draining = True
        self.should_exit = True
        cut = ApiError(503, "this server has ended", code="shutting_down")
        loop.call_later(self._state.settings.drain_seconds, self._state.cut_all, cut)

    async def _end_without_engines(self) -> None:
        await watch_engines(self._state)
        logger.error("no engine is left")
        self.should_exit = True
