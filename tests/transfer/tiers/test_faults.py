"""Torn, foreign and unfinished caches are refused before a byte of them reaches a pool."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from blockstride.transfer import BlockIds
from blockstride.transfer.connector import DeadlineError
from blockstride.transfer.tiers import CacheFile, CacheFileError, CacheFileWriter, HostCache
from tests.transfer.support import POISON, Side, storages
from tests.transfer.tiers.conftest import SAVES

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def whole(hands, tmp_path):
    """A file that all ranks have written."""
    path = tmp_path / "whole.cache"
    writer = CacheFileWriter(path, hands.case.remote, hands.case.num_tokens)
    hands.save(writer)
    writer.seal()
    return path


def refused(hands, path, match) -> None:
    """Opening or reading a file fails, and the pools stay as they were."""
    got = storages(hands.case.local, 0)
    offloader = hands.offloader(hands.case.local, 0, got)
    with pytest.raises(CacheFileError, match=match) as error, CacheFile(path) as file:
        offloader.read(file, hands.request.local)
    assert str(path) in str(error.value)
    assert all((memory == POISON).all() for memory in got.values())


@pytest.mark.parametrize("place", ["magic", "version", "header", "first block", "last byte"])
def test_a_flipped_bit_anywhere_is_found(hands, whole, place):
    with CacheFile(whole) as file:
        data = min(at + file.engine.block_bytes[pool] for pool, at in file.place.addresses.items())
    content = bytearray(whole.read_bytes())
    at = {"magic": 0, "version": 8, "header": 200, "first block": data, "last byte": -1}[place]
    content[at] ^= 1
    whole.write_bytes(content)
    refused(hands, whole, "expected")


@pytest.mark.parametrize("size", [0, 7, 19, 20, 300, 5000, -1])
def test_a_file_that_was_cut_off_is_refused(hands, whole, size):
    content = whole.read_bytes()
    whole.write_bytes(content[:size])
    refused(hands, whole, "expected")


def test_a_longer_file_and_a_foreign_one_are_refused(hands, whole, tmp_path):
    whole.write_bytes(whole.read_bytes() + b"\0")
    refused(hands, whole, "bytes")
    foreign = tmp_path / "foreign.cache"
    foreign.write_bytes(os.urandom(1 << 16))
    refused(hands, foreign, "magic word")


def test_a_header_with_a_right_checksum_is_not_believed_either(hands, whole):
    from blockstride.transfer.tiers import file_format as form  # noqa: PLC0415

    content = whole.read_bytes()
    size = form.header_bytes(content[: form.PREAMBLE.size])
    header, _ = form.decode(content[: form.PREAMBLE.size], content[form.PREAMBLE.size :][:size])
    for change in ({"num_tokens": 2**31 - 1}, {"num_states": 2**20}, {"checksums": b""}):
        lying = form.msgspec.structs.replace(header, **change)
        body = form.msgspec.msgpack.encode(lying)
        crc = form.zlib.crc32(body)
        preamble = form.PREAMBLE.pack(form.MAGIC, form.VERSION, len(body), crc)
        whole.write_bytes(preamble + body + content[form.PREAMBLE.size + size :])
        refused(hands, whole, "header")


def test_a_file_without_the_part_of_a_rank_is_never_sealed(hands, tmp_path):
    path = tmp_path / "a.cache"
    writer = CacheFileWriter(path, hands.case.remote, hands.case.num_tokens)
    hands.save(writer, range(3))
    with pytest.raises(ValueError, match=r"parts of all ranks, got none of ranks \[3\]"):
        writer.seal()
    assert not path.exists()
    (partial,) = tmp_path.iterdir()
    refused(hands, partial, "never finished")
    hands.save(writer, range(3, 4))
    writer.seal()
    with CacheFile(path) as file:
        hands.check(file)


def test_a_host_cache_without_the_part_of_a_rank_is_not_read(hands):
    host = HostCache(hands.case.remote, hands.case.num_tokens)
    hands.save(host, range(1, 4))
    with pytest.raises(ValueError, match=r"got none of ranks \[0\]"):
        hands.load(host, 0)


def test_a_file_that_is_being_written_is_not_read_and_a_whole_one_not_written(hands, whole):
    writer = CacheFileWriter(whole, hands.case.remote, hands.case.num_tokens)
    with pytest.raises(ValueError, match="a whole one"):
        hands.load(writer, 0)
    writer.abandon()
    assert [*whole.parent.iterdir()] == [whole]
    with CacheFile(whole) as file, pytest.raises(ValueError, match="in the making"):
        hands.save(file)


def test_a_full_disk_is_found_before_anything_is_written(hands, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left on device.*a.cache"):
        CacheFileWriter(tmp_path / "a.cache", hands.case.remote, hands.case.num_tokens)
    assert not list(tmp_path.iterdir())


LIMITED = """
import resource, signal, sys
from tests.transfer.tiers.conftest import SAVES
from tests.transfer.support import NUM_TOKENS
from blockstride.transfer.tiers import CacheFileWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
try:
    CacheFileWriter(sys.argv[1], SAVES, NUM_TOKENS)
