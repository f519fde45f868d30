"""Engines: what they know of themselves, and with which others they can't exchange caches."""

import pytest
import torch

from blockstride.layouts import (
    CacheSpec,
    Interval,
    KVCacheLayout,
    KVCachePool,
    full_attention,
    gated_delta_net,
    mamba2,
    plan_pools,
    sliding_window_attention,
)
from blockstride.transfer import EngineTransferInfo, plan_transfer
from tests.transfer.support import random_hand_over

BF16 = torch.bfloat16


def specs(**changed: CacheSpec) -> dict[str, CacheSpec]:
    right: dict[str, CacheSpec] = {
        "a": full_attention(4, 8, BF16),
        "m": mamba2(8, 4, 8, 4, n_groups=2, conv_dtype=BF16),
        "w": sliding_window_attention(4, 8, BF16, window=64),
    }
    return {**right, **changed}


def engine(name: str, layers: dict[str, CacheSpec] | None = None, **more) -> EngineTransferInfo:
    given = {
        "layout": KVCacheLayout.LBHNC,
        "policy": "unified",
        "block_size": 16,
        "num_blocks": (32,),
    }
    return EngineTransferInfo(name, layers or specs(), **{**given, **more})


def test_a_rank_that_an_engine_does_not_have_is_refused():
    with pytest.raises(ValueError, match="rank: expected 0 to 0, got 1"):
        plan_transfer(engine("d"), 1, engine("p"))


def test_an_engine_describes_itself_in_one_line():
    assert str(engine("d", tp_size=2)) == "d (tp 2, LBHNC, unified, blocks of 16 tokens)"
    assert str(engine("p", tp_size=4, block_size=32, kernel_block_size=16)) == (
        "p (tp 4, LBHNC, unified, blocks of 32 tokens of 2 kernel blocks)"
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"a": full_attention(4, 8, torch.float16)},
            r"a k\.dtype: expected .*bfloat16, got .*float16",
        ),
        ({"a": full_attention(4, 16, BF16)}, r"a k\.axes: expected .*'content': 8.*got .*16"),
        ({"a": full_attention(8, 8, BF16)}, r"a k\.axes: expected .*'head': 4.*got .*'head': 8"),
        (
            {"m": mamba2(8, 4, 8, 4, n_groups=1, conv_dtype=BF16)},
            r"m conv\.B\.axes: expected .*'channel': 16.*got .*'channel': 8",
        ),
        (
            {"m": mamba2(8, 4, 8, 4, n_groups=2, conv_dtype=BF16, ssm_dtype=BF16)},
            r"m ssm\.dtype: expected .*float32, got .*bfloat16",
        ),
        (
            {"m": mamba2(4, 8, 8, 4, n_groups=2, conv_dtype=BF16)},
            r"m conv\.x\.shard: expected .*32, 4.*got .*32, 8",
        ),
        (
            {"m": gated_delta_net(2, 8, 8, 4, 4, conv_dtype=BF16)},
            r"m fields: expected .*got .*conv\.k",
        ),
        (
            {"w": sliding_window_attention(4, 8, BF16, window=32)},
            r"w\.window: expected 64, got 32",
        ),
        ({"x": full_attention(4, 8, BF16)}, r"layers of p: expected those of d, got \['x'\]"),
    ],
    ids=[
        "dtype",
        "head size",
        "heads",
        "groups",
        "state dtype",
        "unit",
        "kind",
        "window",
        "layers",
    ],
)
def test_caches_of_another_model_are_refused_by_layer_field_and_both_values(changed, message):
    with pytest.raises(ValueError, match=message):
        plan_transfer(engine("d"), 0, engine("p", specs(**changed)))


def test_memory_order_and_packing_may_differ():
    packed = engine("d")
    other = engine(
        "p",
        specs(
            a=full_attention(4, 8, BF16, packed=False),
            m=mamba2(8, 4, 8, 4, n_groups=2, conv_dtype=BF16, conv_order="SD"),
        ),
        layout=KVCacheLayout.BHLNC,
    )
    assert plan_transfer(packed, 0, other).mapping.all_source_ranks == (0,)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_blocks": (32, 32)}, "num_blocks: expected 1 counts, one a pool"),
        ({"tp_size": 0}, "tp_size: expected at least 1, got 0"),
        (
            {"tp_size": 3},
            r"tp_size: expected a divisor of 4 \(k\.head\), or a multiple of 4, got 3",
        ),
        ({"stages": (Interval(0, 1), Interval(2, 3))}, "stages: expected intervals that tile 3"),
        ({"cp_size": 2, "cp_interleave": 3}, "cp_interleave: expected a divisor of 16, got 3"),
        ({"layers": specs(a=full_attention(4, 8, BF16).tp_shard(0, 2))}, "a: expected the spec of"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_sizes_that_contradict_each_other_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        engine("p", **changed)


@pytest.mark.parametrize("policy", ["unified", "split"])
@pytest.mark.parametrize("kernel_block_size", [None, 4])
def test_an_engine_of_its_pools_is_the_one_whose_sizes_are_given(policy, kernel_block_size):
    sizes = {"policy": policy, "block_size": 16, "kernel_block_size": kernel_block_size}
    pools = plan_pools(specs(), layout="BHLNC", num_blocks=5, tp_rank=1, tp_size=2, **sizes)
    counts = (5,) * len(pools)
    given = engine("p", layout=KVCacheLayout.BHLNC, num_blocks=counts, tp_size=2, **sizes)
    assert EngineTransferInfo.of(pools, specs(), "p", tp_size=2) == given
    assert EngineTransferInfo.of([KVCachePool(p) for p in pools], specs(), "p", tp_size=2) == given


@pytest.mark.parametrize("seed", [0, 5])
def test_ranks_are_numbered_by_stage_then_tokens_then_heads(seed):
    info = random_hand_over(seed).local
    for rank in range(info.world_size):
        assert info.rank(info.coordinates(rank)) == rank
