"""Arguments of another type are refused by name where they come in, on the caller's own thread."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from blockstride.transfer.connector import Connector, ConnectorSettings, ReadHandle, ReadRequest
from blockstride.transfer.tiers import CacheFile, CacheFileWriter, HostCache, Offloader
from tests.transfer.connector.bulk import bulk

CASE = bulk(4)
ENGINE, TOKENS, BLOCKS = CASE.local, CASE.num_tokens, CASE.request().local


def bare(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """A call as users make it: the annotations, which tests enforce, would refuse first."""
    return inspect.unwrap(function)(*arguments, **options)


def made(cls: type, *arguments: Any, **options: Any) -> Any:
    new = object.__new__(cls)
    bare(cls.__init__, new, *arguments, **options)
    return new


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", 5),
        ("port", "80"),
        ("port", 8080.0),
        ("key", "a secret"),
        ("cost_model", "cost_model.json"),
        ("max_tokens", 2.5),
        ("max_states", True),
        ("cast", 1),
        ("lease_seconds", "30"),
        ("answer_seconds", None),
        ("chunk_bytes", 1e6),
        ("progress_thread", "no"),
        ("num_threads", None),
    ],
)
def test_a_setting_of_another_type_is_named(name: str, value: object):
    with pytest.raises(TypeError, match=f"^{name}: expected .*, got "):
        made(ConnectorSettings, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 1 << 16),
        ("strategy", "quick"),
        ("max_tokens", 0),
        ("lease_seconds", float("inf")),
        ("answer_seconds", float("nan")),
        ("backoff_seconds", 0),
        ("chunk_bytes", 0),
        ("num_threads", -1),
    ],
)
def test_a_setting_out_of_range_is_named(name: str, value: object):
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got "):
        made(ConnectorSettings, **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("request_id", 7, TypeError),
        ("request_id", "", ValueError),
        ("num_tokens", 2.5, TypeError),
        ("num_tokens", -1, ValueError),
        ("sources", "producer", TypeError),
        ("sources", (0,), TypeError),
        ("sources", (), ValueError),
        ("deadline_seconds", "soon", TypeError),
        ("deadline_seconds", float("inf"), ValueError),
    ],
)
def test_what_cannot_be_read_is_named(name: str, value: object, error: type[Exception]):
    right = {"request_id": "r", "num_tokens": TOKENS, "local": BLOCKS, "sources": ("producer",)}
    with pytest.raises(error, match=f"^{name}: expected .*, got "):
        made(ReadRequest, **{**right, name: value})


def test_numbers_of_numpy_are_numbers_and_lists_of_names_are_names():
    request = made(ReadRequest, "r", np.int64(TOKENS), BLOCKS, ["producer"])
    assert (type(request.num_tokens), request.sources) == (int, ("producer",))
    assert type(made(ConnectorSettings, max_tokens=np.int32(64)).max_tokens) is int
    assert type(made(HostCache, ENGINE, np.int64(TOKENS)).num_tokens) is int


CALLS: dict[str, tuple[Callable[[Connector], Any], str]] = {
    "info": (lambda _: made(Connector, "reader"), "info"),
    "rank": (lambda _: made(Connector, ENGINE, 0.0), "rank"),
    "settings": (lambda _: made(Connector, ENGINE, 0, {"port": 80}), "settings"),
    "on_change": (lambda _: made(Connector, ENGINE, 0, None, None), "on_change"),
    "pools": (lambda c: bare(Connector.register_kv_caches, c, [torch.zeros(1)]), "pools"),
    "a pool": (lambda c: bare(Connector.register_kv_caches, c, {0: np.zeros(1)}), "pool 0"),
    "a pool's number": (lambda c: bare(Connector.register_kv_caches, c, {"0": None}), "pools"),
    "engine": (lambda c: bare(Connector.add_peer, c, 5, ["tcp://127.0.0.1:9"]), "engine_id"),
    "addresses": (lambda c: bare(Connector.add_peer, c, "p", "tcp://127.0.0.1:9"), "addresses"),
    "peer": (lambda c: bare(Connector.connect, c, None), "engine_id"),
    "request": (lambda c: bare(Connector.start_read, c, "r"), "request"),
    "offer": (lambda c: bare(Connector.offer, c, 7, TOKENS, BLOCKS), "request_id"),
    "tokens": (lambda c: bare(Connector.offer, c, "r", 1.5, BLOCKS), "num_tokens"),
    "withdraw": (lambda c: bare(Connector.withdraw, c, 7), "request_id"),
    "grace": (lambda c: bare(Connector.close, c, None), "grace_seconds"),
}


@pytest.mark.parametrize("argument", CALLS)
def test_an_argument_of_the_connector_of_another_type_is_named(argument: str):
    call, name = CALLS[argument]
    with pytest.raises(TypeError, match=f"^{name}: expected .*, got "):
        call(Connector(ENGINE))


TIERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "host engine": (lambda _: made(HostCache, "engine", TOKENS), "engine"),
    "host tokens": (lambda _: made(HostCache, ENGINE, 2.5), "num_tokens"),
    "host states": (lambda _: made(HostCache, ENGINE, TOKENS, None), "num_states"),
    "device": (lambda _: made(HostCache, ENGINE, TOKENS, device="cuda"), "device"),
    "path": (lambda _: made(CacheFile, 5), "path"),
    "writer's path": (lambda _: made(CacheFileWriter, None, ENGINE, TOKENS), "path"),
    "tokens": (lambda at: made(CacheFileWriter, at, ENGINE, "4"), "num_tokens"),
    "tag": (lambda at: made(CacheFileWriter, at, ENGINE, TOKENS, tag="text"), "tag"),
    "save": (lambda at: made(CacheFileWriter, at, ENGINE, TOKENS, save_id=7), "save_id"),
    "engine": (lambda _: made(Offloader, None, 0, {}), "engine"),
    "rank": (lambda _: made(Offloader, ENGINE, "0", {}), "rank"),
    "pools": (lambda _: made(Offloader, ENGINE, 0, None), "pools"),
    "timeout": (lambda _: made(Offloader, ENGINE, 0, {}, timeout_seconds=None), "timeout_seconds"),
}


@pytest.mark.parametrize("argument", TIERS)
def test_an_argument_of_the_tiers_of_another_type_is_named(argument: str, tmp_path):
    call, name = TIERS[argument]
    with pytest.raises(TypeError, match=f"^{name}: expected .*, got "):
        call(tmp_path / "a.cache")
    assert not list(tmp_path.iterdir())


def test_no_wait_is_without_an_end():
    handle = ReadHandle(ReadRequest("r", TOKENS, BLOCKS, ("producer",)))
    with pytest.raises(ValueError, match=r"^seconds: expected 0 or more seconds"):
        handle.wait(float("inf"))
    with pytest.raises(TypeError, match=r"^seconds: expected a number of seconds"):
        bare(ReadHandle.wait, handle, "1")
    with pytest.raises(ValueError, match=r"^timeout_seconds: expected more than 0"):
        made(Offloader, ENGINE, 0, {}, timeout_seconds=float("inf"))
    with pytest.raises(ValueError, match=r"^request_id: expected 1 to 256 letters"):
        Connector(ENGINE).offer("x" * 257, TOKENS, BLOCKS)
    with pytest.raises(ValueError, match=r"^save_id: expected that of the file to join, got none"):
        CacheFileWriter("a.cache", ENGINE, TOKENS, join=True)
