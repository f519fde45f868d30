"""The sequences of a step and the checkpoints in them, for CPUs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from blockstride.kernels.common.cpu.tensors import float_states


@contextmanager
def float_states_of_step(
    states: Tensor,
    state_indices: Tensor,
    query_start_loc: Tensor | None,
    checkpoint_tokens: Tensor | None,
    checkpoint_indices: Tensor | None,
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Cast what a step touches of a pool of a narrower dtype to float32, and back at the end.

    Args:
        states: The pool.
        state_indices: State block of each sequence.
        query_start_loc: Prefix sum of the sequences' lengths; without it each has one token.
        checkpoint_tokens: Rows of the step, ascending.
        checkpoint_indices: State block of each of them.

    Yields:
        A pool of the touched states alone, and the blocks of sequences and checkpoints in it.

    Raises:
        ValueError: A block lies past the end of the pool.
    """
    (num_seqs,), touched, blocks = state_indices.shape, state_indices > 0, state_indices
    if query_start_loc is not None:
        touched &= query_start_loc.diff() > 0
    if checkpoint_tokens is not None and checkpoint_indices is not None:
        reached = _reached(checkpoint_tokens, query_start_loc, touched)
        touched = torch.cat([touched, reached & (checkpoint_indices > 0)])
        blocks = torch.cat([blocks, checkpoint_indices])
    with float_states(states, blocks, touched) as (wide, indices):
        kept = None if checkpoint_indices is None else indices[num_seqs:]
        yield wide, indices[:num_seqs], kept


def _reached(checkpoint_tokens: Tensor, query_start_loc: Tensor | None, is_live: Tensor) -> Tensor:
    """Whether each checkpoint lies in a sequence that is live: has a state and tokens."""
    num_seqs = len(is_live)
    if query_start_loc is None:
        query_start_loc = torch.arange(num_seqs + 1, dtype=torch.int32)
    # past the last sequence there is one more, which is not live
    sequence = torch.searchsorted(query_start_loc, checkpoint_tokens, right=True) - 1
    return torch.cat([is_live, is_live.new_zeros(1)])[sequence.clamp(max=num_seqs)]
