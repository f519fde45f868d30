from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from blockstride.kernels import StateField, copy_state, pack_state, unpack_state
from blockstride.kernels.cache import state_reference as reference

F32, BF16, F16, I8 = torch.float32, torch.bfloat16, torch.float16, torch.int8

# conv.x with channels outer (DS) or taps outer (SD), then ssm; 16-byte boundaries between them
CONV_DS = StateField(0, (6, 3), (3, 1), BF16)
CONV_SD = StateField(0, (6, 3), (1, 6), BF16)
SSM = StateField(48, (6, 4), (4, 1), F32)
PAGE_BYTES = 160

# a base row, then one changed factor a row
ROWS = {
    "base": ([CONV_DS, SSM], None),
    "SD": ([CONV_SD, SSM], None),
    "to-fp32": ([CONV_DS, SSM], [F32, F32]),
    "to-bf16": ([CONV_SD, SSM], [BF16, BF16]),
    "to-fp16": ([CONV_DS, SSM], [F16, F16]),
    "four-axes": ([StateField(16, (2, 3, 4), (12, 4, 1), F32)], [BF16]),
    "gaps": ([StateField(32, (2, 3), (13, 4), F16)], None),
    "one-number": ([StateField(156, (1,), (1,), F32)], None),
    "no-field": ([], None),
}


def ids(*blocks: int) -> Tensor:
    return torch.tensor(blocks, dtype=torch.int32)


