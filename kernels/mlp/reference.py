"""Linear and SwiGLU layers by definition, in the dtype of their inputs.

Nothing is checked, and experts are slow. The kernels are held to these, in float64.
"""

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import silu


def linear(
    x: Float[Tensor, "num_rows dim"],
    weight: Float[Tensor, "dim_out dim"],
    bias: Float[Tensor, " dim_out"] | None = None,
) -> Float[Tensor, "num_rows dim_out"]:
    """See `blockstride.kernels.linear`."""
    y = einsum(x, weight, "t i, o i -> t o")
    return y if bias is None else y + bias


def silu_and_mul(
    gate_up: Float[Tensor, "*batch twice_inner"],
) -> Float[Tensor, "*batch inner"]:
    """See `blockstride.kernels.silu_and_mul`.

    Source: Shazeer, "GLU Variants Improve Transformer", 2.
    """
    gate, up = rearrange(gate_up, "... (two inner) -> two ... inner", two=2)
    return silu(gate) * up


def expert_mlp(
    x: Float[Tensor, "num_tokens hidden"],
    gate_up: Float[Tensor, "num_experts twice_inner hidden"],
    down: Float[Tensor, "num_experts hidden inner"],
    expert_ids: Int[Tensor, "num_tokens top_k"],
    expert_weights: Float[Tensor, "num_tokens top_k"],
) -> Float[Tensor, "num_tokens hidden"]:
    """See `blockstride.kernels.expert_mlp`; an id that no expert has adds nothing.

    Source: Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated
    Mixture-of-Experts Layer", 2.
    """
    y = torch.zeros_like(x)
    for expert in range(len(down)):
        tokens, choices = torch.where(expert_ids == expert)
        if len(tokens) > 0:
            out = linear(silu_and_mul(linear(x[tokens], gate_up[expert])), down[expert])
            weighted = einsum(expert_weights[tokens, choices], out, "t, t h -> t h")
            y.index_add_(0, tokens, weighted)
    return y
