"""What requests want done to logits before a token is chosen: biases, penalties, bans.

A step touches only the logits of tokens that some request names or has had, by one copy to the
device and a few launches for all requests together. Where nobody asks, nothing is done.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from blockstride.models.engine.sampling import SamplingParams
from blockstride.models.engine.token_history import TokenHistory

MINUS_INFINITY = float("-inf")


class Edits(NamedTuple):
    """Changes of one row of logits, in this order; tokens of each kind are distinct.

    Attributes:
        allowed: The only tokens that can be; none: all can.
        biased: Tokens to which `biases` are added.
        biases: See there.
        had: Tokens that are penalised.
        divisors: What their logits are divided by where positive, else multiplied by.
        taken: What is then taken from them.
        banned: Tokens that can't be.
    """

    allowed: Int64[np.ndarray, " num_allowed"]
    biased: Int64[np.ndarray, " num_biased"]
    biases: Float64[np.ndarray, " num_biased"]
    had: Int64[np.ndarray, " num_had"]
    divisors: Float64[np.ndarray, " num_had"]
    taken: Float64[np.ndarray, " num_had"]
    banned: Int64[np.ndarray, " num_banned"]


class LogitChanges:
    """What one request wants done, from its prompt to its last token.

    It depends on the request's tokens alone: neither on the batch, nor on the engine that they were
    computed in.

    Args:
        params: What it asks.
        prompt_ids: Tokens of its prompt.
        end_ids: Tokens that end any answer of the model.
        vocab_size: Tokens that there are.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        end_ids: Collection[int],
        vocab_size: int,
    ) -> None:
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(end_ids))
        bad = set(params.bad_token_ids)
        self._params = params
        self._allowed = _array(params.allowed_token_ids or ())
        self._biased = _array(params.logit_bias)
        self._biases = np.array(list(params.logit_bias.values()), np.float64)
        self._banned = _array(bad)
        self._banned_at_first = _array(bad | {end for end in ends if end < vocab_size})
        repeats = params.repetition_penalty != 1
        self._history = TokenHistory(prompt_ids if repeats else ()) if params.penalises else None

    def edits(self, output_ids: Sequence[int]) -> Edits:
        """What to do before the next token is chosen.

        Args:
            output_ids: The answer so far.
        """
        params = self._params
        is_first = len(output_ids) < params.min_tokens
        banned = self._banned_at_first if is_first else self._banned
        had, counts = (_array(()),) * 2 if self._history is None else self._history.read(output_ids)
        taken = params.presence_penalty * (counts > 0) + params.frequency_penalty * counts
        divisors = np.full(len(had), params.repetition_penalty)
        penalties = had, divisors, taken.astype(np.float64)
        return Edits(self._allowed, self._biased, self._biases, *penalties, banned)


def change_logits(
    logits: Float[Tensor, "num_seqs vocab_size"], edits: Sequence[tuple[int, Edits]]
) -> Float32[Tensor, "num_seqs vocab_size"]:
    """Changed logits, in new memory.

    Args:
        logits: Scores of the next token of each row.
        edits: Rows that are changed, and how.
    """
    changed = logits.to(torch.float32, copy=True)
    flat, vocab = changed.view(-1), logits.shape[1]
    # places in the flat logits; numbers stay what they are
    placed = [
        Edits(*(a + row * vocab if a.dtype == np.int64 else a for a in each)) for row, each in edits
    ]
    limited = np.array([row for row, each in edits if len(each.allowed)], np.int64)
    joined = Edits(*map(np.concatenate, zip(*placed, strict=True)))
    limited, allowed, biased, biases, had, divisors, taken, banned = _upload(
        [limited, *joined], logits.device
    )
    if len(limited):
        kept = flat[allowed]
        changed[limited] = MINUS_INFINITY
        flat[allowed] = kept
    if len(biased):
        flat[biased] += biases.float()
    if len(had):
        scores, divisors = flat[had], divisors.float()
        scores = torch.where(scores < 0, scores * divisors, scores / divisors)
        flat[had] = scores - taken.float()
    if len(banned):
        flat[banned] = MINUS_INFINITY
    return changed


def _upload(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Arrays of 64-bit numbers on a device, by one copy that need not wait for anything."""
    packed = torch.from_numpy(np.concatenate([array.view(np.int64) for array in arrays]))
    parts = packed.to(device, non_blocking=True).split([len(array) for array in arrays])
    floats = [array.dtype == np.float64 for array in arrays]
    return [p.view(torch.float64) if f else p for p, f in zip(parts, floats, strict=True)]


def _array(tokens: Collection[int]) -> Int64[np.ndarray, " num_tokens"]:
    return np.array(list(tokens), np.int64)
