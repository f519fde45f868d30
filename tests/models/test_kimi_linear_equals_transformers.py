"""Gates of channels and latents without positions: transformers' Kimi Linear is the oracle."""

import re
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockstride.models.cache_types import CacheTypes
from blockstride.models.families import model_family
from tests.models.family_laws import FamilyLaws
from tests.models.generations import all_logits, assert_close, tokens


def numbered(full: Any, delta: Any) -> dict[str, Any]:
    """Layers as published files number them."""
    return {"linear_attn_config": {"full_attn_layers": full, "kda_layers": delta}}


class TestKimiLinear(FamilyLaws):
    family = "kimi_linear"
    cases: ClassVar = [
        {"q_lora_rank": 16, "attention_bias": True},
        {
            "attention_bias": True,
            "layer_types": ["full_attention", "linear_attention"] * 2 + ["full_attention"],
        },
        {"num_experts": 8, "n_group": 4, "topk_group": 2, "norm_topk_prob": False},
        {"mlp_layer_types": ["sparse", "dense"] * 2 + ["sparse"], "n_shared_experts": 3},
        {"linear_num_heads": 3, "linear_head_dim": 33, "linear_conv_kernel_dim": 2},
        {"qk_nope_head_dim": 4, "qk_rope_head_dim": 24, "v_head_dim": 7, "rms_norm_eps": 0.01},
        {
            "layer_types": ["full_attention"] * 2,
            "num_hidden_layers": 2,
            "tie_word_embeddings": True,
        },
    ]


def test_an_mlp_may_be_called_as_published_files_call_it(make_reference):
    """They say `block_sparse_moe` of experts alone, transformers of everything that it saves."""
    reference, ids = make_reference(family="kimi_linear"), tokens(259, 20)
    file, dense = reference.path / "model.safetensors", "layers.0.block_sparse_moe."
    tensors = load_file(file)
    assert any(dense in name for name in tensors)
    save_file({name.replace(dense, "layers.0.mlp."): t for name, t in tensors.items()}, file)
    assert_close(all_logits(reference.path, ids), reference.logits(ids))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"linear_attn_config": 4}, "linear_attn_config: expected an object, got 4"),
        (numbered([1, 4], [2]), "linear_attn_config: expected each layer from 1 to 4 in "),
        (numbered([1, 4], [0, 2, 3]), "linear_attn_config: expected each layer from 1 to 4 in "),
        (numbered([1, 4], ["2", 3]), "linear_attn_config: expected each layer from 1 to 4 in "),
        (numbered(4, [1, 2, 3]), "linear_attn_config: expected each layer from 1 to 4 in "),
        ({"linear_attn_config": {"num_heads": 0}}, "linear_num_heads: expected a positive int"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim: expected at least 2, got 1"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace: expected a number of layers"),
        ({"mlp_layer_types": ["dense"] * 3}, "num_hidden_layers: expected 3, as typed, got 4"),
        ({"mlp_layer_types": ["moe"] * 4}, "mlp_layer_types: expected 'dense' or 'sparse' for "),
        ({"num_experts_per_tok": None}, "num_experts_per_tok: expected a positive integer"),
    ],
)
def test_a_file_that_cannot_be_is_refused_by_key(said, message):
    file = {"model_type": "kimi_linear", "num_hidden_layers": 4, **said}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        model_family(file).mixers(CacheTypes(torch.float32, torch.float32))
