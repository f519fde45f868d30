"""Laws of intervals, shards and fields."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blockstride.layouts import Axis, Field, Interval, Shard
from tests.layouts.support import LAW

intervals = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda ends: Interval(*ends))


def field(**changes) -> Field:
    axes = (Axis("head", 4, "H"), Axis("token", 1, "N"), Axis("content", 8))
    parts = {"name": "k", "axes": axes, "dtype": torch.bfloat16, "shard": Shard("head", 4)}
    return Field(**{**parts, **changes})


@LAW
@given(intervals, intervals)
def test_intersection_is_that_of_sets(a, b):
    both = a.intersect(b)
    assert set(range(*both)) == set(range(*a)) & set(range(*b))
    assert both.size == both.stop - both.start == len(set(range(*a)) & set(range(*b)))


@LAW
@given(
    units=st.integers(1, 24),
    unit=st.integers(1, 5),
    tp_size=st.integers(1, 16),
    share=st.booleans(),
)
def test_ranks_cover_the_axis_equally_often(units, unit, tp_size, share):
    shard = Shard("channel", units * unit, unit=unit, replicate=share)
    divides = units % tp_size == 0
    if not divides and not (share and tp_size % units == 0):
        with pytest.raises(ValueError, match=rf"tp_size: expected a divisor of {units} \(f"):
            shard.of_rank(0, tp_size, "f")
        return
    held = [shard.of_rank(rank, tp_size, "f").interval for rank in range(tp_size)]
    holders = [sum(start <= i < stop for start, stop in held) for i in range(units * unit)]
    assert set(holders) == {1 if divides else tp_size // units}
    assert all(start % unit == 0 and stop % unit == 0 for start, stop in held)
    assert len({interval.size for interval in held}) == 1
    assert held == sorted(held)


def test_only_replicated_axes_say_that_a_multiple_would_do():
    shared, owned = Shard("head", 4, replicate=True), Shard("head", 4)
    with pytest.raises(ValueError, match=r"divisor of 4 \(k.head\), or a multiple of 4, got 6"):
        shared.of_rank(0, 6, "k")
    with pytest.raises(ValueError, match=r"divisor of 4 \(k.head\), got 8"):
        owned.of_rank(0, 8, "k")


@pytest.mark.parametrize(("extent", "unit"), [(0, 1), (10, 4), (8, 0), (-8, 4)])
def test_units_that_do_not_make_up_an_axis_are_refused(extent, unit):
    with pytest.raises(ValueError, match="channel: expected a positive multiple"):
        Shard("channel", extent, unit=unit)


def test_a_shard_of_a_field_shrinks_the_cut_axis_alone():
    part = field().tp_shard(1, 2)
    assert part.shape == (2, 1, 8)
    assert part.nbytes == field().nbytes // 2
    assert part.shard == Shard("head", 4, held=Interval(2, 4))


def test_a_field_without_a_shard_is_held_whole_by_every_rank():
    whole = field(shard=None)
    assert whole.tp_shard(3, 7) == whole


def test_tokens_change_the_token_axis_alone():
    assert field().with_tokens(16).shape == (4, 16, 8)
    state = Field("ssm", (Axis("channel", 3), Axis("state", 5)), torch.float32)
    assert state.with_tokens(16) == state


def test_extents_multiply_the_axes_of_one_logical_axis():
    state = Field("ssm", (Axis("channel", 3), Axis("state", 5)), torch.float32)
    assert [state.extent(axis) for axis in "HNC"] == [1, 1, 15]
    assert [field().extent(axis) for axis in "HNC"] == [4, 1, 8]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"axes": ()}, ValueError, r"k.axes: expected distinct axes, got \[\]"),
        ({"axes": (Axis("head", 4), Axis("head", 4))}, ValueError, "k.axes: expected distinct"),
        ({"axes": (Axis("head", 0), Axis("token", 1))}, ValueError, "k.head: expected a positive"),
        ({"shard": Shard("channel", 4)}, ValueError, "k.shard: expected one of .*, got channel"),
        ({"shard": Shard("head", 8)}, ValueError, "k.head: expected the shard's 8, got 4"),
        ({"dtype": torch.float64}, TypeError, "k.dtype: expected .*, got torch.float64"),
    ],
)
def test_a_field_that_cannot_be_is_refused(changes, error, message):
    with pytest.raises(error, match=message):
        field(**changes)
