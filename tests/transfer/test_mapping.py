"""Mapping: whom a rank reads from, for any pair of parallel sizes."""

from collections import Counter

import pytest
import torch

from blockstride.layouts import (
    CacheSpec,
    Interval,
    KVCacheLayout,
    full_attention,
    latent_attention,
    mamba2,
)
from blockstride.transfer import (
    EngineTransferInfo,
    TPMapping,
    compute_tp_mapping,
    even_stages,
    expected_readers,
)
from tests.transfer.support import TP_SIZES, random_hand_over

BF16 = torch.bfloat16


def engine(name: str, specs: dict[str, CacheSpec], tp_size: int, **more) -> EngineTransferInfo:
    return EngineTransferInfo(
        name, specs, KVCacheLayout.LBHNC, "unified", 16, (32,), tp_size=tp_size, **more
    )


def mapping(specs: dict[str, CacheSpec], local_tp: int, rank: int, remote_tp: int) -> TPMapping:
    return compute_tp_mapping(engine("d", specs, local_tp), rank, engine("p", specs, remote_tp))


def parts(found: TPMapping, field: str) -> list[tuple[int, Interval]]:
    return [
        (read.remote_rank, part.interval)
        for read in found.reads
        for part in read.fields
        if part.field == field
    ]


def heads(count: int) -> dict[str, CacheSpec]:
    return {"layers.0": full_attention(count, 8, BF16)}


def test_sizes_that_do_not_divide_are_cut_at_the_remote_boundaries():
    assert parts(mapping(heads(12), 4, 1, 6), "k") == [(1, Interval(3, 4)), (2, Interval(4, 6))]
    assert parts(mapping(heads(6), 2, 1, 3), "k") == [(1, Interval(3, 4)), (2, Interval(4, 6))]
    assert parts(mapping(heads(6), 3, 1, 2), "v") == [(0, Interval(2, 3)), (1, Interval(3, 4))]


@pytest.mark.parametrize("count", [2, 12])
@pytest.mark.parametrize("remote_tp", TP_SIZES)
@pytest.mark.parametrize("local_tp", TP_SIZES)
def test_every_head_comes_from_one_owner_whatever_the_sizes(count, local_tp, remote_tp):
    if any(count % tp and tp % count for tp in (local_tp, remote_tp)):
        return
    for rank in range(local_tp):
        share = max(1, count // local_tp)
        first = rank * count // local_tp
        wanted = [Interval(head, head + 1) for head in range(first, first + share)]
        found = parts(mapping(heads(count), local_tp, rank, remote_tp), "k")
        covered = [Interval(h, h + 1) for _, part in found for h in range(*part)]
        assert covered == wanted
        for owner, part in found:
            owned = Interval(
                owner * count // remote_tp, owner * count // remote_tp + max(1, count // remote_tp)
            )
            assert owned.intersect(part) == part


def test_replicas_are_read_once_and_their_owners_are_spread_over_the_readers():
    readers = expected_readers(engine("d", heads(2), 8), engine("p", heads(2), 4))
    assert readers == (2, 2, 2, 2)
    latent: dict[str, CacheSpec] = {"layers.0": latent_attention(32, 8, BF16)}
    assert expected_readers(engine("d", latent, 4), engine("p", latent, 4)) == (1, 1, 1, 1)


def test_replicated_groups_come_from_a_rank_that_is_read_from_anyway():
    specs: dict[str, CacheSpec] = {"layers.0": mamba2(16, 4, 8, 4, n_groups=1, conv_dtype=BF16)}
    for rank in range(2):
        found = mapping(specs, 2, rank, 8)
        assert found.all_source_ranks == tuple(range(4 * rank, 4 * rank + 4))
        (owner,) = parts(found, "conv.B")
        assert owner[0] in found.all_source_ranks
        assert owner[1] == Interval(0, 8)


def test_a_reader_with_fewer_heads_than_ranks_handshakes_with_one_rank_each():
    # two heads, one producer, four readers: each needs one head, held whole by rank 0
    for rank in range(4):
        found = mapping(heads(2), 4, rank, 1)
        assert found.all_source_ranks == (0,)
        assert parts(found, "k") == [(0, Interval(rank // 2, rank // 2 + 1))]


def test_pipeline_stages_meet_in_intervals_of_layers():
    specs: dict[str, CacheSpec] = {f"layers.{i}": full_attention(2, 8, BF16) for i in range(5)}
    local = engine("d", specs, 1, stages=even_stages(5, 2))
    remote = engine("p", specs, 1, stages=even_stages(5, 3))
    assert even_stages(5, 3) == (Interval(0, 2), Interval(2, 4), Interval(4, 5))
    found = [
        [
            (read.remote_rank, read.layer_names)
            for read in compute_tp_mapping(local, r, remote).reads
        ]
        for r in range(2)
    ]
    assert found == [
        [(0, ("layers.0", "layers.1")), (1, ("layers.2",))],
        [(1, ("layers.3",)), (2, ("layers.4",))],
    ]


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_a_producer_expects_exactly_the_ranks_that_read_from_it(seed):
    hand_over = random_hand_over(seed)
    counts: Counter[int] = Counter()
    for rank in range(hand_over.local.world_size):
        plan = hand_over.plan(rank)
        counts.update(plan.mapping.all_source_ranks)
        assert {peer.remote_rank for peer in plan.peers} == {*plan.mapping.all_source_ranks}
    expected = expected_readers(hand_over.local, hand_over.remote)
    assert expected == tuple(counts[rank] for rank in range(hand_over.remote.world_size))


@pytest.mark.parametrize(("tp_size", "needs"), [(3, "divisor of 4"), (6, "multiple of 4")])
def test_a_size_that_the_model_cannot_have_is_an_error_that_names_the_field(tp_size, needs):
    with pytest.raises(ValueError, match=rf"tp_size: .*{needs}.*, got {tp_size}") as error:
        engine("p", heads(4), tp_size)
    assert "k.head" in str(error.value)
