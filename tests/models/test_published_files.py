"""Files as they are published run as transformers runs them: heads, experts, ends, tokenizers."""

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from blockstride.models import LLM, SamplingParams
from blockstride.models.checkpoint import Checkpoint
from blockstride.models.cli import main
from blockstride.models.generation_defaults import NEUTRAL, default_params
from tests.models.conftest import Reference, byte_tokenizer
from tests.models.generations import all_logits, assert_close, tokens

FAMILIES = ("jamba", "granite", "bamba")
LAYERS = {
    "jamba": {"attn_layer_period": 2},
    "granite": {"layer_types": ["mamba", "attention"]},
    "bamba": {},
}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture(scope="module")
def references(make_reference):
    """A model of each family, made when it is asked for."""
    made = {}

    def reference(family):
        if family not in made:
            made[family] = make_reference(family=family, num_hidden_layers=2, **LAYERS[family])
        return made[family]

    return reference


@pytest.fixture
def folder(references, tmp_path):
    """A copy of a model's folder, to be edited."""

    def copy(family="jamba"):
        return shutil.copytree(references(family).path, tmp_path / family)

    return copy


def edit(file, **values):
    said = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**said, **values}))


def reread(path):
    return Reference(path, transformers.AutoModelForCausalLM.from_pretrained(path))


@pytest.mark.parametrize(
    ("family", "heads"),
    [
        *((family, "other") for family in FAMILIES),
        *(("jamba", h) for h in ("same", "none", "alone")),
    ],
)
def test_tied_embeddings_are_tied_where_transformers_ties_them(folder, family, heads):
    path = folder(family)
    edit(path / "config.json", tie_word_embeddings=True)
    file = path / "model.safetensors"
    weights = load_file(file)
    if heads == "same":
        weights[HEAD] = weights[EMBEDDING].clone()
    elif heads == "none":
        del weights[HEAD]
    elif heads == "alone":
        del weights[EMBEDDING]
    save_file(weights, file, metadata={"format": "pt"})
    ids = tokens(259, 20)
    assert_close(all_logits(path, ids), reread(path).logits(ids))


def test_an_untied_head_that_is_missing_is_named(folder):
    path = folder()
    weights = load_file(path / "model.safetensors")
    del weights[HEAD]
    save_file(weights, path / "model.safetensors")
    with pytest.raises(ValueError, match=r"weights: expected lm_head\.weight, got a checkpoint"):
        LLM(path)


@pytest.mark.parametrize("family", ["jamba", "granite"])
def test_experts_may_lie_in_one_tensor(references, family, tmp_path):
    reference = references(family)
    reference.model.save_pretrained(tmp_path, save_original_format=False)
    names = set(load_file(tmp_path / "model.safetensors"))
    assert any(name.endswith("experts.gate_up_proj") for name in names)
    ids = tokens(259, 20)
    assert_close(all_logits(tmp_path, ids), reference.logits(ids))


@pytest.mark.parametrize(
    ("family", "said"),
    [("jamba", "generation"), ("granite", "several"), ("bamba", "config"), ("jamba", "neither")],
)
def test_a_text_ends_where_transformers_ends_it(references, folder, family, said):
    free = references(family).greedy([5, 6, 7], 12)
    path = folder(family)
    ends = {"generation": free[5], "several": [258, free[4]], "config": None, "neither": None}[said]
    edit(path / "config.json", eos_token_id=free[7] if said == "config" else 258)
    if said == "config":
        (path / "generation_config.json").unlink()
    else:
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends or 258}))
    model = reread(path).model
    out = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=12, pad_token_id=0)
    llm = LLM(path)
    request = llm.engine.add_request([5, 6, 7], SamplingParams(max_tokens=12))
    while request.finish_reason is None:
        llm.engine.step()
    assert request.output_ids == out[0, 3:].tolist()
    assert request.finish_reason == ("length" if said == "neither" else "stop")


