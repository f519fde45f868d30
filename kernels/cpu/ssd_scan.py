"""Prompts of Mamba-2 for CPUs: chunks of a sequence one after the other, each by a few products."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from blockstride.kernels.cpu.checkpoints import live_sequences


def ssd_scan(
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
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    chunk_size: int,
    checkpoint_tokens: Tensor | None,
    checkpoint_indices: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    """See `blockstride.kernels.ssd_scan`."""
    heads_per_group = x.shape[1] // B.shape[1]
    step = dt.float() if dt_bias is None else dt.float() + dt_bias.float()
    step = (softplus(step) if dt_softplus else step)[:, :, None]
    result = torch.zeros(x.shape, dtype=x.dtype)
    for sequence in live_sequences(
        ssm_state, state_indices, query_start_loc, checkpoint_tokens, checkpoint_indices
    ):
        state = torch.zeros(ssm_state.shape[1:])
        if has_initial_state[sequence.number]:
            state.copy_(ssm_state[sequence.block])
        for rows in sequence.chunks(chunk_size):
            inputs, log_decay = x[rows].float(), step[rows] * A[:, None]
            chunk = Chunk(
                (inputs * step[rows]).transpose(0, 1),
                B[rows].float().repeat_interleave(heads_per_group, dim=1).transpose(0, 1),
                C[rows].float().repeat_interleave(heads_per_group, dim=1).transpose(0, 1),
                # differences are taken of sums that may be large
                log_decay.double().cumsum(0).transpose(0, 1),
            )
            y = chunk.outputs(state).transpose(0, 1)
            y = y if D is None else y + D.float()[:, None] * inputs
            result[rows] = y if z is None else y * silu(z[rows].float())
            for token, block in sequence.checkpoints_in(rows):
                ssm_state[block] = chunk.state_after(token - rows.start, state).to(ssm_state.dtype)
            state = chunk.state_after(len(inputs) - 1, state)
        ssm_state[sequence.block] = state.to(ssm_state.dtype)
    return result if out is None else out.copy_(result)


class Chunk(NamedTuple):
    """Tokens of one sequence, head by head.

    Attributes:
        inputs: `step * x`, `[num_heads, tokens, head_dim]`.
        B: `[num_heads, tokens, d_state]`.
        C: The same.
        log_decay: Running sum of `step * A` in float64, `[num_heads, tokens, 1]`.
    """

    inputs: Tensor
    B: Tensor
    C: Tensor
    log_decay: Tensor

    def outputs(self, state: Tensor) -> Tensor:
        """Outputs of all tokens, after the state before the first of them."""
        earlier = self.log_decay.exp().float() * (self.C @ state.transpose(1, 2))
        between = self.log_decay - self.log_decay.transpose(1, 2)
        is_later = torch.ones(between.shape[1:], dtype=torch.bool).triu(1)
        decay = between.masked_fill(is_later, -torch.inf).exp().float()
        return earlier + (self.C @ self.B.transpose(1, 2) * decay) @ self.inputs

    def state_after(self, token: int, state: Tensor) -> Tensor:
        """The state after one of the tokens."""
        last, upto = self.log_decay[:, token, None], slice(token + 1)
        decay = (last - self.log_decay[:, upto]).exp().float()
        added = (self.inputs[:, upto] * decay).transpose(1, 2) @ self.B[:, upto]
        return last.exp().float() * state + added
