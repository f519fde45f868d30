"""The choice of experts elsewhere than on CPUs: a few operations of torch, on a row a token."""

from __future__ import annotations

from torch import Tensor


def choose_experts(
    logits: Tensor,
    top_k: int,
    *,
    is_sigmoid: bool,
    correction: Tensor | None,
    num_groups: int,
    num_chosen_groups: int,
    is_renormalised: bool,
    scale: float,
    floor: float,
) -> tuple[Tensor, Tensor]:
    """See `blockstride.kernels.choose_experts`."""
    logits = logits.float()
    scores = logits.sigmoid() if is_sigmoid else logits.softmax(-1)
    preference = scores if correction is None else scores + correction
    if num_chosen_groups < num_groups:
        groups = preference.view(len(scores), num_groups, -1)
        best = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(-1)
        chosen = best.topk(num_chosen_groups, dim=-1).indices
        is_left = best.new_ones(best.shape).scatter_(-1, chosen, 0.0).bool()
        preference = groups.masked_fill(is_left[..., None], float("-inf")).flatten(1)
    ids = preference.topk(top_k, dim=-1).indices
    weights = scores.gather(-1, ids)
    if is_renormalised:
        weights /= weights.sum(-1, keepdim=True).add_(floor)
    return ids, weights if scale == 1 else weights.mul_(scale)
