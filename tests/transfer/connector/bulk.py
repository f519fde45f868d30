"""A hand-over that is long in bytes and simple in shape, for what happens while bytes move."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from blockstride.layouts import CacheSpec, Interval, KVCacheLayout, full_attention, mamba1
from blockstride.transfer import EngineTransferInfo
from tests.transfer.support import WEIGHTS, HandOver, storages

BLOCK_SIZE = 16
SPECS: dict[str, CacheSpec] = {
    "attention": full_attention(2, 256, torch.bfloat16),
    "state": mamba1(64, 16, 4, conv_dtype=torch.bfloat16),
}


@dataclass(frozen=True)
class Bulk(HandOver):
    """Two engines of one layout: a block of one is a block of the other, byte for byte."""

    seed: int = 0

    def source(self, rank: int) -> dict[int, np.ndarray]:
        rng = np.random.default_rng([self.seed, rank])
        return {
            pool: rng.integers(0, 256, len(memory), dtype=np.uint8)
            for pool, memory in storages(self.remote, rank).items()
        }

    def expected(self, rank: int) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
        # pipeline stages have pools of their own, tensor-parallel ranks meet their equals
        ranks = range(self.remote.world_size) if self.remote.stages else [rank]
        source = {pool: part for r in ranks for pool, part in self.source(r).items()}
        wanted = storages(self.local, rank)
        for pool, (local, remote) in enumerate(zip(*self.tables, strict=True)):
            width = self.local.block_bytes[pool]
            blocks = source[pool].reshape(-1, width)
            wanted[pool].reshape(-1, width)[local] = blocks[remote]
        return wanted, wanted


def bulk(num_blocks: int = 8, engine_id: str = "producer", seed: int = 0, tp_size: int = 1) -> Bulk:
    """A sequence of some blocks of 32 KiB (a rank's share is less), and a state."""
    local = EngineTransferInfo(
        "reader",
        SPECS,
        KVCacheLayout.BLHNC,
        "split",
        BLOCK_SIZE,
        (num_blocks + 3, 4),
        tp_size=tp_size,
        model_fingerprint=WEIGHTS,
    )
    remote = replace(local, engine_id=engine_id)
    return Bulk(local, remote, num_blocks * BLOCK_SIZE, seed=seed)


def staged(num_blocks: int = 8) -> Bulk:
    """The same from two pipeline stages: rank 0 has the attention, rank 1 the state."""
    case = bulk(num_blocks)
    stages = (Interval(0, 1), Interval(1, 2))
    return replace(case, remote=replace(case.remote, stages=stages))
