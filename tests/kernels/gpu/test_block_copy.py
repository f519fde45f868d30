from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pools import STRIDE_ORDERS, lazy_pool, memory_of, pool

from blockstride.kernels.cache import reference
from blockstride.kernels.cache.gpu import block_copy
from blockstride.kernels.common.dispatch import INTERPRET

DEVICE = "cpu" if INTERPRET else "cuda"
SHAPE = (2, 5, 3, 4, 8)


def ids(*blocks: int) -> torch.Tensor:
    return torch.tensor(blocks, dtype=torch.int32, device=DEVICE)


def filled(shape=SHAPE, dtype=torch.float32, order="LBHNC", pad=0) -> torch.Tensor:
    """A pool whose elements all differ, in memory order of its own."""
    view = pool(shape, dtype, order, pad)
    count = torch.arange(view.numel()).reshape(shape)
    view.copy_(count % 120 if dtype.itemsize == 1 else count)
    return view if INTERPRET else view.cuda()


def copied(source, destination, source_blocks, destination_blocks):
    """What the destination should hold."""
    expected = destination.clone()
    reference.block_copy(source, expected, ids(*source_blocks), ids(*destination_blocks))
    return expected


@pytest.mark.parametrize(("read", "write"), list(product(STRIDE_ORDERS, STRIDE_ORDERS)))
def test_blocks_move_between_all_pairs_of_stride_orders(read, write):
    source, destination = filled(order=read, pad=8), filled(order=write).neg_()
    expected = copied(source, destination, [3, 1], [2, 4])
    before = memory_of(source).clone()
    block_copy(source, destination, ids(3, 1), ids(2, 4))
    assert torch.equal(destination, expected)
    assert torch.equal(memory_of(source), before)


