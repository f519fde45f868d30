"""What is typed to `blockstride serve` is checked before a model is loaded."""

import socket
import sys
from contextlib import closing

import pytest

from blockstride.models.cli import main
from blockstride.models.commands import serve
from tests.models.conftest import SHIPPED


@pytest.fixture
def said(capsys, monkeypatch):
    """The exit code of a server that can't be, and what it says."""

    def load(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(serve, "load_llm", load)

    def run(*options: str) -> tuple[int, str]:
        code = main(["serve", "--model", str(SHIPPED), *options])
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        return code, err.removeprefix("blockstride serve: ")

    return run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--port", "65536"), "--port: expected a number from 0 to 65535, got 65536"),
        (("--host", "no.such.host.invalid"), "--host: expected a name or address of this machine"),
        (("--api-key", ""), "--api-key: expected a key, got an empty one"),
        (("--api-key", "\udcff"), "--api-key: expected text in UTF-8, got the byte 0xff"),
        (("--max-waiting", "0"), "--max-waiting: expected a positive number, got '0'"),
        (("--drain-seconds", "-1"), "--drain-seconds: expected a positive number of seconds"),
        (("--send-seconds", "nan"), "--send-seconds: expected a positive number of seconds"),
        (("--model", "no/such", "--port", "0"), "--model: expected"),
    ],
)
def test_a_message_names_what_was_typed(said, options, message):
    code, sentence = said(*options)
    assert code == 2
    assert sentence.startswith(message)


def test_a_port_that_is_taken_is_told_at_once(said):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        assert said("--port", str(port)) == (1, f"127.0.0.1:{port}: Address already in use\n")


def test_what_is_not_installed_is_named_with_what_installs_it(said, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "fastapi" else name)
    wanted = "serve: expected what pip install 'blockstride[serve]' installs, got no fastapi\n"
    assert said() == (2, wanted)
