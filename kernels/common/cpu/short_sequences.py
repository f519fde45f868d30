"""A decode step of a recurrence: its scan, over sequences as short as there are new tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def over_short_sequences(
    scan: Callable[..., Tensor],
    x: Tensor,
    num_axes: int,
    by_token: Sequence[str] = ("dt", "B", "C", "z"),
    **inputs: Any,
) -> Tensor:
    """Let a scan over prompts take the new tokens of each sequence.

    Args:
        scan: A scan over prompts.
        x: Inputs of one token of each sequence, or with an axis for several after the first.
        num_axes: Axes of inputs without the one for several tokens.
        by_token: Which of the others have an entry for each token; one may be None.
        inputs: The others, by name.
    """
    if x.dim() == num_axes:
        return scan(x, query_start_loc=None, has_initial_state=None, **inputs)
    num_seqs, num_new = x.shape[:2]
    starts = torch.arange(0, num_seqs * num_new + 1, num_new, dtype=torch.int32)
    given, out = {name: inputs[name] for name in by_token}, inputs["out"]
    rows = {name: None if each is None else each.flatten(0, 1) for name, each in given.items()}
    result = scan(
        x.flatten(0, 1),
        query_start_loc=starts,
        has_initial_state=torch.ones(num_seqs, dtype=torch.bool),
        **inputs | rows | {"out": None},
    ).view(x.shape)
    return result if out is None else out.copy_(result)