@pytest.mark.parametrize("sizes", [(16, 4), (4, 16), (6, 4), (4, 6), (1, 12)], ids=str)
def test_blocks_are_recut_by_any_ratio(sizes):
    reads, writes = sizes
    source = filled((2, 18, 2, reads, 8), order="LBNHC")
    destination = filled((2, 18, 2, writes, 8), order="BLHNC").neg_()
    tokens = reads * writes
    source_blocks = list(range(1, 1 + tokens // reads))
    destination_blocks = list(range(17, 17 - tokens // writes, -1))
    expected = copied(source, destination, source_blocks, destination_blocks)
    block_copy(source, destination, ids(*source_blocks), ids(*destination_blocks))
    assert torch.equal(destination, expected)


def test_padding_is_neither_read_nor_written():
    source, destination = filled((2, 5, 3, 2, 8)), filled().neg_()
    blocks, into = [1, 0, 2, -1, 3, 4], [2, 3, 0]
    expected = copied(source, destination, blocks, into)
    block_copy(source, destination, ids(*blocks), ids(*into))
    assert torch.equal(destination, expected)


def test_a_slice_of_heads_or_content_is_a_sliced_view():
    source, destination = filled(order="LBNHC"), filled((2, 5, 2, 4, 5)).neg_()
    part = source[:, :, 1:, :, 2:7]
    expected = copied(part, destination, [4], [1])
    block_copy(part, destination, ids(4), ids(1))
    assert torch.equal(destination, expected)


def test_content_that_is_not_contiguous_moves_too():
    source = filled((2, 5, 3, 8, 4)).transpose(3, 4)
    destination = filled((2, 5, 3, 4, 8)).neg_()
    expected = copied(source, destination, [2], [3])
    block_copy(source, destination, ids(2), ids(3))
    assert torch.equal(destination, expected)


def test_pages_wider_than_a_tile_move_whole():
    source, destination = (filled((1, 4, 1, 1, 40_003), torch.int8) for _ in range(2))
    destination.zero_()
    expected = copied(source, destination, [2, 1], [1, 3])
    block_copy(source, destination, ids(2, 1), ids(1, 3))
    assert torch.equal(destination, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
def test_casts_round_like_torch_and_fp8_saturates(dtype):
    source = torch.randn(SHAPE, device=DEVICE) * 300
    destination = torch.zeros(SHAPE, dtype=dtype, device=DEVICE)
    expected = copied(source, destination, [1, 2], [2, 1])
    block_copy(source, destination, ids(1, 2), ids(2, 1))
    assert torch.equal(destination.float(), expected.float())


@pytest.mark.parametrize(
    ("read", "write"), [("LBHNC", "LBNHC"), ("BLNHC", "BLHNC"), ("LBHNC", "LHBNC")]
)
def test_a_pool_changes_its_order_in_place(read, write):
    """The last pair moves blocks into each other's bytes, so it cannot stay in registers."""
    source = filled(order=read)
    destination = source.as_strided(SHAPE, filled(order=write).stride(), source.storage_offset())
    everything = [1, 2, 3, 4]
    expected = source.clone()[:, 1:]
    blocks = ids(*everything)
    block_copy(source, destination, blocks, blocks)
    assert torch.equal(destination[:, 1:], expected)


@pytest.mark.parametrize("into", [(2, 1), (2, 3), (4, 1)], ids=str)
def test_blocks_of_one_pool_are_read_before_any_is_written(into):
    both = filled()
    expected = copied(both.clone(), both, [1, 2], into)
    block_copy(both, both, ids(1, 2), ids(*into))
    assert torch.equal(both, expected)


def test_blocks_of_one_pool_are_recut_in_place():
    source = filled((1, 9, 2, 4, 8))
    destination = source.as_strided((1, 5, 2, 8, 8), (576, 128, 64, 8, 1), source.storage_offset())
    reads, writes = [2, 3, 4, 5], [1, 2]
    expected = copied(source.clone(), destination.clone(), reads, writes)
    block_copy(source, destination, ids(*reads), ids(*writes))
    assert torch.equal(destination[:, 1:3], expected[:, 1:3])


def test_layers_at_uneven_distances_are_copied_by_one_launch():
    storage = torch.zeros(3, *SHAPE[1:], device=DEVICE)
    source, destination = filled(), storage[::2]
    block_copy(source, destination, ids(1), ids(2))
    assert torch.equal(destination[:, 2], source[:, 1])
    assert (storage[1] == 0).all()


def test_nothing_to_copy_is_legal():
    destination = filled()
    expected = destination.clone()
    block_copy(filled(), destination, ids(), ids())
    assert torch.equal(destination, expected)


def test_block_ids_times_strides_may_pass_2_to_the_31(overflow_is_an_error):
    if not INTERPRET:
        pytest.skip("lazily mapped memory is the interpreter's")
    far = 65_537
    shape, strides = (1, far + 1, 2, 16, 8), (0, 32_768, 16_384, 8, 1)
    source = lazy_pool(shape, strides, torch.bfloat16)
    destination = lazy_pool(shape, strides, torch.bfloat16)
    source[0, far] = torch.randn(2, 16, 8)
    block_copy(source, destination, ids(far), ids(far - 1))
    assert torch.equal(destination[0, far - 1], source[0, far])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    data=st.data(),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    orders=st.tuples(st.sampled_from(STRIDE_ORDERS), st.sampled_from(STRIDE_ORDERS)),
)
def test_any_copy_moves_tokens_as_one_by_one(data, sizes, orders):
    reads, writes = sizes
    times = data.draw(st.integers(0, 3))
    source_blocks = data.draw(
        st.lists(st.integers(-1, 18), min_size=times * writes, max_size=times * writes)
    )
    destination_blocks = data.draw(st.permutations(range(-1, 18)))[: times * reads]
    source = filled((2, 19, 2, reads, 4), order=orders[0], pad=4)
    destination = filled((2, 19, 2, writes, 4), order=orders[1]).neg_()
    expected = copied(source, destination, source_blocks, destination_blocks)
    block_copy(source, destination, ids(*source_blocks), ids(*destination_blocks))
    assert torch.equal(destination, expected)
