"""Laws of stride orders."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blockstride.layouts import NAMED_LAYOUTS, KVCacheLayout
from tests.layouts.support import ALL_LAYOUTS, LAW

layouts = st.permutations("LBHNC").map(lambda order: KVCacheLayout("".join(order)))
shapes = st.tuples(*[st.integers(1, 4)] * 5)


def filled(layout: KVCacheLayout, shape: tuple[int, ...]) -> torch.Tensor:
    """Distinct numbers, dimensions in memory order, for a logical `shape`."""
    memory_shape = [shape["LBHNC".index(axis)] for axis in layout.order]
    return torch.arange(torch.Size(shape).numel()).view(memory_shape)


@LAW
@given(layouts, shapes)
def test_logical_and_back_is_the_same_memory(layout, shape):
    memory = filled(layout, shape)
    logical = layout.to_logical(memory)
    assert logical.shape == shape
    assert logical.data_ptr() == memory.data_ptr()
    assert torch.equal(layout.to_memory(logical), memory)


@LAW
@given(layouts, layouts, shapes)
def test_conversion_there_and_back_is_the_identity(first, second, shape):
    memory = filled(first, shape)
    assert torch.equal(second.convert(first.convert(memory, second), first), memory)


@LAW
@given(layouts, layouts, layouts, shapes)
def test_conversions_compose(first, second, third, shape):
    memory = filled(first, shape)
    through = second.convert(first.convert(memory, second), third)
    assert torch.equal(through, first.convert(memory, third))


@LAW
@given(layouts, layouts, shapes)
def test_conversion_keeps_every_logical_element(first, second, shape):
    memory = filled(first, shape)
    converted = first.convert(memory, second)
    assert converted.is_contiguous()
    assert torch.equal(second.to_logical(converted), first.to_logical(memory))


@LAW
@given(layouts, layouts, shapes)
def test_conversion_never_shares_memory_with_its_source(first, second, shape):
    memory = filled(first, shape)
    converted = first.convert(memory, second)
    assert converted.data_ptr() != memory.data_ptr()


@LAW
@given(layouts, st.tuples(*[st.integers(2, 5)] * 5))
def test_strides_are_those_of_a_dense_tensor_in_that_order(layout, shape):
    assert layout.strides(shape) == layout.to_logical(filled(layout, shape)).stride()


@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=str)
def test_contiguity_names_say_what_memory_shows(layout):
    logical = layout.to_logical(filled(layout, (2, 3, 4, 5, 6)))
    block, page = logical[:, 0], logical[0, 0]

    def is_one_run(part):
        return int(part.max() - part.min()) == part.numel() - 1

    assert layout.is_block_outermost == is_one_run(block)
    assert layout.is_block_compact == is_one_run(page)
    assert layout.is_content_innermost == (logical.stride(-1) == 1)


@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=str)
def test_inner_axes_are_one_run_in_every_cell(layout):
    assert layout.outer + layout.inner == layout.order
    assert set("LB") <= set(layout.outer)
    assert layout.outer[-1] in "LB"


def test_named_orders_are_attributes():
    assert [layout.order for layout in NAMED_LAYOUTS] == [
        "LBHNC",
        "LBNHC",
        "LHBNC",
        "BLHNC",
        "BLNHC",
        "BHLNC",
    ]
    assert all(getattr(KVCacheLayout, layout.order) is layout for layout in NAMED_LAYOUTS)


@pytest.mark.parametrize(
    ("name", "order"),
    [("HND", "LBHNC"), ("NHD", "LBNHC"), ("blhnc", "BLHNC"), ("nhd", "LBNHC"), ("CNHBL", "CNHBL")],
)
def test_a_layout_is_found_by_name_or_alias(name, order):
    assert KVCacheLayout.parse(name) == KVCacheLayout(order)
    assert str(KVCacheLayout.parse(KVCacheLayout(order))) == order


@pytest.mark.parametrize("name", ["", "LBHN", "LLHNC", "LBHNCC", "XBHNC", "NDH"])
def test_an_unknown_layout_is_refused_by_name(name):
    with pytest.raises(ValueError, match=f"layout: expected a permutation of LBHNC.*'{name}'"):
        KVCacheLayout.parse(name)


def test_layouts_of_one_order_are_equal_and_hash_alike():
    assert len({KVCacheLayout("BLHNC"), KVCacheLayout.BLHNC, KVCacheLayout.parse("blhnc")}) == 1


@pytest.mark.parametrize("method", ["to_logical", "to_memory"])
def test_a_tensor_of_another_rank_is_refused(method):
    with pytest.raises(ValueError, match="expected 5 dimensions"):
        getattr(KVCacheLayout.LBHNC, method)(torch.zeros(2, 3))


def test_strides_of_another_rank_are_refused():
    with pytest.raises(ValueError, match="shape: expected 5 extents"):
        KVCacheLayout.LBHNC.strides((2, 3))
