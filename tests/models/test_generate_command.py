"""`blockstride generate`: prompts of tokens, and what it says of how requests fared."""

import json
import shutil

import pytest
from tokenizers import Tokenizer

from blockstride.models import LLM, EngineConfig, SamplingParams
from blockstride.models.cli import main
from blockstride.models.engine import engine
from blockstride.models.text_stream import TextStream

IDS = [5, 6, 200]


@pytest.fixture(scope="module")
def bare(reference, tmp_path_factory):
    """The same checkpoint without a tokenizer, which a stop text of its own would need."""
    ignore = shutil.ignore_patterns("tokenizer.json")
    folder = shutil.copytree(
        reference.path, tmp_path_factory.mktemp("bare") / "model", ignore=ignore
    )
    (folder / "generation_config.json").write_text('{"stop_strings": ["."]}')
    return folder


def line(path, *options: str) -> list[str]:
    return ["generate", "--model", str(path), "--max-tokens", "4", "--ignore-eos", *options]


def test_prompts_of_tokens_get_tokens_with_a_tokenizer_and_without(reference, bare, capsys):
    expected = [",".join(map(str, reference.greedy(ids, 4))) for ids in (IDS, IDS[:1])]
    for path in (reference.path, bare):
        assert main(line(path, "--token-ids", "5,6,200", "--token-ids", " 5")) == 0
        assert capsys.readouterr().out.splitlines() == expected
    assert main(line(bare, "--token-ids", "5,6,200")) == 0
    assert capsys.readouterr().out.splitlines() == expected[:1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--token-ids", "5,x"), "--token-ids: expected a whole number, got 'x'"),
        (("--token-ids", ""), "--token-ids: expected a whole number, got ''"),
        (("--token-ids", "259"), "--token-ids: expected tokens from 0 to 258, got [259]"),
        (("--token-ids", "1", "--prompt", "a"), "--prompt: not allowed with argument --token-ids"),
        (("--prompt", "a"), "--prompt: expected --token-ids, as {bare} has no tokenizer.json"),
        (("--prompt-file", "-"), "--prompt-file: expected --token-ids, as {bare} has no"),
        (("--token-ids", "1", "--stop", "."), "--stop: expected none, as the checkpoint has no"),
        (("--token-ids", "1", "--logit-bias", "300=1"), "--logit-bias: expected tokens from 0 to"),
        (("--token-ids", "1", "--logit-bias", "3"), "--logit-bias: expected a number, got ''"),
    ],
)
def test_prompts_that_cannot_be_are_named(bare, capsys, options, message):
    assert main(line(bare, *options)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"blockstride generate: {message.format(bare=bare)}")


@pytest.mark.parametrize("prompts", [("fine", "bad", "good"), ("bad",)])
def test_a_prompt_that_failed_is_told_and_the_others_answered(
    reference, capsys, monkeypatch, prompts
):
    given = [word for prompt in prompts for word in ("--prompt", prompt)]
    assert main(line(reference.path, *given)) == 0
    answers = capsys.readouterr().out.splitlines(keepends=True)
    bad = Tokenizer.from_file(str(reference.path / "tokenizer.json")).encode("bad").ids
    choose = engine._sample

    def fail_for_one(logits, requests):
        tokens = choose(logits, requests)
        return [-1 if r.prompt_ids == bad else t for r, t in zip(requests, tokens, strict=True)]

    monkeypatch.setattr(engine, "_sample", fail_for_one)
    assert main(line(reference.path, *given)) == 1
    out, err = capsys.readouterr()
    answers[prompts.index("bad")] = "bad\n"
    assert out == "".join(answers)
    number = prompts.index("bad") + 1
    assert (
        err
        == f"blockstride generate: prompt {number}: expected finite scores, got NaN or infinity\n"
    )


def test_a_text_that_fails_ends_its_line(reference, capsys, monkeypatch):
    def refuse(*_):
        raise ArithmeticError("no text")

    monkeypatch.setattr(TextStream, "push", refuse)
    assert main(line(reference.path, "--prompt", "a")) == 1
    out, err = capsys.readouterr()
    assert out == "a\n"
    said = "text: expected some for all tokens, got ArithmeticError('no text')"
    assert err == f"blockstride generate: {said}\n"
    assert main(line(reference.path, "--prompt", "a", "--prompt", "b")) == 1
    out, err = capsys.readouterr()
    assert out == "a\nb\n"
    assert [line.split(": ")[1] for line in err.splitlines()] == ["prompt 1", "prompt 2"]


def test_every_way_to_continue_a_prompt_can_be_typed(reference, capsys):
    options = {
        "min_tokens": "2",
        "temperature": "0.8",
        "top_k": "20",
        "top_p": "0.9",
        "min_p": "0.01",
        "repetition_penalty": "1.2",
        "presence_penalty": "0.1",
        "frequency_penalty": "0.2",
        "logit_bias": "9=-2,10=1.5",
        "seed": "3",
        "n": "2",
        "stop": "zz",
        "stop_token_ids": "7,8",
    }
    typed = [w for name, value in options.items() for w in (f"--{name.replace('_', '-')}", value)]
    given = line(reference.path, *typed, "--include-stop", "--max-tokens", "all", "--max-len", "40")
    assert main([*given, "--token-ids", "5,6,200"]) == 0
    params = SamplingParams(
        None, 0.8, 20, 0.9, 3, "zz", [7, 8], True,
        min_tokens=2, include_stop=True, min_p=0.01, repetition_penalty=1.2, presence_penalty=0.1,
        frequency_penalty=0.2, logit_bias={9: -2.0, 10: 1.5}, n=2,
    )  # fmt: skip
    llm = LLM(reference.path, config=EngineConfig(max_len=40))
    answers = llm.generate(IDS, params)
    assert capsys.readouterr().out.splitlines() == [
        ",".join(map(str, answer.token_ids)) for answer in answers
    ]


def test_verbose_tells_beginnings_and_ends_of_requests(reference, caplog):
    assert main([*line(reference.path, "--token-ids", "5,6"), "--verbose"]) == 0
    told = [m for m in caplog.messages if m.startswith("request")]
    assert told == [
        "request 0: begins, 2 prompt tokens",
        "request 0: ends, length after 4 new tokens",
    ]


@pytest.mark.parametrize("command", ["plan", "layouts"])
def test_what_is_planned_says_which_types_it_assumes(reference, capsys, tmp_path, command):
    config = json.loads((reference.path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    given = [command, "--config", str(tmp_path)]
    assert main(given) == 0
    assert "hold conv bf16, ssm fp32, k bf16, v bf16; on a CPU" in capsys.readouterr().out
    assert main([*given, "--kv-cache-dtype", "fp8", "--conv-dtype", "fp32"]) == 0
    out = capsys.readouterr().out
    assert "hold conv fp32, ssm fp32, k fp8, v fp8; on a CPU `generate` has fp32\n" in out
    assert "(--kv-cache-dtype, --conv-dtype and --ssm-dtype change what is shown)" in out
