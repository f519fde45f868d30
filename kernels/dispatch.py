"""Which implementation of a kernel a tensor gets: Triton, or the one for CPUs."""

import os

from torch import Tensor

from blockstride.kernels.checks import expect

# read once: Triton itself decides at decoration time whether a kernel is interpreted
INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"


def runs_on_triton(tensor: Tensor) -> bool:
    """True for CUDA tensors, and for all tensors under `TRITON_INTERPRET=1`."""
    return tensor.is_cuda or INTERPRET


def expect_cpu(tensor: Tensor, name: str) -> None:
    """Raise `ValueError` unless `tensor` is where a function without a Triton kernel can run."""
    device = tensor.device
    expect(device.type == "cpu", f"{name}.device", "cpu, as there is no Triton kernel", device)
