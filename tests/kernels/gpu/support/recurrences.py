"""Convolution and recurrences by definition: token by token in plain torch, in any precision.

Each takes the arguments of the public function and a dtype, computes every intermediate in it, and
returns the outputs and what the whole pool of states should hold.
"""

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_state: Tensor,
    state_indices: Tensor,
    query_start_loc: Tensor,
    has_initial_state: Tensor,
    *,
    activation: str | None = "silu",
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    x, taps, states = x.to(dtype), weight.to(dtype).T, conv_state.to(dtype, copy=True)
    out, width = torch.zeros_like(x), len(taps)
    starts = query_start_loc.tolist()
    for i, block in enumerate(state_indices.tolist()):
        start, stop = starts[i], starts[i + 1]
        if block <= 0 or start == stop:
            continue
        past = states[block].T if has_initial_state[i] else x.new_zeros(width - 1, x.shape[1])
        seen = torch.cat([past, x[start:stop]])
        for t in range(start, stop):
            out[t] = (seen[t - start : t - start + width] * taps).sum(0)
            out[t] += 0 if bias is None else bias.to(dtype)
        out[start:stop] = silu(out[start:stop]) if activation else out[start:stop]
        states[block] = seen[len(seen) - width + 1 :].T
    return out, states


def recurrence(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    ssm_state: Tensor,
    state_indices: Tensor,
    query_start_loc: Tensor,
    has_initial_state: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = True,
    checkpoint_tokens: Tensor | None = None,
    checkpoint_indices: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Mamba-1 of [tokens, dim], or Mamba-2 of [tokens, heads, rows], heads sharing B and C."""
    inputs, step, A, states = x.to(dtype), dt.to(dtype), A.to(dtype), ssm_state.to(dtype, copy=True)
    B, C = B.to(dtype), C.to(dtype)
    by_head = x.dim() == 3
    step = step if dt_bias is None else step + dt_bias.to(dtype)
    step = softplus(step, threshold=80) if dt_softplus else step
    if by_head:
        share = x.shape[1] // B.shape[1]
        # [tokens, heads, rows or 1, states or 1]
        B, C = (rows.repeat_interleave(share, 1)[:, :, None] for rows in (B, C))
        step, A = step[..., None], A[:, None, None]
    else:
        B, C = B[:, None], C[:, None]
    out, starts = torch.zeros_like(inputs), query_start_loc.tolist()
    kept = checkpoints(checkpoint_tokens, checkpoint_indices)
    for i, block in enumerate(state_indices.tolist()):
        start, stop = starts[i], starts[i + 1]
        if block <= 0 or start == stop:
            continue
        state = states[block] if has_initial_state[i] else torch.zeros_like(states[block])
        for t in range(start, stop):
            decay = torch.exp(step[t, ..., None] * A)
            state = state * decay + (step[t] * inputs[t])[..., None] * B[t]
            out[t] = (state * C[t]).sum(-1)
            if D is not None:
                skip = D.to(dtype)[:, None] if by_head else D.to(dtype)
                out[t] += skip * inputs[t]
            if z is not None:
                out[t] *= silu(z[t].to(dtype))
            states[kept.get(t, [])] = state
        states[block] = state
    return out, states


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    ssm_state: Tensor,
    state_indices: Tensor,
    query_start_loc: Tensor,
    has_initial_state: Tensor,
    *,
    scale: float,
    qk_l2norm: bool = False,
    checkpoint_tokens: Tensor | None = None,
    checkpoint_indices: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule of [tokens, heads, size], value heads sharing queries and keys."""
    share = v.shape[1] // q.shape[1]
    q, k, v, beta = (part.to(dtype) for part in (q, k, v, beta))
    if qk_l2norm:
        q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    q, k = (part.repeat_interleave(share, 1) for part in (q, k))
    decay, states = g.to(dtype).exp(), ssm_state.to(dtype, copy=True)
    out, starts = torch.zeros_like(v), query_start_loc.tolist()
    kept = checkpoints(checkpoint_tokens, checkpoint_indices)
    for i, block in enumerate(state_indices.tolist()):
        start, stop = starts[i], starts[i + 1]
        if block <= 0 or start == stop:
            continue
        state = states[block] if has_initial_state[i] else torch.zeros_like(states[block])
        for t in range(start, stop):
            state = state * decay[t, :, None, None]
            held = (k[t, :, :, None] * state).sum(1)
            state = state + k[t, :, :, None] * (beta[t, :, None] * (v[t] - held))[:, None]
            out[t] = scale * (q[t, :, :, None] * state).sum(1)
            states[kept.get(t, [])] = state
        states[block] = state
    return out, states


def turned(tensor: Tensor) -> Tensor:
    """The same numbers with the last axis outermost in memory, and a gap after each of them."""
    wide = torch.stack([tensor, torch.zeros_like(tensor)], -1).movedim(-2, 0).contiguous()
    return wide.movedim(0, -2)[..., 0]


def checkpoints(tokens: Tensor | None, indices: Tensor | None) -> dict[int, list[int]]:
    """The blocks that keep the state after each token that has any."""
    kept: dict[int, list[int]] = {}
    if tokens is not None and indices is not None:
        for token, block in zip(tokens.tolist(), indices.tolist(), strict=True):
            if block > 0:
                kept.setdefault(token, []).append(block)
    return kept


def as_prompts(num_seqs: int, num_new: int) -> tuple[Tensor, Tensor]:
    """Starts and flags of a decode step, seen as prompts that go on from their states."""
    starts = torch.arange(0, num_seqs * num_new + 1, num_new, dtype=torch.int32)
    return starts, torch.ones(num_seqs, dtype=torch.bool)
