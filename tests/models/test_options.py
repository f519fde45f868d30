"""What a user types on the command line is what messages speak of, before anything starts."""

import json
import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockstride.models import EngineConfig
from blockstride.models.cli import main
from blockstride.models.commands import generate, layouts, plan
from blockstride.models.commands.dispatch import Parser
from blockstride.models.distributed.launch import check_engines
from blockstride.models.distributed.messages import Setup
from blockstride.models.engine import pools
from blockstride.models.loading import cache_types
from blockstride.models.memory import available_bytes


@pytest.fixture
def refusal(reference, capsys, monkeypatch):
    """What `generate` says about some options, while no process may be started."""

    def no_process(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", no_process)
    # but for those that compile
    monkeypatch.setattr("blockstride.models.compiling.rooms_of", lambda _: [])

    def refused(*options: str) -> str:
        given = ["--model", str(reference.path), "--prompt", "abc", *options]
        assert main(["generate", *given]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        return err.removeprefix("blockstride generate: ")

    return refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tp", "40"), "--tp: expected a divisor of 4"),
        (("--tp", "0"), "--tp: expected a positive number, got '0'"),
        (("--prefill", "tp=40"), "--prefill tp: expected a divisor of 4"),
        (("--decode", "tp=2", "--decode", "tp=3"), "--decode tp: expected a divisor of 4"),
        # given for all engines, and not for this one
        (("--prefill", "mib=16", "--tp", "3"), "--tp: expected a divisor of 4"),
        (("--prefill", "tp=2,tp=4"), "--prefill tp: expected one value, got two"),
        (("--prefill", "block=0"), "--prefill block: expected a positive number, got 0"),
        (("--prefill", f"mib={'9' * 5000}"), "--prefill mib: expected a positive number"),
        (("--prefill", "layout=XYZ"), "--prefill layout: expected a permutation of LBHNC"),
        (("--prefill", "mib=1,block=4096"), "--prefill mib: expected at least"),
        (("--prefill", "kv=int3"), "--prefill kv: expected auto or one of float32"),
        (("--prefill", "tp=1", "--kv-cache-dtype", "int3"), "--kv-cache-dtype: expected auto or"),
        (("--decode", "mib=100000000"), "--decode mib: expected at most"),
        (("--cache-mib", "100000000"), "--cache-mib: expected at most"),
        (("--cache-mib", "-1"), "--cache-mib: expected a positive number, got '-1'"),
        (("--cache-mib", "1", "--block-size", "4096"), "--cache-mib: expected at least"),
        (("--device", "tpu"), "--device: expected cpu or cuda, got 'tpu'"),
        (("--device", "tpu", "--tp", "2"), "--device: expected cpu or cuda, got 'tpu'"),
        (("--device", "cpu:1"), "--device: expected cpu:0 to cpu:0, got 'cpu:1'"),
        (("--temperature", "nan"), "--temperature: expected"),
        (("--top-p", "inf"), "--top-p: expected above 0 and at most 1, got inf"),
        (("--max-tokens", "2.5"), "--max-tokens: expected a whole number, got '2.5'"),
        (("--stop", "\udcff"), "--stop: expected text in UTF-8, got the byte 0xff"),
        (("--max-len", "3"), "--prompt: expected at most 2 tokens, as max_len is 3, got "),
    ],
)
def test_a_message_names_what_was_typed_and_comes_before_any_process(refusal, options, message):
    assert refusal(*options).startswith(message)


