"""Chunks: how many descriptors NIXL will make of index arrays, and where they are cut."""

import numpy as np
import pytest

from blockstride.transfer import Indices
from blockstride.transfer.nixl.chunks import RowList, cut

DENSE = [[0, 64, 0, 64, 10], [640, 64, 0, 64, 10]]
GAPS = [[0, 64, 0, 128, 10], [1280, 64, 0, 128, 10]]


def rows(*lines: list[int]) -> RowList:
    return RowList(np.array(lines, dtype=np.int64))


def indices(local: list[int], remote: list[int]) -> Indices:
    return Indices(np.array(local, dtype=np.int32), np.array(remote, dtype=np.int32))


@pytest.mark.parametrize(
    ("local", "remote", "merged"),
    [
        ([0, 1, 2, 3], [4, 5, 6, 7], 1),
        ([0, 1, 2, 3], [7, 6, 5, 4], 4),
        ([0, 1, 3, 4], [0, 1, 3, 4], 2),
        ([0, 1, 2, 3], [0, 1, 3, 4], 2),
        # rows are never crossed, though their memory adjoins
        ([8, 9, 10, 11], [8, 9, 10, 11], 2),
        ([8, 9, 10], [3, 4, 5], 2),
        ([], [], 0),
    ],
)
def test_neighbours_of_one_dense_row_on_both_sides_become_one(local, remote, merged):
    dense = rows(*DENSE)
    chunks = list(cut(dense, dense, indices(local, remote), 1 << 20))
    assert sum(chunk.merged for chunk in chunks) == merged


@pytest.mark.parametrize("sides", [(GAPS, DENSE), (DENSE, GAPS)])
def test_a_row_with_gaps_on_either_side_merges_nothing(sides):
    local, remote = (rows(*side) for side in sides)
    (chunk,) = cut(local, remote, indices([0, 1, 2], [0, 1, 2]), 1 << 20)
    assert chunk.merged == 3


def test_a_chunk_ends_before_it_gets_too_large_and_neighbours_part_there():
    dense = rows(*DENSE)
    chunks = list(cut(dense, dense, indices([*range(10)], [*range(10)]), 3 * 64 + 63))
    assert [chunk.nbytes for chunk in chunks] == [192, 192, 192, 64]
    assert [chunk.merged for chunk in chunks] == [1, 1, 1, 1]
    assert np.concatenate([chunk.indices.local for chunk in chunks]).tolist() == [*range(10)]


def test_a_descriptor_larger_than_a_chunk_is_a_chunk_of_its_own():
    dense = rows(*DENSE)
    chunks = list(cut(dense, dense, indices([0, 1], [0, 1]), 10))
    assert [chunk.nbytes for chunk in chunks] == [64, 64]


def test_indices_outside_the_list_are_refused():
    dense = rows(*DENSE)
    for wrong in ([20], [-1]):
        with pytest.raises(ValueError, match="indices: expected descriptors of the prepared list"):
            list(cut(dense, dense, indices(wrong, [0]), 1 << 20))
