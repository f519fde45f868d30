import numpy as np
import pytest
import torch
from torch.nn import functional

from blockstride.models.training.conv import causal_conv
from blockstride.models.training.lanes import exp2, jit, sigmoid
from blockstride.models.training.scan import CHUNK, selective_scan

FLOAT32_ERROR = 2e-6  # of the largest value


def recurrence(x, dt, A, B, C, D, z):
    h = torch.zeros(x.shape[0], x.shape[2], A.shape[1], dtype=x.dtype)
    outputs = []
    for t in range(x.shape[1]):
        drive = (dt[:, t] * x[:, t])[..., None] * B[:, t, None]
        h = torch.exp(dt[:, t, :, None] * A) * h + drive
        outputs.append((h * C[:, t, None]).sum(-1) + D * x[:, t])
    return torch.stack(outputs, dim=1) * functional.silu(z)


def convolution(x, weight, bias):
    width = weight.shape[1]
    padded = functional.pad(x.transpose(1, 2), (width - 1, 0))
    out = functional.conv1d(padded, weight[:, None], bias, groups=weight.shape[0])
    return functional.silu(out).transpose(1, 2)


def scan_inputs(batch, num_tokens, d_inner, d_state):
    rng = torch.Generator().manual_seed(num_tokens)

    def normal(*shape):
        return torch.randn(*shape, generator=rng)

    wide, narrow = (batch, num_tokens, d_inner), (batch, num_tokens, d_state)
    dt = functional.softplus(normal(*wide) - 2)
    A = -torch.exp(normal(d_inner, d_state))
    return normal(*wide), dt, A, normal(*narrow), normal(*narrow), normal(d_inner), normal(*wide)


def assert_equal_with_gradients(function, reference, inputs):
    ours = [tensor.clone().requires_grad_() for tensor in inputs]
    theirs = [tensor.double().requires_grad_() for tensor in inputs]
    out, expected = function(*ours), reference(*theirs)
    weight = torch.linspace(-1, 1, out.numel()).view(out.shape)
    pairs = [(out, expected)]
    grads = torch.autograd.grad((out * weight).sum(), ours)
    expected_grads = torch.autograd.grad((expected * weight).sum(), theirs)
    pairs += zip(grads, expected_grads, strict=True)
    for got, wanted in pairs:
        bound = FLOAT32_ERROR * float(wanted.detach().abs().max())
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=bound)


@pytest.mark.parametrize(
    ("batch", "num_tokens", "d_inner", "d_state"),
    [
        pytest.param(2, 2 * CHUNK + 3, 96, 5, id="base"),
        pytest.param(2, 2 * CHUNK, 96, 5, id="whole chunks"),
        pytest.param(2, 1, 96, 5, id="one token"),
        pytest.param(1, 2 * CHUNK + 3, 96, 5, id="one sequence"),
        pytest.param(2, 2 * CHUNK + 3, 128, 5, id="whole blocks"),
        pytest.param(2, 2 * CHUNK + 3, 3, 5, id="three channels"),
        pytest.param(2, 2 * CHUNK + 3, 96, 1, id="one state"),
    ],
)
def test_scan_and_its_gradients_equal_a_float64_recurrence(batch, num_tokens, d_inner, d_state):
    inputs = scan_inputs(batch, num_tokens, d_inner, d_state)
    assert_equal_with_gradients(selective_scan, recurrence, inputs)


@pytest.mark.parametrize(
    ("num_tokens", "d_inner", "width"),
    [
        pytest.param(19, 96, 4, id="base"),
        pytest.param(2, 96, 4, id="fewer tokens than taps"),
        pytest.param(19, 128, 4, id="whole blocks"),
        pytest.param(19, 3, 4, id="three channels"),
        pytest.param(19, 96, 1, id="one tap"),
    ],
)
def test_convolution_and_its_gradients_equal_torch_in_float64(num_tokens, d_inner, width):
    x, _, _, _, _, bias, _ = scan_inputs(2, num_tokens, d_inner, 1)
    weight = torch.randn(d_inner, width, generator=torch.Generator().manual_seed(0))
    assert_equal_with_gradients(causal_conv, convolution, (x, weight, bias))


def test_scan_forgets_its_state_where_decay_underflows():
    x, dt, A, B, C, D, z = scan_inputs(1, 4, 64, 2)
    out = selective_scan(x, dt, A * 1e6, B, C, D, z)
    expected = recurrence(x, dt, A * 1e6, B, C, D, z)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_strided_inputs_give_the_same_bits():
    x, dt, A, B, C, D, z = scan_inputs(2, 11, 64, 4)
    joined = torch.cat([x, z], dim=-1)
    out = selective_scan(joined[..., :64], dt, A, B, C, D, joined[..., 64:])
    assert torch.equal(out, selective_scan(x, dt, A, B, C, D, z))


def test_bfloat16_inputs_are_scanned_in_float32():
    inputs = [tensor.bfloat16() for tensor in scan_inputs(1, 9, 64, 4)]
    out = selective_scan(*inputs)
    assert torch.equal(out, selective_scan(*(tensor.float() for tensor in inputs)))


def test_number_of_threads_changes_no_bit():
    results = []
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            inputs = [t.requires_grad_() for t in scan_inputs(3, 21, 192, 4)]
            out = selective_scan(*inputs)
            results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@jit
def _map_exp2(values, out):
    for i in range(values.shape[0]):
        out[i] = exp2(values[i])


@jit
def _map_sigmoid(values, out):
    for i in range(values.shape[0]):
        out[i] = sigmoid(values[i])


def test_exp2_has_float32_accuracy_over_its_whole_range():
    values = np.linspace(-125, 126, 100_001, dtype=np.float32)
    out = np.empty_like(values)
    _map_exp2(values, out)
    exact = np.exp2(values.astype(np.float64))
    assert np.max(np.abs(out / exact - 1)) < 1.5e-7


def test_sigmoid_saturates_without_leaving_its_range():
    values = np.array([-1e30, -200, -1, 0, 1, 200, 1e30], dtype=np.float32)
    out = np.empty_like(values)
    _map_sigmoid(values, out)
    exact = 1 / (1 + np.exp(-values.astype(np.float64).clip(-700, 700)))
    np.testing.assert_allclose(out, exact, rtol=3e-7, atol=1e-37)
