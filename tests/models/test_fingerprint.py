"""A fingerprint tells models apart whose caches must not be mixed, and no copies of one model."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockstride.models.fingerprint import PIECE, model_fingerprint


@pytest.fixture(scope="module")
def granite(make_reference):
    return make_reference(family="granite").path


@pytest.fixture
def folder(granite, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(granite, copy)
    return copy


def edit_config(folder, **values):
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))


def test_copies_share_it_whatever_their_shards_and_folders_are_called(granite, folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {}
    for i, names in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2])):
        index |= dict.fromkeys(names, f"part{i}.safetensors")
        save_file({name: tensors[name] for name in names}, folder / f"part{i}.safetensors")
    file = folder / "model.safetensors.index.json"
    file.write_text(json.dumps({"weight_map": index}))
    assert model_fingerprint(folder) == model_fingerprint(granite)


@pytest.mark.parametrize(
    "values",
    [
        {"transformers_version": "1", "torch_dtype": "float32", "eos_token_id": [7]},
        {"layer_types": ["linear_attention", "full_attention", *["linear_attention"] * 2]},
        {"layer_types": "absent", "layers_block_type": ["mamba", "attention", "mamba", "mamba"]},
        {"embedding_multiplier": 3, "head_dim": 16, "mamba_d_head": 16, "attention_bias": "absent"},
        {"time_step_limit": [0, float("inf")], "rope_parameters": None, "rope_theta": 10000},
    ],
)
def test_a_config_that_means_the_same_has_the_same(granite, folder, values):
    edit_config(folder, **values)
    assert model_fingerprint(folder) == model_fingerprint(granite)


@pytest.mark.parametrize(
    "values",
    [
        {"attention_multiplier": 0.21},
        {"time_step_limit": [0, 0.5]},
        {"rope_parameters": {"rope_theta": 5000.0}},
        {"rms_norm_eps": 1e-5},
        {"num_experts_per_tok": 1},
        {"position_embedding_type": None},
    ],
)
def test_another_number_in_the_config_has_another(granite, folder, values):
    edit_config(folder, **values)
    assert model_fingerprint(folder) != model_fingerprint(granite)


@pytest.mark.parametrize("index", [0, -1])
def test_one_bit_of_one_weight_tells_a_fine_tune(granite, folder, index):
    before = model_fingerprint(folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"].view(torch.int32).view(-1)[index] ^= 1
    save_file(tensors, file)
    assert model_fingerprint(folder) != before == model_fingerprint(granite)


def test_weights_that_change_places_tell(granite, folder):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    names = [f"model.layers.{i}.input_layernorm.weight" for i in (0, 1)]
    first, second = (tensors[name] for name in names)
    save_file({**tensors, names[0]: second, names[1]: first}, file)
    assert model_fingerprint(folder) != model_fingerprint(granite)


def test_large_tensors_are_told_in_pieces(granite, folder, monkeypatch):
    assert PIECE > 1 << 20
    monkeypatch.setattr("blockstride.models.fingerprint.PIECE", 1000)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    seen = set()
    for at in (0, 2000, 4000):
        changed = dict(tensors)
        changed["lm_head.weight"] = tensors["lm_head.weight"].clone()
        changed["lm_head.weight"].view(-1)[at] += 1
        save_file(changed, file)
        seen.add(model_fingerprint(folder))
    assert len(seen) == 3
