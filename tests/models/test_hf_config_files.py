"""Configs as they are published, what each key decides, and what bad ones are told."""

import json

import pytest
import torch

from blockstride.models.families import cache_specs, read_config

JAMBA = {
    "model_type": "jamba",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "torch_dtype": "bfloat16",
}
NEMOTRON_H = {
    "model_type": "nemotron_h",
    "hidden_size": 4096,
    "num_hidden_layers": 8,
    "hybrid_override_pattern": "M-M*-ME-",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attention_head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "expand": 2,
    "torch_dtype": "bfloat16",
}
BAMBA = {
    "model_type": "bamba",
    "hidden_size": 4096,
    "num_hidden_layers": 4,
    "attn_layer_indices": [2],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 128,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
LFM2 = {
    "model_type": "lfm2",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "conv_L_cache": 3,
}
QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
ZAMBA2 = {
    "model_type": "zamba2",
    "hidden_size": 2560,
    "num_hidden_layers": 2,
    "layers_block_type": ["mamba", "hybrid"],
    "num_attention_heads": 32,
    "n_mamba_heads": 80,
    "mamba_headdim": 64,
    "mamba_ngroups": 1,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
}


QWEN2 = {**LLAMA, "model_type": "qwen2", "sliding_window": None}


def test_jamba_has_four_layers_of_attention_and_28_of_mamba():
    specs = cache_specs(JAMBA)
    attention = [name for name, spec in specs.items() if spec.has_tokens]
    assert list(specs) == [f"layers.{i}" for i in range(32)]
    assert attention == ["layers.4", "layers.12", "layers.20", "layers.28"]
    assert sum(spec.token_bytes for spec in specs.values()) == 16384
    assert specs["layers.0"].page(1).nbytes == 8192 * (3 * 2 + 16 * 4)


def test_nemotron_h_reads_its_pattern_and_the_older_name_of_the_head_size():
    specs = cache_specs(NEMOTRON_H)
    assert {name: spec.kind for name, spec in specs.items()} == {
        "layers.0": "mamba-2",
        "layers.2": "mamba-2",
        "layers.3": "full attention",
        "layers.5": "mamba-2",
    }
    assert specs["layers.3"].token_bytes == 8 * 128 * 2 * 2
    assert specs["layers.0"].page(1).nbytes == 10240 * 3 * 2 + 128 * 64 * 128 * 4


def test_lfm2_reads_the_older_list_of_its_attention_layers():
    specs = cache_specs(LFM2)
    assert [i for i, spec in enumerate(specs.values()) if spec.has_tokens] == [2, 5, 8, 10, 12, 14]


def test_qwen3_next_reads_its_interval():
    assert [spec.has_tokens for spec in cache_specs(QWEN3_NEXT).values()] == [0, 0, 0, 1] * 2


@pytest.mark.parametrize(
    ("said", "windows"),
    [
        ({"use_sliding_window": False, "max_window_layers": 1}, [None] * 4),
        ({"use_sliding_window": True, "max_window_layers": 1}, [None, 64, 64, 64]),
        ({"use_sliding_window": True, "max_window_layers": 4}, [None] * 4),
        ({"use_sliding_window": True, "max_window_layers": 1, "sliding_window": None}, [None] * 4),
    ],
)
def test_older_qwen_files_tell_windows_by_the_first_layer(said, windows):
    config = {**LLAMA, "model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 64, **said}
    assert [spec.window for spec in cache_specs(config).values()] == windows


@pytest.mark.parametrize("said", [{"attention_head_dim": 160}, {"attention_hidden_size": 5120}])
def test_zamba2_attends_at_twice_the_width_of_the_model(said):
    spec = cache_specs({**ZAMBA2, **said})["layers.1.attention"]
    assert spec.token_bytes == 32 * 160 * 2 * 2


def test_two_caches_of_one_layer_have_names_of_their_own():
    config = {**BAMBA, "model_type": "falcon_h1", "mamba_d_ssm": 8192, "num_hidden_layers": 1}
    specs = cache_specs(config)
    assert list(specs) == ["layers.0.attention", "layers.0.mamba2"]
    assert [spec.has_tokens for spec in specs.values()] == [True, False]


def test_the_language_part_of_a_larger_config_is_read():
    inner = {**QWEN3_NEXT, "model_type": "qwen3_5_text"}
    outer = {"model_type": "qwen3_5", "torch_dtype": "float16", "text_config": inner}
    specs = cache_specs(outer)
    assert specs["layers.3"].segments[0].dtype == torch.float16
    assert specs.keys() == cache_specs(QWEN3_NEXT).keys()


def dtypes(config=JAMBA, **arguments) -> dict[str, torch.dtype]:
    specs = cache_specs(config, **arguments).values()
    return {field.name: field.dtype for spec in specs for field in spec.page(1).fields}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"dtype": "float16"}, torch.float16),
        ({"dtype": "float32", "torch_dtype": "float16"}, torch.float32),
        ({"dtype": "torch.bfloat16"}, torch.bfloat16),
        ({"dtype": None, "torch_dtype": "float16"}, torch.float16),
        ({"torch_dtype": None}, torch.bfloat16),
    ],
)
def test_auto_is_the_dtype_of_the_config(said, expected):
    found = dtypes({**JAMBA, **said})
    # as in an engine, the recurrence is computed in float32
    assert found.pop("ssm") is torch.float32
    assert set(found.values()) == {expected}


