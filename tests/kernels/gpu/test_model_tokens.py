"""A whole model over the interpreted kernels generates what it generates over those for CPUs."""

import sys
from pathlib import Path

import pytest

from blockstride.models import LLM, EngineConfig, SamplingParams

SHIPPED = Path(__file__).resolve().parents[3] / "models" / "checkpoints" / "jamba-kjv"
PROMPT = "And it came to pass i"
KERNELS = {
    "causal_conv1d", "expert_mlp", "kv_cache_update", "paged_attention", "rms_norm",
    "selective_scan", "selective_state_update", "silu_and_mul",
}  # fmt: skip


def tokens(config: EngineConfig, prompt: str) -> tuple[int, ...]:
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    return LLM(SHIPPED, device="cpu", config=config).generate(prompt, params)[0].token_ids


@pytest.mark.parametrize(
    ("config", "prompt"),
    [
        (EngineConfig(num_blocks=(3, 9)), PROMPT),
        (EngineConfig(num_blocks=6, policy="unified", layout="LBNHC", prefill_chunk=16), PROMPT),
        (EngineConfig(num_blocks=6, policy="unified", layout="BHLNC", prefill_chunk=5), PROMPT),
        (EngineConfig(num_blocks=(3, 9), prefill_chunk=1), PROMPT[:6]),
    ],
    ids=["whole", "chunks of 16", "chunks of 5", "chunks of 1"],
)
def test_interpreted_kernels_give_the_tokens_of_the_cpu(config, prompt, monkeypatch):
    # every public function that chooses between Triton and the CPU asks this
    modules = {name: sys.modules[f"blockstride.kernels.{name}"] for name in KERNELS}
    launched = set()
    for name, module in modules.items():
        # the engine's tensors are on the CPU: these run in the interpreter
        answer = lambda tensor, name=name: launched.add(name) or True  # noqa: E731
        monkeypatch.setattr(module, "runs_on_triton", answer)
    interpreted = tokens(config, prompt)
    assert launched == KERNELS
    for module in modules.values():
        monkeypatch.setattr(module, "runs_on_triton", lambda tensor: False)
    assert interpreted == tokens(config, prompt)
