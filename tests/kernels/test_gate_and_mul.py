from typing import Any

import pytest
import torch
from torch.nn.functional import gelu, silu

from blockstride.kernels import GELU_TANH, SILU, Gate, gate_and_mul
from blockstride.kernels.mlp import reference
from tests.kernels.gpu.support.budget import exact_and_plain

NAN = float("nan")
GATES = [SILU, GELU_TANH, Gate(slope=1.7, limit=3.0, offset=1.0)]
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


@pytest.mark.parametrize("shape", [(0, 8), (1, 2), (3, 128), (5, 300), (2, 3, 70), (10,)], ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("gate", GATES, ids=["silu", "gelu", "clamped"])
def test_the_second_half_is_gated_by_the_first(shape, dtype, gate, assert_accurate):
    gate_up = (torch.randn(shape) * 5).to(dtype)
    out = gate_and_mul(gate_up, gate)
    assert out.dtype == dtype
    exact, plain = exact_and_plain(reference.gate_and_mul, {"gate_up": gate_up, "gate": gate})
    assert_accurate(out, exact, plain.to(dtype))


@pytest.mark.parametrize("gate", [-1e4, -88.0, -30.0, 0.0, 30.0, 88.0, 1e4])
def test_gates_of_any_size_neither_overflow_nor_vanish_early(gate):
    out = gate_and_mul(torch.tensor([[gate, 1.0]]))
    torch.testing.assert_close(out, silu(torch.tensor([[gate]])), rtol=1e-6, atol=1e-30)


def test_a_slice_is_written_in_place_and_nothing_around_it():
    gate_up = torch.randn(4, 140)
    wide_in, wide_out = torch.full((4, 150), NAN), torch.full((4, 90), NAN)
    wide_in[:, 6:146] = gate_up
    out = wide_out[:, 7:77]
    assert gate_and_mul(wide_in[:, 6:146], out=out) is out
    assert torch.equal(out, gate_and_mul(gate_up))
    assert torch.isnan(wide_out[:, :7]).all()
    assert torch.isnan(wide_out[:, 77:]).all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("gate_up", torch.zeros(2, 7), ValueError),
        ("gate_up", torch.zeros(2, 8, dtype=torch.int32), TypeError),
        ("out", torch.zeros(2, 8), ValueError),
        ("gate", "gelu", TypeError),
    ],
)
def test_a_wrong_argument_is_named(name, value, error):
    arguments: dict[str, Any] = {"gate_up": torch.zeros(2, 8)}
    with pytest.raises(error, match=f"^{name}: expected"):
        gate_and_mul(**(arguments | {name: value}))


def test_the_approximate_gelu_is_that_of_torch():
    """Far out on both sides too, where a hyperbolic tangent would have lost all digits."""
    x = torch.cat([torch.linspace(-9, 9, 500), torch.tensor([-1e4, -30.0, 30.0, 1e4])])
    out = gate_and_mul(torch.stack([x, torch.ones_like(x)], dim=1), GELU_TANH)[:, 0]
    exact = gelu(x.double(), approximate="tanh").float()
    torch.testing.assert_close(out, exact, rtol=2e-5, atol=1e-9)
