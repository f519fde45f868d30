"""A whole model over Triton kernels computes what it computes over those for CPUs."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from blockstride import kernels
from blockstride.models import Engine, EngineConfig, SamplingParams
from blockstride.models.batch import StepBatch
from blockstride.models.checkpoint import Checkpoint
from blockstride.models.loading import load_model

SHIPPED = Path(__file__).resolve().parents[3] / "models" / "checkpoints" / "jamba-kjv"
PROMPT = "And it came to pass i"
SHORT = PROMPT[:12]
KERNELS = {
    "causal_conv1d", "expert_mlp", "kv_cache_update", "paged_attention", "rms_norm",
    "selective_scan", "selective_state_update", "gate_and_mul",
}  # fmt: skip


@pytest.fixture(scope="module")
def half(tmp_path_factory) -> Path:
    """The shipped model's first half: two Mamba layers round one of attention, experts in that."""
    folder = tmp_path_factory.mktemp("half")
    for file in SHIPPED.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "config.json").unlink()
    config = json.loads((SHIPPED / "config.json").read_text()) | {"num_hidden_layers": 3}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def tokens(config: EngineConfig, device: str, *prompts: str, **params: Any) -> list[list[int]]:
    """Continuations of prompts, all run together by an engine that is not warmed up."""
    engine = Engine(load_model(SHIPPED, config, device=device, dtype="float32"), config)
    return tokens_of(engine, *prompts, **params)


def tokens_of(engine: Engine, *prompts: str, **params: Any) -> list[list[int]]:
    """Continuations of prompts."""
    tokenizer = Checkpoint(SHIPPED).tokenizer()
    assert tokenizer is not None
    asked = SamplingParams(ignore_eos=True, **params)
    requests = [engine.add_request(tokenizer.encode(prompt).ids, asked) for prompt in prompts]
    while engine.has_work:
        engine.step()
    engine.blocks.check()
    return [request.output_ids for request in requests]


def tokens_and_logits(
    model: Path, config: EngineConfig, device: str, prompt: str
) -> tuple[list[list[int]], torch.Tensor]:
    """Two tokens after a prompt, and the logits of every step."""
    engine = Engine(load_model(model, config, device=device, dtype="float32"), config)
    forward, logits = engine.model.forward, []

    def keep(batch: StepBatch) -> torch.Tensor:
        logits.append(forward(batch))
        return logits[-1]

    engine.model.forward = keep
    return tokens_of(engine, prompt, max_tokens=2), torch.cat(logits)


@pytest.mark.parametrize(
    ("config", "prompt"),
    [
        (EngineConfig(num_blocks=(3, 9)), PROMPT),
        (EngineConfig(num_blocks=6, policy="unified", layout="LBNHC", prefill_chunk=16), PROMPT),
        (
            EngineConfig(num_blocks=6, policy="unified", layout="BHLNC", prefill_chunk=5),
            PROMPT[:12],
        ),
        (EngineConfig(num_blocks=(3, 9), prefill_chunk=1), PROMPT[:6]),
    ],
    ids=["whole", "chunks of 16", "chunks of 5", "chunks of 1"],
)
def test_triton_kernels_give_the_tokens_of_the_cpu(config, prompt, half, device, monkeypatch):
    # one row has all layers, so that every kind of cache has several
    model = SHIPPED if config.prefill_chunk is None else half
    # every public function that chooses between Triton and the CPU asks this
    modules = {name: sys.modules[getattr(kernels, name).__module__] for name in KERNELS}
    launched = set()
    for name, module in modules.items():
        # interpreted, the engine's tensors are on the CPU
        answer = lambda tensor, name=name: launched.add(name) or True  # noqa: E731
        monkeypatch.setattr(module, "runs_on_triton", answer)
    schedule = sys.modules[kernels.attention_schedule.__module__]
    monkeypatch.setattr(schedule, "runs_on_triton", lambda tensor: True)
    by_triton, logits = tokens_and_logits(model, config, device, prompt)
    assert launched == KERNELS
    for module in (*modules.values(), schedule):
        monkeypatch.setattr(module, "runs_on_triton", lambda tensor: False)
    by_cpu, expected = tokens_and_logits(model, config, "cpu", prompt)
    assert by_triton == by_cpu
    torch.testing.assert_close(logits.cpu(), expected, rtol=1e-4, atol=1e-4)


LONG = "And the LORD spake unto Moses, saying, Speak unto the children of Israel, and say unto them"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(),
        EngineConfig(prefill_chunk=7, max_num_batched_tokens=24),
        EngineConfig(num_blocks=(4, 12), max_num_seqs=4),
        EngineConfig(layout="BHLNC", policy="unified", num_blocks=14),
        EngineConfig(layout="LBNHC", conv_order="SD", kernel_block_size=8),
    ],
    ids=["default", "chunks", "preemptions", "unified", "other orders"],
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_engine_on_a_gpu_gives_the_tokens_of_one_on_the_cpu(config, temperature):
    prompts = [PROMPT, LONG, "In", LONG[20:]]
    asked = {"max_tokens": 24, "temperature": temperature, "seed": 1}
    on_cpu = tokens(EngineConfig(), "cpu", *prompts, **asked)
    assert tokens(config, "cuda", *prompts, **asked) == on_cpu
