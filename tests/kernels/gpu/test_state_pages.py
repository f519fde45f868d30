import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pools import STRIDE_ORDERS, lazy_pool, memory_of, pool
from torch import Tensor

from blockstride.kernels import StateField
from blockstride.kernels.cache import state_reference as reference
from blockstride.kernels.cache.gpu import copy_state, pack_state, unpack_state
from blockstride.kernels.common.dispatch import INTERPRET

DEVICE = "cpu" if INTERPRET else "cuda"
F32, BF16, F16, I8 = torch.float32, torch.bfloat16, torch.float16, torch.int8
CHANNELS, BLOCKS, PAGE_BYTES = 10, 6, 512
# channels outer (DS) or taps outer (SD)
CONV_DS = StateField(0, (CHANNELS, 3), (3, 1), BF16)
CONV_SD = StateField(0, (CHANNELS, 3), (1, CHANNELS), BF16)
SSM = StateField(64, (CHANNELS, 4), (4, 1), F32)

# a base row, then one changed factor a row
ROWS = {
    "base": ([CONV_DS, SSM], None),
    "SD": ([CONV_SD, SSM], None),
    "to-fp32": ([CONV_DS, SSM], [F32, F32]),
    "to-bf16": ([CONV_SD, SSM], [BF16, BF16]),
    "to-fp16": ([CONV_SD, SSM], [F16, F16]),
    "heads": ([StateField(16, (2, 3, 4), (12, 4, 1), F32)], [BF16]),
    "gaps": ([StateField(32, (2, 3), (13, 4), F16)], None),
    "axes-that-do-not-join": ([StateField(0, (2, 3, 2, 3), (1, 41, 18, 5), BF16)], None),
    "one-number": ([StateField(508, (1,), (1,), F32)], None),
    "nothing": ([StateField(16, (0, 4), (4, 1), F32)], None),
    "no-field": ([], None),
}


@pytest.fixture(autouse=True)
def on_device():
    torch.manual_seed(0)
    with torch.device(DEVICE):
        yield


def ids(*blocks: int) -> Tensor:
    return torch.tensor(blocks, dtype=torch.int32, device=DEVICE)


def pages_of(order: str = "LBHNC", pad: int = 64, page_bytes: int = PAGE_BYTES) -> Tensor:
    """The second layer of a pool of pages, all but the null block random.

    The bytes make ordinary numbers of every dtype, whose casts no two machines do differently.
    """
    layer = pool((2, BLOCKS, 1, 1, page_bytes), I8, order, pad)[1]
    layer[1:] = torch.randint(32, 64, (BLOCKS - 1, 1, 1, page_bytes), dtype=I8)
    return layer


@pytest.mark.parametrize(("fields", "dtypes"), ROWS.values(), ids=ROWS.keys())
def test_states_come_out_of_their_pages_dense_and_cast(fields, dtypes, assert_same_bits):
    pages, indices = pages_of(), ids(3, 0, 1, -1, 5)
    before = memory_of(pages).clone()
    states = unpack_state(pages, indices, fields, dtypes or [field.dtype for field in fields])
    expected = reference.unpack_state(pages, indices, fields, dtypes)
    for state, wanted in zip(states, expected, strict=True):
        assert state.is_contiguous()
        assert_same_bits(state, wanted)
    assert torch.equal(memory_of(pages), before)


@pytest.mark.parametrize(("fields", "dtypes"), ROWS.values(), ids=ROWS.keys())
def test_packing_writes_the_fields_and_no_other_byte(fields, dtypes):
    source, pages, indices = pages_of(), pages_of(), ids(4, 0, 2, -1)
    states = reference.unpack_state(source, ids(1, 2, 3, 4), fields, dtypes)
    expected = pages.clone()
    reference.pack_state(states, expected, indices, fields)
    before = memory_of(pages).clone()
    pack_state(states, pages, indices, fields)
    assert torch.equal(pages, expected)
    # nothing outside the layer's pages changed either
    pages.zero_()
    actual = memory_of(pages).clone()
    memory_of(pages).copy_(before)
    pages.zero_()
    assert torch.equal(actual, memory_of(pages))


@pytest.mark.parametrize("order", STRIDE_ORDERS)
def test_a_state_is_the_same_in_every_stride_order_and_conv_order(order, assert_same_bits):
    state = torch.randn(2, CHANNELS, 3).to(BF16)
    for field in (CONV_DS, CONV_SD):
        pages = pages_of(order)
        pack_state([state], pages, ids(4, 1), [field])
        (back,) = unpack_state(pages, ids(4, 1), [field], [BF16])
        assert_same_bits(back, state)


