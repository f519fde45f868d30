"""What the processes of `bench_transfer.py` do: hold the prompt, read it, read without a plan."""

from functools import cache
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from blockstride.layouts import (
    CacheSpec,
    KVCacheLayout,
    full_attention,
    group_layers,
    mamba1,
)
from blockstride.transfer import BlockIds, EngineTransferInfo
from blockstride.transfer.connector import (
    Connector,
    ConnectorSettings,
    Counters,
    ReadRequest,
)
from blockstride.transfer.nixl import TransferAgent
from tests.transfer.connector.worker import STATE

NUM_TOKENS, BLOCK_SIZE, SPARE = 4096, 16, 8
RAW_BYTES, RAW_MIB = 1 << 28, 80
ROUNDS = 5
SETTINGS = ConnectorSettings(max_tokens=NUM_TOKENS)


class Pair(NamedTuple):
    """What one hand-over is between: the reader has one rank."""

    reader: KVCacheLayout
    producer: KVCacheLayout
    tp_size: int


def specs() -> dict[str, CacheSpec]:
    attention = full_attention(8, 128, torch.bfloat16)
    state = mamba1(8192, 16, 4, conv_dtype=torch.bfloat16)
    return {f"layers.{i}": attention if i % 8 == 4 else state for i in range(32)}


@cache
def engine(name: str, layout: KVCacheLayout, tp_size: int) -> EngineTransferInfo:
    model = specs()
    blocks = NUM_TOKENS // BLOCK_SIZE + SPARE
    counts = [blocks if g.spec.has_tokens else SPARE for g in group_layers(model, "split")]
    return EngineTransferInfo(
        name,
        model,
        layout,
        "split",
        BLOCK_SIZE,
        tuple(counts),
        tp_size=tp_size,
        model_fingerprint="the same on both sides",
    )


def blocks(info: EngineTransferInfo) -> list[BlockIds]:
    """Scattered blocks of the prompt."""
    rng, tables = np.random.default_rng(len(info.engine_id)), []
    for group, count in zip(info.groups, info.num_blocks, strict=True):
        wanted = NUM_TOKENS // BLOCK_SIZE if group.spec.has_tokens else 1
        tables.append(BlockIds(1 + rng.permutation(count - 1)[:wanted].astype(np.int32)))
    return tables


def pools(info: EngineTransferInfo, rank: int, seed: int | None) -> dict[int, torch.Tensor]:
    """Memory of a rank: random bytes, or zeros that have been touched."""
    memory = {}
    for pool, nbytes in info.rank_cache(rank).pool_bytes.items():
        memory[pool] = torch.zeros(nbytes, dtype=torch.int8)
        if seed is None:
            memory[pool].fill_(1)
        else:
            memory[pool].random_(-128, 128, generator=torch.Generator().manual_seed(seed + pool))
    return memory


def start_producer(pair: Pair) -> list[str]:
    info = engine("producer", pair.producer, pair.tp_size)
    STATE["producers"] = [Connector(info, rank, SETTINGS) for rank in range(pair.tp_size)]
    return [
        producer.register_kv_caches(pools(info, rank, 7 * rank))
        for rank, producer in enumerate(STATE["producers"])
    ]


def offer(name: str) -> None:
    for producer in STATE["producers"]:
        producer.offer(name, NUM_TOKENS, blocks(producer.info))


def start_reader(pair: Pair, addresses: list[str]) -> None:
    info = engine("reader", pair.reader, 1)
    reader = STATE["reader"] = Connector(info, 0, SETTINGS)
    STATE["pools"] = pools(info, 0, None)
    reader.register_kv_caches(STATE["pools"])
    reader.add_peer("producer", addresses)


def read(name: str) -> tuple[float, Counters]:
    """Reads the prompt; returns the time that it took and the counters after it."""
    reader: Connector = STATE["reader"]
    request = ReadRequest(name, NUM_TOKENS, blocks(reader.info), ("producer",))
    begin = perf_counter()
    reader.start_read(request).wait()
    return perf_counter() - begin, reader.counters()


def end() -> None:
    for connector in (STATE.pop("reader", None), *STATE.pop("producers", ())):
        if connector is not None:
            connector.close()
    STATE.pop("pools", None)


def register_raw() -> tuple[bytes, int]:
    """Memory for a raw reader, and an agent that serves it by itself."""
    agent = STATE["raw"] = TransferAgent("raw/producer", progress_thread=True)
    memory = STATE["memory"] = torch.ones(RAW_BYTES, dtype=torch.int8)
    agent.register({0: memory})
    return agent.metadata, memory.data_ptr()


def connect_raw(metadata: bytes, address: int) -> None:
    agent = STATE["raw"] = TransferAgent("raw/reader")
    STATE["memory"] = torch.ones(RAW_BYTES, dtype=torch.int8)
    agent.register({0: STATE["memory"]})
    STATE["peer"], STATE["address"] = agent.connect(metadata, "raw/producer"), address


def measure(count: int, nbytes: int, rounds: int = 5 * ROUNDS) -> float:
    """Seconds of one READ of scattered ranges, by NIXL alone; the best of some rounds."""
    nixl, peer = STATE["raw"].nixl.agent, STATE["peer"]
    rng, rows = np.random.default_rng(0), []
    for base in (STATE["memory"].data_ptr(), STATE["address"]):
        at = rng.permutation(RAW_BYTES // nbytes)[:count].astype(np.uint64)
        size, device = np.full(count, nbytes, np.uint64), np.zeros(count, np.uint64)
        rows.append(np.stack([np.uint64(base) + at * np.uint64(nbytes), size, device], axis=1))
    lists = [
        nixl.prep_xfer_dlist(name, nixl.get_xfer_descs(row, "DRAM"))
        for name, row in zip(("NIXL_INIT_AGENT", peer.name), rows, strict=True)
    ]
    ids, seconds = np.arange(count, dtype=np.int32), []
    for _ in range(rounds + 1):
        begin = perf_counter()
        handle = nixl.make_prepped_xfer("READ", lists[0], ids, lists[1], ids, b"")
        state = nixl.transfer(handle)
        while state == "PROC":
            state = nixl.check_xfer_state(handle)
        seconds.append(perf_counter() - begin)
        handle.release()
    for prepared in lists:
        prepared.release()
    return min(seconds[1:])
