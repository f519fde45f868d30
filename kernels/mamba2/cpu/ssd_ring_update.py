"""Decode steps of Mamba-2 over a ring of tokens for CPUs: all sequences at once."""

import torch
from torch import Tensor
from torch.nn import functional as F

from blockstride.checks import expect_ids
from blockstride.kernels.mamba2.state_ring import StateRing


def ssd_ring_update(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    ssm_state: Tensor,
    ring: StateRing,
    state_indices: Tensor,
    *,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    out: Tensor | None,
) -> Tensor:
    """See `blockstride.kernels.ssd_ring_update`."""
    live, blocks = _live_blocks(state_indices, ssm_state)
    inputs, step = x[live].float(), dt[live].float()
    step = step if dt_bias is None else step + dt_bias.float()
    step = F.softplus(step, threshold=88) if dt_softplus else step
    added, newest = inputs * step[..., None], step * A
    share = x.shape[1] // B.shape[1]
    by_head, projection = (r[live].float().repeat_interleave(share, 1) for r in (B, C))
    states = _with_ring(ssm_state, ring, blocks, newest)
    states += added[..., None] * by_head[:, :, None]
    y = (states @ projection[..., None])[..., 0]
    y = y if D is None else y + D.float()[:, None] * inputs
    y = y if z is None else y * F.silu(z[live].float())

    slots = ring.held[blocks, 0].long()
    is_full = slots == ring.x.shape[1]
    ssm_state[blocks[is_full]] = states[is_full].to(ssm_state.dtype)
    place = (blocks[~is_full], slots[~is_full])
    ring.x[place] = added[~is_full].to(ring.x.dtype)
    ring.B[place] = B[live][~is_full].to(ring.B.dtype)
    ring.log_decay[place] = newest[~is_full]
    ring.held[blocks] = (slots + 1).float().masked_fill(is_full, 0)[:, None]
    result = torch.empty_like(x) if out is None else out
    result[live], result[~live] = y.to(x.dtype), 0
    return result


def fold_state_ring(ssm_state: Tensor, ring: StateRing, state_indices: Tensor) -> None:
    """See `blockstride.kernels.fold_state_ring`."""
    _, blocks = _live_blocks(state_indices, ssm_state)
    none = torch.zeros(len(blocks), ssm_state.shape[1])
    states = _with_ring(ssm_state, ring, blocks, none)
    ssm_state[blocks] = states.to(ssm_state.dtype)
    ring.held[blocks] = 0


def _live_blocks(state_indices: Tensor, ssm_state: Tensor) -> tuple[Tensor, Tensor]:
    """Which sequences are no padding, and their blocks."""
    live = state_indices > 0
    expect_ids(state_indices, "state_indices", ssm_state.shape[0])
    return live, state_indices[live].long()


def _with_ring(ssm_state: Tensor, ring: StateRing, blocks: Tensor, newest: Tensor) -> Tensor:
    """States in float32 after the tokens of their rings, and one more log decay of each head."""
    share = ssm_state.shape[1] // ring.B.shape[2]
    slots = torch.arange(ring.x.shape[1])[:, None]
    # what a slot without a token holds may be anything, NaN too
    empty = slots >= ring.held[blocks][:, None]
    logs = torch.cat([ring.log_decay[blocks].masked_fill(empty, 0), newest[:, None]], dim=1)
    # sums from each token on; a difference of two decays to zero would be NaN
    decay = torch.exp(logs.flip(1).cumsum(1).flip(1))
    inputs = ring.x[blocks].float().masked_fill(empty[..., None], 0)
    B = ring.B[blocks].float().repeat_interleave(share, 2).masked_fill(empty[..., None], 0)
    states = ssm_state[blocks].float() * decay[:, 0, :, None, None]
    return states + torch.einsum("nlhp,nlhs->nhps", inputs * decay[:, 1:, :, None], B)
