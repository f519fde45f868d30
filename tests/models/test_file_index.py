"""Files of prefixes: what is found of a sequence is all there, whatever has been removed."""

import os
import random

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from blockstride.models.engine.tiers.file_index import FileIndex


def add(index: FileIndex, tokens: np.ndarray, salt: str = "", *, has_states: bool = True) -> bool:
    """Writes a file of what none has; the index reads nothing of it."""
    file = index.begin(tokens, salt, has_states)
    if file is not None:
        file.path.write_bytes(bytes(100))
        index.on_written(file, True)
    return file is not None


def check(index: FileIndex, tokens: np.ndarray, salt: str) -> int:
    """Length of what is found, of which each token is in a file that comes in its turn."""
    covered = 0
    parts = index.match(tokens, salt)
    for part in parts:
        assert part.file.start <= covered <= part.num_tokens <= len(part.file.tokens)
        assert np.array_equal(part.file.tokens[: part.num_tokens], tokens[: part.num_tokens])
        assert part.file.path.exists()
        covered = part.num_tokens
    return covered


@pytest.mark.parametrize("has_states", [True, False])
@settings(max_examples=settings().max_examples // 4, phases=[Phase.generate])
@given(seed=st.integers(0, 10**9))
def test_what_is_found_is_all_there_whatever_has_been_removed(tmp_path_factory, has_states, seed):
    rng, kept = random.Random(seed), []
    folder = tmp_path_factory.mktemp("files")
    most = rng.choice([500, 100_000])
    index = FileIndex(folder, most, has_states=has_states, has_windows=False)
    for _ in range(40):
        trunk = rng.choice(kept)[: rng.randint(0, 30)] if kept else np.zeros(0, np.int32)
        own = np.array([rng.randint(0, 2) for _ in range(rng.randint(1, 12))], np.int32)
        tokens = np.concatenate([trunk, own])
        kept.append(tokens)
        add(index, tokens, has_states=has_states and rng.random() < 0.7)
        if rng.random() < 0.1:
            index.on_damaged(os.fspath(rng.choice([*folder.iterdir()] or [folder])))
        assert index.nbytes <= most
        for known in kept:
            assert check(index, known, "other") == 0
            check(index, known, "")
    everything = kept[-1]
    add(index, everything, has_states=has_states)
    assert check(index, everything, "") == len(everything)


def test_nothing_is_written_twice_and_a_state_alone_where_tokens_are_known(tmp_path):
    index = FileIndex(tmp_path, 1 << 20, has_states=True, has_windows=False)
    tokens = np.arange(50, dtype=np.int32)
    assert add(index, tokens)
    assert not add(index, tokens)
    assert check(index, tokens[:40], "") == 0
    assert add(index, tokens[:40])
    assert check(index, tokens[:40], "") == 40
    first, second = index.match(tokens[:40], "")
    assert (first.file.start, first.num_tokens, first.has_states) == (0, 40, False)
    assert (second.file.start, second.num_tokens, second.has_states) == (40, 40, True)


def test_of_windows_only_whole_parts_are_of_use(tmp_path):
    index = FileIndex(tmp_path, 1 << 20, has_states=False, has_windows=True)
    tokens = np.arange(50, dtype=np.int32)
    add(index, tokens[:30], has_states=False)
    add(index, tokens, has_states=False)
    assert [check(index, tokens[:n], "") for n in (29, 30, 40, 50)] == [0, 30, 30, 50]
