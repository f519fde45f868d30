"""How likely tokens were: log-probabilities of the model's own distribution.

They are those of the logits as the model gives them, at temperature 1: no bias, penalty, ban or
limit of a request changes what is told, only what is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class TokenLogprobs(NamedTuple):
    """How likely a token was, and which were likeliest there.

    Attributes:
        token_id: The token.
        logprob: Natural logarithm of its probability.
        top: The most likely tokens and theirs, the likeliest first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(
    logits: Float[Tensor, "num_rows vocab_size"], tokens: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs]:
    """How likely the token of each row was.

    Args:
        logits: Scores of the next token.
        tokens: That token.
        counts: How many of the likeliest to tell of each row; no more than there are.
    """
    scores = logits.float().log_softmax(-1)
    ids = torch.tensor(tokens, dtype=torch.int64).to(scores.device, non_blocking=True)
    top = scores.topk(min(max(counts), scores.shape[1]))
    # ids are whole in a float64, so one copy brings all
    parts = [scores.gather(1, ids[:, None]), top.values, top.indices]
    rows = torch.cat([part.double() for part in parts], 1).tolist()
    size = top.values.shape[1]
    told = []
    for token, [logprob, *rest], count in zip(tokens, rows, counts, strict=True):
        likeliest = zip(map(int, rest[size:][:count]), rest, strict=False)
        told.append(TokenLogprobs(token, logprob, tuple(likeliest)))
    return told
