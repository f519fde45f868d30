"""Bad input gets one sentence that says what was expected and what came, and exit code 2."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from blockstride.models import LLM, EngineConfig, SamplingParams
from blockstride.models.cli import main
from blockstride.models.families.jamba import Jamba


@pytest.fixture
def folder(reference, tmp_path):
    """A copy of a good checkpoint, to be damaged."""
    copy = tmp_path / "model"
    shutil.copytree(reference.path, copy)
    return copy


def edit_config(folder, **values):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config.update(values)
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def edit_weights(folder, edit):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)


def refused(folder, message, **kwargs):
    with pytest.raises(ValueError, match=message):
        LLM(folder, **kwargs)


def test_a_good_checkpoint_loads(folder):
    (completion,) = LLM(folder).generate("abc", SamplingParams(max_tokens=3))
    assert len(completion.token_ids) <= 3


def test_a_missing_folder(tmp_path):
    refused(tmp_path / "nowhere", "model: expected a checkpoint folder, got .*nowhere")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    refused(folder, name)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_damaged_file_is_named(folder, name):
    file = folder / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    refused(folder, name)


def test_a_missing_tensor_is_named(folder):
    edit_weights(folder, lambda t: t.pop("model.layers.2.mamba.A_log"))
    refused(folder, "expected model.layers.2.mamba.A_log")


def test_a_misshapen_tensor_is_named_with_both_shapes(folder):
    def cut(tensors):
        tensors["model.layers.1.self_attn.q_proj.weight"] = tensors[
            "model.layers.1.self_attn.q_proj.weight"
        ][:-1].clone()

    edit_weights(folder, cut)
    refused(folder, r"q_proj.weight: expected shape \(64, 64\), got \(63, 64\)")


def test_a_missing_shard_is_named(make_reference):
    sharded = make_reference(shard="200KB").path
    shards = sorted(sharded.glob("model-*.safetensors"))
    assert len(shards) > 2
    LLM(sharded)
    shards[1].unlink()
    refused(sharded, shards[1].name)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model_type": "gpt2"},
            "model_type: expected one of bamba, .*, got 'gpt2'",
        ),
        ({"hidden_act": "gelu"}, "hidden_act: expected 'silu'"),
        (
            {"hidden_size": "64"},
            "hidden_size: expected a positive integer in config.json, got '64'",
        ),
        (
            {"mamba_dt_rank": "big"},
            "mamba_dt_rank: expected a positive integer in config.json, got 'big'",
        ),
        ({"attn_layer_offset": 4}, "attn_layer_offset: expected 0 to 3, got 4"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: expected a divisor of 4, got 3"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok: expected at most 4, got 9"),
        (
            {"num_hidden_layers": 0},
            "num_hidden_layers: expected a positive integer in config.json, got 0",
        ),
        ({"vocab_size": 300}, r"embed_tokens.weight: expected shape \(300, 64\)"),
    ],
)
def test_an_impossible_config_is_explained(folder, values, message):
    edit_config(folder, **values)
    refused(folder, message)


def test_heads_are_as_many_as_queries_when_config_names_no_groups():
    config = {"model_type": "jamba", "num_attention_heads": 4, "num_key_value_heads": None}
    assert Jamba(config).kv_heads == 4


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"layout": "LBXNC"}, "layout: expected a permutation of LBHNC"),
        ({"layout": "LHBNC", "policy": "unified"}, "layout: expected .*, got LHBNC"),
        ({"policy": "both"}, "policy: expected one of"),
        ({"block_size": 0}, "block_size: expected a positive number, got 0"),
        ({"kernel_block_size": 5}, "kernel_block_size: expected a divisor of 16, got 5"),
        ({"cache_bytes": 1000}, "cache_bytes: expected at least .*, got 1,000"),
        ({"num_blocks": (1, 1)}, "num_blocks: expected room"),
        ({"num_blocks": (4, 4, 4)}, "num_blocks: expected 2 counts"),
        ({"max_len": 1}, "max_len: expected at least 2 tokens, got 1"),
    ],
)
def test_sizes_that_cannot_work_are_named(reference, config, message):
    with pytest.raises(ValueError, match=message):
        LLM(reference.path, config=EngineConfig(**config))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float8_e4m3fn"}, "dtype: expected auto or one of float32"),
        ({"dtype": "f32"}, "dtype: expected auto or one of"),
        ({"config": EngineConfig(kv_cache_dtype="int3")}, "kv_cache_dtype: expected"),
        (
            {"config": EngineConfig(ssm_dtype="float8_e4m3fn")},
            "ssm_dtype: expected auto or one of float32, bf",
        ),
        ({"config": EngineConfig(conv_order="XX")}, "conv_order: expected 'DS' or 'SD'"),
    ],
)
def test_an_unknown_name_is_answered_with_those_known(reference, options, message):
    with pytest.raises(ValueError, match=message):
        LLM(reference.path, **options)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"num_blocks": (3, 3)}, "at most 31 tokens, as the cache holds 32"),
        ({"max_len": 20}, "at most 19 tokens, as max_len is 20"),
        ({}, "at most 4095 tokens, as the model's longest sequence has 4096"),
    ],
)
def test_a_prompt_that_is_too_long_is_refused_before_anything_runs(reference, config, why):
    llm = LLM(reference.path, config=EngineConfig(**config))
    with pytest.raises(ValueError, match=f"^prompt: expected {why}, got 5000 tokens"):
        llm.generate(["ok", "x" * 5000])
    assert not llm.engine.has_work


def test_an_empty_prompt_is_refused(reference):
    with pytest.raises(ValueError, match="prompt: expected some text, got an empty prompt"):
        LLM(reference.path).generate([""])


def test_one_parameter_set_per_prompt_or_one_for_all(reference):
    with pytest.raises(ValueError, match="params: expected one for each of 2, got 3"):
        LLM(reference.path).generate(["a", "b"], [SamplingParams()] * 3)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "/nonexistent", "--prompt", "x"],
        ["--model", "MODEL", "--prompt", ""],
        ["--model", "MODEL", "--prompt", "x", "--layout", "ABC"],
        ["--model", "MODEL", "--prompt", "x", "--temperature", "-1"],
        ["--model", "MODEL", "--prompt-file", "/nonexistent"],
        ["--model", "MODEL", "--prompt", "x" * 200, "--cache-mib", "1", "--block-size", "4096"],
    ],
)
def test_the_command_says_one_sentence_and_exits_with_2(reference, capsys, arguments):
    arguments = [str(reference.path) if a == "MODEL" else a for a in arguments]
    assert main(["generate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("blockstride generate: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
