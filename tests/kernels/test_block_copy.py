from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from blockstride.kernels import block_copy
from blockstride.kernels.cache import reference

F32, BF16, F16, F8, I8 = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.int8,
)
# the six layouts of a pool [L, B, H, N, C], and one whose content is not innermost
LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC", "CNHBL")


def order_of(layout: str) -> tuple[int, ...]:
    return tuple("LBHNC".index(axis) for axis in layout)


def ids(*blocks: int) -> Tensor:
    return torch.tensor(blocks, dtype=torch.int32)


def numbered(
    num_blocks: int, block_size: int, dtype=F32, heads: int = 2, content: int = 3
) -> Tensor:
    """A pool in which every element is another number, as far as the dtype can tell."""
    shape = (2, num_blocks, heads, block_size, content)
    numbers = torch.arange(torch.Size(shape).numel())
    if torch.empty(0, dtype=dtype).itemsize == 1:
        return (numbers % 119).to(torch.uint8).view(dtype).view(shape)
    return numbers.to(dtype).view(shape)


def laid_out(values: Tensor, layout: str) -> Tensor:
    """The same values in memory of another order."""
    inverse = [layout.index(axis) for axis in "LBHNC"]
    return values.permute(order_of(layout)).contiguous().permute(inverse)


def copied(source: Tensor, destination: Tensor, reads: Tensor, writes: Tensor) -> Tensor:
    """The destination after the copy."""
    result = destination.clone()
    reference.block_copy(source, result, reads, writes)
    return result


@pytest.mark.parametrize(("of", "to"), list(product(LAYOUTS, LAYOUTS)), ids=str)
def test_blocks_cross_between_every_two_layouts(of, to, pool_of, assert_same_bits):
    source = pool_of(numbered(6, 4), order_of(of))
    destination = pool_of(-numbered(5, 4), order_of(to))
    expected = pool_of(destination.view, order_of(to))
    reads, writes = ids(3, 1, 5), ids(2, 4, 1)
    expected.view.copy_(copied(source.view, destination.view, reads, writes))
    before = source.memory.clone()
    block_copy(source.view, destination.view, reads, writes)
    assert_same_bits(destination.memory, expected.memory)
    assert_same_bits(source.memory, before)


