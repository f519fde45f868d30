import dataclasses
import os
import warnings

import pytest
import safetensors.torch
import torch
from torch.nn import functional

from tests.examples.support import load_checkpoint
from train_jamba.checkpoint import save_checkpoint
from train_jamba.config import HybridConfig
from train_jamba.experts import balancing_loss
from train_jamba.model import Hybrid, initialise
from train_jamba.text import byte_tokenizer

with warnings.catch_warnings():
    # the library's own imports, on whatever versions of its dependencies are installed
    warnings.simplefilter("ignore")
    import transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

CONFIG = HybridConfig(
    hidden_size=32, intermediate_size=24, num_hidden_layers=4, mamba_d_state=5, mamba_dt_rank=3
)


@pytest.fixture(scope="module")
def model():
    model = Hybrid(CONFIG)
    initialise(model, seed=1)
    # norms and skips of one would hide that one is applied to the wrong part
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith(".D"):
                parameter.uniform_(0.5, 1.5, generator=generator)
    return model


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(model, folder, max_tokens=64)
    return folder


@pytest.fixture(scope="module")
def reference(folder):
    load = transformers.AutoModelForCausalLM.from_pretrained
    # the annotation knows only the case without loading info
    loaded, problems = load(folder, output_loading_info=True)  # pyright: ignore
    assert not any(problems.values()), problems
    return loaded


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(0, 256, (2, 21), generator=torch.Generator().manual_seed(0))


def test_transformers_loads_the_folder_and_computes_the_same_logits(model, reference, tokens):
    assert isinstance(reference, transformers.JambaForCausalLM)
    with torch.no_grad():
        expected = reference(tokens).logits
        got = model(tokens)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_every_gradient_equals_the_one_of_transformers(model, reference, tokens):
    grads = []
    for candidate in (model, reference.train()):
        candidate.zero_grad()
        logits = candidate(tokens)
        logits = logits if isinstance(logits, torch.Tensor) else logits.logits
        functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        grads.append({name: p.grad.clone() for name, p in candidate.named_parameters()})
    ours, theirs = grads
    assert ours.keys() == theirs.keys()
    for name, grad in ours.items():
        bound = 1e-4 * float(theirs[name].abs().max())
        torch.testing.assert_close(grad, theirs[name], rtol=0, atol=bound, msg=name)


def test_balancing_loss_equals_the_one_of_transformers(model, reference, tokens):
    with torch.no_grad():
        model(tokens)
        expected = reference(tokens, output_router_logits=True).aux_loss
    torch.testing.assert_close(balancing_loss(model), expected)


def test_model_without_experts_has_no_balancing_loss(tokens):
    model = Hybrid(dataclasses.replace(CONFIG, num_experts=1, num_experts_per_tok=1))
    model(tokens)
    assert balancing_loss(model) == 0


def test_transformers_writes_back_the_same_tensors(folder, reference, tmp_path):
    reference.save_pretrained(tmp_path)
    before = safetensors.torch.load_file(folder / "model.safetensors")
    after = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_folder_read_back_has_the_same_bits(model, folder):
    loaded = load_checkpoint(folder)
    assert loaded.config == model.config
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_transformers_tokenizer_is_bytes_after_bos(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "Én  <tab>\t漢字\n"
    ids = tokenizer(text)["input_ids"]
    assert ids == [tokenizer.bos_token_id, *text.encode()]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (
        256,
        257,
        258,
    )


def test_every_byte_has_its_own_id():
    ids = byte_tokenizer().encode("".join(map(chr, range(0x800))), add_special_tokens=False).ids
    assert bytes(ids).decode() == "".join(map(chr, range(0x800)))


def test_failed_write_leaves_the_old_weights(model, tmp_path, monkeypatch):
    save_checkpoint(model, tmp_path, max_tokens=64)
    before = (tmp_path / "model.safetensors").read_bytes()
    other = Hybrid(CONFIG)
    initialise(other, seed=2)

    replace = os.replace

    def replace_all_but_weights(source, target):
        if target.name == "model.safetensors":
            raise OSError("no space left")
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_all_but_weights)
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(other, tmp_path, max_tokens=64)
    assert (tmp_path / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 0}, "hidden_size: expected a positive number, got 0"),
        ({"attn_layer_offset": 3}, "attn_layer_offset: expected at most 2, got 3"),
        ({"expert_layer_offset": -1}, "expert_layer_offset: expected no negative number, got -1"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok: expected at most 4, got 5"),
        ({"num_attention_heads": 5}, "num_attention_heads: expected a divisor of hidden_size 192"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: expected a divisor of num_attention"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_unusable_config_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        HybridConfig(**change)
