"""How the references of recurrences walk a batch: one sequence after the other, token by token."""

from collections import defaultdict
from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor


def each_token(
    states: Float[Tensor, "num_blocks ..."],
    state_indices: Int32[Tensor, " num_seqs"],
    query_start_loc: Int32[Tensor, " num_seqs_plus_1"],
    has_initial_state: Bool[Tensor, " num_seqs"],
    checkpoint_tokens: Int32[Tensor, " num_checkpoints"] | None = None,
    checkpoint_indices: Int32[Tensor, " num_checkpoints"] | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Every token of the batch but those of padding, each with the state before it.

    Whoever iterates advances the state in place. It is then kept wherever a checkpoint asks for it.
    """
    checkpoints = defaultdict(list)
    if checkpoint_tokens is not None and checkpoint_indices is not None:
        for t, block in zip(checkpoint_tokens.tolist(), checkpoint_indices.tolist(), strict=True):
            if block > 0:
                checkpoints[t].append(block)
    starts = query_start_loc.tolist()
    for i, block in enumerate(state_indices.tolist()):
        start, end = starts[i], starts[i + 1]
        if block <= 0 or start == end:
            continue
        if not has_initial_state[i]:
            states[block] = 0
        for t in range(start, end):
            yield t, states[block]
            for kept in checkpoints[t]:
                states[kept] = states[block]


def new_tokens(state_indices: Int32[Tensor, " num_seqs"], num_new: int) -> dict[str, Tensor]:
    """A decode step as prompts of `num_new` tokens, each of which goes on from its state."""
    num_seqs, device = len(state_indices), state_indices.device
    return {
        "state_indices": state_indices,
        "query_start_loc": num_new * torch.arange(num_seqs + 1, dtype=torch.int32, device=device),
        "has_initial_state": torch.ones(num_seqs, dtype=torch.bool, device=device),
    }
