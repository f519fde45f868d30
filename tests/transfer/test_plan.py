"""Plans: reports, proofs, strategies and their costs."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from blockstride.layouts import CacheSpec, KVCacheLayout, full_attention
from blockstride.transfer import (
    CostModel,
    EngineTransferInfo,
    EngineTransferPlan,
    calibrate,
)
from blockstride.transfer.cost_model import PROBES
from blockstride.transfer.forecast import Forecast, forecasts
from tests.transfer.support import HandOver, hybrid, random_hand_over

BF16 = torch.bfloat16


def attention(source: str, destination: str, *, heads: int = 8, blocks: int = 64) -> HandOver:
    specs: dict[str, CacheSpec] = {f"layers.{i}": full_attention(heads, 64, BF16) for i in range(4)}
    engines = [
        EngineTransferInfo(name, specs, KVCacheLayout(order), "split", 16, (blocks,))
        for name, order in (("d", destination), ("p", source))
    ]
    return HandOver(engines[0], engines[1], 160)


@pytest.mark.parametrize("seed", [0, 1, 5, 6])
def test_a_report_counts_exactly_what_a_request_moves(seed):
    hand_over = replace(random_hand_over(seed), present=0, snapshots=1)
    plan = hand_over.plan(0)
    report, reads = plan.report(hand_over.num_tokens), plan.reads(hand_over.request())
    assert report.descriptors == sum(len(read.wire.local) for read in reads)
    assert report.descriptors == sum(report.run_lengths.values())
    assert report.nbytes == sum(size * count for size, count in report.run_lengths.items())
    assert 0 < report.lower_bound <= report.descriptors


def test_the_lower_bound_is_met_where_both_sides_keep_one_order_and_not_where_they_differ():
    same = attention("BLHNC", "BLHNC").plan(0).report(160)
    assert same.descriptors == same.lower_bound == 10
    # one range a block on one side, one for each of four layers on the other
    for source, destination in (("BLHNC", "LBHNC"), ("LBHNC", "BLHNC")):
        apart = attention(source, destination).plan(0).report(160)
        assert apart.descriptors == apart.lower_bound == 40
    other = attention("LBHNC", "LBNHC").plan(0).report(160)
    assert (other.descriptors, other.lower_bound) == (10 * 4 * 8 * 16, 10 * 4)


def test_costs_do_not_grow_with_the_pool():
    small, large = (attention("LBHNC", "BLHNC", blocks=n).plan(0) for n in (64, 1 << 20))
    assert small.report(160) == large.report(160)
    rows = [plan.peers[0].wire.rows("local", {0: 0}) for plan in (small, large)]
    assert len(rows[0]) == len(rows[1]) == 4


# proofs


def test_a_proof_says_what_was_moved():
    proof = attention("LBHNC", "LBNHC").plan(0).prove()
    assert proof.num_tokens == 16
    assert proof.nbytes == 16 * 4 * 8 * 2 * 64 * 2
    assert proof.descriptors == 4 * 8 * 16


def broken(plan: EngineTransferPlan, **changes) -> EngineTransferPlan:
    """The plan with the first group of its first peer changed."""
    peer = plan.peers[0]
    group = replace(peer.wire.groups[0], **changes)
    wire = replace(peer.wire, groups=(group, *peer.wire.groups[1:]))
    return replace(plan, peers=(replace(peer, wire=wire), *plan.peers[1:]))


def shifted(offsets: np.ndarray, row: int, by: int) -> np.ndarray:
    moved = offsets.copy()
    moved[row] += by
    return moved


@pytest.mark.parametrize("side", ["local", "remote"])
@pytest.mark.parametrize("by", [-2, 2, 1 << 20])
def test_a_row_that_is_shifted_on_either_side_is_no_proof(side, by):
    # pages of states that are padded to a page of tokens
    specs = hybrid(2, 1)
    engines = [
        EngineTransferInfo(name, specs, KVCacheLayout.LBHNC, "unified", 64, (64,)) for name in "dp"
    ]
    plan = HandOver(engines[0], engines[1], 64).plan(0)
    row, end = (0 if by < 0 else -1), getattr(plan.peers[0].wire.groups[0], side)
    wrong = replace(end, offsets=shifted(end.offsets, row, by))
    plan.prove()
    with pytest.raises(ValueError, match=r"pool 0: expected|indices: expected"):
        broken(plan, **{side: wrong}).prove()


def test_a_row_that_is_missing_or_written_twice_is_no_proof():
    plan = attention("LBHNC", "LBHNC").plan(0)
    group = plan.peers[0].wire.groups[0]
    fewer = replace(group.tracks[0], rows=slice(0, 3))
    with pytest.raises(ValueError, match="bytes that rank 0 needs, pool 0"):
        broken(plan, tracks=(fewer,)).prove()
    with pytest.raises(ValueError, match="pool 0: expected no byte twice"):
        broken(plan, tracks=(group.tracks[0], fewer)).prove()


def test_two_rows_that_write_the_same_bytes_are_no_proof():
    plan = attention("LBHNC", "LBHNC").plan(0)
    local = plan.peers[0].wire.groups[0].local
    same = local.offsets.copy()
    same[1] = same[0]
    with pytest.raises(ValueError, match="writes to rank 0, pool 0: expected no byte twice"):
        broken(plan, local=replace(local, offsets=same)).prove()


def test_a_pool_too_small_for_a_proof_is_an_error():
    with pytest.raises(ValueError, match="num_blocks of d: expected enough for a proof, got 1"):
        attention("LBHNC", "LBHNC", blocks=1).plan(0).prove()


# strategies


def test_pages_are_chosen_where_runs_are_short_and_direct_copies_where_they_are_long():
    model = CostModel()
    chosen = []
    for source, destination in (("LBHNC", "LBNHC"), ("BLHNC", "BLHNC")):
        plan = attention(source, destination).plan(0, "auto")
        chosen.append(plan.peers[0].strategy)
        costs = {}
        for name in ("direct", "pages", "pack"):
            forced = attention(source, destination).plan(0, name)
            assert {peer.strategy for peer in forced.peers} == {name}
            costs[name] = sum(model.seconds(peer, 160) for peer in forced.peers)
        assert chosen[-1] == min(costs, key=costs.__getitem__)
    assert chosen[0] != "direct"
    assert chosen[1] == "direct"


def test_a_request_longer_than_the_staging_area_is_an_error():
    hand_over = attention("LBHNC", "LBNHC")
    plan = replace(hand_over, num_tokens=32).plan(0, "pages")
    with pytest.raises(ValueError, match="staging blocks: expected 10 for group 0, got 2 left"):
        plan.reads(hand_over.request())


def test_a_strategy_that_does_not_exist_is_an_error():
    with pytest.raises((ValueError, TypeError), match="strategy"):
        attention("LBHNC", "LBNHC").plan(0, "copy")  # pyright: ignore[reportArgumentType]


def test_a_forecast_has_every_strategy_and_says_why_one_cannot_be_used():
    hand_over = attention("LBHNC", "LBNHC")
    wide = replace(hand_over.remote, cp_size=2)
    found = forecasts(hand_over.local, 0, wide, CostModel(), 160)
    assert isinstance(found["direct"], Forecast)
    assert "tokens dealt to" in str(found["pack"])


# costs


def test_a_calibration_recovers_the_costs_that_were_measured():
    true = CostModel(2.5e-6, 3e9, 7e8, "made up")
    found = calibrate(lambda n, size: n * 2.5e-6 + n * size / 3e9, 7e8, "made up")
    assert found.descriptor_seconds == pytest.approx(true.descriptor_seconds)
    assert found.wire_rate == pytest.approx(true.wire_rate)
    assert len({size for _, size in PROBES}) > 2


def test_measurements_that_do_not_grow_are_refused():
    with pytest.raises(ValueError, match="measurements: expected times that grow with both"):
        calibrate(lambda n, size: n * (2e-6 - size * 1e-12), 1e9, "nonsense")


def test_a_stored_model_comes_back_and_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "deep" / "model.json"
    model = CostModel(1e-6, 2e9, 3e9, "here")
    model.save(path)
    assert CostModel.load(path) == model
    path.write_text(json.dumps({"descriptor_seconds": 1e-6}))
    with pytest.raises(ValueError, match="expected an object with"):
        CostModel.load(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="expected JSON"):
        CostModel.load(path)
    with pytest.raises(ValueError, match="cost model: expected a file"):
        CostModel.load(tmp_path / "none.json")
    with pytest.raises(ValueError, match="wire_rate: expected a positive number, got 0"):
        CostModel(wire_rate=0.0)
