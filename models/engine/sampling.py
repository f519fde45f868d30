"""How the next token is chosen: parameters of a request, and a vectorised sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from blockstride.kernels.checks import expect


@dataclass(frozen=True)
class SamplingParams:
    """What a request asks of the sampler.

    Attributes:
        max_tokens: Most tokens to generate.
        temperature: Divides the logits; 0 takes the most likely token.
        top_k: Choose among so many most likely tokens; 0 for all.
        top_p: Choose among the most likely tokens that together have this probability.
        seed: Makes a request repeatable, in whatever batch it runs; None draws one.
        stop: Texts that end a generation; they are not part of the result.
        stop_token_ids: Tokens that end a generation beside the model's own.
        ignore_eos: Whether to go on after the model's end-of-text token.

    Raises:
        ValueError: A parameter out of its range.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        expect(self.max_tokens >= 1, "max_tokens", "at least 1", self.max_tokens)
        warm = 0 <= self.temperature < float("inf")
        expect(warm, "temperature", "0 or a finite positive number", self.temperature)
        expect(self.top_k >= 0, "top_k", "0 (all tokens) or more", self.top_k)
        expect(0 < self.top_p <= 1, "top_p", "above 0 and at most 1", self.top_p)
        expect(self.seed is None or self.seed >= 0, "seed", "None, 0 or more", self.seed)
        expect(all(self.stop), "stop", "texts that are not empty", self.stop)


def sample(
    logits: Float[Tensor, "num_seqs vocab_size"],
    params: Sequence[SamplingParams],
    generators: Sequence[np.random.Generator],
) -> list[int]:
    """One token for each row.

    A drawn token depends on its own row, parameters and generator alone, so a request gives the
    same text in any batch: one uniform number is drawn and looked up in the cumulative distribution
    of the tokens that top-k and top-p leave.

    Args:
        logits: Scores of the next token.
        params: Parameters of each row.
        generators: Random numbers of each row; greedy rows draw none.
    """
    tokens = logits.argmax(-1)
    drawn = [i for i, p in enumerate(params) if p.temperature > 0]
    if drawn:
        chosen = [params[i] for i in drawn]
        uniform = torch.tensor([generators[i].random() for i in drawn], dtype=torch.float64)
        tokens[drawn] = _draw(logits[drawn].float().cpu(), chosen, uniform).to(tokens.device)
    return tokens.tolist()


def _draw(logits: Tensor, params: Sequence[SamplingParams], uniform: Tensor) -> Tensor:
    temperature = torch.tensor([p.temperature for p in params])[:, None]
    vocab = logits.shape[1]
    top_k = torch.tensor([p.top_k or vocab for p in params])[:, None]
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64)[:, None]
    probabilities = (logits / temperature).softmax(-1, dtype=torch.float64)
    # a stable sort, so that equally likely tokens stay in order in any batch
    ordered, ids = torch.sort(probabilities, dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = (torch.arange(vocab)[None] < top_k) & (before < top_p)
    cumulative = ordered.where(kept, 0).cumsum(-1)
    point = uniform[:, None] * cumulative[:, -1:]
    rank = torch.searchsorted(cumulative, point, right=True)
    return ids.gather(1, torch.minimum(rank, kept.sum(-1, keepdim=True) - 1))[:, 0]
