"""A few tokens of the real-gated linear recurrent unit for CPUs: the unit over short sequences."""

from typing import Any

import torch
from torch import Tensor

from blockstride.kernels.common.cpu.short_sequences import over_short_sequences
from blockstride.kernels.lru.cpu.rg_lru import rg_lru


def rg_lru_update(x: Tensor, *, checkpoint_indices: Tensor | None = None, **inputs: Any) -> Tensor:
    """See `blockstride.kernels.rg_lru_update`."""
    kept = {}
    if checkpoint_indices is not None:
        rows = torch.arange(checkpoint_indices.numel(), dtype=torch.int32)
        kept = {"checkpoint_tokens": rows, "checkpoint_indices": checkpoint_indices.flatten()}
        kept["keeps_last"] = False
    by_token = ("recurrence_gate", "input_gate", "z")
    return over_short_sequences(rg_lru, x, 2, by_token, **inputs, **kept)
