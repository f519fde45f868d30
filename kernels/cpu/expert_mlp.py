"""Mixture of experts for CPUs: tokens sorted by expert, then two products an expert."""

import torch
from torch import Tensor

from blockstride.kernels.checks import expect
from blockstride.kernels.cpu.silu_and_mul import silu_and_mul
from blockstride.kernels.linear import linear


def expert_mlp(
    x: Tensor, gate_up: Tensor, down: Tensor, expert_ids: Tensor, expert_weights: Tensor
) -> Tensor:
    """See `blockstride.kernels.expert_mlp`."""
    num_experts, top_k = len(gate_up), expert_ids.shape[1]
    out = torch.zeros(x.shape)
    if expert_ids.numel() == 0:
        return out.to(x.dtype)
    chosen = expert_ids.reshape(-1)
    smallest, largest = chosen.aminmax()
    if smallest < 0 or largest >= num_experts:
        got = f"{int(smallest)} to {int(largest)}"
        expect(False, "expert_ids", f"experts from 0 to {num_experts - 1}", got)
    order = chosen.argsort(stable=True)
    tokens = order // top_k
    rows, outputs = x[tokens], torch.empty(len(order), x.shape[1], dtype=x.dtype)
    start = 0
    for expert, count in enumerate(chosen.bincount(minlength=num_experts).tolist()):
        stop = start + count
        if count > 0:
            inner = silu_and_mul(linear(rows[start:stop], gate_up[expert]), out=None)
            outputs[start:stop] = linear(inner, down[expert])
        start = stop
    weights = expert_weights.reshape(-1)[order].float()
    out.index_add_(0, tokens, outputs.float() * weights[:, None])
    return out.to(x.dtype)
