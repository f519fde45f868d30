import pytest
import torch

from blockstride.kernels.common.cpu.lanes import LANES
from blockstride.kernels.common.cpu.native import Program, arguments, claim, f32_at, num_tasks
from blockstride.kernels.common.cpu.widen import KINDS, itemsize_of, widen


@Program
def _widen_rows(address):
    source, target, width, stride, kind = arguments(address, 5)
    task = claim(address)
    while task < num_tasks(address):
        first = source + itemsize_of(kind) * task * LANES * stride
        widen(f32_at(target + 4 * task * LANES), first, width, stride, kind)
        task = claim(address)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("width", [64, 41])
def test_every_bit_pattern_becomes_the_same_float32(dtype, stride, width):
    bits = torch.arange(2**16, dtype=torch.int32)
    raw = {1: bits % 256, 2: bits, 4: bits * 65_521}[torch.empty(0, dtype=dtype).itemsize]
    integer = {1: torch.uint8, 2: torch.uint16, 4: torch.int32}[
        torch.empty(0, dtype=dtype).itemsize
    ]
    values = raw.to(integer).view(dtype)
    memory = torch.zeros(2**16, stride).to(dtype)
    memory[:, 0] = values
    target = torch.full((2**10, LANES), 7.0)
    _widen_rows(2**10, 16, memory.data_ptr(), target.data_ptr(), width, stride, KINDS[dtype])
    expected = values.float().view(2**10, LANES).clone()
    expected[:, width:] = 0
    assert torch.equal(target.nan_to_num(nan=1e33), expected.nan_to_num(nan=1e33))
