import json
import warnings
from pathlib import Path

import pytest
import torch

from tests.examples.support import load_checkpoint
from train_jamba.evaluate import bits_per_byte
from train_jamba.text import as_tokens, with_bos

with warnings.catch_warnings():
    # the library's own imports, on whatever versions of its dependencies are installed
    warnings.simplefilter("ignore")
    import transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

FOLDER = Path(__file__).resolve().parents[2] / "models" / "checkpoints" / "jamba-kjv"


@pytest.fixture(scope="module")
def model():
    return load_checkpoint(FOLDER)


@pytest.fixture(scope="module")
def record():
    return json.loads((FOLDER / "training.json").read_text())


@pytest.fixture(scope="module")
def sample():
    return (FOLDER / "held_out_sample.txt").read_bytes()


def test_held_out_sample_costs_what_the_record_says(model, record, sample):
    bits = bits_per_byte(model, [sample], record["options"]["context_size"])
    assert bits == pytest.approx(record["sample_bits_per_byte"], abs=1e-4)


def test_record_keeps_the_promise_of_the_readme(record):
    bits = record["held_out_bits_per_byte"]
    assert bits <= 1.75
    assert f"{bits:.3f} bits per byte" in (FOLDER / "README.md").read_text()


def test_transformers_computes_the_same_logits(model, sample):
    tokens = with_bos(as_tokens(sample[:96])[None])
    reference = transformers.AutoModelForCausalLM.from_pretrained(FOLDER)
    with torch.no_grad():
        got, expected = model(tokens), reference(tokens).logits
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def test_weights_fit_in_twelve_megabytes():
    assert (FOLDER / "model.safetensors").stat().st_size <= 12_000_000
