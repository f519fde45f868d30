"""Blockstride with prefix caching, as `prefix_vs_vllm.py` asks it: one request at a time."""

import time

import torch

from blockstride.models import EngineConfig, SamplingParams
from blockstride.models.engine import Engine as BlockstrideEngine
from blockstride.models.loading import load_model


class Engine:
    """Our engine, which says what it found and when its first token came."""

    def __init__(self, path: str) -> None:
        torch.set_grad_enabled(False)
        config = EngineConfig(max_num_seqs=8, max_len=4096)
        self.engine = BlockstrideEngine(load_model(path, config, device="cpu"), config)
        self.engine.warm_up()

    def request(self, asked: dict) -> dict:
        """The answer to a prompt, tokens that weren't computed, and seconds to the first token."""
        params = SamplingParams(max_tokens=asked["count"], ignore_eos=True, temperature=0.0)
        first, begin = None, time.perf_counter()
        request = self.engine.add_request(asked["prompt"], params)
        while self.engine.has_work:
            if self.engine.step() and first is None:
                first = time.perf_counter() - begin
        return {"answer": request.output_ids, "hit": request.num_resumed, "seconds": first}
