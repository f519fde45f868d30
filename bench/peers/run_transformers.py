"""transformers' Jamba, as `worker.py` times it."""

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

    @torch.inference_mode()
    def decode(self, prompts: list[list[int]], steps: int) -> float:
        """Seconds of a step."""
        out = self.model(torch.tensor(prompts), use_cache=True, logits_to_keep=1)
        key = "past_key_values" if getattr(out, "past_key_values", None) is not None else "cache"
        cache = {key: out[key]}
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        begin = time.perf_counter()
        for _ in range(steps):
            out = self.model(token, use_cache=True, **cache)
            token = out.logits[:, -1].argmax(-1, keepdim=True)
        return (time.perf_counter() - begin) / steps
