"""`blockstride serve`: a model behind HTTP, for OpenAI's clients."""

from __future__ import annotations

import argparse
import logging
import os
from dataclasses import fields
from importlib.util import find_spec
from typing import Any, get_args

from blockstride.checks import expect
from blockstride.models.commands.engine_options import (
    add_engine,
    add_model,
    engine_names,
    load_llm,
)
from blockstride.models.commands.prompts import expect_text
from blockstride.models.commands.values import positive, real, whole
from blockstride.models.hub import find_checkpoint
from blockstride.models.logs import LogFormat, log_to_stderr
from blockstride.models.serving.settings import ServerSettings

KEY_VARIABLE = "BLOCKSTRIDE_API_KEY"
NEEDED = ("fastapi", "httptools", "prometheus_client", "uvicorn")

NUM_SEQS = 64
"""Sequences at a time where nobody says: more than one caller's."""

NUM_RESTARTS = 16
"""Engines that are started anew; one that dies at once every time does not for ever."""

LIMITS = {
    "max_waiting": "answers that may wait beside those that run; more are told to come again (429)",
    "max_connections": "open connections",
    "max_body_bytes": "of a request",
    "max_answers": "answers to a prompt (n)",
    "max_prompts": "prompts of a request",
    "max_stops": "stop texts of a request",
}
SECONDS = {
    "head_seconds": "a client has so long to say what it wants",
    "body_seconds": "and so long to send all of it",
    "send_seconds": "so long it may leave what it is sent unread",
    "idle_seconds": "a connection is kept so long between two requests",
    "request_seconds": "an answer may take so long",
    "drain_seconds": "answers go on so long after a signal to end",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_model(parser)
    server = parser.add_argument_group("server")
    server.add_argument(
        "--host", default="127.0.0.1", help="where to listen; 0.0.0.0 for all (default %(default)s)"
    )
    server.add_argument(
        "--port", type=_port, default=8000, help="0 for one that is free (default %(default)s)"
    )
    server.add_argument("--served-model-name", help="what clients call the model (as --model)")
    server.add_argument(
        "--api-key",
        action="append",
        help=f"a key that clients have to know; repeat for several (${KEY_VARIABLE})",
    )
    server.add_argument(
        "--log-format", choices=get_args(LogFormat), default="text", help="(default %(default)s)"
    )
    limits = parser.add_argument_group("limits")
    defaults = {field.name: field.default for field in fields(ServerSettings)}
    for name, text in {**LIMITS, **SECONDS}.items():
        limits.add_argument(
            f"--{name.replace('_', '-')}",
            type=positive if name in LIMITS else real,
            default=defaults[name],
            metavar="N" if name in LIMITS else "S",
            help=f"{text} (default %(default)g)",
        )
    add_engine(parser)
    parser.set_defaults(max_num_seqs=NUM_SEQS, restarts=NUM_RESTARTS)


def _port(text: str) -> int:
    number = whole(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 65535, got {number}")
    return number


def option_names(args: argparse.Namespace) -> dict[str, str]:
    """What the user types, for arguments of other names."""
    return engine_names(args)


def run(args: argparse.Namespace) -> int:
    """Serves until a signal comes.

    Returns:
        0 after a signal, when all answers have ended; 1 when no engine is left.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    told = "pip install 'blockstride[serve]'"
    expect(not missing, "serve", f"what {told} installs", f"no {', '.join(missing)}")
    # these need it
    from blockstride.models.serving.server import bind, serve  # noqa: PLC0415

    settings = ServerSettings(**_settings(args))
    # before the model is loaded, which takes longer than to be told of a port that is taken
    with bind(args.host, args.port) as bound:
        folder = find_checkpoint(args.model, revision=args.revision, download=args.download)
        log_to_stderr(args.log_format)
        level = logging.DEBUG if args.verbose else logging.INFO
        logging.getLogger("blockstride.models.serving").setLevel(level)
        with load_llm(args, folder, in_process=False) as llm:
            return serve(llm, bound, settings)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    keys = args.api_key or list(filter(None, [os.environ.get(KEY_VARIABLE)]))
    for key in keys:
        expect_text("--api-key", key)
        expect(bool(key), "--api-key", "a key", "an empty one")
    for name in SECONDS:
        seconds = getattr(args, name)
        option = f"--{name.replace('_', '-')}"
        expect(0 < seconds < 1e7, option, "a positive number of seconds", seconds)
    given = {name: getattr(args, name) for name in (*LIMITS, *SECONDS)}
    return {"model_name": args.served_model_name or args.model, "api_keys": tuple(keys), **given}
