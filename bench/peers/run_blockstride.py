"""Blockstride's engine, as `worker.py` times it."""

import time

from blockstride.models import Engine as BlockstrideEngine
from blockstride.models import EngineConfig, JambaModel, SamplingParams
from blockstride.models.checkpoint import Checkpoint


class Engine:
    """Everything an engine step costs is in the times: scheduling, batching, sampling."""

    def __init__(self, path: str) -> None:
        config = EngineConfig(max_num_seqs=8, max_num_batched_tokens=4096)
        self.engine = BlockstrideEngine(JambaModel(Checkpoint(path)), config)

    def _run(self, prompts: list[list[int]], count: int) -> float:
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        begin = time.perf_counter()
        for tokens in prompts:
            self.engine.add_request(tokens, params)
        while self.engine.has_work:
            self.engine.step()
        return time.perf_counter() - begin

    def prefill(self, tokens: list[int]) -> float:
        """Seconds to the first token."""
        return self._run([tokens], 1)

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        """Seconds of a step."""
        first = self._run(prompts, 1)
        return (self._run(prompts, steps + 1) - first) / steps
