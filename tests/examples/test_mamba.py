import pytest
import torch
from torch.nn import functional

from train_jamba.mamba import CHUNK, causal_conv, selective_scan

FLOAT32_ERROR = 2e-6  # of the largest value


def recurrence(x, dt, A, B, C, D):
    h = torch.zeros(x.shape[0], x.shape[2], A.shape[1], dtype=x.dtype)
    outputs = []
    for t in range(x.shape[1]):
        drive = (dt[:, t] * x[:, t])[..., None] * B[:, t, None]
        h = torch.exp(dt[:, t, :, None] * A) * h + drive
        outputs.append((h * C[:, t, None]).sum(-1) + D * x[:, t])
    return torch.stack(outputs, dim=1)


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
    return normal(*wide), dt, A, normal(*narrow), normal(*narrow), normal(d_inner)


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


@pytest.mark.parametrize("num_tokens", [1, CHUNK, CHUNK + 3])
def test_scan_and_its_gradients_equal_a_float64_recurrence(num_tokens):
    assert_equal_with_gradients(selective_scan, recurrence, scan_inputs(2, num_tokens, 24, 5))


@pytest.mark.parametrize(("num_tokens", "width"), [(19, 4), (2, 4), (19, 1)])
def test_convolution_and_its_gradients_equal_torch_in_float64(num_tokens, width):
    x, _, _, _, _, bias = scan_inputs(2, num_tokens, 24, 1)
    weight = torch.randn(24, width, generator=torch.Generator().manual_seed(0))
    assert_equal_with_gradients(causal_conv, convolution, (x, weight, bias))


def test_scan_forgets_its_state_where_decay_underflows():
    x, dt, A, B, C, D = scan_inputs(1, 4, 24, 2)
    out = selective_scan(x, dt, A * 1e6, B, C, D)
    torch.testing.assert_close(out, recurrence(x, dt, A * 1e6, B, C, D), rtol=1e-5, atol=1e-5)


def test_bfloat16_inputs_are_scanned_in_float32_under_autocast():
    x, dt, A, B, C, D = scan_inputs(1, 9, 24, 4)
    x, dt, B, C = (tensor.bfloat16() for tensor in (x, dt, B, C))
    with torch.autocast("cpu", torch.bfloat16):
        out = selective_scan(x, dt, A, B, C, D)
    assert torch.equal(out, selective_scan(x.float(), dt.float(), A, B.float(), C.float(), D))
