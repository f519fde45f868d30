"""Calibration: measures NIXL and conversions on this machine, for the cost model of plans."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np
import torch

from blockstride.checks import expect
from blockstride.kernels import block_copy
from blockstride.layouts import KVCacheLayout
from blockstride.transfer import CostModel, Indices, calibrate
from blockstride.transfer.nixl import Chunk, TransferAgent

OWNER = "calibrate-owner"
REPEATS = 5
REGION_BYTES = 1 << 28
"""Memory of each side: several times what the largest probe spans."""

DEADLINE_SECONDS = 60.0
"""The most that the other process may take to start, to end, or to give what is read."""


def measure_cost_model() -> CostModel:
    """Fits the cost model to READs from another process, between host memories.

    Raises:
        ValueError: NIXL is not installed, or its times do not fit.
        TimeoutError: The process that is read from does not start, or does not give.
    """
    source = f"NIXL, UCX over host memory, {platform.machine()}, {os.cpu_count()} cores"
    here, there = get_context("spawn").Pipe()
    owner = get_context("spawn").Process(target=_own_memory, args=(there,), daemon=True)
    owner.start()
    # so that its end is seen from here
    there.close()
    try:
        return calibrate(_read_seconds(here), _conversion_rate(), source)
    finally:
        # the owner ends when the pipe does, and is not waited for longer than it may take
        here.close()
        owner.join(DEADLINE_SECONDS)
        if owner.is_alive():
            owner.kill()
            owner.join()


def _agent(name: str) -> tuple[TransferAgent, int]:
    """An agent, and the address of the memory that it has registered."""
    try:
        agent = TransferAgent(name)
    except ImportError as error:
        raise ValueError("--calibrate: expected nixl to be installed, got none") from error
    registration = agent.register({0: torch.ones(REGION_BYTES, dtype=torch.int8)})
    return agent, registration.memory.addresses[0]


def _own_memory(pipe: Connection) -> None:
    """The process that is read from: answers until the pipe is closed."""
    agent, address = _agent(OWNER)
    pipe.send((agent.metadata, address))
    while not pipe.poll():
        # without a progress thread an agent answers only when it is called
        agent.progress()


def _read_seconds(pipe: Connection) -> Callable[[int, int], float]:
    """`(descriptors, bytes of each) -> seconds` of the fastest of some READs."""
    reader, ours = _agent("calibrate-reader")
    if not pipe.poll(DEADLINE_SECONDS):
        raise TimeoutError(f"{OWNER}: expected a start within {DEADLINE_SECONDS} s, got none")
    try:
        metadata, theirs = pipe.recv()
    except EOFError as error:
        raise ValueError(f"{OWNER}: expected its agent, got an end") from error
    peer = reader.connect(metadata, OWNER)

    def seconds(count: int, nbytes: int) -> float:
        # every other range, so that NIXL merges none
        span, ids = 2 * nbytes * count, np.arange(count, dtype=np.int32)
        chunk = Chunk(Indices(ids, ids), count * nbytes, count)
        what, times = f"{count} READs of {nbytes} bytes", []
        for repeat in range(REPEATS):
            # other memory every time, so that no cache holds it
            first = repeat * span % (REGION_BYTES - span + 1)
            local, remote = (
                np.array([[address + first, nbytes, 0, 2 * nbytes, count]], dtype=np.int64)
                for address in (ours, theirs)
            )
            prepared = reader.prepare_rows("local", {"local": local, "remote": remote}, peer)
            begin = time.perf_counter()
            posting = prepared.post("READ", chunk)
            while not posting.poll():
                if time.perf_counter() - begin > DEADLINE_SECONDS:
                    raise TimeoutError(f"{OWNER}: expected {what}, got none")
            times.append(time.perf_counter() - begin)
            # a time of what has failed would pass for that of a fast transport
            expect(posting.error is None, OWNER, what, posting.error)
            peer.release()
        return min(times)

    return seconds


def _conversion_rate() -> float:
    """Bytes per second that `block_copy` turns heads-first blocks into tokens-first ones."""
    shape = (1, 256, 8, 16, 256)
    ids = torch.arange(1, shape[1], dtype=torch.int32)
    pools = [
        KVCacheLayout(order).to_logical(
            torch.ones([shape["LBHNC".index(axis)] for axis in order], dtype=torch.bfloat16)
        )
        for order in ("LBHNC", "LBNHC")
    ]
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        block_copy(pools[0], pools[1], ids, ids)
        times.append(time.perf_counter() - begin)
    return len(ids) * pools[0][0, 0].numel() * pools[0].element_size() / min(times)