except OSError as error:
    print(error)
"""


def run(script: str, *arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-c", script, *(str(argument) for argument in arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_system_that_refuses_the_bytes_leaves_no_file(tmp_path):
    process = run(LIMITED, tmp_path / "a.cache")
    output, _ = process.communicate(timeout=60)
    assert "File too large" in output
    assert "a.cache" in output
    assert not list(tmp_path.iterdir())


WRITES = """
import sys, time
from tests.transfer.tiers.conftest import LOADS, SAVES, hands_of
from tests.transfer.support import NUM_TOKENS, HandOver
from blockstride.transfer.tiers import CacheFileWriter
path, first, joins, waits = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1", sys.argv[4] == "1"
with hands_of(HandOver(LOADS, SAVES, NUM_TOKENS)) as hands:
    with CacheFileWriter(path, SAVES, NUM_TOKENS, save_id="save 1", join=joins) as writer:
        hands.save(writer, range(first, first + 2))
        print("written", flush=True)
        if waits:
            sys.stdin.read()
"""


def test_ranks_in_processes_of_their_own_write_one_file(hands, tmp_path):
    path = tmp_path / "a.cache"
    made = CacheFileWriter(path, SAVES, hands.case.num_tokens, save_id="save 1")
    processes = [run(WRITES, path, first, 1, 0) for first in (0, 2)]
    for process in processes:
        output, _ = process.communicate(timeout=120)
        assert "written" in output
    made.seal()
    with CacheFile(path) as file:
        hands.check(file)


def test_a_writer_that_is_killed_leaves_nothing_that_could_be_read(hands, tmp_path):
    path = tmp_path / "a.cache"
    command = [sys.executable, "-c", WRITES, str(path), "0", "0", "1"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while (line := process.stdout.readline()) and "written" not in line:
            pass
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    with pytest.raises(FileNotFoundError):
        CacheFile(path)
    (partial,) = tmp_path.iterdir()
    refused(hands, partial, "never finished")
    # the others can see that it did its part, and finish
    tokens = hands.case.num_tokens
    with CacheFileWriter(path, SAVES, tokens, save_id="save 1", join=True) as writer:
        hands.save(writer, range(2, 4))
        writer.seal()
    with CacheFile(path) as file:
        hands.check(file)


def test_joining_a_file_of_another_sequence_is_refused(hands, tmp_path):
    path = tmp_path / "a.cache"
    made, tokens = CacheFileWriter(path, SAVES, hands.case.num_tokens), hands.case.num_tokens + 400
    with pytest.raises(ValueError, match=r"^file: expected one of"):
        CacheFileWriter(path, SAVES, tokens, save_id=made.save_id, join=True)
    made.abandon()


def test_another_models_cache_is_refused_by_the_name_of_what_differs(hands, whole):
    other = Side(4, 1, 2, SAVES.layout, "split", 4, True, "DS").engine()
    got = storages(other, 0)
    with CacheFile(whole) as file, pytest.raises(ValueError, match="mamba2"):
        hands.offloader(other, 0, got).read(file, hands.request.local)
    assert all((memory == POISON).all() for memory in got.values())


def test_block_ids_that_cannot_be_right_are_refused(hands, whole):
    tables = [*hands.request.local]
    tables[0] = BlockIds(np.zeros_like(tables[0].ids), tables[0].first)
    got = storages(hands.case.local, 0)
    with CacheFile(whole) as file, pytest.raises(ValueError, match="local ids of group 0"):
        hands.offloader(hands.case.local, 0, got).read(file, tables)
    assert all((memory == POISON).all() for memory in got.values())


def test_a_call_ends_at_its_deadline(hands, whole, monkeypatch):
    offloader = hands.offloader(
        hands.case.local, 0, storages(hands.case.local, 0), timeout_seconds=0.2
    )
    nixl = offloader._agent.nixl.agent
    monkeypatch.setattr(nixl, "transfer", lambda handle: "PROC")
    monkeypatch.setattr(nixl, "check_xfer_state", lambda handle: "PROC")
    with CacheFile(whole) as file, pytest.raises(DeadlineError, match=r"within 0.2 s"):
        offloader.read(file, hands.request.local)


def test_a_closed_file_is_named(hands, whole):
    file = CacheFile(whole)
    file.close()
    with pytest.raises(ValueError, match="closed"):
        hands.load(file, 0)
