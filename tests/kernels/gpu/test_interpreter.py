"""The repaired interpreter against torch: whoever tests with a tool tests the tool first."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from support import interpreter

from blockstride.kernels.common.dispatch import INTERPRET

pytestmark = pytest.mark.skipif(not INTERPRET, reason="there is no interpreter to repair on a GPU")
NARROW = [torch.bfloat16, torch.float16, torch.float8_e4m3fn]
EDGES = torch.tensor([
    0.0, -0.0, 1.0, 1.00390625, 1.01171875, 3e38, -3e38, 447.0, 464.0, 465.0, 1e9, 2**-9,
    2**-10, 1.5 * 2**-10, float("inf"), float("-inf"), 65504.0, 6.1e-5, 5.96e-8, 1.9375, 248.0,
])  # fmt: skip


@triton.jit
def cast_kernel(source_ptr, target_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(target_ptr + offs, tl.load(source_ptr + offs).to(target_ptr.dtype.element_ty))


@triton.jit
def arithmetic_kernel(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    a, b = tl.load(a_ptr + offs), tl.load(b_ptr + offs)
    tl.store(out_ptr + offs, tl.where(a > b, a * b, a - b))


@triton.jit
def dot_kernel(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    a, b = tl.load(a_ptr + row * BLOCK + column), tl.load(b_ptr + row * BLOCK + column)
    tl.store(out_ptr + row * BLOCK + column, tl.dot(a, b))


@triton.jit
def scalar_mask_kernel(source_ptr, target_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    first = tl.load(source_ptr)
    tl.store(target_ptr + offs, tl.load(source_ptr + offs), mask=(offs > 1) & (first > 0.0))


@triton.jit
def scaled_offset_kernel(out_ptr, offset, factor, BLOCK: tl.constexpr):
    offs = offset * factor + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, offs, mask=offs < BLOCK)


def saturated(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    limit = torch.finfo(dtype).max
    return (values.clamp(-limit, limit) if dtype == torch.float8_e4m3fn else values).to(dtype)


def bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.uint8)


@pytest.mark.parametrize("dtype", NARROW)
def test_casts_round_to_nearest_even_and_fp8_saturates(dtype):
    values = torch.cat([EDGES, torch.randn(1024 - len(EDGES)) * 100])
    narrow = torch.empty(1024, dtype=dtype)
    cast_kernel[(1,)](values, narrow, BLOCK=1024)
    assert torch.equal(bits(narrow), bits(saturated(values, dtype)))
    wide = torch.empty(1024)
    cast_kernel[(1,)](narrow, wide, BLOCK=1024)
    assert torch.equal(wide, narrow.float())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=4, max_size=4))
def test_casts_of_any_float_agree_with_torch(numbers):
    values = torch.tensor(numbers)
    for dtype in NARROW:
        narrow = torch.empty(4, dtype=dtype)
        cast_kernel[(1,)](values, narrow, BLOCK=4)
        assert torch.equal(bits(narrow), bits(saturated(values, dtype)))


def test_integers_become_bfloat16_and_back():
    values = torch.arange(-512, 512, dtype=torch.int32)
    narrow, back = torch.empty(1024, dtype=torch.bfloat16), torch.empty_like(values)
    cast_kernel[(1,)](values, narrow, BLOCK=1024)
    assert torch.equal(narrow, values.bfloat16())
    cast_kernel[(1,)](narrow, back, BLOCK=1024)
    assert torch.equal(back, values.bfloat16().int())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_arithmetic_and_comparison_agree_with_torch(dtype):
    a, b = torch.randn(2, 1024).to(dtype)
    out = torch.empty_like(a)
    arithmetic_kernel[(1,)](a, b, out, BLOCK=1024)
    assert torch.equal(out, torch.where(a > b, a * b, a - b))


@pytest.mark.parametrize("dtype", NARROW)
def test_dots_of_narrow_floats_agree_with_float64(dtype):
    a, b = torch.randn(2, 32, 32).to(dtype)
    out = torch.empty(32, 32)
    dot_kernel[(1,)](a, b, out, BLOCK=32)
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


def test_the_truth_of_a_scalar_masks_a_tile():
    values, out = torch.arange(1.0, 5.0), torch.zeros(4)
    scalar_mask_kernel[(1,)](values, out, BLOCK=4)
    assert out.tolist() == [0, 0, 3, 4]


def test_an_access_outside_the_tensors_of_the_launch_is_an_error():
    storage = torch.zeros(64)
    inside, short = storage[16:48], storage[16:47]
    cast_kernel[(1,)](inside, torch.empty(32), BLOCK=32)
    with pytest.raises(Exception, match="load outside every tensor"):
        cast_kernel[(1,)](short, torch.empty(32), BLOCK=32)
    with pytest.raises(Exception, match="store outside every tensor"):
        cast_kernel[(1,)](inside, torch.empty(31), BLOCK=32)


def test_int32_overflow_is_an_error_where_it_is_looked_for():
    out = torch.empty(4, dtype=torch.int32)
    with interpreter.overflow_is_an_error():
        scaled_offset_kernel[(1,)](out, 0, 2**20, BLOCK=4)
        with pytest.raises(Exception, match="int32 overflow"):
            scaled_offset_kernel[(1,)](out, 2**12, 2**20, BLOCK=4)
