"""What a server is told before it starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerSettings:
    """Names, limits and deadlines of a server.

    Attributes:
        model_name: What clients call the model.
        api_keys: One of these has to come with each request under `/v1`; none: nobody asks.
        max_waiting: Sequences that may wait beside those that run; one more is told to come again.
        max_connections: Open connections; one more is told that there is no room.
        max_body_bytes: Of a request.
        max_answers: Answers to one prompt.
        max_prompts: Prompts of one request.
        max_stops: Stop texts of one request.
        head_seconds: From a connection, or the first byte of a request, to the end of its head.
        body_seconds: From there to the end of its body.
        send_seconds: How long a client may leave what it is sent unread.
        idle_seconds: How long a connection is kept between two requests.
        request_seconds: How long all of an answer may take.
        drain_seconds: How long answers may go on after a signal to end.
    """

    model_name: str
    api_keys: tuple[str, ...] = ()
    max_waiting: int = 1024
    max_connections: int = 16_384
    max_body_bytes: int = 8 << 20
    max_answers: int = 128
    max_prompts: int = 1024
    max_stops: int = 16
    head_seconds: float = 20.0
    body_seconds: float = 60.0
    send_seconds: float = 60.0
    idle_seconds: float = 75.0
    request_seconds: float = 3600.0
    drain_seconds: float = 30.0
