"""Telling requests how likely their tokens were."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from blockstride.models.engine.request import Request
from blockstride.models.engine.token_logprobs import TokenLogprobs, token_logprobs


def new_logprobs(
    logits: Float[Tensor, "num_rows vocab_size"], requests: Sequence[Request], tokens: Sequence[int]
) -> list[TokenLogprobs | None]:
    """How likely new tokens were; None where nobody asks, or none could be chosen.

    Args:
        logits: The model's scores, a row for each request.
        requests: The requests.
        tokens: What was chosen; below 0 where nothing could be.
    """
    all_told: list[TokenLogprobs | None] = [None] * len(tokens)
    asked = [
        (row, token, request.params.logprobs)
        for row, (request, token) in enumerate(zip(requests, tokens, strict=True))
        if request.params.logprobs is not None and token >= 0
    ]
    if asked:
        rows, chosen, counts = zip(*asked, strict=True)
        for row, told in zip(rows, token_logprobs(logits[list(rows)], chosen, counts), strict=True):
            all_told[row] = told
    return all_told


def tell_prompt_logprobs(
    logits: Float[Tensor, "num_rows vocab_size"], scored: Sequence[tuple[Request, range]]
) -> None:
    """Adds to `Request.prompt_logprobs`.

    Args:
        logits: Scores after each of the positions, request after request.
        scored: Requests, and positions whose next token is to be told.
    """
    sizes = [len(positions) for _, positions in scored]
    for (request, positions), rows in zip(scored, logits.split(sizes), strict=True):
        if not positions:
            continue
        count = request.params.prompt_logprobs
        assert count is not None, "no others are scored"
        tokens = request.prompt_ids[positions.start + 1 : positions.stop + 1]
        told = token_logprobs(rows, tokens, [count] * len(tokens))
        request.prompt_logprobs.extend(told)
