"""Of a model that sees, the text model runs: its config and weights lie within the whole's."""

import json

import pytest
import torch
import transformers

from blockstride.models import LLM, cache_specs
from tests.models.conftest import DELTA, SHARED, Reference
from tests.models.generations import all_logits, assert_close, tokens

TEXT = {
    **DELTA,
    "eos_token_id": 11,
    "head_dim": 32,
    "hidden_size": 48,
    "initializer_range": 0.1,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": 259,
}
SIGHT = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": 48,
    "patch_size": 4,
}


@pytest.fixture(params=["Qwen3_5", "Qwen3_5Moe"])
def folder(request, tmp_path):
    """One of the whole."""
    text = {**TEXT, **SHARED} if request.param.endswith("Moe") else TEXT
    config = getattr(transformers, f"{request.param}Config")(text_config=text, vision_config=SIGHT)
    torch.manual_seed(0)
    kind = getattr(transformers, f"{request.param}ForConditionalGeneration")
    kind(config).save_pretrained(tmp_path)
    return tmp_path


def test_the_text_model_of_one_that_sees_runs(folder):
    said = json.loads((folder / "config.json").read_text())
    assert "text_config" in said
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = tokens(259, 40)
    assert_close(all_logits(folder, ids), Reference(folder, model).logits(ids))
    llm = LLM(folder)
    assert llm.engine.model.cache_specs() == cache_specs(folder)
    assert llm.engine.model.eos_token_ids == {11}
