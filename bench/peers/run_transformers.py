"""transformers' model of a checkpoint, as `worker.py` times it."""

import time

import torch
import transformers


class Engine:
    """The model's forward and its cache; no generation loop, so it is not charged for one."""

    def __init__(self, path: str) -> None:
        transformers.logging.set_verbosity_error()
        loaded = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.model = loaded.eval()

    @torch.inference_mode()
    def prefill(self, tokens: list[int]) -> float:
        """Seconds to the first token."""
        ids = torch.tensor([tokens])
        begin = time.perf_counter()
        self.model(ids, use_cache=True, logits_to_keep=1).logits.argmax(-1)
        return time.perf_counter() - begin

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        """Seconds of a step."""
        return self._generate(prompts, steps)[1] / steps

    def greedy(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """The most likely tokens after every prompt, one by one."""
        return self._generate(prompts, count - 1)[0]

    @torch.inference_mode()
    def _generate(self, prompts: list[list[int]], steps: int) -> tuple[list[list[int]], float]:
        """Tokens, and seconds of all steps after the prompts."""
        out = self.model(torch.tensor(prompts), use_cache=True, logits_to_keep=1)
        # models without attention take the older name and ignore it
        key = "cache" if "cache" in out else "past_key_values"
        cache = {key: out[key]}
        tokens = [out.logits[:, -1].argmax(-1, keepdim=True)]
        begin = time.perf_counter()
        for _ in range(steps):
            out = self.model(tokens[-1], use_cache=True, **cache)
            tokens.append(out.logits[:, -1].argmax(-1, keepdim=True))
        seconds = time.perf_counter() - begin
        return torch.cat(tokens, dim=1).tolist(), seconds
