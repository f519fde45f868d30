"""A few tokens of the gated delta rule for CPUs: the rule itself, over short sequences."""

import torch
from torch import Tensor

from blockstride.kernels.delta.cpu.gated_delta_rule import gated_delta_rule


def gated_delta_rule_update(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    ssm_state: Tensor,
    state_indices: Tensor,
    *,
    scale: float,
    qk_l2norm: bool,
    checkpoint_indices: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    """See `blockstride.kernels.gated_delta_rule_update`."""
    num_seqs, several = len(q), q.dim() == 4
    starts, initial, tokens = None, None, None
    if several:
        num_new = q.shape[1]
        starts = torch.arange(0, num_seqs * num_new + 1, num_new, dtype=torch.int32)
        initial = torch.ones(num_seqs, dtype=torch.bool)
        q, k, v, g, beta = (part.flatten(0, 1) for part in (q, k, v, g, beta))
    if checkpoint_indices is not None:
        # a state after each token, and none in its own block
        tokens = torch.arange(len(q), dtype=torch.int32)
        checkpoint_indices = checkpoint_indices.flatten()
    result = gated_delta_rule(
        q, k, v, g, beta, ssm_state, state_indices, starts, initial,
        scale=scale, qk_l2norm=qk_l2norm, checkpoint_tokens=tokens,
        checkpoint_indices=checkpoint_indices, keeps_last=checkpoint_indices is None,
        out=None if several else out,
    )  # fmt: skip
    if not several:
        return result
    result = result.view(num_seqs, num_new, *result.shape[1:])
    return result if out is None else out.copy_(result)
