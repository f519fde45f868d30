"""Calibration: measures NIXL and conversions on this machine, for the cost model of plans."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

import numpy as np
import torch

from blockstride.kernels import block_copy
from blockstride.layouts import KVCacheLayout
from blockstride.transfer import CostModel, calibrate

REPEATS = 5
REGION_BYTES = 1 << 26
"""Memory of each side: twice the largest probe, so that ranges can be apart."""


def measure_cost_model() -> CostModel:
    """Fits the cost model to READs between two NIXL agents of this process, in host memory.

    Raises:
        ValueError: NIXL is not installed, or its times do not fit.
    """
    source = f"NIXL, UCX over host memory, {platform.machine()}, {torch.get_num_threads()} threads"
    return calibrate(_nixl_read_seconds(), _conversion_rate(), source)


def _nixl_read_seconds() -> Callable[[int, int], float]:
    """`(descriptors, bytes of each) -> seconds` of the fastest of some READs."""
    try:
        from nixl._api import nixl_agent, nixl_agent_config  # noqa: PLC0415
    except ImportError as error:
        raise ValueError("--calibrate: expected nixl to be installed, got none") from error
    config = nixl_agent_config(enable_prog_thread=False)
    reader, owner = nixl_agent("calibrate-reader", config), nixl_agent("calibrate-owner", config)
    ours, theirs = (np.ones(REGION_BYTES, dtype=np.uint8) for _ in range(2))
    for agent, region in ((reader, ours), (owner, theirs)):
        agent.register_memory([(region.ctypes.data, region.nbytes, 0, "")], "DRAM")
    reader.add_remote_agent(owner.get_agent_metadata())
    owner.add_remote_agent(reader.get_agent_metadata())

    def seconds(count: int, nbytes: int) -> float:
        # every other range, so that NIXL merges none
        rows = [
            np.array([[region.ctypes.data, nbytes, 0, 2 * nbytes, count]], dtype=np.int64)
            for region in (ours, theirs)
        ]
        local = reader.prep_xfer_dlist("NIXL_INIT_AGENT", rows[0], "DRAM")
        remote = reader.prep_xfer_dlist("calibrate-owner", rows[1], "DRAM")
        ids = np.arange(count, dtype=np.int32)
        handle = reader.make_prepped_xfer("READ", local, ids, remote, ids)
        times = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            state = reader.transfer(handle)
            while state == "PROC":
                # without a progress thread the owner answers only when it calls its agent
                owner.get_new_notifs()
                state = reader.check_xfer_state(handle)
            times.append(time.perf_counter() - begin)
        reader.release_xfer_handle(handle)
        for prepared in (local, remote):
            reader.release_dlist_handle(prepared)
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
