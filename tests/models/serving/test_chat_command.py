"""`blockstride chat`, with a model in this process and at a server."""

import io
import sys

import pytest

from blockstride.models import SamplingParams
from blockstride.models.cli import main
from tests.models.serving.servers import KEY

PARAMS = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.0)
SAMPLING = ("--max-tokens", "8", "--ignore-eos", "--temperature", "0")


@pytest.fixture
def talk(monkeypatch, capsys):
    """Exit code, output and errors of a chat in which some lines are typed."""

    def talked(typed: str, *options: str):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        code = main(["chat", *options])
        return code, *capsys.readouterr()

    return talked


def user(text: str):
    return {"role": "user", "content": text}


def say(llm, *messages) -> str:
    return "".join(llm.stream(llm.chat_prompt(messages), PARAMS))


@pytest.mark.parametrize("where", ["here", "server"])
def test_an_answer_knows_what_was_said_before_until_it_is_forgotten(
    model, server, llm, talk, monkeypatch, where
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    place = ("--model", str(model)) if where == "here" else ("--server", server.url)
    system = {"role": "system", "content": "be brief"}
    code, out, err = talk("one\n\ntwo\n/new\ntwo\n", *place, *SAMPLING, "--system", "be brief")
    first = say(llm, system, user("one"))
    second = say(llm, system, user("one"), {"role": "assistant", "content": first}, user("two"))
    third = say(llm, system, user("two"))
    assert (code, err) == (0, "")
    assert out == f"{first}\n{second}\n{third}\n"
    assert second != third


def test_what_follows_a_farewell_is_not_answered(model, llm, talk):
    code, out, _ = talk("one\n/exit\ntwo\n", "--model", str(model), *SAMPLING)
    assert (code, out) == (0, say(llm, user("one")) + "\n")


def test_a_message_that_is_refused_is_told_and_the_chat_goes_on(model, llm, talk):
    long = "x" * 600
    line = ("--model", str(model), *SAMPLING, "--max-len", "512")
    code, out, err = talk(f"{long}\none\n", *line)
    assert code == 1
    assert out.endswith(say(llm, user("one")) + "\n")
    assert err.startswith("blockstride chat: prompt: expected at most 511 tokens")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ((), 2, "--model: expected a checkpoint, or --server, got neither"),
        (("--server", "localhost"), 2, "--server: expected a URL, as http://localhost:8000/v1"),
        (("--server", "http://127.0.0.1:9/v1"), 1, "http://127.0.0.1:9/v1: Connection error"),
        (("--server", "http://127.0.0.1:9/v1", "--n", "2"), 2, "--n: expected 1 in a chat, got 2"),
    ],
)
def test_a_chat_with_nobody_is_refused_in_a_sentence(talk, options, code, message):
    got, out, err = talk("hello\n", *options)
    assert (got, out) == (code, "")
    assert err.startswith(f"blockstride chat: {message}")
    assert err.count("\n") == 1


def test_a_checkpoint_without_a_template_is_named_before_anything_is_read(reference, talk):
    code, out, err = talk("hello\n", "--model", str(reference.path))
    assert (code, out) == (2, "")
    assert "template" in err
