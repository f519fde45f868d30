"""The real-gated linear recurrent unit as the paper writes it, in the dtype of its inputs.

It checks nothing and is slow. The kernels are held to it, in float64.
"""

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int32
from torch import Tensor
from torch.nn.functional import gelu

from blockstride.kernels.common.reference import each_token, new_tokens


def rg_lru(
    x: Float[Tensor, "num_tokens dim"],
    recurrence_gate: Float[Tensor, "num_tokens dim"],
    input_gate: Float[Tensor, "num_tokens dim"],
    A: Float[Tensor, " dim"],
    ssm_state: Float[Tensor, "num_blocks dim"],
    state_indices: Int32[Tensor, " num_seqs"],
    query_start_loc: Int32[Tensor, " num_seqs_plus_1"],
    has_initial_state: Bool[Tensor, " num_seqs"],
    *,
    recurrence_bias: Float[Tensor, " dim"] | None = None,
    input_bias: Float[Tensor, " dim"] | None = None,
    z: Float[Tensor, "num_tokens dim"] | None = None,
    checkpoint_tokens: Int32[Tensor, " num_checkpoints"] | None = None,
    checkpoint_indices: Int32[Tensor, " num_checkpoints"] | None = None,
) -> Float[Tensor, "num_tokens dim"]:
    """See `blockstride.kernels.rg_lru`: `h = a * h + sqrt(1 - a**2) * (i * x)`, `y = h`.

    Source: De et al., "Griffin: Mixing Gated Linear Recurrences with Local Attention", 2.4.
    """
    r, i = (
        torch.sigmoid(gate if bias is None else gate + bias)
        for gate, bias in ((recurrence_gate, recurrence_bias), (input_gate, input_bias))
    )
    a = torch.exp(A * r)
    # 1 - a**2, with all digits where `a` is near 1
    weight = torch.sqrt(-torch.expm1(2 * A * r))
    starts = query_start_loc[:-1][~has_initial_state & (query_start_loc.diff() > 0)]
    # there is nothing that the first input would be weighed against
    weight[starts.long()] = 1
    y = torch.zeros_like(x)
    for t, h in each_token(
        ssm_state, state_indices, query_start_loc, has_initial_state,
        checkpoint_tokens, checkpoint_indices,
    ):  # fmt: skip
        h[:] = a[t] * h + weight[t] * (i[t] * x[t])
        y[t] = h if z is None else h * gelu(z[t], approximate="tanh")
    return y


def rg_lru_update(
    x: Float[Tensor, "num_seqs *num_new dim"],
    recurrence_gate: Float[Tensor, "num_seqs *num_new dim"],
    input_gate: Float[Tensor, "num_seqs *num_new dim"],
    A: Float[Tensor, " dim"],
    ssm_state: Float[Tensor, "num_blocks dim"],
    state_indices: Int32[Tensor, " num_seqs"],
    *,
    recurrence_bias: Float[Tensor, " dim"] | None = None,
    input_bias: Float[Tensor, " dim"] | None = None,
    z: Float[Tensor, "num_seqs *num_new dim"] | None = None,
    checkpoint_indices: Int32[Tensor, "num_seqs *num_new"] | None = None,
) -> Float[Tensor, "num_seqs *num_new dim"]:
    """See `blockstride.kernels.rg_lru_update`: the unit over prompts of one token, or of a few."""
    num_seqs, *new, _ = x.shape
    pool, kept = ssm_state, {}
    if checkpoint_indices is not None:
        # each sequence walks in a copy of its state, so that its block is read alone
        copies = len(ssm_state) + torch.arange(num_seqs, dtype=torch.int32, device=x.device)
        pool = torch.cat([ssm_state, ssm_state[state_indices.clamp(min=0)]])
        state_indices = torch.where(state_indices > 0, copies, 0)
        kept["checkpoint_indices"] = checkpoint_indices.flatten()
        kept["checkpoint_tokens"] = torch.arange(checkpoint_indices.numel())
    by_row = "s ... d -> (s ...) d"
    y = rg_lru(
        rearrange(x, by_row), rearrange(recurrence_gate, by_row), rearrange(input_gate, by_row),
        A, pool, **new_tokens(state_indices, *new or [1]), recurrence_bias=recurrence_bias,
        input_bias=input_bias, z=None if z is None else rearrange(z, by_row), **kept,
    )  # fmt: skip
    ssm_state[:] = pool[: len(ssm_state)]
    return y.view(x.shape)
