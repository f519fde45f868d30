"""CONTRIBUTING.md's worked example: a new kind of state is a spec, and nothing else."""

import torch

from blockstride.layouts import (
    Axis,
    CacheSpec,
    Field,
    KVCacheLayout,
    Segment,
    Shard,
    StateSpec,
    full_attention,
)
from blockstride.transfer import EngineTransferInfo
from tests.transfer.support import HandOver


def time_mix(hidden_size: int, head_size: int, dtype: torch.dtype) -> StateSpec:
    """The time mix of RWKV-7: the token before, and a matrix for each head."""
    before = Field("before", (Axis("channel", hidden_size),), dtype)
    num_heads = hidden_size // head_size
    axes = (Axis("head", num_heads), Axis("value", head_size), Axis("key", head_size))
    wkv = Field("wkv", axes, torch.float32, Shard("head", num_heads))
    return StateSpec("rwkv-7", (Segment("before", (before,)), Segment("wkv", (wkv,))))


def test_a_state_kind_of_ones_own_moves_between_any_two_engines():
    specs: dict[str, CacheSpec] = {
        "layers.0": time_mix(48, 4, torch.bfloat16),
        "layers.1": full_attention(1, 8, torch.bfloat16),
        "layers.2": time_mix(48, 4, torch.bfloat16),
    }
    for reader, producer in ((2, 3), (4, 1), (1, 6)):
        local = EngineTransferInfo(
            "reader", specs, KVCacheLayout.LBHNC, "unified", 16, (16,), tp_size=reader
        )
        remote = EngineTransferInfo(
            "producer", specs, KVCacheLayout.BHLNC, "split", 4, (4, 16), tp_size=producer
        )
        hand_over = HandOver(local, remote, 30)
        hand_over.check()
        assert hand_over.plan(reader - 1).prove().nbytes > 0
