"""The language model inside a model of several parts runs by itself."""

import json
import logging
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from blockstride.models import Engine, EngineConfig, cache_specs
from blockstride.models.loading import load_model
from tests.models.conftest import COMMON, Reference
from tests.models.generations import all_logits, assert_close, tokens

VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 8,
    "image_size": 28,
    "patch_size": 14,
}
# class, text model, vision tower; the second class would leave out a scaling of logits
KINDS = {
    "mistral": ("Mistral3", "MistralConfig", "PixtralVisionConfig", {"sliding_window": 20}),
    "granite": ("LlavaNext", "GraniteConfig", "SiglipVisionConfig", {"residual_multiplier": 0.5}),
}


@pytest.fixture(params=KINDS)
def whole(request, tmp_path) -> Reference:
    """A small model for texts and images, as transformers saves it."""
    kind, text, vision, said = KINDS[request.param]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        text_config=getattr(transformers, text)(**COMMON, **said).to_dict(),
        vision_config=getattr(transformers, vision)(**VISION).to_dict(),
        tie_word_embeddings=False,
    )
    model: Any = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    model.save_pretrained(tmp_path)
    return Reference(tmp_path, model)


def rename(folder, model: str, head: str) -> None:
    file, renamed = folder / "model.safetensors", {}
    for name, tensor in load_file(file).items():
        renamed[
            name.replace("language_model.model.", model).replace("language_model.lm_head.", head)
        ] = tensor
    save_file(renamed, file)


@pytest.mark.parametrize(
    ("model", "head"),
    [
        ("language_model.model.", "language_model.lm_head."),
        ("model.language_model.", "lm_head."),
        ("model.language_model.", "model.lm_head."),
        ("model.", "lm_head."),
    ],
)
def test_its_logits_are_those_of_transformers(whole, model, head, caplog):
    rename(whole.path, model, head)
    ids = tokens(COMMON["vocab_size"], 40)
    with caplog.at_level(logging.INFO, "blockstride"):
        assert_close(all_logits(whole.path, ids), whole.logits(ids))
    told = [record for record in caplog.records if "not read" in record.message]
    assert [record.levelname for record in told] == ["INFO"]
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_what_is_planned_is_what_its_engine_binds(whole):
    config = EngineConfig()
    engine = Engine(load_model(whole.path, config, device="cpu"), config)
    assert cache_specs(whole.path, kv_cache_dtype="fp32") == engine.model.cache_specs()


def test_end_tokens_types_and_ties_may_be_said_of_the_whole_or_of_the_part(whole):
    file, weights = whole.path / "config.json", whole.path / "model.safetensors"
    config = json.loads(file.read_text())
    part = {key: value for key, value in config["text_config"].items() if key != "eos_token_id"}
    tied = {"eos_token_id": [7, 9], "tie_word_embeddings": True, "text_config": part}
    file.write_text(json.dumps({**config, **tied}))
    kept = {
        k: tensor for k, tensor in load_file(weights).items() if not k.endswith("lm_head.weight")
    }
    save_file(kept, weights)
    (whole.path / "generation_config.json").unlink(missing_ok=True)
    model = load_model(whole.path, EngineConfig(), device="cpu")
    assert model.eos_token_ids == {7, 9}
    assert torch.equal(model.embedding, model.head.to_dense())
