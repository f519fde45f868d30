"""Copying cache blocks between layouts, for CPUs.

The common stream of tokens is cut at every boundary of either side, so a piece lies within one
block of each. A task is one piece of one layer, all heads. Where the dtype changes, torch casts a
dense copy of the blocks; where the two sides share memory, they go through a dense copy too.
"""

from math import gcd

import torch
from torch import Tensor

from blockstride.kernels.cache.cpu.moves import move_row
from blockstride.kernels.common.cpu.native import (
    Program,
    arguments,
    claim,
    i32_at,
    num_tasks,
)
from blockstride.kernels.common.cpu.tensors import FLOAT8, to_float8

# bytes that are worth a thread
GRAIN_BYTES = 1 << 16


@Program
def _copy(address):
    (
        source, destination, source_blocks, destination_blocks,
        num_pieces, piece_tokens, piece_rows, num_heads, content, itemsize,
        source_block_size, block_size,
        stride_source_layer, stride_source_block, stride_source_head, stride_source_token,
        stride_source_content,
        stride_layer, stride_block, stride_head, stride_token, stride_content,
    ) = arguments(address, 22)  # fmt: skip
    task = claim(address)
    while task < num_tasks(address):
        layer, token = task // num_pieces, task % num_pieces * piece_tokens
        task = claim(address)
        read = int(i32_at(source_blocks)[token // source_block_size])
        written = int(i32_at(destination_blocks)[token // block_size])
        if read <= 0 or written <= 0:
            continue
        first = layer * stride_source_layer + read * stride_source_block
        first += token % source_block_size * stride_source_token
        target = layer * stride_layer + written * stride_block + token % block_size * stride_token
        for head in range(num_heads):
            for i in range(piece_rows):
                place = first + head * stride_source_head + i * stride_source_token
                move_row(
                    destination + itemsize * (target + head * stride_head + i * stride_token),
                    source + itemsize * place,
                    content, stride_content, stride_source_content, itemsize,
                )  # fmt: skip


def block_copy(
    source: Tensor, destination: Tensor, source_blocks: Tensor, destination_blocks: Tensor
) -> None:
    """See `blockstride.kernels.block_copy`."""
    same_memory = source.untyped_storage().data_ptr() == destination.untyped_storage().data_ptr()
    if same_memory or source.dtype != destination.dtype:
        num_layers, _, num_heads, block_size, content = source.shape
        reads = len(source_blocks)
        # block 0 of the copy is the null block
        numbers = torch.arange(1, reads + 1, dtype=torch.int32)
        dense = source.new_empty(num_layers, reads + 1, num_heads, block_size, content)
        _run(source, dense, source_blocks, numbers)
        numbers[source_blocks <= 0] = 0
        if destination.dtype != source.dtype:
            narrowed = destination.dtype is FLOAT8
            dense = to_float8(dense) if narrowed else dense.to(destination.dtype)
        _run(dense, destination, numbers, destination_blocks)
    else:
        _run(source, destination, source_blocks, destination_blocks)


def _run(
    source: Tensor, destination: Tensor, source_blocks: Tensor, destination_blocks: Tensor
) -> None:
    """Move bits between blocks of one dtype that share no memory."""
    num_layers, _, num_heads, source_block_size, content = source.shape
    block_size = destination.shape[3]
    source_blocks, destination_blocks = source_blocks.contiguous(), destination_blocks.contiguous()
    piece_tokens = gcd(source_block_size, block_size)
    num_pieces = len(source_blocks) * source_block_size // max(1, piece_tokens)
    piece_bytes = piece_tokens * num_heads * content * source.itemsize
    piece_rows = piece_tokens
    if source.stride()[3:] == destination.stride()[3:] == (content, 1):
        piece_rows, content = 1, piece_tokens * content
    _copy(
        num_layers * num_pieces, max(1, GRAIN_BYTES // max(1, piece_bytes)),
        source.data_ptr(), destination.data_ptr(), source_blocks.data_ptr(),
        destination_blocks.data_ptr(), num_pieces, piece_tokens, piece_rows, num_heads,
        content, source.itemsize, source_block_size, block_size,
        *source.stride(), *destination.stride(),
    )  # fmt: skip