@pytest.mark.parametrize(
    ("n", "m", "reads", "writes"),
    [
        (4, 4, (), ()),
        (8, 4, (2, 1), (4, 1, 3, 2)),
        (4, 8, (4, 1, 3, 2), (2, 1)),  # either direction, tokens in order
        (2, 3, (1, 2, 3, 4, 5, 6), (4, 3, 2, 1)),
        (6, 4, (3, 1), (1, 2, 3)),
        (1, 5, (5, 4, 3, 2, 1), (1,)),
        (16, 16, (1,), (1,)),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["LBHNC", "BLNHC"])
def test_tokens_keep_their_order_in_blocks_of_another_size(
    n, m, reads, writes, layout, pool_of, assert_same_bits
):
    source = pool_of(numbered(7, n), order_of(layout))
    destination = pool_of(-numbered(7, m), order_of("BHLNC"))
    expected = copied(source.view, destination.view, ids(*reads), ids(*writes))
    block_copy(source.view, destination.view, ids(*reads), ids(*writes))
    assert_same_bits(destination.view, expected)


@pytest.mark.parametrize(
    ("reads", "writes"), [((0, 2), (1, 2)), ((1, -1), (2, 3)), ((1, 2), (0, 3)), ((1, 2), (3, -1))]
)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_padding_on_either_side_is_not_copied(reads, writes, dtype, assert_same_bits):
    source, destination = numbered(4, 3), -numbered(4, 3, dtype)
    expected = copied(source, destination, ids(*reads), ids(*writes))
    block_copy(source, destination, ids(*reads), ids(*writes))
    assert_same_bits(destination, expected)


def test_padding_covers_the_tokens_of_a_larger_block(assert_same_bits):
    source, destination = numbered(4, 2), -numbered(4, 6)
    reads, writes = ids(1, 0, 3, 3, 2, 1), ids(2, 0)
    expected = copied(source, destination, reads, writes)
    block_copy(source, destination, reads, writes)
    assert_same_bits(destination, expected)


@pytest.mark.parametrize(
    ("of", "to"),
    [(F32, BF16), (BF16, F32), (F32, F16), (F32, F8), (F8, BF16), (BF16, BF16), (I8, I8), (F8, F8)],
    ids=str,
)
@pytest.mark.parametrize("layout", ["BLHNC", "CNHBL"])
def test_values_are_cast_and_equal_dtypes_keep_their_bits(
    of, to, layout, pool_of, assert_same_bits
):
    source = pool_of(numbered(4, 4, of, content=5), order_of(layout)).view
    destination = numbered(4, 2, to, content=5)
    reads, writes = ids(2, 3), ids(1, 3, 2, 0)
    expected = copied(source, destination, reads, writes)
    block_copy(source, destination, reads, writes)
    assert_same_bits(destination, expected)


def test_slices_of_heads_and_content_leave_the_rest_alone(assert_same_bits):
    source, destination = numbered(4, 3, heads=4, content=8), -numbered(4, 3, heads=6, content=8)
    expected = destination.clone()
    expected[:, ids(1, 3), 2:4, :, 4:7] = source[:, ids(2, 1), 1:3, :, 1:4]
    block_copy(source[:, :, 1:3, :, 1:4], destination[:, :, 2:4, :, 4:7], ids(2, 1), ids(1, 3))
    assert_same_bits(destination, expected)


@pytest.mark.parametrize(("of", "to"), [("LBHNC", "LBNHC"), ("BLHNC", "BHLNC"), ("LBHNC", "BLNHC")])
@pytest.mark.parametrize(("reads", "writes"), [((1, 2, 3), (1, 2, 3)), ((1, 2, 3), (2, 3, 1))])
def test_blocks_may_be_permuted_in_the_memory_they_lie_in(of, to, reads, writes, assert_same_bits):
    values = numbered(4, 3)
    memory = torch.zeros(values.numel())

    def view(layout: str) -> Tensor:
        shape = [values.shape[axis] for axis in order_of(layout)]
        return memory.view(shape).permute([layout.index(axis) for axis in "LBHNC"])

    view(of).copy_(values)
    before = memory.clone()
    block_copy(view(of), view(to), ids(*reads), ids(*writes))
    assert_same_bits(view(to)[:, ids(*writes)], values[:, ids(*reads)])
    if of[0] == to[0] == "B":
        assert_same_bits(memory[: len(memory) // 4], before[: len(memory) // 4])


def test_blocks_may_be_merged_in_the_memory_they_lie_in(assert_same_bits):
    memory = torch.randn(8 * 2 * 4 * 3)
    small = memory.view(1, 8, 4, 2, 3)
    large = memory.view(1, 4, 4, 4, 3)
    old = small.clone()
    block_copy(small, large, ids(5, 2, 3, 6), ids(1, 2))
    assert_same_bits(large[0, 1], torch.cat([old[0, 5], old[0, 2]], 1))
    assert_same_bits(large[0, 2], torch.cat([old[0, 3], old[0, 6]], 1))
    assert_same_bits(large[0, 3], memory.view(1, 4, 4, 4, 3)[0, 3])


@given(
    n=st.integers(1, 6),
    m=st.integers(1, 6),
    units=st.integers(0, 3),
    layouts=st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)),
    data=st.data(),
)
def test_copying_there_and_back_is_the_identity(n, m, units, layouts, data):
    reads = data.draw(st.permutations(range(1, units * m + 1)))
    writes = data.draw(st.permutations(range(1, units * n + 1)))
    source = laid_out(numbered(units * m + 1, n), layouts[0])
    there = laid_out(torch.zeros(2, units * n + 1, 2, m, 3), layouts[1])
    back = torch.zeros_like(source)
    block_copy(source, there, ids(*reads), ids(*writes))
    block_copy(there, back, ids(*writes), ids(*reads))
    assert torch.equal(back[:, 1:], source[:, 1:])


def test_blocks_beyond_2_to_the_31_elements_are_reached(lazy_memory, assert_same_bits):
    stride = 2**30 + 8
    far = lazy_memory(2 * stride + 64, F32).as_strided((2, 3, 2, 4, 3), (24, stride, 12, 3, 1))
    source, back = numbered(3, 4), torch.zeros(2, 3, 2, 4, 3)
    block_copy(source, far, ids(1), ids(2))
    block_copy(far, back, ids(2), ids(1))
    assert_same_bits(back[:, 1], source[:, 1])


BAD = {
    "source": (torch.zeros(2, 4, 2, 3, 3, dtype=torch.float64), TypeError),
    "destination": (torch.zeros(2, 4, 2, 3, 4), ValueError),
    "source_blocks": (torch.zeros(2, dtype=torch.int64), TypeError),
    "destination_blocks": (ids(1, 2, 3), ValueError),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_named(name):
    value, error = BAD[name]
    arguments: dict[str, Any] = {
        "source": numbered(4, 3),
        "destination": numbered(4, 3),
        "source_blocks": ids(1, 2),
        "destination_blocks": ids(2, 3),
    }
    with pytest.raises(error, match=f"^{name}: expected"):
        block_copy(**(arguments | {name: value}))


def test_a_block_written_twice_is_refused():
    with pytest.raises(ValueError, match=r"^destination_blocks: expected no block twice"):
        block_copy(numbered(4, 3), numbered(4, 3), ids(1, 2), ids(3, 3))


def test_bytes_are_not_cast_to_numbers():
    with pytest.raises(TypeError, match=r"^destination: expected torch\.int8"):
        block_copy(numbered(4, 3, I8), numbered(4, 3), ids(1), ids(1))
