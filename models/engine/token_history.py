"""Which tokens a request has had, and how often each is in its answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int64

ROOM = 256
"""Tokens that there is room for beside those of the prompt, at first."""


class TokenHistory:
    """The distinct tokens of a request and their counts, kept up to date token by token.

    Args:
        prompt_ids: Tokens that were had and are in no answer.
    """

    def __init__(self, prompt_ids: Iterable[int] = ()) -> None:
        self._place = {token: i for i, token in enumerate(dict.fromkeys(prompt_ids))}
        size = len(self._place)
        # ids, and counts below them
        self._table = np.zeros((2, size + ROOM), np.int64)
        self._table[0, :size] = list(self._place)
        self._num_seen = 0

    def read(
        self, output_ids: Sequence[int]
    ) -> tuple[Int64[np.ndarray, " num_had"], Int64[np.ndarray, " num_had"]]:
        """Takes in what an answer has that it had not when it was last asked.

        Args:
            output_ids: The answer so far.

        Returns:
            The distinct tokens, and how often each is in the answer; good until the next call.
        """
        for token in output_ids[self._num_seen :]:
            place = self._place.setdefault(token, len(self._place))
            if place == self._table.shape[1]:
                self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
            self._table[0, place] = token
            self._table[1, place] += 1
        self._num_seen = len(output_ids)
        ids, counts = self._table[:, : len(self._place)]
        return ids, counts
