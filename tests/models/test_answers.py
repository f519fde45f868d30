"""What `blockstride generate` writes: texts as they come, JSON, and what is done at Ctrl-C."""

import io
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from blockstride.kernels import CompileAhead
from blockstride.models import LLM, SamplingParams
from blockstride.models.cli import main
from blockstride.models.commands import answers
from blockstride.models.commands.answers import Answers

COMMAND = [sys.executable, "-m", "blockstride.models.cli"]


@pytest.fixture(scope="module")
def llm(reference):
    with LLM(reference.path, device="cpu") as llm:
        yield llm


def generate(path, *options: str) -> list[str]:
    return ["generate", "--model", str(path), "--ignore-eos", *options]


def test_json_tells_why_an_answer_ended_and_what_it_took(reference, llm, capsys):
    given = ("--json", "--prompt", "a", "--prompt", "b\nc", "--max-tokens", "3", "--n", "2")
    assert main(generate(reference.path, *given, "--temperature", "1", "--seed", "1")) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    params = SamplingParams(max_tokens=3, ignore_eos=True, n=2, temperature=1.0, seed=1)
    completions = llm.generate(["a", "b\nc"], params)
    assert lines == [
        {
            "number": number,
            "index": each.index,
            "prompt": each.prompt,
            "text": each.text,
            "token_ids": list(each.token_ids),
            "finish_reason": "length",
            "usage": {
                "prompt_tokens": each.num_prompt_tokens,
                "completion_tokens": 3,
                "total_tokens": each.num_prompt_tokens + 3,
            },
        }
        for number, each in zip((1, 1, 2, 2), completions, strict=True)
    ]
    assert main(generate(reference.path, "--json", "--token-ids", "5,6", "--max-tokens", "2")) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["prompt"] == [5, 6]


def test_prompts_of_several_lines_come_as_json(reference, tmp_path, capsys, monkeypatch):
    content = '\n"a\\nb"\n  {"prompt": "c\\u00e9", "id": 1}  \r\n'
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    wanted = generate(reference.path, "--prompt", "a\nb", "--prompt", "cé", "--max-tokens", "2")
    assert main(wanted) == 0
    expected = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content.encode())))
    for name in (str(file), "-"):
        line = generate(reference.path, "--prompt-jsonl", name, "--max-tokens", "2")
        assert main(line) == 0
        assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected at least one line with a prompt, got none in"),
        ('"a"\n[1]', 'expected a string, or an object with a string as its "prompt", got [1] in'),
        ('{"text": "a"}', "expected a string, or an object"),
        ('"a', "expected JSON, got Unterminated string"),
        ('"a"\n""', "expected some text, got an empty prompt in line 2 of"),
        ('"\\ud800"', "expected text in UTF-8, got the byte 0x00"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(reference, tmp_path, capsys, content, message):
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    assert main(generate(reference.path, "--prompt-jsonl", str(file))) == 2
    assert f"blockstride generate: --prompt-jsonl: {message}" in capsys.readouterr().err


def test_every_text_is_written_as_it_grows(llm, monkeypatch):
    pieces, params = [], SamplingParams(max_tokens=30, ignore_eos=True)
    monkeypatch.setattr(answers, "write", pieces.append)
    prompts = ["first", "second"]
    done = list(Answers(llm, prompts, prompts, params, "text"))
    expected = [f"{each.prompt}{each.text}\n" for each in llm.generate(prompts, params)]
    assert "".join(pieces) == "".join(expected)
    assert [each.prompt for each in done] == prompts
    grown = "".join(pieces).index("\n")
    assert len([piece for piece in pieces if piece]) > 4
    assert len(pieces[0]) < grown


@pytest.mark.parametrize("style", ["text", "json", "tokens"])
def test_what_is_done_by_an_interrupt_is_written_once(llm, monkeypatch, style):
    written, params = [], SamplingParams(max_tokens=2000, ignore_eos=True)
    prompts = ["first", "second"]

    def write(text):
        written.append(text)
        if style == "text" and sum(map(len, written)) > 30:
            raise KeyboardInterrupt

    monkeypatch.setattr(answers, "write", write)
    each = Answers(llm, prompts, prompts, params, style)
    if style != "text":

        def interrupt(_):
            while any(len(g.completion.token_ids) < 20 for g in each._batch.generations):
                pass
            raise KeyboardInterrupt

        monkeypatch.setattr(each._bar, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(each)
    each._batch.close()
    # what was being written when the interrupt came may be written twice
    said = "".join(written[:-1] if style == "text" else written) + each.rest()
    done = [generation.completion for generation in each._batch.generations]
    assert {one.finish_reason for one in done} == {"abort"}
    assert done[0].token_ids
    assert done[1].token_ids
    if style == "json":
        told = [json.loads(line) for line in said.removesuffix("\n").split("\n")]
        assert [line["finish_reason"] for line in told] == ["abort"] * 2
        assert [tuple(line["token_ids"]) for line in told] == [one.token_ids for one in done]
    elif style == "tokens":
        assert said == "".join(",".join(map(str, one.token_ids)) + "\n" for one in done)
    else:
        assert said == "".join(f"{one.prompt}{one.text}\n" for one in done)


def test_ctrl_c_keeps_what_was_generated(reference):
    CompileAhead().help()
    given = ("--prompt", "first", "--prompt", "second", "--max-tokens", "100000")
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [*COMMAND, *generate(reference.path, *given, "--max-len", "4000")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        out = process.stdout.read(40)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")
    assert out.startswith(b"first")
    # all requests run together, so there is something of this one as well
    assert b"\nsecond" in rest
    assert rest.endswith(b"\n")


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_that_wait_sleep_soon_unless_the_user_decides(given, spins):
    unset = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    environment = {n: v for n, v in os.environ.items() if n not in unset}
    ran = subprocess.run(
        # torch is imported by what generates
        [*COMMAND, "generate", "--help"],
        env={**environment, **given, "OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
    if "GOMP_SPINCOUNT" not in ran.stderr:
        pytest.skip("this build of torch has another OpenMP")
    said = ran.stderr.partition("GOMP_SPINCOUNT = '")[2].partition("'")[0]
    assert said == spins if spins else int(said) > 1000
