"""Mixture of experts: the SwiGLU layers that a router chose for each token."""

from jaxtyping import Float, Int
from torch import Tensor

from blockstride.kernels.checks import FLOATS, INT32, INT64, expect_tensor
from blockstride.kernels.dispatch import expect_cpu, implementation


def expert_mlp(
    x: Float[Tensor, "num_tokens hidden"],
    gate_up: Float[Tensor, "num_experts twice_inner hidden"],
    down: Float[Tensor, "num_experts hidden inner"],
    expert_ids: Int[Tensor, "num_tokens top_k"],
    expert_weights: Float[Tensor, "num_tokens top_k"],
) -> Float[Tensor, "num_tokens hidden"]:
    """Send each token through its experts and sum their outputs by weight.

    `out[t] = sum_k expert_weights[t, k] * down[e] @ silu_and_mul(gate_up[e] @ x[t])` with
    `e = expert_ids[t, k]`; with one expert it is a plain SwiGLU layer. Experts that no token chose
    are not read.

    Args:
        x: Inputs.
        gate_up: Gate and up projections of each expert, one above the other.
        down: Down projection of each expert.
        expert_ids: Experts of each token, from 0 to `num_experts - 1`.
        expert_weights: Weight of each of them in the sum.

    Returns:
        The weighted sum of each token, in the dtype of `x`.

    Raises:
        ValueError: A shape or a device does not fit.
        TypeError: A dtype is not accepted; `x`, `gate_up` and `down` have the same one.

    Source: Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated
    Mixture-of-Experts Layer", 2; Fedus et al., "Switch Transformers", 2.
    """
    num_tokens, (num_experts, hidden, inner) = x.shape[0], down.shape
    top_k, device = expert_ids.shape[1], x.device
    expect_tensor(x, "x", (num_tokens, hidden), FLOATS, device)
    expect_tensor(gate_up, "gate_up", (num_experts, 2 * inner, hidden), (x.dtype,), device)
    expect_tensor(down, "down", (num_experts, hidden, inner), (x.dtype,), device)
    expect_tensor(expert_ids, "expert_ids", (num_tokens, top_k), (*INT32, *INT64), device)
    expect_tensor(expert_weights, "expert_weights", (num_tokens, top_k), FLOATS, device)
    expect_cpu(x, "x")
    run = implementation("expert_mlp", "expert_mlp", False)
    return run(x, gate_up, down, expert_ids, expert_weights)
