"""The gated delta rule as the paper writes it: token by token, in the dtype of its inputs.

It checks nothing and is slow. The kernels are held to it, in float64.
"""

import torch
from einops import einsum, rearrange, reduce, repeat
from jaxtyping import Bool, Float, Int32
from torch import Tensor

from blockstride.kernels.common.reference import each_token, new_tokens


def gated_delta_rule(
    q: Float[Tensor, "num_tokens num_heads head_k_dim"],
    k: Float[Tensor, "num_tokens num_heads head_k_dim"],
    v: Float[Tensor, "num_tokens num_value_heads head_v_dim"],
    g: Float[Tensor, "num_tokens num_value_heads *head_k_dim"],
    beta: Float[Tensor, "num_tokens num_value_heads"],
    ssm_state: Float[Tensor, "num_blocks num_value_heads head_k_dim head_v_dim"],
    state_indices: Int32[Tensor, " num_seqs"],
    query_start_loc: Int32[Tensor, " num_seqs_plus_1"],
    has_initial_state: Bool[Tensor, " num_seqs"],
    *,
    scale: float | None = None,
    qk_l2norm: bool = False,
    checkpoint_tokens: Int32[Tensor, " num_checkpoints"] | None = None,
    checkpoint_indices: Int32[Tensor, " num_checkpoints"] | None = None,
) -> Float[Tensor, "num_tokens num_value_heads head_v_dim"]:
    """See `blockstride.kernels.gated_delta_rule`; the paper's state is `S` transposed.

    Source: Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 3; by channel,
    Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture", 3.
    """
    g = g if g.dim() == 3 else rearrange(g, "t h -> t h 1")
    if qk_l2norm:
        q, k = (row / torch.sqrt(reduce(row**2, "t h k -> t h 1", "sum") + 1e-6) for row in (q, k))
    q = q * (k.shape[-1] ** -0.5 if scale is None else scale)
    heads_per_key = v.shape[1] // k.shape[1]
    q, k = (repeat(row, "t h k -> t (h n) k", n=heads_per_key) for row in (q, k))
    o = torch.zeros_like(v)
    for t, S in each_token(
        ssm_state, state_indices, query_start_loc, has_initial_state,
        checkpoint_tokens, checkpoint_indices,
    ):  # fmt: skip
        decayed = rearrange(torch.exp(g[t]), "h k -> h k 1") * S
        held = einsum(k[t], decayed, "h k, h k v -> h v")
        S[:] = decayed + einsum(k[t], beta[t], v[t] - held, "h k, h, h v -> h k v")
        o[t] = einsum(q[t], S, "h k, h k v -> h v")
    return o


def gated_delta_rule_update(
    q: Float[Tensor, "num_seqs *num_new num_heads head_k_dim"],
    k: Float[Tensor, "num_seqs *num_new num_heads head_k_dim"],
    v: Float[Tensor, "num_seqs *num_new num_value_heads head_v_dim"],
    g: Float[Tensor, "num_seqs *num_new_and_gates"],
    beta: Float[Tensor, "num_seqs *num_new num_value_heads"],
    ssm_state: Float[Tensor, "num_blocks num_value_heads head_k_dim head_v_dim"],
    state_indices: Int32[Tensor, " num_seqs"],
    *,
    scale: float | None = None,
    qk_l2norm: bool = False,
    checkpoint_indices: Int32[Tensor, "num_seqs *num_new"] | None = None,
) -> Float[Tensor, "num_seqs *num_new num_value_heads head_v_dim"]:
    """See `blockstride.kernels.gated_delta_rule_update`: the rule over very short prompts."""
    num_new, pool = v.shape[1] if v.dim() == 4 else 1, ssm_state
    given = (q, k, v, g, beta)
    q, k, rows, g, beta = (x.flatten(0, 1) for x in given) if v.dim() == 4 else given
    prompts = new_tokens(state_indices, num_new)
    if checkpoint_indices is not None:
        # what is read stays as it is: copies behind the pool are advanced
        copies = len(pool) + torch.arange(len(state_indices)).to(state_indices)
        prompts["state_indices"] = torch.where(state_indices > 0, copies, 0)
        prompts["checkpoint_tokens"] = torch.arange(len(rows)).to(state_indices)
        prompts["checkpoint_indices"] = checkpoint_indices.flatten()
        pool = torch.cat([pool, pool[state_indices]])
    o = gated_delta_rule(q, k, rows, g, beta, pool, **prompts, scale=scale, qk_l2norm=qk_l2norm)
    if checkpoint_indices is not None:
        ssm_state.copy_(pool[: len(ssm_state)])
    return o.view(v.shape)
