"""Blocks that layers share, with adapters of their own: transformers' Zamba2 is the oracle."""

from typing import Any, ClassVar

from safetensors.torch import load_file, save_file

from blockstride.models import EngineConfig
from blockstride.models.loading import load_model
from tests.models.family_laws import FamilyLaws
from tests.models.generations import all_logits, assert_close, generate, tokens

ROPE = {"use_mem_rope": True, "rope_parameters": {"rope_theta": 300.0, "rope_type": "default"}}
PUBLISHED = {"use_shared_attention_adapter": True, **ROPE}
TWO_BLOCKS = {
    "num_mem_blocks": 2,
    "num_hidden_layers": 5,
    # each block has a layer that finds it in another
    "layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid", "hybrid"],
}


class TestZamba2(FamilyLaws):
    family = "zamba2"
    cases: ClassVar = [
        PUBLISHED,
        {**TWO_BLOCKS, **PUBLISHED, "add_bias_linear": True},
        {**TWO_BLOCKS, "mamba_ngroups": 1, "hidden_act": "silu"},
        {"num_key_value_heads": 2, "time_step_min": 0.7, "tie_word_embeddings": False},
        {"mamba_expand": 3, "mamba_d_conv": 3, "use_long_context": True, "rms_norm_eps": 1e-3},
        {"intermediate_size": None, "hidden_act": "gelu_pytorch_tanh", "n_mamba_heads": 16},
    ]


def test_two_hundred_tokens_are_those_of_transformers(make_reference):
    reference = make_reference(family="zamba2", seed=1, **TWO_BLOCKS, **PUBLISHED)
    prompt = tokens(259, 9)
    (got,), _ = generate(reference.path, [prompt], 200)
    assert got == reference.greedy(prompt, 200)


def test_shared_weights_lie_in_memory_once(make_reference):
    path = make_reference(family="zamba2").path
    mixers: dict[str, Any] = load_model(path, EngineConfig(), device="cpu").mixers
    first, second = (mixers[f"layers.{i}.attention"] for i in (1, 3))
    assert first.qkv is second.qkv
    assert first.out is second.out
    assert first.cache_spec() == second.cache_spec()


def test_a_file_may_have_shared_weights_in_every_layer(make_reference, tmp_path, caplog):
    reference = make_reference(family="zamba2")
    for file in reference.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    part = "layers.1.shared_transformer."
    again = {name.replace(part, part.replace("1", "3")): w for name, w in weights.items()}
    assert again.keys() - weights.keys()
    copies = {name: tensor.clone() for name, tensor in {**weights, **again}.items()}
    save_file(copies, tmp_path / "model.safetensors", metadata={"format": "pt"})
    ids = tokens(259, 20)
    assert_close(all_logits(tmp_path, ids), reference.logits(ids))
    assert "are no part of" not in caplog.text
