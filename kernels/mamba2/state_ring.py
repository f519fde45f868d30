"""The tokens that a state has yet to take in, kept beside it in its page."""

from typing import NamedTuple

from torch import Tensor


class StateRing(NamedTuple):
    """Views of the field of a page in which a Mamba-2 layer keeps its latest inputs.

    With a ring a decode step reads the state and writes it only when the ring is full: once in
    `length + 1` tokens. All four have any strides. A page of zeros has an empty ring; who writes a
    state by other means, a prompt's scan for one, empties its ring: `ring.held[blocks] = 0`.

    Attributes:
        x: `[num_blocks, length, num_heads, head_dim]`, each token's input times its step size.
        B: `[num_blocks, length, num_groups, d_state]`, each token's input projection.
        log_decay: `[num_blocks, length, num_heads]` float32, the logarithm of what each token
            leaves of the state before it.
        held: `[num_blocks, num_heads]` float32, how many tokens the ring holds. All heads hold as
            many; each has a number of its own, so that no two programs share one.
    """

    x: Tensor
    B: Tensor
    log_decay: Tensor
    held: Tensor
