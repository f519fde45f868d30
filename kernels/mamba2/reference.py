"""Mamba-2's recurrence as the paper writes it: token by token, in the dtype of its inputs.

It checks nothing and is slow. The kernels are held to it, in float64.
"""

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int32
from torch import Tensor
from torch.nn.functional import silu, softplus

from blockstride.kernels.common.reference import each_token, new_tokens


def ssd_scan(
    x: Float[Tensor, "num_tokens num_heads head_dim"],
    dt: Float[Tensor, "num_tokens num_heads"],
    A: Float[Tensor, " num_heads"],
    B: Float[Tensor, "num_tokens num_groups d_state"],
    C: Float[Tensor, "num_tokens num_groups d_state"],
    ssm_state: Float[Tensor, "num_blocks num_heads head_dim d_state"],
    state_indices: Int32[Tensor, " num_seqs"],
    query_start_loc: Int32[Tensor, " num_seqs_plus_1"],
    has_initial_state: Bool[Tensor, " num_seqs"],
    *,
    D: Float[Tensor, " num_heads"] | None = None,
    z: Float[Tensor, "num_tokens num_heads head_dim"] | None = None,
    dt_bias: Float[Tensor, " num_heads"] | None = None,
    dt_softplus: bool = True,
    checkpoint_tokens: Int32[Tensor, " num_checkpoints"] | None = None,
    checkpoint_indices: Int32[Tensor, " num_checkpoints"] | None = None,
) -> Float[Tensor, "num_tokens num_heads head_dim"]:
    """See `blockstride.kernels.ssd_scan`: `h = exp(dt * A) * h + dt * outer(x, B)`, `y = h @ C`.

    Source: Dao and Gu, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through
    Structured State Space Duality", 6.
    """
    dt = dt if dt_bias is None else dt + dt_bias
    # torch's own threshold of 20 would cost digits of float64
    dt = softplus(dt, threshold=80) if dt_softplus else dt
    heads_per_group = x.shape[1] // B.shape[1]
    B, C = (repeat(group, "t g n -> t (g h) n", h=heads_per_group) for group in (B, C))
    y = torch.zeros_like(x)
    for t, h in each_token(
        ssm_state, state_indices, query_start_loc, has_initial_state,
        checkpoint_tokens, checkpoint_indices,
    ):  # fmt: skip
        A_bar = rearrange(torch.exp(dt[t] * A), "h -> h 1 1")
        h[:] = A_bar * h + einsum(dt[t], x[t], B[t], "h, h p, h n -> h p n")
        y[t] = einsum(C[t], h, "h n, h p n -> h p")
        if D is not None:
            y[t] += rearrange(D, "h -> h 1") * x[t]
        if z is not None:
            y[t] *= silu(z[t])
    return y


def ssd_state_update(
    x: Float[Tensor, "num_seqs *num_new num_heads head_dim"],
    dt: Float[Tensor, "num_seqs *num_new num_heads"],
    A: Float[Tensor, " num_heads"],
    B: Float[Tensor, "num_seqs *num_new num_groups d_state"],
    C: Float[Tensor, "num_seqs *num_new num_groups d_state"],
    ssm_state: Float[Tensor, "num_blocks num_heads head_dim d_state"],
    state_indices: Int32[Tensor, " num_seqs"],
    *,
    D: Float[Tensor, " num_heads"] | None = None,
    z: Float[Tensor, "num_seqs *num_new num_heads head_dim"] | None = None,
    dt_bias: Float[Tensor, " num_heads"] | None = None,
    dt_softplus: bool = True,
) -> Float[Tensor, "num_seqs *num_new num_heads head_dim"]:
    """See `blockstride.kernels.ssd_state_update`: the scan of one token, or of a few."""
    by_head, by_group = "s ... h p -> (s ...) h p", "s ... g n -> (s ...) g n"
    y = ssd_scan(
        rearrange(x, by_head), rearrange(dt, "s ... h -> (s ...) h"), A,
        rearrange(B, by_group), rearrange(C, by_group),
        ssm_state, **new_tokens(state_indices, x.shape[1] if x.dim() == 4 else 1),
        D=D, z=None if z is None else rearrange(z, by_head),
        dt_bias=dt_bias, dt_softplus=dt_softplus,
    )  # fmt: skip
    return y.view(x.shape)
