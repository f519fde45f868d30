"""Segments side by side, pages segment after segment, and cells that start aligned."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blockstride.layouts import Axis, Field, Page, Segment
from blockstride.layouts.page import ALIGNMENT
from tests.layouts.support import LAW, SPECS


def conv(name: str, channels: int, dtype: torch.dtype = torch.bfloat16, taps: int = 3) -> Field:
    return Field(name, (Axis("channel", channels), Axis("tap", taps)), dtype)


@LAW
@given(st.sampled_from(sorted(SPECS)), st.integers(1, 9))
def test_segments_start_aligned_and_do_not_overlap(kind, block_size):
    page = SPECS[kind].page(block_size)
    end = 0
    for segment in page.segments:
        start = page.offsets()[segment.name]
        assert start % ALIGNMENT == 0
        assert end <= start < end + ALIGNMENT
        end = start + segment.nbytes
    assert end <= page.nbytes < end + ALIGNMENT
    assert page.nbytes % ALIGNMENT == 0


@LAW
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_joined_fields_tile_their_segment(channels):
    fields = tuple(conv(f"conv.{i}", n) for i, n in enumerate(channels))
    segment = Segment("conv", fields, join="channel")
    covered = [
        segment.starts()[field.name] + i
        for field in fields
        for i in range(field.axis("channel").extent)
    ]
    assert covered == list(range(segment.whole.axis("channel").extent))
    assert segment.nbytes == sum(field.nbytes for field in fields)


@pytest.mark.parametrize(
    ("fields", "join", "message"),
    [
        ((conv("x", 4), conv("B", 2)), "", "conv.join: expected one of .*, got ''"),
        ((conv("x", 4), conv("B", 2, torch.float32)), "channel", "B: expected the axes and dtype"),
        ((conv("x", 4), conv("B", 2, taps=2)), "channel", "B: expected the axes and dtype of x"),
        (
            (conv("x", 4), conv("B", 2)),
            "head",
            "conv.join: expected one of .*, got 'head'",
        ),
    ],
)
def test_fields_that_cannot_stand_side_by_side_are_refused(fields, join, message):
    with pytest.raises(ValueError, match=message):
        Segment("conv", fields, join=join)


def test_fields_are_joined_along_content_only():
    k = Field("k", (Axis("head", 2, "H"), Axis("content", 8)), torch.bfloat16)
    with pytest.raises(ValueError, match=r"kv.join: expected a content axis, got head"):
        Segment("kv", (k,), join="head")


def test_a_page_refuses_two_fields_or_segments_of_one_name():
    with pytest.raises(ValueError, match=r"page.fields: expected distinct names"):
        Page((Segment("a", (conv("x", 4),)), Segment("b", (conv("x", 4),))))
    with pytest.raises(ValueError, match=r"page.segments: expected distinct names"):
        Page((Segment("a", (conv("x", 4),)), Segment("a", (conv("y", 4),))))


def test_a_page_needs_a_field():
    with pytest.raises(ValueError, match=r"page.fields: expected distinct names, got \[\]"):
        Page(())


def test_cells_need_the_same_count_in_every_segment():
    page = SPECS["mamba-1-DS"].page(1)
    with pytest.raises(ValueError, match="axis C: expected equal in all segments"):
        page.cell_bytes("HN")
