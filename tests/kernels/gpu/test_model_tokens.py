"""A whole model over the interpreted kernels generates what it generates over those for CPUs."""

import sys
from pathlib import Path

import pytest

from blockstride.models import LLM, EngineConfig, SamplingParams

SHIPPED = Path(__file__).resolve().parents[3] / "models" / "checkpoints" / "jamba-kjv"
ATTENTION = ("paged_attention", "kv_cache_update")
PROMPT = "And it came to pass in those days, that he went out"


def tokens(config: EngineConfig) -> tuple[int, ...]:
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    return LLM(SHIPPED, device="cpu", config=config).generate(PROMPT, params)[0].token_ids


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(num_blocks=(3, 9)),
        EngineConfig(num_blocks=6, policy="unified", layout="LBNHC", prefill_chunk=20),
    ],
    ids=["split BLHNC", "unified LBNHC in chunks"],
)
def test_interpreted_attention_gives_the_tokens_of_the_cpu(config, monkeypatch):
    modules = [sys.modules[f"blockstride.kernels.{name}"] for name in ATTENTION]
    launches = []
    for module in modules:
        # the engine's tensors are on the CPU: these run in the interpreter, all others do not
        monkeypatch.setattr(module, "runs_on_triton", lambda tensor: launches.append(1) or True)
    interpreted = tokens(config)
    assert launches
    for module in modules:
        monkeypatch.setattr(module, "runs_on_triton", lambda tensor: False)
    assert interpreted == tokens(config)
