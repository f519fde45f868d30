"""vLLM's CPU build, as `worker.py` times it: as it is shipped, but for Jamba.

`jamba_on_vllm.py` says what the build lacks to run Jamba, and lends it.
"""

import json
import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0-1",
}

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt


class Engine:
    """vLLM's offline engine, in this process; eager unless `options` say otherwise."""

    def __init__(self, path: str, **options: Any) -> None:
        if json.loads((Path(path) / "config.json").read_text())["model_type"] == "jamba":
            # compiles the scan as it is imported
            import_module("jamba_on_vllm").lend()
        defaults = {
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 4096,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 4096,
            "enable_prefix_caching": False,
            "disable_log_stats": True,
        }
        self.llm = LLM(model=path, **{**defaults, **options})

    def greedy(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """The most likely tokens after every prompt, one by one."""
        params = SamplingParams(max_tokens=count, ignore_eos=True, temperature=0, detokenize=False)
        inputs = [TokensPrompt(prompt_token_ids=tokens) for tokens in prompts]
        outputs = self.llm.generate(inputs, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def _seconds(self, prompts: list[list[int]], count: int) -> float:
        begin = time.perf_counter()
        self.greedy(prompts, count)
        return time.perf_counter() - begin

    def prefill(self, tokens: list[int]) -> float:
        """Seconds to the first token."""
        return self._seconds([tokens], 1)

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        """Seconds of a step."""
        first = self._seconds(prompts, 1)
        return (self._seconds(prompts, steps + 1) - first) / steps
