"""The gated delta rule for CPUs: chunks of a sequence one after the other, by a few products each.

A token's change depends on those of the chunk's earlier tokens, by a triangular system.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from blockstride.checks import expect_ids
from blockstride.kernels.common.cpu.checkpoints import live_sequences

CHUNK = 64
NORM_EPS = 1e-6
# its exponential is zero in float64 too; a difference of two infinite sums would be NaN
LOWEST = -1000.0


def gated_delta_rule(
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
    qk_l2norm: bool,
    checkpoint_tokens: Tensor | None,
    checkpoint_indices: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    """See `blockstride.kernels.gated_delta_rule`."""
    q, k = (_keys(part, v.shape[1], qk_l2norm) for part in (q, k))
    result = torch.zeros(v.shape, dtype=v.dtype)
    for sequence in live_sequences(
        state_indices, query_start_loc, checkpoint_tokens, checkpoint_indices
    ):
        state = torch.zeros(ssm_state.shape[1:])
        if has_initial_state[sequence.number]:
            state.copy_(ssm_state[sequence.block])
        for rows in sequence.chunks(CHUNK):
            # differences are taken of sums that may be large
            log_decay = g[rows].double().clamp(min=LOWEST).cumsum(0).T[:, :, None]
            chunk = _solve(k[:, rows], v[rows], beta[rows], log_decay, state)
            y = chunk.outputs(q[:, rows] * scale, state)
            result[rows] = y.transpose(0, 1)
            for token, block in sequence.checkpoints_in(rows):
                ssm_state[block] = chunk.state_after(token - rows.start, state).to(ssm_state.dtype)
            state = chunk.state_after(rows.stop - rows.start - 1, state)
        ssm_state[sequence.block] = state.to(ssm_state.dtype)
    return result if out is None else out.copy_(result)


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
    out: Tensor | None,
) -> Tensor:
    """See `blockstride.kernels.gated_delta_rule_update`."""
    expect_ids(state_indices, "state_indices", len(ssm_state))
    live = state_indices > 0
    blocks = state_indices[live].long()
    q, k = (_keys(part[live], v.shape[1], qk_l2norm).transpose(0, 1) for part in (q, k))
    state = ssm_state[blocks].float() * g[live].float().exp()[:, :, None, None]
    # [num_seqs, num_value_heads, 1, head_v_dim]
    held = k[:, :, None] @ state
    change = beta[live].float()[:, :, None, None] * (v[live].float()[:, :, None] - held)
    state += k[:, :, :, None] * change
    ssm_state[blocks] = state.to(ssm_state.dtype)
    result = torch.zeros(v.shape, dtype=v.dtype)
    result[live] = (scale * q[:, :, None] @ state)[:, :, 0].to(v.dtype)
    return result if out is None else out.copy_(result)


class _Chunk(NamedTuple):
    """Tokens of one sequence, value head by value head, once their changes are known.

    Attributes:
        k: Keys, `[num_value_heads, tokens, head_k_dim]`.
        change: What each token adds for its key, `[num_value_heads, tokens, head_v_dim]`.
        log_decay: Running sum of `g` in float64, `[num_value_heads, tokens, 1]`.
    """

    k: Tensor
    change: Tensor
    log_decay: Tensor

    def outputs(self, q: Tensor, state: Tensor) -> Tensor:
        """Outputs of all tokens, after the state before the first of them."""
        scores = q @ self.k.transpose(1, 2) * _decay_between(self.log_decay)
        return self.log_decay.exp().float() * (q @ state) + scores @ self.change

    def state_after(self, token: int, state: Tensor) -> Tensor:
        """The state after one of the tokens."""
        last, upto = self.log_decay[:, token, None], slice(token + 1)
        decay = (last - self.log_decay[:, upto]).exp().float()
        added = (self.k[:, upto] * decay).transpose(1, 2) @ self.change[:, upto]
        return last.exp().float() * state + added


def _solve(k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor) -> _Chunk:
    """Find the changes of a chunk's tokens."""
    beta = beta.float().T[:, :, None]
    lower = (beta * (k @ k.transpose(1, 2)) * _decay_between(log_decay)).tril(-1)
    error = v.float().transpose(0, 1) - log_decay.exp().float() * (k @ state)
    change = torch.linalg.solve_triangular(lower, beta * error, upper=False, unitriangular=True)
    return _Chunk(k, change, log_decay)


def _decay_between(log_decay: Tensor) -> Tensor:
    """How much of each token's change is left at each other; nothing before it."""
    between = log_decay - log_decay.transpose(1, 2)
    is_later = torch.ones(between.shape[1:], dtype=torch.bool).triu(1)
    return between.masked_fill(is_later, -torch.inf).exp().float()


def _keys(x: Tensor, num_value_heads: int, l2_norm: bool) -> Tensor:
    """Queries or keys for every value head, `[num_value_heads, tokens, head_k_dim]`."""
    wide = x.float()
    if l2_norm:
        wide = wide * (wide.square().sum(-1, keepdim=True) + NORM_EPS).rsqrt()
        wide = wide.to(x.dtype).float()
    return wide.repeat_interleave(num_value_heads // x.shape[1], dim=1).transpose(0, 1)
