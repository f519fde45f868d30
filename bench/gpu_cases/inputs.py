"""What the cases of the state side share: random inputs, and the measure of an error."""

from typing import Any

import torch
from support.budget import assert_within_budget
from torch import Tensor

BF16, F32 = torch.bfloat16, torch.float32
Inputs = dict[str, Any]


def ids(count: int, device: str) -> Tensor:
    """State blocks of a batch, in random places of a pool of one block more."""
    return (torch.randperm(count, device=device) + 1).int()


def random(*shape: int, device: str, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, device=device).to(dtype)


def hold(actual: Tensor, exact: Tensor, plain: Tensor) -> None:
    assert_within_budget(actual.reshape(exact.shape), exact, plain.to(actual.dtype))