@pytest.fixture(scope="module")
def odd(make_reference):
    """A model whose heads four ranks could share, and whose MLPs they can't."""
    return make_reference(
        family="granite",
        num_hidden_layers=1,
        layer_types=["mamba"],
        shared_intermediate_size=50,
        num_local_experts=0,
        num_attention_heads=1,
        num_key_value_heads=1,
    )


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (None, "--tp: expected a divisor of 50 (model.shared_mlp"),
        ("model.norm.weight", "weights: expected model.norm.weight, got a checkpoint without it"),
    ],
)
def test_weights_that_ranks_would_refuse_are_named_before_any_process(
    refusal, odd, tmp_path, without, message
):
    folder = shutil.copytree(odd.path, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights.pop(without, None)
    save_file(weights, folder / "model.safetensors")
    tp = "4" if without is None else "2"
    assert (
        refusal("--model", str(folder), "--tp", tp).removeprefix("decode-0: ").startswith(message)
    )


@pytest.mark.parametrize("is_tied", [False, True])
def test_what_ranks_can_load_is_not_kept_away(odd, tmp_path, is_tied):
    # no layer has the heads of its config, and a head is there that may be the embedding's copy
    folder = shutil.copytree(odd.path, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": is_tied}))
    engine = EngineConfig(tp_size=2, cache_bytes=1 << 24)
    setup = Setup("decode-0", engine, "cpu", str(folder), "auto", "", None, 1.0)
    check_engines([setup])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("more", [(), ("--tp", "2"), ("--prefill", "tp=1")])
def test_a_gpu_that_is_not_there_is_named(refusal, more):
    wanted = "--device: expected a GPU that torch can use, got none"
    assert refusal("--device", "cuda", *more).startswith(wanted)


def test_the_prompt_of_a_file_is_called_so(reference, capsys, tmp_path):
    file = tmp_path / "prompts"
    file.write_text("ok\nmuch longer\n")
    given = ["--model", str(reference.path), "--prompt-file", str(file), "--max-len", "6"]
    assert main(["generate", *given]) == 2
    assert "--prompt-file: expected at most 5 tokens" in capsys.readouterr().err


def test_memory_is_counted_over_all_ranks_of_all_engines(refusal, monkeypatch):
    monkeypatch.setattr("blockstride.models.memory.available_bytes", lambda device: 100 << 20)
    assert refusal("--cache-mib", "101").startswith("--cache-mib: expected at most 100 MiB, which ")
    message = "--cache-mib: expected at most 100 MiB, which cpu has left, got "
    assert refusal("--cache-mib", "40", "--tp", "4").startswith(message)
    assert refusal("--cache-mib", "60", "--prefill", "tp=1").startswith(message)


def test_a_device_says_what_it_has_left():
    assert 1 << 20 < available_bytes(torch.device("cpu")) < 1 << 60


def test_one_order_policy_and_block_size_is_the_default_everywhere(reference):
    parsers = {}
    for module in (generate, layouts):
        parsers[module] = Parser()
        module.add_arguments(parsers[module])
    wanted = EngineConfig()
    shown = parsers[layouts].parse_args(["--config", "x"])
    ran = parsers[generate].parse_args(["--model", "x", "--prompt", "x"])
    for args in (shown, ran):
        found = (args.layout, args.policy, args.block_size)
        assert found == (wanted.layout, wanted.policy, wanted.block_size)
    specs = plan.cache_specs(reference.path)
    planned = plan.parse_engine("decode", "", specs, 10)
    found = (planned.layout.order, planned.policy, planned.block_size)
    assert found == (wanted.layout, wanted.policy, wanted.block_size)


@pytest.mark.parametrize("word", ["fp8", "float8_e4m3fn", "torch.float8_e4m3fn", "FP8"])
def test_words_for_types_are_the_same_everywhere(reference, word, capsys):
    types = cache_types(EngineConfig(kv_cache_dtype=word, ssm_dtype="bf16"), torch.float32)
    assert (types.kv, types.ssm) == (torch.float8_e4m3fn, torch.bfloat16)
    line = ["--config", str(reference.path), "--kv-cache-dtype", word, "--ssm-dtype", "bf16"]
    for command in ("layouts", "plan"):
        assert main([command, *line]) == 0
    assert "fp8" in capsys.readouterr().out


def test_several_prompts_are_answered_one_by_one_in_order(reference, capsys, caplog):
    prompts = [f"prompt number {i}" for i in range(3)]
    given = [word for prompt in prompts for word in ("--prompt", prompt)]
    line = ["generate", "--model", str(reference.path), *given, "--max-num-seqs", "1"]
    assert main([*line, "--max-tokens", "3", "--verbose"]) == 0
    out = capsys.readouterr().out
    assert [out.index(prompt) for prompt in prompts] == sorted(map(out.index, prompts))
    assert "loaded in" in caplog.text


def test_pools_are_refused_by_the_name_of_the_engines_config(reference):
    assert pools.memory_argument(EngineConfig(num_blocks=3)) == "num_blocks"
    assert pools.memory_argument(EngineConfig()) == "cache_bytes"