def test_an_end_in_config_counts_where_the_other_file_names_none(folder):
    path = folder()
    (path / "generation_config.json").write_text('{"temperature": 0.5}')
    edit(path / "config.json", eos_token_id=[7, 9])
    assert LLM(path).engine.model.eos_token_ids == {7, 9}


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"temperature": 0.5, "top_k": 3},
        {"do_sample": False, "temperature": 0.5},
        {"do_sample": True},
        {"do_sample": True, "temperature": 0.7, "top_k": 7, "top_p": 0.9, "max_new_tokens": 33},
        {"do_sample": True, "top_k": 0, "temperature": None},
        {"do_sample": True, "stop_strings": ["END"]},
        {"repetition_penalty": 1.1, "min_new_tokens": 5},
        {"do_sample": True, "min_p": 0.05, "suppress_tokens": [3, 4]},
    ],
)
def test_sampling_parameters_default_to_those_of_the_checkpoint(said, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    theirs = transformers.GenerationConfig.from_pretrained(tmp_path)
    theirs.update(**theirs._get_default_generation_params(), defaults_only=True)
    params = default_params(said)
    assert params.max_tokens == (theirs.max_new_tokens or SamplingParams().max_tokens)
    assert list(params.stop) == (theirs.stop_strings or [])
    assert params.min_tokens == (theirs.min_new_tokens or 0)
    assert params.repetition_penalty == (theirs.repetition_penalty or 1.0)
    assert params.bad_token_ids == set(theirs.suppress_tokens or ())
    if not theirs.do_sample:
        assert params.temperature == 0
        return
    drawn = (params.temperature, params.top_k, params.top_p, params.min_p)
    assert drawn == (theirs.temperature, theirs.top_k, theirs.top_p, theirs.min_p or 0.0)


def test_biases_and_bad_words_of_one_token_are_kept_and_others_told(caplog):
    params = default_params(
        {
            "sequence_bias": [[[5], -2.0], [[6, 7], 3.0]],
            "bad_words_ids": [[8], [9, 10], [2]],
            "eos_token_id": 2,
        }
    )
    assert params.logit_bias == {5: -2.0}
    assert params.bad_token_ids == {8}
    assert [record.args for record in caplog.records] == [
        ("bad_words_ids", [9, 10]),
        ("sequence_bias", [6, 7]),
    ]


def test_a_default_that_cannot_be_is_refused_by_file_and_key():
    with pytest.raises(ValueError, match=r"^generation_config.json: temperature: expected 0 or "):
        default_params({"do_sample": True, "temperature": -1.0})


def test_what_a_file_asks_for_in_vain_is_named(caplog):
    default_params({**NEUTRAL, "num_beams": 2, "typical_p": 0.9, "top_k": 4})
    assert [record.args[0] for record in caplog.records] == ["num_beams", "typical_p"]


def test_a_caller_who_says_nothing_gets_them(folder):
    path = folder()
    edit(path / "generation_config.json", max_new_tokens=3, eos_token_id=None)
    edit(path / "config.json", eos_token_id=None)
    llm = LLM(path)
    assert len(llm.generate("abc")[0].token_ids) == 3
    assert len(llm.generate("abc", SamplingParams(max_tokens=5))[0].token_ids) == 5
    whole = llm.generate("abc", SamplingParams(max_tokens=3))[0].text
    assert "".join(llm.stream("abc")) == whole


def test_a_tokenizer_neither_cuts_nor_pads(folder):
    path = folder()
    tokenizer = byte_tokenizer()
    plain = tokenizer.encode("a longer text").ids
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=40, pad_id=0)
    tokenizer.save(str(path / "tokenizer.json"))
    read = Checkpoint(path).tokenizer()
    assert read is not None
    assert read.encode("a longer text").ids == plain
    assert len(read.encode("ab").ids) == 2


def test_a_checkpoint_without_a_tokenizer_runs_on_tokens(folder, references):
    path = folder()
    (path / "tokenizer.json").unlink()
    llm = LLM(path)
    request = llm.engine.add_request([5, 6, 7], SamplingParams(max_tokens=4, ignore_eos=True))
    while request.finish_reason is None:
        llm.engine.step()
    assert request.output_ids == references("jamba").greedy([5, 6, 7], 4)
    with pytest.raises(ValueError, match=r"prompt: expected tokens, as .* no tokenizer\.json"):
        llm.generate("abc")


def test_one_file_of_weights_comes_before_an_index(folder):
    path = folder()
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"x": "gone.safetensors"}}')
    assert_close(all_logits(path, [5, 6]), reread(path).logits([5, 6]))


def test_frequencies_and_biases_that_transformers_ignores_change_nothing(folder, caplog):
    path = folder("bamba")
    weights = load_file(path / "model.safetensors")
    extra = {
        "model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "model.layers.1.self_attn.q_proj.bias": torch.ones(64),
        "model.layers.2.mamba.D": torch.ones(8),
    }
    save_file({**weights, **extra}, path / "model.safetensors", metadata={"format": "pt"})
    assert_close(all_logits(path, [5, 6, 7]), reread(path).logits([5, 6, 7]))
    assert caplog.messages == [
        "2 tensors are no part of Bamba, such as model.layers.1.self_attn.q_proj.bias"
    ]


def test_a_dense_file_of_attention_alone_generates_from_the_shell(make_reference, capsys):
    dense = {"num_local_experts": 0, "num_experts_per_tok": 0, "layer_types": ["attention"] * 4}
    reference = make_reference(family="granite", seed=1, eos_token_id=None, **dense)
    arguments = ["--model", str(reference.path), "--prompt", "abc", "--max-tokens", "8"]
    assert main(["generate", *arguments]) == 0
    tokenizer = byte_tokenizer()
    text = tokenizer.decode(reference.greedy(tokenizer.encode("abc").ids, 8))
    assert capsys.readouterr().out == f"abc{text}\n"
