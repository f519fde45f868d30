"""Weights that are not what they seem are refused in one sentence that says what was found."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockstride.models import LLM, EngineConfig
from blockstride.models.cli import main
from blockstride.models.loading import load_model

Q = "model.layers.1.self_attn.q_proj"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"


@pytest.fixture(scope="module")
def original(make_reference):
    return make_reference(num_hidden_layers=2, attn_layer_period=2).path


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "model")


def edit_weights(folder, values):
    file = folder / "model.safetensors"
    weights = {**load_file(file), **values}
    save_file({name: value for name, value in weights.items() if value is not None}, file)


def edit_config(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def load(folder, dtype="auto"):
    load_model(folder, EngineConfig(), dtype=dtype, device="cpu")


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "by fp8"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "by compressed-te"),
        ({"quant_method": "gptq", "bits": 4}, "by gptq 4"),
        ({"load_in_8bit": True}, "by a method without a name"),
    ],
)
def test_a_config_of_quantised_weights_is_refused_by_its_method(folder, said, found):
    edit_config(folder, quantization_config=said)
    with pytest.raises(ValueError, match=f"quantization_config: expected plain .*, got .*{found}"):
        load(folder)


@pytest.mark.parametrize(
    "name", ["hf_quant_config.json", "quantize_config.json", "adapter_config.json"]
)
def test_a_file_that_says_so_is_refused(folder, name):
    (folder / name).write_text("{}")
    with pytest.raises(ValueError, match=f"{name}: expected plain"):
        load(folder)


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8, torch.int32]
)
@pytest.mark.parametrize("name", [f"{Q}.weight", "model.layers.0.mamba.A_log", "lm_head.weight"])
def test_weights_of_another_kind_are_never_cast(original, folder, name, dtype):
    stored = load_file(original / "model.safetensors")[name]
    edit_weights(folder, {name: stored.to(dtype)})
    message = f"{name}: expected float32, bfloat16 or float16 weights, got [FUI][0-9]+"
    with pytest.raises(ValueError, match=message):
        load(folder)


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        (f"{Q}.weight_scale", f"{Q}.weight"),
        (f"{Q}.weight_scale_inv", f"{Q}.weight"),
        (f"{Q}.input_scale", f"{Q}.weight"),
        (f"{Q}.g_idx", f"{Q}.weight"),
        (f"{Q}.lora_A.default.weight", f"{Q}.weight"),
        ("model.embed_tokens.weight.absmax", "model.embed_tokens.weight"),
        ("model.layers.0.mamba.A_log_scale", "model.layers.0.mamba.A_log"),
        (
            "model.layers.1.feed_forward.experts.3.up_proj.weight_scale",
            "model.layers.1.feed_forward.experts.3.up_proj.weight",
        ),
    ],
)
def test_a_tensor_that_changes_a_weight_is_refused(folder, name, owner):
    edit_weights(folder, {name: torch.ones(1)})
    message = f"{name}: expected .* weights in {owner}, got a tensor that changes them$"
    with pytest.raises(ValueError, match=message):
        load(folder)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.0.mamba.D"])
def test_weights_that_are_not_finite_are_refused(original, folder, name, bad):
    stored = load_file(original / "model.safetensors")[name]
    stored.view(-1)[3] = bad
    edit_weights(folder, {name: stored})
    with pytest.raises(ValueError, match=f"{name}: expected numbers that are finite in float32"):
        load(folder)


def test_weights_that_a_type_cannot_hold_are_refused(original, folder):
    stored = load_file(original / "model.safetensors")["lm_head.weight"]
    edit_weights(folder, {"lm_head.weight": stored * 1e6})
    load(folder, "float32")
    with pytest.raises(ValueError, match=r"lm_head.weight: expected .* finite in float16, got \d+"):
        load(folder, "float16")


def test_large_weights_whose_sum_is_not_finite_are_no_trouble(original, folder):
    stored = load_file(original / "model.safetensors")["model.embed_tokens.weight"]
    edit_weights(folder, {"model.embed_tokens.weight": torch.full_like(stored, 1e38)})
    load(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_pointer_in_place_of_a_file_is_told(folder, name):
    (folder / name).write_text(POINTER)
    with pytest.raises(ValueError, match=f"{name}: expected its content, got a Git LFS pointer"):
        LLM(folder)


def index(folder, **files):
    """Puts an index in place of the one file."""
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    names = dict.fromkeys(load_file(folder / "a.safetensors"), "a.safetensors")
    text = json.dumps({"weight_map": {**names, **files}})
    (folder / "model.safetensors.index.json").write_text(text)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"x": "b.safetensors"}, "weights: expected the shard b.safetensors, got no such file"),
        ({"x": "a.safetensors"}, "a.safetensors: expected the tensor x, as .* says, got none"),
        ({"x": 5}, "model.safetensors.index.json: expected a weight_map"),
    ],
)
def test_an_index_that_does_not_fit_its_shards_is_told_at_once(folder, files, message):
    index(folder, **files)
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_weights_of_another_format_are_named(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(
        ValueError, match=r"expected model.safetensors or .*, got pytorch_model.bin"
    ):
        load(folder)


def test_weights_of_two_language_models_are_named(folder):
    weights = load_file(folder / "model.safetensors")
    prefixes = ("draft.", "language_model.")
    both = {f"{each}{name}": weights[name].clone() for each in prefixes for name in weights}
    save_file(both, folder / "model.safetensors")
    there = "got draft.model.embed_tokens.weight"
    with pytest.raises(ValueError, match=f"expected model.embed_tokens.weight, {there}"):
        load(folder)


@pytest.mark.parametrize("key", ["text_config", "llm_config"])
def test_a_model_of_several_parts_is_named_with_the_one_that_reads(folder, key, capsys):
    edit_config(folder, model_type="granite_speech", **{key: {"model_type": "granite_next"}})
    assert main(["generate", "--model", str(folder), "--prompt", "a"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "got 'granite_next', the language part of 'granite_speech'" in err