def test_states_of_any_strides_are_packed(assert_same_bits):
    pages = pages_of()
    state = torch.randn(3, CHANNELS, 2).permute(2, 1, 0)
    pack_state([state], pages, ids(2, 5), [CONV_SD])
    (back,) = unpack_state(pages, ids(2, 5), [CONV_SD], [F32])
    assert_same_bits(back, state.to(BF16).float())


def test_states_wider_than_a_tile_move_whole(assert_same_bits):
    numel = 5_003
    pages = torch.randn(3, 5_008).view(I8)[:, None, None]
    field = StateField(16, (numel,), (1,), F32)
    (state,) = unpack_state(pages, ids(2, 1), [field], [F32])
    assert_same_bits(state[0], pages[2, 0, 0, 16 : 16 + 4 * numel].view(F32))
    pages[1:].zero_()
    pack_state([state], pages, ids(2, 1), [field])
    assert_same_bits(unpack_state(pages, ids(2, 1), [field], [F32])[0], state)


def test_axes_wider_than_a_tile_move_whole(assert_same_bits):
    field = StateField(0, (3, 5_003), (5_005, 1), F32)
    pages = torch.randn(3, 16_016).view(I8)[:, None, None]
    (state,) = unpack_state(pages, ids(2), [field], [BF16])
    rows = pages[2, 0, 0].view(F32)[: 3 * 5_005].view(3, 5_005)
    assert_same_bits(state[0], rows[:, :5_003].to(BF16))


@pytest.mark.parametrize("page_bytes", [512, 516, 20_004], ids=str)
@pytest.mark.parametrize("order", STRIDE_ORDERS)
def test_a_snapshot_is_every_byte_of_a_page(order, page_bytes):
    pages = pages_of(order, pad=4, page_bytes=page_bytes)
    expected, before = pages.clone(), memory_of(pages).clone()
    copies = ids(1, 0, 3, 5, -1), ids(4, 3, 0, 2, -1)
    reference.copy_state(expected, *copies)
    copy_state(pages, *copies)
    assert torch.equal(pages, expected)
    pages.zero_()
    actual = memory_of(pages).clone()
    memory_of(pages).copy_(before)
    pages.zero_()
    assert torch.equal(actual, memory_of(pages))


def test_pages_of_an_odd_number_of_bytes_are_copied_too():
    pages = torch.arange(4 * 33, dtype=I8).view(4, 1, 1, 33)[..., :31]
    expected = pages.clone()
    expected[3] = expected[1]
    copy_state(pages, ids(1), ids(3))
    assert torch.equal(pages, expected)


def test_no_sequences_are_legal():
    pages = pages_of()
    before = memory_of(pages).clone()
    assert unpack_state(pages, ids(), [SSM], [F32])[0].shape == (0, CHANNELS, 4)
    pack_state([torch.zeros(0, CHANNELS, 4)], pages, ids(), [SSM])
    copy_state(pages, ids(), ids())
    assert torch.equal(memory_of(pages), before)


def test_block_ids_times_strides_may_pass_2_to_the_31(overflow_is_an_error, assert_same_bits):
    if not INTERPRET:
        pytest.skip("lazily mapped memory is the interpreter's")
    far = 65_537
    pages = lazy_pool((far + 1, 1, 1, PAGE_BYTES), (65_536, PAGE_BYTES, PAGE_BYTES, 1), I8)
    states = [torch.randn(1, CHANNELS, 3).to(BF16), torch.randn(1, CHANNELS, 4)]
    pack_state(states, pages, ids(far), [CONV_SD, SSM])
    copy_state(pages, ids(far), ids(far - 1))
    for back, state in zip(
        unpack_state(pages, ids(far - 1), [CONV_SD, SSM], [BF16, F32]), states, strict=True
    ):
        assert_same_bits(back, state)


@settings(max_examples=25)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
    dtype=st.sampled_from([F32, BF16, F16]),
    blocks=st.permutations(range(-1, BLOCKS)),
)
def test_any_field_comes_back_as_it_went_in(shape, order, dtype, blocks):
    axes = order.sample(range(len(shape)), len(shape))
    strides, step = [0] * len(shape), 1
    for axis in axes:
        strides[axis] = step
        step *= shape[axis] + order.randint(0, 1)
    field = StateField(16, tuple(shape), tuple(strides), dtype)
    state = torch.randn(3, *shape, device=DEVICE).to(dtype)
    pages = torch.zeros(BLOCKS, 1, 1, 16 + 4 * 5**4, dtype=I8, device=DEVICE)
    pack_state([state], pages, ids(*blocks[:3]), [field])
    (back,) = unpack_state(pages, ids(*blocks[:3]), [field], [dtype])
    is_padding = torch.tensor(blocks[:3], device=DEVICE) <= 0
    assert torch.equal(back[~is_padding], state[~is_padding])
    assert (back[is_padding] == 0).all()
