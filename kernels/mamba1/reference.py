"""Mamba-1's recurrence as the paper writes it: token by token, in the dtype of its inputs.

It checks nothing and is slow. The kernels are held to it, in float64.
"""

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int32
from torch import Tensor
from torch.nn.functional import silu, softplus

from blockstride.kernels.common.reference import each_token, new_tokens


def selective_scan(
    x: Float[Tensor, "num_tokens dim"],
    dt: Float[Tensor, "num_tokens dim"],
    A: Float[Tensor, "dim d_state"],
    B: Float[Tensor, "num_tokens d_state"],
    C: Float[Tensor, "num_tokens d_state"],
    ssm_state: Float[Tensor, "num_blocks dim d_state"],
    state_indices: Int32[Tensor, " num_seqs"],
    query_start_loc: Int32[Tensor, " num_seqs_plus_1"],
    has_initial_state: Bool[Tensor, " num_seqs"],
    *,
    D: Float[Tensor, " dim"] | None = None,
    z: Float[Tensor, "num_tokens dim"] | None = None,
    dt_bias: Float[Tensor, " dim"] | None = None,
    dt_softplus: bool = True,
    checkpoint_tokens: Int32[Tensor, " num_checkpoints"] | None = None,
    checkpoint_indices: Int32[Tensor, " num_checkpoints"] | None = None,
) -> Float[Tensor, "num_tokens dim"]:
    """See `blockstride.kernels.selective_scan`: `h = A_bar * h + B_bar * x`, `y = C @ h`.

    Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 3.2.
    """
    dt = dt if dt_bias is None else dt + dt_bias
    # torch's own threshold of 20 would cost digits of float64
    dt = softplus(dt, threshold=80) if dt_softplus else dt
    y = torch.zeros_like(x)
    for t, h in each_token(
        ssm_state, state_indices, query_start_loc, has_initial_state,
        checkpoint_tokens, checkpoint_indices,
    ):  # fmt: skip
        A_bar = torch.exp(einsum(dt[t], A, "d, d n -> d n"))
        h[:] = A_bar * h + einsum(dt[t], x[t], B[t], "d, d, n -> d n")
        y[t] = einsum(C[t], h, "n, d n -> d")
        if D is not None:
            y[t] += D * x[t]
        if z is not None:
            y[t] *= silu(z[t])
    return y


def selective_state_update(
    x: Float[Tensor, "num_seqs *num_new dim"],
    dt: Float[Tensor, "num_seqs *num_new dim"],
    A: Float[Tensor, "dim d_state"],
    B: Float[Tensor, "num_seqs *num_new d_state"],
    C: Float[Tensor, "num_seqs *num_new d_state"],
    ssm_state: Float[Tensor, "num_blocks dim d_state"],
    state_indices: Int32[Tensor, " num_seqs"],
    *,
    D: Float[Tensor, " dim"] | None = None,
    z: Float[Tensor, "num_seqs *num_new dim"] | None = None,
    dt_bias: Float[Tensor, " dim"] | None = None,
    dt_softplus: bool = True,
) -> Float[Tensor, "num_seqs *num_new dim"]:
    """See `blockstride.kernels.selective_state_update`: the scan of one token, or of a few."""
    by_row = "s ... d -> (s ...) d"
    y = selective_scan(
        rearrange(x, by_row), rearrange(dt, by_row), A, rearrange(B, by_row), rearrange(C, by_row),
        ssm_state, **new_tokens(state_indices, x.shape[1] if x.dim() == 3 else 1),
        D=D, z=None if z is None else rearrange(z, by_row),
        dt_bias=dt_bias, dt_softplus=dt_softplus,
    )  # fmt: skip
    return y.view(x.shape)