def random_pages(num_blocks: int = 5) -> Tensor:
    """Pages of small numbers in every dtype, with a gap between one page and the next."""
    wide = torch.randn(num_blocks, (PAGE_BYTES + 32) // 4).view(I8)
    return wide[:, None, None, :PAGE_BYTES]


@pytest.mark.parametrize(("fields", "dtypes"), ROWS.values(), ids=ROWS.keys())
def test_states_are_the_numbers_at_their_offsets(fields, dtypes, assert_same_bits):
    pages, indices = random_pages(), ids(3, 0, 1, -1, 3)
    states = unpack_state(pages, indices, fields, dtypes)
    expected = reference.unpack_state(pages, indices, fields, dtypes)
    for state, wanted in zip(states, expected, strict=True):
        assert state.is_contiguous()
        assert_same_bits(state, wanted)


@pytest.mark.parametrize(("fields", "dtypes"), ROWS.values(), ids=ROWS.keys())
def test_packing_writes_those_numbers_and_no_other_byte(fields, dtypes, assert_same_bits):
    source, pages, indices = random_pages(), random_pages(), ids(4, 0, 2, -1)
    states = unpack_state(source, ids(1, 2, 3, 4), fields, dtypes)
    expected = pages.clone()
    reference.pack_state(states, expected, indices, fields)
    pack_state(states, pages, indices, fields)
    assert_same_bits(pages, expected)
    again = unpack_state(pages, ids(4, 2), fields, dtypes)
    for state, back in zip(states, again, strict=True):
        assert_same_bits(back, state[[0, 2]])


def test_the_gap_between_pages_is_never_written(assert_same_bits):
    wide = torch.full((4, 200), 0x7F, dtype=I8)
    pages = wide[:, None, None, :PAGE_BYTES]
    expected = wide.clone()
    states = [torch.randn(3, 6, 3), torch.randn(3, 6, 4)]
    pack_state(states, pages, ids(1, 2, 3), [CONV_DS, SSM])
    assert_same_bits(wide[:, PAGE_BYTES:], expected[:, PAGE_BYTES:])
    assert_same_bits(wide[0], expected[0])


def test_states_of_other_dtypes_are_cast(assert_same_bits):
    pages, state = random_pages(), torch.randn(2, 6, 3)
    pack_state([state], pages, ids(1, 2), [CONV_SD])
    (back,) = unpack_state(pages, ids(1, 2), [CONV_SD], [F32])
    assert_same_bits(back, state.to(BF16).float())


@given(
    blocks=st.lists(st.integers(1, 4), unique=True),
    sizes=st.lists(st.tuples(st.integers(1, 3), st.sampled_from([F32, BF16, F16])), max_size=4),
)
def test_unpacking_inverts_packing(blocks, sizes):
    offsets = [16 * i for i in range(len(sizes) + 1)]
    fields = [
        StateField(first, (count,), (1,), dtype)
        for (first, _), (count, dtype) in zip(pairwise(offsets), sizes, strict=True)
    ]
    states = [torch.randn(len(blocks), count).to(dtype) for count, dtype in sizes]
    pages = torch.zeros(5, 1, 1, PAGE_BYTES, dtype=I8)
    pack_state(states, pages, ids(*blocks), fields)
    for state, back in zip(states, unpack_state(pages, ids(*blocks), fields), strict=True):
        assert torch.equal(back, state)


def test_a_snapshot_is_every_byte_of_a_page(assert_same_bits):
    pages = random_pages()
    wide = pages.as_strided((5, PAGE_BYTES + 32), (pages.stride(0), 1))
    expected = wide.clone()
    copies = ids(1, 0, 4, 3, 1), ids(4, 2, -1, 2, 0)
    reference.copy_state(expected[:, None, None, :PAGE_BYTES], *copies)
    copy_state(pages, *copies)
    assert_same_bits(wide, expected)
    copy_state(pages, ids(), ids())
    assert_same_bits(wide, expected)


@pytest.mark.parametrize(("sources", "destinations"), [((1, 2), (3, 3)), ((1, 2), (2, 3))])
def test_copies_whose_order_would_matter_are_refused(sources, destinations):
    with pytest.raises(ValueError, match=r"^destination_indices: expected blocks written once"):
        copy_state(random_pages(), ids(*sources), ids(*destinations))


@pytest.mark.usefixtures("unchecked")
def test_as_many_blocks_are_written_as_read():
    with pytest.raises(ValueError, match=r"^destination_indices: expected shape \(2,\)"):
        copy_state(random_pages(), ids(1, 2), ids(3))


def test_pages_beyond_2_to_the_31_bytes_are_reached(lazy_memory, assert_same_bits):
    stride = 2**31 + 16
    pages = lazy_memory(2 * stride + 256, I8).as_strided((3, 1, 1, 160), (stride, 1, 1, 1))
    states = [torch.randn(2, 6, 3).to(BF16), torch.randn(2, 6, 4)]
    pack_state(states, pages, ids(2, 1), [CONV_DS, SSM])
    back = unpack_state(pages, ids(2, 1), [CONV_DS, SSM])
    assert_same_bits(back[0], states[0])
    assert_same_bits(back[1], states[1])


BAD_FIELDS = {
    "past-the-page": (StateField(100, (6, 4), (4, 1), F32), ValueError),
    "before-the-page": (StateField(-4, (1,), (1,), F32), ValueError),
    "off-alignment": (StateField(2, (1,), (1,), F32), ValueError),
    "backwards-out-of-the-page": (StateField(0, (4,), (-1,), F32), ValueError),
    "too-few-strides": (StateField(0, (4, 2), (1,), F32), ValueError),
    "integers": (StateField(0, (1,), (1,), torch.int32), TypeError),
}


@pytest.mark.parametrize(("field", "error"), BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
def test_a_field_that_does_not_fit_the_page_is_refused(field, error):
    with pytest.raises(error, match=r"^fields: expected"):
        unpack_state(random_pages(), ids(1), [field])


def test_a_field_whose_elements_share_bytes_may_be_read_and_not_written():
    field = StateField(4, (3, 2), (0, 1), F32)
    (state,) = unpack_state(random_pages(), ids(1), [field])
    assert torch.equal(state, state[:, :1].expand(1, 3, 2))
    with pytest.raises(ValueError, match=r"^fields: expected bytes of its own"):
        pack_state([state], random_pages(), ids(1), [field])


def test_the_number_of_states_and_of_dtypes_must_be_that_of_fields():
    with pytest.raises(ValueError, match=r"^dtypes: expected 1 of them, got 2"):
        unpack_state(random_pages(), ids(1), [SSM], [F32, F32])
    with pytest.raises(ValueError, match=r"^states: expected 1 of them, got 0"):
        pack_state([], random_pages(), ids(1), [SSM])
    with pytest.raises(ValueError, match=r"^states: expected shape"):
        pack_state([torch.zeros(1, 4, 6)], random_pages(), ids(1), [SSM])
    with pytest.raises(TypeError, match=r"^dtypes: expected"):
        unpack_state(random_pages(), ids(1), [SSM], [torch.int32])


def test_blocks_past_the_pool_or_written_twice_are_refused():
    pages, state = random_pages(), torch.zeros(2, 6, 4)
    with pytest.raises(ValueError, match=r"^state_indices: expected ids below 5, got 5"):
        unpack_state(pages, ids(1, 5), [SSM])
    with pytest.raises(ValueError, match=r"^state_indices: expected ids below 5, got 9"):
        pack_state([state], pages, ids(9, 1), [SSM])
    with pytest.raises(ValueError, match=r"^state_indices: expected no block twice"):
        pack_state([state], pages, ids(2, 2), [SSM])
    with pytest.raises(ValueError, match=r"^destination_indices: expected ids below 5, got 5"):
        copy_state(pages, ids(1), ids(5))
