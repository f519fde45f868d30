"""What functions that keep a state for each sequence ask of lengths, blocks and checkpoints."""

from torch import Tensor

from blockstride.checks import (
    BOOL,
    INT32,
    checks_are_full,
    expect,
    expect_ids,
    expect_query_start_loc,
    expect_tensor,
    shape_of,
    values_are_readable,
)


def expect_prompts(
    num_tokens: int,
    pool: Tensor,
    state_indices: Tensor,
    query_start_loc: Tensor,
    has_initial_state: Tensor,
    checkpoint_tokens: Tensor | None = None,
    checkpoint_indices: Tensor | None = None,
) -> None:
    """Raise unless sequences cut the rows of a step and have state blocks of their own.

    Values are checked where they are readable.

    Args:
        num_tokens: Rows of the step.
        pool: States, one for each block.
        state_indices: State block of each sequence.
        query_start_loc: Prefix sum of the sequences' lengths.
        has_initial_state: Whether a sequence continues from its state.
        checkpoint_tokens: Rows after which the state is kept, ascending.
        checkpoint_indices: A state block for each of them.

    Raises:
        ValueError: A shape or a device does not fit, lengths do not cut the rows, tokens descend,
            or a block lies past the pool or would be written twice.
        TypeError: A dtype is not accepted.
    """
    (num_seqs,), device = shape_of(state_indices, "state_indices", 1), pool.device
    expect_tensor(state_indices, "state_indices", (num_seqs,), INT32, device)
    expect_tensor(query_start_loc, "query_start_loc", (num_seqs + 1,), INT32, device)
    expect_tensor(has_initial_state, "has_initial_state", (num_seqs,), BOOL, device)
    expect_query_start_loc(query_start_loc, num_tokens)
    expect_ids(state_indices, "state_indices", pool.shape[0], distinct=True)
    if checkpoint_tokens is not None and checkpoint_indices is not None:
        _expect_checkpoints(checkpoint_tokens, checkpoint_indices, pool, state_indices)
        return
    for tensor, name in (
        (checkpoint_tokens, "checkpoint_tokens"),
        (checkpoint_indices, "checkpoint_indices"),
    ):
        expect(tensor is None, name, "None, as the other one is", "a tensor")


def _expect_checkpoints(
    tokens: Tensor, blocks: Tensor, pool: Tensor, state_indices: Tensor
) -> None:
    """Raise unless checkpoints are in order and write blocks of their own."""
    shape = shape_of(tokens, "checkpoint_tokens", 1)
    expect_tensor(tokens, "checkpoint_tokens", shape, INT32, pool.device)
    expect_tensor(blocks, "checkpoint_indices", shape, INT32, pool.device)
    if not values_are_readable(tokens):
        return
    rows = tokens.tolist()
    is_sorted = rows == sorted(rows) and not (rows and rows[0] < 0)
    expect(is_sorted, "checkpoint_tokens", "rows in ascending order", rows)
    expect_ids(blocks, "checkpoint_indices", pool.shape[0], distinct=True)
    written, states = blocks.tolist(), {*state_indices.tolist()}
    shared = [block for block in written if block > 0 and block in states]
    expect(not shared, "checkpoint_indices", "blocks apart from those of sequences", shared)


def expect_step(state_indices: Tensor, pool: Tensor) -> None:
    """Under full checks, raise unless each sequence of a decode step has a state block of its own.

    Otherwise nothing is looked at, since a step is short: on a CPU its kernel names an id past the
    pool, and of sequences that share a block the last one to write it wins.

    Raises:
        ValueError: A block lies past the pool, or two sequences have the same one.
    """
    if checks_are_full():
        expect_ids(state_indices, "state_indices", pool.shape[0], distinct=True)


def expect_draft(
    tokens: tuple[int, ...], checkpoint_indices: Tensor, state_indices: Tensor, pool: Tensor
) -> None:
    """Raise unless there is a block for each new token of a decode step; see `expect_step`.

    Args:
        tokens: The shape of the step's tokens.
        checkpoint_indices: State block for each of them.
        state_indices: State block of each sequence.
        pool: States, one for each block.

    Raises:
        ValueError: The shape or the device does not fit; under full checks, a block is past the
            pool, another token's, or another sequence's.
        TypeError: The dtype is not accepted.
    """
    name = "checkpoint_indices"
    expect_tensor(checkpoint_indices, name, tokens, INT32, pool.device)
    if not checks_are_full():
        return
    expect_ids(checkpoint_indices, name, pool.shape[0], distinct=True)
    blocks, by_sequence = state_indices.tolist(), checkpoint_indices.reshape(len(state_indices), -1)
    for own, written in zip(blocks, by_sequence.tolist(), strict=True):
        shared = [block for block in written if block > 0 and block != own and block in blocks]
        expect(not shared, name, "no block of another sequence", shared)
