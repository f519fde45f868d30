"""The family that CONTRIBUTING.md adds, as it stands there, against transformers' model of it."""

import re
from pathlib import Path

import pytest
import torch
import transformers

from blockstride.models import FAMILIES, cache_specs
from tests.models.conftest import COMMON, Reference
from tests.models.generations import all_logits, assert_close, generate, tokens

GUIDE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
MOST_LINES = 100


@pytest.fixture
def granite(monkeypatch, tmp_path):
    """A checkpoint of transformers, whose family is known as the text says."""
    section = GUIDE.read_text(encoding="utf-8").partition("## Add a model")[2]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    assert found[1].count("\n") < MOST_LINES
    names: dict = {"__name__": "granite"}
    exec(compile(found[1], str(GUIDE), "exec"), names)
    monkeypatch.setitem(FAMILIES, "granite", names["Granite"])
    torch.manual_seed(0)
    config = transformers.GraniteConfig(
        **COMMON,
        attention_bias=True,
        attention_multiplier=0.2,
        embedding_multiplier=3.0,
        residual_multiplier=0.5,
        logits_scaling=2.0,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        eos_token_id=None,
    )
    model = transformers.GraniteForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(tmp_path)
    return Reference(tmp_path, model)


@pytest.mark.parametrize("layout", ["BLHNC", "LBNHC"])
def test_its_logits_are_those_of_transformers(granite, layout):
    ids = tokens(COMMON["vocab_size"], 40)
    assert_close(all_logits(granite.path, ids, layout=layout), granite.logits(ids))


def test_its_tokens_are_those_of_transformers_and_its_plan_is_what_it_binds(granite):
    prompts = [tokens(COMMON["vocab_size"], count, seed=count) for count in (7, 19)]
    answers, engine = generate(granite.path, prompts, count=12)
    assert answers == [granite.greedy(prompt, 12) for prompt in prompts]
    planned = cache_specs(granite.path, kv_cache_dtype="fp32")
    assert planned == engine.model.cache_specs()
