"""Tokens after which a recurrent state is kept, beside the last one of each sequence."""

from torch import Tensor

from blockstride.kernels.checks import INT32, expect, expect_tensor, shape_of, values_are_readable


def expect_checkpoints(
    checkpoint_tokens: Tensor | None, checkpoint_indices: Tensor | None, like: Tensor
) -> None:
    """Raise unless tokens and state blocks of checkpoints come together and in order.

    Whether the tokens ascend is checked where values are readable.

    Args:
        checkpoint_tokens: Rows of the step, ascending.
        checkpoint_indices: A state block for each.
        like: A tensor of the step, read for its device.

    Raises:
        ValueError: Only one is given, a shape or a device does not fit, or the tokens descend.
        TypeError: Another dtype than int32.
    """
    if checkpoint_tokens is None or checkpoint_indices is None:
        for tensor, name in (
            (checkpoint_tokens, "checkpoint_tokens"),
            (checkpoint_indices, "checkpoint_indices"),
        ):
            expect(tensor is None, name, "None, as the other one is", "a tensor")
        return
    shape = shape_of(checkpoint_tokens, "checkpoint_tokens", 1)
    expect_tensor(checkpoint_tokens, "checkpoint_tokens", shape, INT32, like.device)
    expect_tensor(checkpoint_indices, "checkpoint_indices", shape, INT32, like.device)
    if values_are_readable(checkpoint_tokens):
        tokens = checkpoint_tokens.tolist()
        is_sorted = tokens == sorted(tokens) and not (tokens and tokens[0] < 0)
        expect(is_sorted, "checkpoint_tokens", "rows in ascending order", tokens)
