"""The parts of the random load: a producer with many requests, and a reader that counts its blocks.

Both run in processes of their own. Blocks of the reader that nobody owns hold a pattern; a byte of
anything else in them is a write that came too late.
"""

from time import monotonic
from typing import Any

import numpy as np
import torch

from blockstride.layouts import CacheSpec, KVCacheLayout, full_attention, mamba1
from blockstride.transfer import BlockIds, EngineTransferInfo
from blockstride.transfer.connector import Connector, ConnectorSettings, ReadHandle, ReadRequest
from tests.transfer.connector.resources import resources_of
from tests.transfer.connector.worker import STATE
from tests.transfer.support import WEIGHTS, storages

FREE = 0x77
BLOCK_SIZE = 16
TOKEN_BLOCKS, STATES = 160, 24
SPECS: dict[str, CacheSpec] = {
    "attention": full_attention(2, 256, torch.bfloat16),
    "state": mamba1(64, 16, 4, conv_dtype=torch.bfloat16),
}


def engine(name: str) -> EngineTransferInfo:
    return EngineTransferInfo(
        name,
        SPECS,
        KVCacheLayout.BLHNC,
        "split",
        BLOCK_SIZE,
        (TOKEN_BLOCKS, STATES),
        model_fingerprint=WEIGHTS,
    )


def content() -> dict[int, np.ndarray]:
    """What every producer holds."""
    rng = np.random.default_rng(1)
    memory = storages(engine("any"), 0)
    return {pool: rng.integers(0, 256, len(m), dtype=np.uint8) for pool, m in memory.items()}


def blocks(number: int, count: int) -> list[BlockIds]:
    """Blocks of a request at its producers."""
    rng = np.random.default_rng(number)
    attention = 1 + rng.permutation(TOKEN_BLOCKS - 1)[:count]
    return [BlockIds(attention.astype(np.int32)), BlockIds([int(rng.integers(1, STATES))])]


def tensors(memory: dict[int, np.ndarray]) -> dict[int, torch.Tensor]:
    return {pool: torch.from_numpy(m.view(np.int8)) for pool, m in memory.items()}


def open_producer(name: str, settings: ConnectorSettings) -> str:
    STATE["content"] = content()
    producer = STATE["producer"] = Connector(engine(name), 0, settings)
    return producer.register_kv_caches(tensors(STATE["content"]))


def offer(number: int, count: int) -> None:
    STATE["producer"].offer(str(number), count * BLOCK_SIZE, blocks(number, count))


def withdraw(number: int) -> bool:
    return STATE["producer"].withdraw(str(number))


def leases_left(seconds: float) -> dict[str, int]:
    """What a producer still holds after a time in which all leases must have ended."""
    end, producer = monotonic() + seconds, STATE["producer"]
    while (found := resources_of(producer))["leases"] and monotonic() < end:
        producer.ended_leases()
    return found


def open_reader(settings: ConnectorSettings) -> None:
    memory = STATE["memory"] = storages(engine("reader"), 0)
    for part in memory.values():
        part[:] = FREE
    STATE["content"] = content()
    STATE["reader"] = Connector(engine("reader"), 0, settings)
    STATE["reader"].register_kv_caches(tensors(memory))
    STATE["free"] = [list(range(1, TOKEN_BLOCKS)), list(range(1, STATES))]
    STATE["active"] = {}


def add_peer(name: str, address: str) -> None:
    STATE["reader"].add_peer(name, [address])


def begin(number: int, count: int, sources: tuple[str, ...], seconds: float) -> bool:
    """Begins to read a request, if there are blocks for it."""
    free = STATE["free"]
    if len(free[0]) < count or not free[1]:
        return False
    mine = [[free[0].pop() for _ in range(count)], [free[1].pop()]]
    local = [BlockIds(ids) for ids in mine]
    tokens = count * BLOCK_SIZE
    request = ReadRequest(str(number), tokens, local, sources, seconds)
    STATE["active"][number] = (STATE["reader"].start_read(request), mine)
    return True


def abort(number: int) -> None:
    if number in STATE["active"]:
        STATE["active"][number][0].abort()


def collect() -> dict[str, int]:
    """Takes back the blocks of requests that have settled; counts how those ended."""
    found: dict[str, int] = {}
    for number, (handle, mine) in list(STATE["active"].items()):
        if not handle.settled:
            continue
        _look(number, handle, mine)
        kind = handle.error.kind if handle.error else "right"
        found[kind] = found.get(kind, 0) + 1
        for pool, ids in enumerate(mine):
            STATE["free"][pool] += ids
            _rows(pool)[ids] = FREE
        del STATE["active"][number]
    return found


def _rows(pool: int, memory: Any = None) -> np.ndarray:
    whole = STATE["memory"][pool] if memory is None else memory[pool]
    return whole.reshape(engine("any").num_blocks[pool], -1)


def _look(number: int, handle: ReadHandle, mine: list[list[int]]) -> None:
    """Blocks that a request doesn't call invalid hold the producer's bytes; all, if it went well.

    An abort may come when everything is confirmed already.
    """
    for pool, ids in enumerate(mine):
        there = blocks(number, len(mine[0]))[pool].ids
        wrong = handle.invalid_blocks[pool] if handle.error else ()
        valid = ~np.isin(ids, wrong)
        got = _rows(pool)[ids][valid]
        assert np.array_equal(got, _rows(pool, STATE["content"])[there][valid]), f"{number}, {pool}"


def finish(seconds: float) -> dict[str, int]:
    """Waits for all requests, and looks whether every block is accounted for and untouched."""
    end, found = monotonic() + seconds, {}
    while STATE["active"]:
        for kind, count in collect().items():
            found[kind] = found.get(kind, 0) + count
        assert monotonic() < end, f"requests that don't end: {sorted(STATE['active'])}"
    for pool, (ids, total) in enumerate(zip(STATE["free"], (TOKEN_BLOCKS, STATES), strict=True)):
        assert sorted(ids) == list(range(1, total)), f"pool {pool}: blocks lost or given twice"
        assert (_rows(pool) == FREE).all(), f"pool {pool}: written after it was given back"
    return found


def end() -> None:
    for name in ("reader", "producer"):
        if name in STATE:
            STATE[name].close(0.2)
    STATE.clear()


def use() -> dict[str, int]:
    return resources_of(STATE["reader"])
