from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import interpreter
from support.pools import GUARD, lazy_pool, memory_of
from torch import Tensor
from triton.runtime.interpreter import interpreter_builder

from blockstride.kernels.cache import reference
from blockstride.kernels.cache.gpu import copy_runs
from blockstride.kernels.cache.gpu.copy_runs import PROGRAMS_PER_PROCESSOR, TILE_BYTES
from blockstride.kernels.common.dispatch import INTERPRET

DEVICE = "cpu" if INTERPRET else "cuda"
LENGTHS = (0, 1, 15, 16, 17)
I8, I64 = torch.int8, torch.int64
Run = tuple[int, int, int]
"""Where it is read, where it is written, its length."""


class Store(NamedTuple):
    """One instruction of one program; only the interpreter can tell."""

    program: int
    word_bytes: int
    num_words: int


@pytest.fixture(autouse=True)
def stores(monkeypatch) -> list[Store]:
    """What is written; a word that is not at a multiple of its size is an error, as on a GPU."""
    written: list[Store] = []
    expect_inside = interpreter.expect_inside

    def expect_aligned(ptrs, mask, access: str) -> None:
        expect_inside(ptrs, mask, access)
        if ptrs.data.ndim < 2:
            return
        size = ptrs.get_element_ty().primitive_bitwidth // 8 * ptrs.data.shape[1]
        words = ptrs.data[:, 0][mask.data[:, 0]]
        assert (words % np.uint64(size) == 0).all(), f"{access} of {size} bytes"
        if access == "store":
            written.append(Store(interpreter_builder.grid_idx[0], size, words.size))

    monkeypatch.setattr(interpreter, "expect_inside", expect_aligned)
    return written


def expect_words(stores: list[Store], sizes: set[int], num_bytes: int) -> None:
    """The sizes of words that were written, and that each byte was written once."""
    if INTERPRET:
        assert {store.word_bytes for store in stores} == sizes
        assert sum(store.word_bytes * store.num_words for store in stores) == num_bytes


def memory(num_bytes: int, first: int = GUARD) -> Tensor:
    """Poisoned bytes between two poisoned guards, from byte `first` of an aligned storage on."""
    whole = torch.full((first + num_bytes + GUARD,), 0x7F, dtype=I8, device=DEVICE)
    return whole[first : first + num_bytes]


def random_memory(num_bytes: int, first: int = GUARD) -> Tensor:
    return memory(num_bytes, first).random_(-128, 127)


def columns(runs: list[Run]) -> Tensor:
    return torch.tensor(runs, dtype=I64, device=DEVICE).reshape(-1, 3).T


