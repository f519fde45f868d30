"""vLLM's CPU build as `run_vllm.py` sets it up, but compiled, which is its default."""

import run_vllm


class Engine(run_vllm.Engine):
    """vLLM's offline engine, compiled, one process."""

    def __init__(self, path: str) -> None:
        super().__init__(path, enforce_eager=False)
