"""Linear and gated layers by definition, in the dtype of their inputs.

Nothing is checked, and experts are slow. The kernels are held to these, in float64.
"""

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from blockstride.kernels.mlp.gate import SILU, Gate


def linear(
    x: Float[Tensor, "num_rows dim"],
    weight: Float[Tensor, "dim_out dim"],
    bias: Float[Tensor, " dim_out"] | None = None,
) -> Float[Tensor, "num_rows dim_out"]:
    """See `blockstride.kernels.linear`."""
    y = einsum(x, weight, "t i, o i -> t o")
    return y if bias is None else y + bias


def gate_and_mul(
    gate_up: Float[Tensor, "*batch twice_inner"],
    gate: Gate = SILU,
) -> Float[Tensor, "*batch inner"]:
    """See `blockstride.kernels.gate_and_mul`.

    Source: Shazeer, "GLU Variants Improve Transformer", 2.
    """
    g, u = rearrange(gate_up, "... (two inner) -> two ... inner", two=2)
    g, u = g.clamp(max=gate.limit), u.clamp(-gate.limit, gate.limit)
    return g * (g * (gate.slope + gate.cubic * g * g)).sigmoid() * (u + gate.offset)


def choose_experts(
    logits: Float[Tensor, "num_tokens num_experts"],
    top_k: int,
    *,
    is_sigmoid: bool = False,
    correction: Float[Tensor, " num_experts"] | None = None,
    num_groups: int = 1,
    num_chosen_groups: int | None = None,
    is_renormalised: bool = False,
    scale: float = 1.0,
    floor: float = 0.0,
) -> tuple[Int[Tensor, "num_tokens top_k"], Float[Tensor, "num_tokens top_k"]]:
    """See `blockstride.kernels.choose_experts`."""
    scores = logits.sigmoid() if is_sigmoid else logits.softmax(-1)
    preference = rearrange(
        scores if correction is None else scores + correction, "t (g e) -> t g e", g=num_groups
    )
    best_two = preference.sort(dim=-1, descending=True).values[..., :2].sum(-1)
    ranks = best_two.argsort(dim=-1, descending=True).argsort(dim=-1)
    is_left = ranks >= (num_chosen_groups or num_groups)
    preference = preference.masked_fill(is_left[..., None], -torch.inf).flatten(1)
    ids = preference.argsort(dim=-1, descending=True)[:, :top_k]
    weights = scores.gather(-1, ids)
    if is_renormalised:
        weights = weights / (weights.sum(-1, keepdim=True) + floor)
    return ids, weights * scale


def expert_mlp(
    x: Float[Tensor, "num_tokens hidden"],
    up: Float[Tensor, "num_experts up_rows hidden"],
    down: Float[Tensor, "num_experts hidden inner"],
    expert_ids: Int[Tensor, "num_tokens top_k"],
    expert_weights: Float[Tensor, "num_tokens top_k"],
    *,
    gate: Gate | None = SILU,
    up_bias: Float[Tensor, "num_experts up_rows"] | None = None,
    down_bias: Float[Tensor, "num_experts hidden"] | None = None,
) -> Float[Tensor, "num_tokens hidden"]:
    """See `blockstride.kernels.expert_mlp`; an id that no expert has adds nothing.

    Source: Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated
    Mixture-of-Experts Layer", 2.
    """
    y = torch.zeros_like(x)
    for expert in range(len(down)):
        tokens, choices = torch.where(expert_ids == expert)
        if len(tokens) > 0:
            rows = linear(x[tokens], up[expert], None if up_bias is None else up_bias[expert])
            inner = rows.relu().square() if gate is None else gate_and_mul(rows, gate)
            out = linear(inner, down[expert], None if down_bias is None else down_bias[expert])
            weighted = einsum(expert_weights[tokens, choices], out, "t, t h -> t h")
            y.index_add_(0, tokens, weighted)
    return y
