import pytest
import torch
from support.budget import assert_within_budget, exact_and_plain
from torch.nn.functional import gelu, silu

from blockstride.kernels.common.dispatch import INTERPRET
from blockstride.kernels.mlp import GELU_TANH, SILU, Gate, reference
from blockstride.kernels.mlp.gpu import gate_and_mul

DEVICE = "cpu" if INTERPRET else "cuda"
NAN = float("nan")
GATES = [SILU, GELU_TANH, Gate(slope=1.7, limit=3.0, offset=1.0)]
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
SHAPES = [(0, 8), (1, 2), (3, 128), (5, 300), (2, 3, 70), (10,), (2, 2500)]


@pytest.fixture(autouse=True)
def on_device():
    torch.manual_seed(0)
    with torch.device(DEVICE):
        yield


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("gate", GATES, ids=["silu", "gelu", "clamped"])
def test_the_second_half_is_gated_by_the_first(shape, dtype, gate):
    gate_up = (torch.randn(shape) * 5).to(dtype)
    out = gate_and_mul(gate_up, gate)
    assert out.dtype == dtype
    exact, plain = exact_and_plain(reference.gate_and_mul, {"gate_up": gate_up, "gate": gate})
    assert_within_budget(out, exact, plain.to(dtype))


@pytest.mark.parametrize("gate", [-1e4, -88.0, -30.0, 0.0, 30.0, 88.0, 1e4])
def test_gates_of_any_size_neither_overflow_nor_vanish_early(gate):
    out = gate_and_mul(torch.tensor([[gate, 1.0]]))
    torch.testing.assert_close(out, silu(torch.tensor([[gate]])), rtol=1e-5, atol=1e-30)


def test_slices_are_read_and_written_and_nothing_around_them():
    gate_up = torch.randn(4, 140)
    wide_in, wide_out = torch.full((4, 150), NAN), torch.full((4, 90), NAN)
    wide_in[:, 6:146] = gate_up
    out = wide_out[:, 7:77]
    assert gate_and_mul(wide_in[:, 6:146], out=out) is out
    assert torch.equal(out, gate_and_mul(gate_up))
    assert wide_out[:, :7].isnan().all()
    assert wide_out[:, 77:].isnan().all()


def test_tensors_that_are_no_rows_are_read_and_written_too():
    gate_up = torch.randn(6, 4, 3).permute(2, 1, 0)
    out = torch.zeros(4, 3, 3).transpose(0, 1)
    assert gate_and_mul(gate_up, out=out) is out
    assert torch.equal(out, gate_and_mul(gate_up.contiguous()))


def test_the_approximate_gelu_is_that_of_torch():
    """Far out on both sides too, where a hyperbolic tangent would have lost all digits."""
    x = torch.cat([torch.linspace(-9, 9, 500), torch.tensor([-1e4, -30.0, 30.0, 1e4])])
    out = gate_and_mul(torch.stack([x, torch.ones_like(x)], dim=1), GELU_TANH)[:, 0]
    exact = gelu(x.double(), approximate="tanh").float()
    torch.testing.assert_close(out, exact, rtol=2e-5, atol=1e-9)
