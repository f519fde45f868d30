"""Copying cache blocks between layouts: gather, scatter, permute, re-block, cast."""

import torch
from jaxtyping import Int32, Num
from torch import Tensor

from blockstride.checks import (
    CACHE_DTYPES,
    INT32,
    expect,
    expect_ids,
    expect_own_memory,
    expect_tensor,
    shape_of,
)
from blockstride.kernels.common.dispatch import implementation, runs_on_triton


def block_copy(
    source: Num[Tensor, "num_layers num_source_blocks num_heads source_block_size content"],
    destination: Num[Tensor, "num_layers num_blocks num_heads block_size content"],
    source_blocks: Int32[Tensor, " num_reads"],
    destination_blocks: Int32[Tensor, " num_writes"],
) -> None:
    """Copy the tokens of `source_blocks`, in order, into `destination_blocks`, in order.

    Both lists name the same stream of tokens, cut into blocks of two sizes: token `t` of the
    stream lies in entry `t // block_size` of a list at offset `t % block_size`. Strides, block
    size and floating dtype may all differ between the two sides; a value too large for fp8 is
    saturated. A slice of heads or of the content is a sliced view.

    Args:
        source: Pool to read, with any strides.
        destination: Pool to write, with any strides. It may share memory with `source`: the result
            is as if every block had been read before the first one was written.
        source_blocks: Blocks to read. Tokens of an id <= 0 are not copied: their places in the
            destination stay as they are. Ids, here and below, are checked where they are on the
            host.
        destination_blocks: Blocks to write, no positive id twice. Tokens of an id <= 0 are
            dropped.

    Raises:
        ValueError: The two lists hold different numbers of tokens, an id is past its pool, a block
            would be written twice, or a shape or a device does not fit.
        TypeError: A dtype is not accepted, or only one side is int8.
    """
    given = {**locals()}
    num_layers, num_source_blocks, num_heads, source_block_size, content = shape_of(
        source, "source", 5
    )
    _, num_blocks, _, block_size, _ = shape_of(destination, "destination", 5)
    source_list = shape_of(source_blocks, "source_blocks", 1)
    destination_list = shape_of(destination_blocks, "destination_blocks", 1)
    device = source.device
    shape = (num_layers, num_blocks, num_heads, block_size, content)
    expect_tensor(source, "source", source.shape, CACHE_DTYPES, device)
    expect_tensor(destination, "destination", shape, CACHE_DTYPES, device)
    expect_own_memory(destination, "destination")
    expect_tensor(source_blocks, "source_blocks", source_list, INT32, device)
    expect_tensor(destination_blocks, "destination_blocks", destination_list, INT32, device)
    if torch.int8 in {source.dtype, destination.dtype} and source.dtype != destination.dtype:
        expect(False, "destination", source.dtype, destination.dtype, TypeError)
    tokens = len(source_blocks) * source_block_size
    if tokens != len(destination_blocks) * block_size:
        got = f"{len(destination_blocks)} of {block_size}"
        expect(False, "destination_blocks", f"blocks of {tokens} tokens in all", got)
    expect_ids(source_blocks, "source_blocks", num_source_blocks)
    expect_ids(destination_blocks, "destination_blocks", num_blocks, distinct=True)
    implementation(block_copy, runs_on_triton(source))(**given)
