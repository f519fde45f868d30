"""vLLM's CPU build with prefix caching, as `prefix_vs_vllm.py` asks it: one request at a time.

Its Mamba-2 mixer fails in steps that are longer than a block, so they aren't; it chooses the block
and where states are kept itself.
"""

import time
from itertools import count

import run_vllm
from vllm import SamplingParams
from vllm.inputs import TokensPrompt


class Engine(run_vllm.Engine):
    """vLLM's offline engine, which says what it found and when its first token came."""

    def __init__(self, path: str) -> None:
        super().__init__(path, enable_prefix_caching=True, max_num_batched_tokens=256)
        self._ids = count()

    def request(self, asked: dict) -> dict:
        """The answer to a prompt, tokens that weren't computed, and seconds to the first token."""
        params = SamplingParams(
            max_tokens=asked["count"], ignore_eos=True, temperature=0, detokenize=False
        )
        engine, first = self.llm.llm_engine, None
        prompt = TokensPrompt(prompt_token_ids=asked["prompt"])
        begin = time.perf_counter()
        engine.add_request(str(next(self._ids)), prompt, params)
        output = None
        while engine.has_unfinished_requests():
            for output in engine.step():
                if first is None and output.outputs[0].token_ids:
                    first = time.perf_counter() - begin
        answer = list(output.outputs[0].token_ids)
        return {"answer": answer, "hit": output.num_cached_tokens or 0, "seconds": first}
