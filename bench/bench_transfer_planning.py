"""Planning: a handshake and a request cost the same whatever the size of the pools.

Handshake: mapping, coalescing and both lists of rows for one reading rank, the rank's own layout
known. Request: from block ids to index arrays, checks included, blocks scattered.
"""

import numpy as np
import pytest
import torch

from blockstride.layouts import KVCacheLayout, full_attention
from blockstride.transfer import (
    BlockIds,
    EngineTransferInfo,
    EngineTransferPlan,
    ReadSpec,
    TransferRequest,
    plan_transfer,
)

LAYERS, HEADS, HEAD_SIZE, BLOCK_SIZE = 64, 8, 128, 16


def engine(name: str, layout: str, tp_size: int, num_blocks: int) -> EngineTransferInfo:
    spec = full_attention(HEADS, HEAD_SIZE, torch.bfloat16)
    specs = {f"layers.{i}": spec for i in range(LAYERS)}
    return EngineTransferInfo(
        name,
        specs,
        KVCacheLayout(layout),
        "split",
        BLOCK_SIZE,
        (num_blocks,),
        tp_size=tp_size,
    )


def shake_hands(local: EngineTransferInfo, remote: EngineTransferInfo) -> EngineTransferPlan:
    plan = plan_transfer(local, 0, remote)
    for peer in plan.peers:
        peer.wire.rows("local", {0: 1 << 40})
        peer.wire.rows("remote", {0: 1 << 41})
    return plan


def scattered(num_blocks: int, wanted: int) -> list[np.ndarray]:
    """Ids of both sides."""
    rng = np.random.default_rng(wanted)
    return [
        rng.choice(num_blocks - 1, wanted, replace=False).astype(np.int32) + 1 for _ in range(2)
    ]


def read(plan: EngineTransferPlan, ids: list[np.ndarray]) -> ReadSpec:
    request = TransferRequest(len(ids[0]) * BLOCK_SIZE, [BlockIds(ids[0])], [BlockIds(ids[1])])
    return plan.reads(request)[0]


@pytest.mark.benchmark(group="handshake", disable_gc=True)
@pytest.mark.parametrize("num_blocks", [1_000, 20_000, 1_000_000])
@pytest.mark.parametrize("remote_tp", [1, 4])
@pytest.mark.parametrize("layout", ["LBHNC", "BHLNC"])
def test_a_handshake(benchmark, layout, remote_tp, num_blocks):
    local = engine("reader", layout, 1, num_blocks)
    local.rank_cache(0)

    def fresh():
        # a new engine every time: nothing of it may be cached from the round before
        return (local, engine("producer", layout, remote_tp, num_blocks)), {}

    plan = benchmark.pedantic(shake_hands, setup=fresh, rounds=30, warmup_rounds=3)
    assert len(plan.peers) == remote_tp
    benchmark.extra_info["rows"] = sum(len(p.wire.rows("local", {0: 0})) for p in plan.peers)


@pytest.mark.benchmark(group="request", disable_gc=True)
@pytest.mark.parametrize("wanted", [512, 2048, 8192])
@pytest.mark.parametrize("num_blocks", [10_000, 1_000_000])
@pytest.mark.parametrize("layout", ["LBHNC", "BLHNC"])
def test_a_request(benchmark, layout, num_blocks, wanted):
    plan = shake_hands(
        engine("reader", layout, 1, num_blocks), engine("producer", layout, 1, num_blocks)
    )
    found = benchmark(read, plan, scattered(num_blocks, wanted))
    rows = LAYERS if layout == "LBHNC" else 1
    assert len(found.wire.local) == rows * wanted
    assert np.all(np.diff(found.wire.local) > 0)
    benchmark.extra_info["descriptors"] = rows * wanted