def test_every_cache_can_be_given_a_dtype():
    found = dtypes(kv_cache_dtype="fp8", conv_dtype="float16", ssm_dtype="bfloat16")
    kv = torch.float8_e4m3fn
    assert found == {"k": kv, "v": kv, "conv.x": torch.float16, "ssm": torch.bfloat16}
    assert dtypes(kv_cache_dtype="int8")["k"] == torch.int8
    assert dtypes()["ssm"] == torch.float32


def test_convolutions_are_laid_out_in_the_order_that_was_asked_for():
    assert cache_specs(JAMBA, conv_order="SD")["layers.0"].segments[0].whole.shape == (3, 8192)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, r"model_type: expected one of bamba, .*, zamba2, got None"),
        ({"model_type": "gpt2"}, "model_type: expected one of .*, got 'gpt2'"),
        ({**JAMBA, "model_type": ["jamba"]}, r"model_type: expected one of .*, got \['jamba'\]"),
        ({**LLAMA, "num_hidden_layers": None}, "num_hidden_layers: expected a positive .* nothing"),
        ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers: expected a positive integer"),
        ({**LLAMA, "num_hidden_layers": True}, "num_hidden_layers: .* got True"),
        ({**LLAMA, "num_attention_heads": "32"}, "num_attention_heads: .* got '32'"),
        ({**LLAMA, "num_attention_heads": 33}, "num_attention_heads: expected a divisor of 4096"),
        ({**LLAMA, "num_key_value_heads": 5}, "num_key_value_heads: expected a divisor of 32, got"),
        ({**LLAMA, "head_dim": 1.5}, "head_dim: expected a positive integer in .*, got 1.5"),
        ({**LLAMA, "dtype": "float64"}, "dtype: expected one of float32, .*, got 'float64'"),
        ({**JAMBA, "attn_layer_offset": 8}, "attn_layer_offset: expected 0 to 7, got 8"),
        ({**JAMBA, "attn_layer_offset": None}, "attn_layer_offset: expected 0 to 7, got nothing"),
        ({**JAMBA, "mamba_expand": "two"}, "mamba_expand: expected a positive number .* 'two'"),
        ({**JAMBA, "mamba_d_conv": 1}, "mamba_d_conv: expected at least 2, got 1"),
        ({**JAMBA, "mamba_d_state": None}, "mamba_d_state: expected a positive integer .* nothing"),
        (
            {**BAMBA, "attn_layer_indices": [9]},
            "attn_layer_indices: expected a list of layers from",
        ),
        ({**BAMBA, "mamba_d_head": 32}, "mamba_n_heads: expected heads of 32 that make up 8192"),
        ({**BAMBA, "mamba_n_groups": 3}, "mamba_n_groups: expected a divisor of 128, got 3"),
        (
            {**NEMOTRON_H, "hybrid_override_pattern": "MX"},
            "hybrid_override_pattern: expected a",
        ),
        (
            {**QWEN3_NEXT, "num_hidden_layers": 9, "layer_types": ["linear_attention"] * 8},
            "num_hidden_layers: expected 8, as typed, got 9",
        ),
        (
            {**NEMOTRON_H, "layers_block_type": "M"},
            "layers_block_type: expected a list",
        ),
        (
            {**NEMOTRON_H, "num_hidden_layers": 1, "layers_block_type": ["rwkv"]},
            "type of layer 0: expected one of attention, .*, got 'rwkv'",
        ),
        (
            {**NEMOTRON_H, "num_hidden_layers": 1, "layers_block_type": [["M"]]},
            r"type of layer 0: expected one of attention, .*, got \['M'\]",
        ),
        (
            {**NEMOTRON_H, "num_hidden_layers": 1, "layers_block_type": ["mlp"]},
            "config: expected at least one layer with a cache",
        ),
        ({**QWEN3_NEXT, "linear_num_key_heads": 12}, "linear_num_key_heads: expected a divisor of"),
        (
            {**QWEN3_NEXT, "full_attention_interval": None},
            "full_attention_interval: expected a",
        ),
        (
            {**QWEN2, "layer_types": ["sliding_attention"] * 2},
            "sliding_window: expected a positive integer in config.json, got nothing",
        ),
        (
            {**QWEN2, "use_sliding_window": True, "max_window_layers": None, "sliding_window": 8},
            "max_window_layers: expected a layer, got nothing",
        ),
    ],
)
def test_a_config_that_cannot_be_is_refused_by_key(config, message):
    with pytest.raises(ValueError, match=message) as error:
        cache_specs(config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kv_cache_dtype": "float7"}, "kv_cache_dtype: expected one of .*, got 'float7'"),
        ({"conv_dtype": "fp8"}, "conv_dtype: expected one of float32, .*, got 'fp8'"),
        ({"ssm_dtype": "int8"}, "ssm_dtype: expected auto or one of float32, .*, got 'int8'"),
        ({"conv_order": "XY"}, "conv_order: expected 'DS' or 'SD', got 'XY'"),
    ],
)
def test_an_unknown_choice_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        cache_specs(JAMBA, **arguments)


def test_a_config_is_read_from_a_file_or_its_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(JAMBA))
    assert read_config(tmp_path) == read_config(tmp_path / "config.json") == JAMBA


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"config.json: expected JSON, got "),
        (b"\xff\xfe", r"config.json: expected JSON, got "),
        (b"[1]", r"config.json: expected a JSON object, got list"),
    ],
)
def test_a_file_that_is_no_config_is_refused(content, message, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_config(tmp_path)


def test_a_missing_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "absent.json"):
        with pytest.raises(ValueError, match=r"config: expected a config.json or a folder"):
            read_config(path)
