"""Copies what a plan says with numpy, in one process: the oracle of transports."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import UInt8

from blockstride.transfer import CopyPlan, Indices
from blockstride.transfer.byte_ranges import byte_ranges

LONG_RUN = 1 << 12
"""Bytes above which a run is copied by itself."""

Storages = Mapping[int, UInt8[np.ndarray, "_"]]
"""Pool number -> the bytes of its storage."""


def execute(copy: CopyPlan, indices: Indices, local: Storages, remote: Storages) -> None:
    """Copies the bytes of a request, descriptor by descriptor.

    Args:
        copy: The plan.
        indices: Index arrays that it made.
        local: Storages that are written.
        remote: Storages that are read.
    """
    to, start = byte_ranges(copy, indices, "local"), byte_ranges(copy, indices, "remote")
    for side, ranges, storages in (("local", to, local), ("remote", start, remote)):
        for pool in np.unique(ranges.pool).tolist():
            stop = int((ranges.first + ranges.length)[ranges.pool == pool].max())
            assert stop <= len(storages[pool]), f"{side} storage {pool}"
    assert (to.length == start.length).all()
    columns = (to.pool, start.pool, to.length)
    kinds = np.ravel_multi_index(columns, [int(max(c, default=0)) + 1 for c in columns])
    for kind, first in zip(*np.unique(kinds, return_index=True), strict=True):
        target, source, size = (int(column[first]) for column in columns)
        which = kinds == kind
        _copy(local[target], to.first[which], remote[source], start.first[which], size)


def _copy(
    target: np.ndarray, to: np.ndarray, source: np.ndarray, start: np.ndarray, size: int
) -> None:
    if size > LONG_RUN:
        for a, b in zip(to.tolist(), start.tolist(), strict=True):
            target[a : a + size] = source[b : b + size]
        return
    steps = np.arange(size)
    target[to[:, None] + steps] = source[start[:, None] + steps]
