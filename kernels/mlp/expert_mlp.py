"""Mixture of experts: the small layers that a router chose for each token."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from blockstride.checks import FLOATS, INT32, INT64, expect, expect_tensor, shape_of
from blockstride.kernels.common.dispatch import implementation, runs_on_triton
from blockstride.kernels.mlp.gate import SILU, Gate
from blockstride.kernels.mlp.gate_and_mul import expect_gate
from blockstride.kernels.mlp.linear import can_pack, dtypes_for
from blockstride.kernels.mlp.packed_weight import PackedWeight


def pack_experts(
    matrices: Sequence[Float[Tensor, "dim_out dim"]],
) -> Float[Tensor, "num_experts dim_out dim"] | PackedWeight:
    """One matrix of every expert, for `expert_mlp`, in the form its device multiplies by fastest.

    Args:
        matrices: The experts' matrices, all of one shape, dtype and device.

    Returns:
        The matrices stacked, or packed where `pack_weight` does that.

    Raises:
        ValueError: No matrix, or two that differ.
        TypeError: The dtype is not accepted.
    """
    expect(len(matrices) > 0, "matrices", "at least one", "none")
    first = matrices[0]
    dim_out, dim = shape_of(first, "matrices[0]", 2)
    for i, matrix in enumerate(matrices):
        expect_tensor(matrix, f"matrices[{i}]", (dim_out, dim), (first.dtype,), first.device)
    if not can_pack(first):
        return torch.stack(list(matrices))
    return PackedWeight.of(tuple(matrices), len(matrices))


def expert_mlp(
    x: Float[Tensor, "num_tokens hidden"],
    up: Float[Tensor, "num_experts up_rows hidden"] | PackedWeight,
    down: Float[Tensor, "num_experts hidden inner"] | PackedWeight,
    expert_ids: Int[Tensor, "num_tokens top_k"],
    expert_weights: Float[Tensor, "num_tokens top_k"],
    *,
    gate: Gate | None = SILU,
    up_bias: Float[Tensor, "num_experts up_rows"] | None = None,
    down_bias: Float[Tensor, "num_experts hidden"] | None = None,
) -> Float[Tensor, "num_tokens hidden"]:
    """Send each token through its experts and sum their outputs by weight.

    `out[t] = sum_k expert_weights[t, k] * (down[e] @ a + down_bias[e])`, where `e` is
    `expert_ids[t, k]` and `a` is `gate_and_mul(up[e] @ x[t] + up_bias[e], gate)`, or without a gate
    `relu(up[e] @ x[t] + up_bias[e]) ** 2`. Experts that no token chose are not read.

    Args:
        x: Inputs.
        up: Gate and up projections of each expert, one above the other, or the up projection alone
            where there is no gate; as they are or from `pack_experts`.
        down: Down projection of each expert, likewise.
        expert_ids: Experts of each token, from 0 to `num_experts - 1`. A GPU's ids are not looked
            at beforehand; there another one adds nothing.
        expert_weights: Weight of each of them in the sum.
        gate: The activation of the gate; None for no gate, and the square of what is positive.
        up_bias: Added to the first product of each expert.
        down_bias: Added to the second.

    Returns:
        The weighted sum of each token, in the dtype of `x`.

    Raises:
        ValueError: A shape or a device does not fit, or an id on a CPU.
        TypeError: A dtype is not accepted; `x`, the matrices and the biases have the same one.

    Source: Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated
    Mixture-of-Experts Layer", 2; Fedus et al., "Switch Transformers", 2; So et al., "Primer", 4,
    for the squared activation.
    """
    given = {**locals()}
    num_tokens, _ = shape_of(x, "x", 2)
    num_experts, hidden, inner = shape_of(down, "down", 3)
    _, top_k = shape_of(expert_ids, "expert_ids", 2)
    device = x.device
    expect_tensor(x, "x", (num_tokens, hidden), FLOATS, device)
    if gate is not None:
        expect_gate(gate)
    up_rows = inner if gate is None else 2 * inner
    expect_tensor(up, "up", (num_experts, up_rows, hidden), dtypes_for(x, up), device)
    expect_tensor(down, "down", (num_experts, hidden, inner), dtypes_for(x, down), device)
    expect_tensor(expert_ids, "expert_ids", (num_tokens, top_k), (*INT32, *INT64), device)
    expect_tensor(expert_weights, "expert_weights", (num_tokens, top_k), FLOATS, device)
    if up_bias is not None:
        expect_tensor(up_bias, "up_bias", (num_experts, up_rows), (x.dtype,), device)
    if down_bias is not None:
        expect_tensor(down_bias, "down_bias", (num_experts, hidden), (x.dtype,), device)
    return implementation(expert_mlp, runs_on_triton(x))(**given)
