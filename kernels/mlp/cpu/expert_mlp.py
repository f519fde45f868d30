"""Mixture of experts for CPUs: tokens sorted by expert, then two products an expert.

All sums stay in float32 until the last; of narrower inputs only the activations between the two
products are rounded, since they are an operand of the second.
"""

import torch
from torch import Tensor

from blockstride.checks import expect
from blockstride.kernels.mlp.cpu.silu_and_mul import silu_and_mul
from blockstride.kernels.mlp.expert_mlp import PackedExperts
from blockstride.kernels.mlp.linear import linear_in_float32

Matrices = Tensor | PackedExperts


def expert_mlp(
    x: Tensor, gate_up: Matrices, down: Matrices, expert_ids: Tensor, expert_weights: Tensor
) -> Tensor:
    """See `blockstride.kernels.expert_mlp`."""
    gate_ups = gate_up.matrices if isinstance(gate_up, PackedExperts) else gate_up
    downs = down.matrices if isinstance(down, PackedExperts) else down
    num_experts, top_k = len(gate_ups), expert_ids.shape[1]
    out = torch.zeros(x.shape)
    chosen = expert_ids.reshape(-1)
    ids = chosen.tolist()
    if ids and not 0 <= min(ids) <= max(ids) < num_experts:
        wanted, got = f"experts from 0 to {num_experts - 1}", f"{min(ids)} to {max(ids)}"
        expect(False, "expert_ids", wanted, got)
    weights = expert_weights.reshape(-1).float()
    if len(x) == 1:
        # one token has nothing to sort
        for expert, weight in zip(ids, weights.tolist(), strict=True):
            out.add_(_swiglu(x, gate_ups[expert], downs[expert]), alpha=weight)
        return out.to(x.dtype)
    order = chosen.argsort(stable=True)
    tokens = order // top_k
    # five times as fast as `x[tokens]`
    rows = x.index_select(0, tokens)
    outputs = torch.empty(len(order), x.shape[1])
    start = 0
    for expert, count in enumerate(chosen.bincount(minlength=num_experts).tolist()):
        if count > 0:
            stop = start + count
            outputs[start:stop] = _swiglu(rows[start:stop], gate_ups[expert], downs[expert])
            start = stop
    out.index_add_(0, tokens, outputs.mul_(weights[order, None]))
    return out.to(x.dtype)


def _swiglu(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """One expert, for the rows that chose it, in float32."""
    inner = silu_and_mul(linear_in_float32(x, gate_up), out=None)
    return linear_in_float32(inner.to(x.dtype), down)
