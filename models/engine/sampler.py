"""A vectorised sampler: the next token of every row, each by its own parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from blockstride.models.engine.noise import exponential, noise_key
from blockstride.models.engine.sampling import SamplingParams

# what a probability's share of the most likely token's is counted in: fine enough for any tail, and
# the sum over a vocabulary is still whole in a float64
WHOLE = 2.0**36


def sample(
    logits: Float[Tensor, "num_seqs vocab_size"],
    params: Sequence[SamplingParams],
    seeds: Sequence[int],
    positions: Sequence[int],
) -> list[int]:
    """One token for each row, on the device of the logits; the ids are the one thing copied back.

    A token is drawn by a race: every id takes a time from an exponential distribution, divides it
    by its probability, and the least one wins. Times belong to (seed, position, id), so a request
    gives the same text in any batch, and a logit that is rounded otherwise there moves the time of
    its own id alone: the draw changes about as seldom as it can.

    Args:
        logits: Scores of the next token; minus infinity for what can't be.
        params: Parameters of each row.
        seeds: Seed of each row; greedy rows need none.
        positions: Tokens that each row's request has drawn before.

    Returns:
        Ids; -1 for a row whose scores are no distribution, having a NaN or infinity among them or
        nothing else than minus infinity.
    """
    best, tokens = logits.max(-1)
    drawn = [i for i, p in enumerate(params) if p.temperature > 0]
    if drawn:
        chosen = [params[i] for i in drawn]
        keys = [noise_key(seeds[i], positions[i]) for i in drawn]
        controls = _Controls.of(drawn, chosen, keys, logits)
        if len(drawn) == len(params):
            tokens = _draw(logits, best, controls)
        else:
            rows = controls.rows
            tokens = tokens.index_copy(0, rows, _draw(logits[rows], best[rows], controls))
    return tokens.where(best.isfinite(), -1).tolist()


class _Controls(NamedTuple):
    """What drawn rows ask for, on the device of their logits; None for what no row asks for."""

    rows: Int64[Tensor, " num_rows"]
    keys: Int64[Tensor, " num_rows"]
    temperature: Float32[Tensor, "num_rows 1"]
    top_k: Int64[Tensor, "num_rows 1"] | None
    most: int
    top_p: Float64[Tensor, "num_rows 1"] | None
    min_p: Float32[Tensor, "num_rows 1"] | None

    @classmethod
    def of(
        cls, rows: list[int], params: list[SamplingParams], keys: list[int], logits: Tensor
    ) -> _Controls:
        vocab = logits.shape[1]
        top_k = [p.top_k if p.top_k < vocab else 0 for p in params]
        floats = np.array([[p.temperature, p.top_p, p.min_p] for p in params]).T.copy()
        packed = np.array([rows, keys, top_k, *floats.view(np.int64)])
        # one copy, which need not wait for the logits
        packed = torch.from_numpy(packed).to(logits.device, non_blocking=True)
        temperature, top_p, min_p = packed[3:].view(torch.float64)[..., None]
        limits = torch.finfo(torch.float32)
        return cls(
            packed[0],
            packed[1],
            temperature.clamp(limits.tiny, limits.max).float(),
            packed[2][:, None] if any(top_k) else None,
            max(top_k),
            top_p if any(p.top_p < 1 for p in params) else None,
            min_p.float() if any(p.min_p > 0 for p in params) else None,
        )


def _draw(logits: Tensor, best: Tensor, controls: _Controls) -> Int64[Tensor, " num_rows"]:
    # how far each logit is below the best one, which is 0: no temperature makes NaN of that. Rows
    # that have no best one get equal numbers, since anything will do
    gap = (best[:, None].float() - logits).abs_().nan_to_num_(0.0, posinf=float("inf"))
    weights = (gap / -controls.temperature).exp_()
    if controls.top_k is not None:
        weights.masked_fill_(~_most_likely(gap, controls.top_k, controls.most), 0.0)
    if controls.top_p is not None:
        weights.masked_fill_(~_nucleus(gap, weights, controls.top_p), 0.0)
    if controls.min_p is not None:
        # the likeliest token's weight is 1
        weights.masked_fill_(weights < controls.min_p, 0.0)
    return weights.div_(exponential(controls.keys, gap.shape[1])).argmax(-1)


def _most_likely(
    gap: Float32[Tensor, "num_rows vocab_size"], top_k: Int64[Tensor, "num_rows 1"], most: int
) -> Bool[Tensor, "num_rows vocab_size"]:
    """The `top_k` nearest, at most `most`, of each row; all where that is 0."""
    nearest = gap.topk(most, largest=False).values
    last = nearest.gather(1, (top_k - 1).clamp(min=0))
    last.masked_fill_(top_k == 0, float("inf"))
    nearer = gap < last
    return _and_first(nearer, gap == last, top_k - nearer.sum(1, keepdim=True))


def _nucleus(
    gap: Float32[Tensor, "num_rows vocab_size"],
    weights: Float32[Tensor, "num_rows vocab_size"],
    top_p: Float64[Tensor, "num_rows 1"],
) -> Bool[Tensor, "num_rows vocab_size"]:
    """The nearest whose weights, of those that are not 0, add up to a share of `top_p`.

    How far the last of them is off is found ten bits at a time: bits order numbers that are not
    negative. Weights are added as integers: in whatever order, the sum is the same.
    """
    shares = (weights * WHOLE).long()
    total = shares.sum(1, keepdim=True)
    wanted = (top_p * total).ceil_().long().minimum(total)
    bits = gap.view(torch.int32)
    last, here, left = torch.zeros_like(wanted), total, shares
    for shift in (20, 10, 0):
        digit = (bits >> shift if shift == 20 else (bits >> shift) & 1023).long()
        sums = left.new_zeros(len(left), 2048).scatter_add_(1, digit, left)
        up_to = sums.cumsum(1)
        place = (up_to < wanted).sum(1, keepdim=True)
        here = sums.gather(1, place)
        wanted = wanted - (up_to.gather(1, place) - here)
        last = last | (place << shift)
        left = left.where(digit == place, 0)
    ties = left > 0
    each = here // ties.sum(1, keepdim=True)
    return _and_first(bits < last, ties, (wanted + each - 1) // each)


def _and_first(chosen: Tensor, ties: Tensor, count: Tensor) -> Tensor:
    """What is chosen, and the first `count` of each row's ties."""
    return chosen | (ties & (ties.cumsum(1, dtype=torch.int32) <= count))
