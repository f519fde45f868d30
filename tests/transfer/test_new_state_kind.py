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


def rg_lru(width: int, d_conv: int, conv_dtype: torch.dtype) -> StateSpec:
    """The recurrent block of RecurrentGemma: a short convolution and one real number a channel."""
    conv = Field(
        "conv.x",
        (Axis("channel", width), Axis("tap", d_conv - 1)),
        conv_dtype,
        Shard("channel", width),
    )
    state = Field("lru", (Axis("channel", width),), torch.float32, Shard("channel", width))
    return StateSpec("rg-lru", (Segment("conv", (conv,)), Segment("lru", (state,))))


def test_a_state_kind_of_ones_own_moves_between_any_two_engines():
    specs: dict[str, CacheSpec] = {
        "layers.0": rg_lru(48, 4, torch.bfloat16),
        "layers.1": full_attention(1, 8, torch.bfloat16),
        "layers.2": rg_lru(48, 4, torch.bfloat16),
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
