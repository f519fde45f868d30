"""Models without attention: transformers' Mamba, Falcon-Mamba and Mamba-2 are the oracle."""

from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockstride import kernels
from blockstride.models import Engine, EngineConfig, SamplingParams
from blockstride.models.loading import load_model
from tests.models.family_laws import FamilyLaws
from tests.models.generations import (
    all_logits,
    assert_close,
    generate,
    logits_of,
    make_engine,
    tokens,
)

MAMBA1_CASES = [
    {"use_bias": True, "use_conv_bias": False},
    {"tie_word_embeddings": False, "time_step_rank": 7},
    {"intermediate_size": 128, "conv_kernel": 2},
    {"state_size": 16, "layer_norm_epsilon": 1e-3},
    {"hidden_size": 48, "num_hidden_layers": 1},
]


class TestMamba(FamilyLaws):
    family = "mamba"
    cases: ClassVar = MAMBA1_CASES


class TestFalconMamba(FamilyLaws):
    family = "falcon_mamba"
    cases: ClassVar = [*MAMBA1_CASES, {"mixer_rms_eps": 0.1}]


class TestMamba2(FamilyLaws):
    family = "mamba2"
    cases: ClassVar = [
        {"use_bias": True, "use_conv_bias": False},
        {"n_groups": 1, "tie_word_embeddings": True},
        {"n_groups": 8, "conv_kernel": 3, "layer_norm_epsilon": 1e-3},
        {"time_step_limit": (0.5, 0.8)},
        {"expand": 3, "head_dim": 24, "state_size": 5},
        {"hidden_size": 96, "num_heads": 12, "num_hidden_layers": 2},
    ]


@pytest.mark.parametrize("family", ["mamba", "falcon_mamba", "mamba2"])
def test_two_hundred_tokens_are_those_of_transformers(make_reference, family):
    reference = make_reference(family=family, seed=1)
    prompt = tokens(259, 9)
    (got,), _ = generate(reference.path, [prompt], 200)
    assert got == reference.greedy(prompt, 200)


def test_no_length_ends_a_request_where_nothing_grows_with_it(make_reference):
    engine = make_engine(make_reference(family="mamba", num_hidden_layers=1).path, num_blocks=3)
    request = engine.add_request(tokens(259, 5000), SamplingParams(max_tokens=1 << 30))
    engine.step()
    assert request.max_len == 5000 + (1 << 30)
    assert engine.blocks.num_free == (1,)


@pytest.mark.parametrize("wide", [True, False])
def test_the_residual_stream_is_float32_where_a_file_says_so(make_reference, monkeypatch, wide):
    reference = make_reference(family="mamba", residual_in_fp32=wide)
    seen, norm = set(), kernels.rms_norm

    def watched(*arguments, residual, **how):
        seen.add(residual.dtype)
        return norm(*arguments, residual=residual, **how)

    monkeypatch.setattr(kernels, "rms_norm", watched)
    config = EngineConfig()
    model = load_model(reference.path, config, dtype="bfloat16", device="cpu")
    logits = logits_of(Engine(model, config), tokens(259, 20))
    assert seen == {torch.float32 if wide else torch.bfloat16}
    assert logits.dtype == torch.bfloat16


def test_older_files_call_the_embedding_otherwise(make_reference, tmp_path):
    reference = make_reference(family="mamba")
    for file in reference.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["backbone.embedding.weight"] = weights.pop("backbone.embeddings.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    ids = tokens(259, 20)
    assert_close(all_logits(tmp_path, ids), reference.logits(ids))
