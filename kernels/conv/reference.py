"""The convolution of Mamba as the paper writes it: token by token, in the dtype of its inputs.

It checks nothing and is slow. The kernels are held to it, in float64.
"""

from typing import Literal

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int32
from torch import Tensor
from torch.nn.functional import silu

from blockstride.kernels.common.reference import each_token, new_tokens


def causal_conv1d(
    x: Float[Tensor, "num_tokens dim"],
    weight: Float[Tensor, "dim width"],
    bias: Float[Tensor, " dim"] | None,
    conv_state: Float[Tensor, "num_blocks dim taps"],
    state_indices: Int32[Tensor, " num_seqs"],
    query_start_loc: Int32[Tensor, " num_seqs_plus_1"],
    has_initial_state: Bool[Tensor, " num_seqs"],
    *,
    activation: Literal["silu"] | None = "silu",
) -> Float[Tensor, "num_tokens dim"]:
    """See `blockstride.kernels.causal_conv1d`: a state holds the last `width - 1` inputs.

    Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 3.4.
    """
    y = torch.zeros_like(x)
    for t, past in each_token(conv_state, state_indices, query_start_loc, has_initial_state):
        window = torch.cat([past, rearrange(x[t], "d -> d 1")], dim=1)
        y[t] = einsum(window, weight, "d w, d w -> d")
        if bias is not None:
            y[t] += bias
        if activation == "silu":
            y[t] = silu(y[t])
        past[:] = window[:, 1:]
    return y


def causal_conv1d_update(
    x: Float[Tensor, "num_seqs num_new dim"],
    weight: Float[Tensor, "dim width"],
    bias: Float[Tensor, " dim"] | None,
    conv_state: Float[Tensor, "num_blocks dim taps"],
    state_indices: Int32[Tensor, " num_seqs"],
    *,
    activation: Literal["silu"] | None = "silu",
) -> Float[Tensor, "num_seqs num_new dim"]:
    """See `blockstride.kernels.causal_conv1d_update`: prompts of `num_new` tokens each."""
    num_seqs, num_new, _ = x.shape
    y = causal_conv1d(
        rearrange(x, "s n d -> (s n) d"), weight, bias, conv_state,
        **new_tokens(state_indices, num_new), activation=activation,
    )  # fmt: skip
    return rearrange(y, "(s n) d -> s n d", s=num_seqs, n=num_new)
