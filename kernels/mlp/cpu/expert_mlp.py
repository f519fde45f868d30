"""Mixture of experts for CPUs: tokens sorted by expert, then two products an expert.

All sums stay in float32 until the last; of narrower inputs only the activations between the two
products are rounded, since they are an operand of the second.
"""

import torch
from torch import Tensor

from blockstride.checks import expect
from blockstride.kernels.mlp.cpu.gate_and_mul import gate_and_mul
from blockstride.kernels.mlp.expert_mlp import PackedExperts
from blockstride.kernels.mlp.gate import Gate
from blockstride.kernels.mlp.linear import linear_in_float32

Matrices = Tensor | PackedExperts


def expert_mlp(
    x: Tensor,
    up: Matrices,
    down: Matrices,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    gate: Gate | None,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> Tensor:
    """See `blockstride.kernels.expert_mlp`."""
    ups = up.matrices if isinstance(up, PackedExperts) else up
    downs = down.matrices if isinstance(down, PackedExperts) else down
    num_experts, top_k = len(downs), expert_ids.shape[1]

    def visited(rows: Tensor, expert: int) -> Tensor:
        """One expert, for the rows that chose it, in float32."""
        inner = _linear(rows, ups[expert], None if up_bias is None else up_bias[expert])
        inner = inner.relu_().square_() if gate is None else gate_and_mul(inner, gate, out=None)
        inner = inner.to(x.dtype)
        return _linear(inner, downs[expert], None if down_bias is None else down_bias[expert])

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
            out.add_(visited(x, expert), alpha=weight)
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
            outputs[start:stop] = visited(rows[start:stop], expert)
            start = stop
    out.index_add_(0, tokens, outputs.mul_(weights[order, None]))
    return out.to(x.dtype)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer in float32."""
    product = linear_in_float32(x, weight)
    return product if bias is None else product.add_(bias)