def spread(lengths: list[int], step: int) -> list[Run]:
    """Runs of some lengths whose starts are odd multiples of `step`, read in reverse order."""
    starts, end = [], step
    for length in lengths:
        starts.append(end)
        end += (length // step + 2) // 2 * 2 * step
    others, end = [], 3 * step
    for length in reversed(lengths):
        others.append(end)
        end += (length // step + 4) // 2 * 2 * step
    return list(zip(reversed(others), starts, lengths, strict=True))


def expect_copied(source: Tensor, destination: Tensor, runs: list[Run]) -> None:
    """Copy, and compare all of both storages with what the reference makes of them."""
    before, whole = memory_of(source).clone(), memory_of(destination)
    expected = whole.clone()
    written = expected.view(I8)[destination.storage_offset() :]
    reference.copy_runs(source, written, *columns(runs))
    copy_runs(source, destination, *columns(runs))
    assert torch.equal(whole, expected)
    assert torch.equal(memory_of(source), before)


def expect_all_copied(runs: list[Run]) -> None:
    """The same between memories that end where the last run does."""
    sizes = [max((run[side] + run[2] for run in runs), default=0) for side in (0, 1)]
    expect_copied(random_memory(sizes[0]), memory(sizes[1]), runs)


@pytest.mark.parametrize("step", [1, 2, 4, 8, 16])
def test_runs_of_any_alignment_and_length_are_copied_and_nothing_else(step, stores):
    tiles = [3 * TILE_BYTES + step, TILE_BYTES, TILE_BYTES - step, 2 * TILE_BYTES]
    lengths = [step * length for length in LENGTHS] + tiles
    expect_all_copied(spread(lengths, step))
    expect_words(stores, {step}, sum(lengths))


@pytest.mark.parametrize("length", [*LENGTHS, 100, 2 * TILE_BYTES + 5])
def test_a_run_of_any_length_between_aligned_places_is_copied(length):
    expect_all_copied([(32, 48, length)])


@pytest.mark.parametrize("side", [0, 1, 2], ids=["source", "destination", "length"])
@pytest.mark.parametrize("word", [1, 2, 4, 8])
def test_the_least_aligned_of_a_runs_ends_decides_its_words(side, word, stores):
    run = [64, 128, 96]
    run[side] += word
    expect_all_copied([(run[0], run[1], run[2])])
    expect_words(stores, {word}, run[2])


def test_each_run_has_words_of_its_own(stores):
    expect_all_copied([(0, 16, 64), (65, 81, 7), (80, 96, 32), (112, 130, 2), (116, 132, 4)])
    expect_words(stores, {1, 2, 4, 16}, 64 + 7 + 32 + 2 + 4)


@pytest.mark.parametrize(("first", "others"), [(3, 67), (8, 40), (16, 17)])
def test_memories_may_begin_anywhere(first, others, stores):
    source, destination = random_memory(300, first), memory(300, others)
    expect_copied(source, destination, [(16 - first % 16, 16 - others % 16, 160)])
    expect_words(stores, {16}, 160)


@pytest.mark.parametrize("extra", [-1, 0, 1, PROGRAMS_PER_PROCESSOR + 1])
def test_a_long_run_is_shared_by_all_programs(extra, stores):
    length = (PROGRAMS_PER_PROCESSOR + extra) * TILE_BYTES - 16
    expect_all_copied([(16, 0, 48), (64, 96, length), (0, 48, 16)])
    expect_words(stores, {16}, 48 + length + 16)
    if INTERPRET:
        share = -(-(PROGRAMS_PER_PROCESSOR + extra + 2) // PROGRAMS_PER_PROCESSOR)
        most = max(Counter(store.program for store in stores).values())
        assert most == share


def test_short_runs_share_a_program(stores):
    generator = np.random.default_rng(0)
    lengths = (8 * generator.integers(1, 12, 300)).tolist()
    expect_all_copied(spread(lengths, 8))
    expect_words(stores, {8}, sum(lengths))
    assert not INTERPRET or len({store.program for store in stores}) == PROGRAMS_PER_PROCESSOR


def test_long_runs_and_short_runs_and_empty_ones_share_a_call(stores):
    lengths = [0, 4, 0, 0, 5 * TILE_BYTES, 4, 0, TILE_BYTES + 4, *[4] * 50, 9 * TILE_BYTES, 0]
    expect_all_copied(spread(lengths, 4))
    expect_words(stores, {4}, sum(lengths))


def test_a_run_may_be_read_twice_and_columns_have_any_stride():
    expect_all_copied([(16, 64, 48), (16, 0, 48), (32, 48, 16)])


@pytest.mark.parametrize("runs", [[], [(5, 7, 0)], [(0, 3, 0)] * 40], ids=len)
def test_nothing_to_copy_is_legal(runs):
    expect_copied(random_memory(64), memory(2 * TILE_BYTES), runs)


@pytest.mark.parametrize("step", [1, 16])
def test_starts_may_pass_2_to_the_31(step, overflow_is_an_error):
    if not INTERPRET:
        pytest.skip("lazily mapped memory is the interpreter's")
    far, length = 2**33 + step, TILE_BYTES + step
    source, destination = (lazy_pool((far + 2 * length,), (1,), I8) for _ in range(2))
    source[far:] = random_memory(2 * length)
    copy_runs(source, destination, *columns([(far, far + length, length), (far + 3, 2**31, 1)]))
    assert torch.equal(destination[far + length :], source[far : far + length])
    assert not destination[far - length : far + length].any()
    assert destination[2**31] == source[far + 3]
    assert not destination[2**31 + 1 : 2**31 + length].any()


@settings(max_examples=30)
@given(data=st.data(), step=st.sampled_from([1, 2, 4, 8, 16]))
def test_any_runs_are_copied_as_by_a_loop(data, step):
    length = st.integers(0, 40) | st.integers(0, 2 * TILE_BYTES // step)
    lengths = data.draw(st.lists(length, max_size=25))
    runs, end = [], 0
    for count in lengths:
        end += data.draw(st.integers(0, 3)) * step
        runs.append((step * data.draw(st.integers(0, 40)), end, step * count))
        end += step * count
    expect_all_copied(data.draw(st.permutations(runs)))
