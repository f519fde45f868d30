"""Blockstride's engine, as `worker.py` times it."""

import time

from blockstride.models import Engine as BlockstrideEngine
from blockstride.models import EngineConfig, SamplingParams
from blockstride.models.loading import load_model


class Engine:
    """Everything an engine step costs is in the times: scheduling, batching, sampling."""

    def __init__(self, path: str) -> None:
        # every prompt comes several times, and is to be computed each time
        sizes = {"max_num_seqs": 8, "max_num_batched_tokens": 4096}
        config = EngineConfig(**sizes, prefix_caching=False)
        model = load_model(path, config, dtype="float32", device="cpu")
        self.engine = BlockstrideEngine(model, config)

    def greedy(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """The most likely tokens after every prompt, one by one."""
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        requests = [self.engine.add_request(tokens, params) for tokens in prompts]
        while self.engine.has_work:
            self.engine.step()
        return [request.output_ids for request in requests]

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
