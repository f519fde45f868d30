"""A few tokens of Mamba-2's recurrence for CPUs: all sequences at once, one token after another."""

import torch
from torch import Tensor
from torch.nn import functional as F

from blockstride.kernels.checks import expect


def ssd_state_update(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    ssm_state: Tensor,
    state_indices: Tensor,
    *,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    out: Tensor | None,
) -> Tensor:
    """See `blockstride.kernels.ssd_state_update`."""
    live = state_indices > 0
    blocks = state_indices[live].long()
    num_blocks = ssm_state.shape[0]
    if (blocks >= num_blocks).any():
        expect(False, "state_indices", f"ids below {num_blocks}", int(blocks.max()))
    states = ssm_state[blocks].float()
    num_heads = x.shape[-2]
    one_token = x.dim() == 3
    inputs, step = x[live].float(), dt[live].float()
    if one_token:
        inputs, step = inputs[:, None], step[:, None]
    step = step if dt_bias is None else step + dt_bias.float()
    step = F.softplus(step, threshold=88) if dt_softplus else step
    by_head = (*inputs.shape[:2], num_heads, B.shape[-1])
    heads_per_group = num_heads // B.shape[-2]
    B, C = (
        rows[live].float().repeat_interleave(heads_per_group, dim=-2).view(by_head)
        for rows in (B, C)
    )
    y = torch.empty_like(inputs)
    decay, inputs_by_step = torch.exp(step * A), inputs * step[..., None]
    for t in range(inputs.shape[1]):
        states *= decay[:, t, :, None, None]
        states += inputs_by_step[:, t, :, :, None] * B[:, t, :, None, :]
        y[:, t] = (states @ C[:, t, :, :, None])[..., 0]
    ssm_state[blocks] = states.to(ssm_state.dtype)
    if D is not None:
        y += D.float()[:, None] * inputs
    y = y[:, 0] if one_token else y
    if z is not None:
        y *= F.silu(z[live].float())
    result = torch.empty_like(x) if out is None else out
    result[live], result[~live] = y.to(x.dtype), 0
    return result
