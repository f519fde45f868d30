"""Paged attention for prompts: pages gathered once a sequence, products by BLAS.

The keys and values that a sequence sees become dense float32 once. Then, for a tile of query tokens
and all heads, one product gives the scores of the keys up to the tile's last token, a program turns
them into weights, and another product sums the values.
"""

import math

import numpy as np
import torch
from torch import Tensor

from blockstride.checks import expect
from blockstride.kernels.attention.cpu.softmax import INFINITY, Softmax, hide
from blockstride.kernels.common.cpu.lanes import (
    LANES,
    ZERO,
    fill,
    load,
    max_lanes,
    store,
    sum_lanes,
)
from blockstride.kernels.common.cpu.native import (
    Program,
    arguments,
    claim,
    f32_at,
    float_bits,
    float_of,
    i32_at,
    inlined,
    num_tasks,
    shifted,
    stack_f32,
)
from blockstride.kernels.common.cpu.tensors import address_of
from blockstride.kernels.common.cpu.vector_math import exp
from blockstride.kernels.common.cpu.widen import KINDS, itemsize_of, widen

# scores of a tile: 8 MiB, which stay in the processor's cache between the two products
TILE_SCORES = 1 << 21
MIN_TILE_TOKENS, MAX_TILE_TOKENS = 16, 128
TOKENS_PER_TASK = 64
# rows of scores that are worth a thread
GRAIN = 32


@Program
def _gather(address):
    (
        cache, blocks, dense, first, num_keys, size, block_size, kind,
        stride_block, stride_head, stride_token, stride_content,
    ) = arguments(address, 12)  # fmt: skip
    lanes = stack_f32(LANES)
    pieces = (num_keys + TOKENS_PER_TASK - 1) // TOKENS_PER_TASK
    task = claim(address)
    while task < num_tasks(address):
        head, begin = task // pieces, task % pieces * TOKENS_PER_TASK
        task = claim(address)
        for t in range(begin, min(begin + TOKENS_PER_TASK, num_keys)):
            position = first + t
            block = int(i32_at(blocks)[position // block_size])
            row = f32_at(dense + 4 * (head * num_keys + t) * size)
            place = block * stride_block + head * stride_head + position % block_size * stride_token
            for i in range(0, size, LANES):
                width = min(LANES, size - i)
                if block > 0:
                    piece = cache + itemsize_of(kind) * (place + i * stride_content)
                    widen(lanes, piece, width, stride_content, kind)
                else:
                    fill(lanes, ZERO)
                store(shifted(row, i), lanes, width)


@inlined
def _softmax(row, lanes, sums, num_columns, first, last, hidden, sink, soft_cap):
    """Turn a row of scores into weights that are not normalised; their largest score and sum."""
    last = min(last, num_columns - 1)
    fill(sums, -INFINITY)
    for i in range(0, num_columns, LANES):
        width = min(LANES, num_columns - i)
        load(lanes, shifted(row, i), width)
        # most pieces of a long row are seen whole and need not be written back
        if first > i or last < i + LANES - 1 or hidden != 0 or soft_cap > ZERO:
            hide(lanes, first - i, last - i, soft_cap)
            if hidden != 0:
                for lane in range(width):
                    lanes[lane] += f32_at(hidden)[i + lane]
            store(shifted(row, i), lanes, width)
        for lane in range(LANES):
            sums[lane] = lanes[lane] if lanes[lane] > sums[lane] else sums[lane]
    largest = max(sink, max_lanes(sums))
    fill(sums, ZERO)
    for i in range(0, num_columns, LANES):
        width = min(LANES, num_columns - i)
        load(lanes, shifted(row, i), width)
        for lane in range(LANES):
            seen = (lanes[lane] != -INFINITY) & (lane < width)
            lanes[lane] = exp(lanes[lane] - largest) if seen else ZERO
            sums[lane] += lanes[lane]
        store(shifted(row, i), lanes, width)
    total = sum_lanes(sums)
    return largest, total + exp(sink - largest) if sink > -INFINITY else total


@Program
def _weigh(address):
    (
        scores, hidden, sinks, inverse, lse, num_heads, num_tokens, num_columns, position, window,
        soft_cap, v_scale,
    ) = arguments(address, 12)  # fmt: skip
    lanes, sums = stack_f32(LANES), stack_f32(LANES)
    task = claim(address)
    while task < num_tasks(address):
        row, head, token = task, task // num_tokens, task % num_tokens
        task = claim(address)
        last = position + token
        sink = f32_at(sinks)[head] if sinks != 0 else -INFINITY
        largest, total = _softmax(
            f32_at(scores + 4 * row * num_columns), lanes, sums, num_columns,
            last - window + 1, last, hidden, sink, float_of(soft_cap),
        )  # fmt: skip
        f32_at(inverse)[row] = float_of(v_scale) / total if total != ZERO else ZERO
        if lse != 0:
            logarithm = np.float32(math.log(total)) + largest if total != ZERO else -INFINITY
            f32_at(lse)[token * num_heads + head] = logarithm


def attend_prompt(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    blocks: Tensor,
    seq_len: int,
    softmax: Softmax,
    result: Tensor,
    lse: Tensor | None,
) -> None:
    """Attend for the query tokens of one sequence.

    Args:
        query: Its new tokens, float32.
        key_cache: Pool of keys.
        value_cache: Pool of values.
        blocks: Its row of the block table.
        seq_len: Its tokens, new ones included.
        softmax: The rest of the options.
        result: Where the output goes, float32.
        lse: Where the logarithms of the denominators go, if they are wanted.
    """
    num_tokens, num_heads, _ = query.shape
    window = seq_len + 1 if softmax.window is None else softmax.window
    context = seq_len - num_tokens
    first_key = max(0, context - window + 1)
    num_keys = seq_len - first_key
    hidden = _hidden(blocks, key_cache, first_key, seq_len)
    keys = _dense(key_cache, blocks, first_key, seq_len)
    values = _dense(value_cache, blocks, first_key, seq_len)
    tile = TILE_SCORES // (num_heads * max(1, num_keys)) // MIN_TILE_TOKENS * MIN_TILE_TOKENS
    tile = min(max(tile, MIN_TILE_TOKENS), MAX_TILE_TOKENS, num_tokens)
    buffer, inverse = torch.empty(num_heads * tile * num_keys), torch.empty(num_heads * tile)
    for start in range(0, num_tokens, tile):
        stop = min(start + tile, num_tokens)
        low = max(0, context + start - window + 1 - first_key)
        high = max(low, context + stop - first_key)
        scores = _products(query[start:stop], keys[:, low:high], softmax.scale, buffer)
        _weigh(
            num_heads * (stop - start), GRAIN,
            scores.data_ptr(), 0 if hidden is None else hidden.data_ptr() + 4 * low,
            address_of(softmax.sinks), inverse.data_ptr(),
            0 if lse is None else lse[start:stop].data_ptr(), num_heads, stop - start, high - low,
            context + start - first_key - low, window, float_bits(softmax.soft_cap or 0.0),
            float_bits(softmax.v_scale),
        )  # fmt: skip
        _sum_values(scores, values[:, low:high], inverse, result[start:stop])


def _products(query: Tensor, keys: Tensor, scale: float, buffer: Tensor) -> Tensor:
    """Scores of a tile in `buffer`, `[num_kv_heads, group * num_tokens, num_keys]`."""
    num_tokens, num_heads, head_size = query.shape
    num_kv_heads, num_keys, _ = keys.shape
    by_head = query.view(num_tokens, num_kv_heads, -1, head_size).permute(1, 2, 0, 3)
    rows = (by_head * scale).reshape(num_kv_heads, -1, head_size)
    scores = buffer[: num_heads * num_tokens * num_keys].view(*rows.shape[:2], num_keys)
    return torch.bmm(rows, keys.transpose(1, 2), out=scores)


def _sum_values(weights: Tensor, values: Tensor, inverse: Tensor, result: Tensor) -> None:
    """Write the output of a tile: the weighed sums of the values, each divided by its total."""
    num_tokens, num_heads, value_size = result.shape
    num_kv_heads = len(values)
    shape = (num_kv_heads, num_heads // num_kv_heads, num_tokens)
    summed = torch.bmm(weights, values).view(*shape, value_size)
    factor = inverse[: num_heads * num_tokens].view(*shape, 1)
    by_head = result.view(num_tokens, *shape[:2], value_size).permute(1, 2, 0, 3)
    torch.mul(summed, factor, out=by_head)


def _dense(cache: Tensor, blocks: Tensor, first_key: int, seq_len: int) -> Tensor:
    """The keys or values of a sequence from `first_key` on, `[num_kv_heads, num_keys, size]`."""
    _, num_kv_heads, block_size, size = cache.shape
    num_keys = seq_len - first_key
    dense = torch.empty(num_kv_heads, num_keys, size)
    tasks = num_kv_heads * -(-num_keys // TOKENS_PER_TASK)
    _gather(
        tasks, 2, cache.data_ptr(), blocks.data_ptr(), dense.data_ptr(), first_key, num_keys, size,
        block_size, KINDS[cache.dtype], *cache.stride(),
    )  # fmt: skip
    return dense


def _hidden(blocks: Tensor, cache: Tensor, first_key: int, seq_len: int) -> Tensor | None:
    """Minus infinity for the keys of padding blocks, zero for others; none without padding."""
    num_blocks, _, block_size, _ = cache.shape
    used = blocks[first_key // block_size : -(-seq_len // block_size)]
    if len(used) == 0:
        return None
    smallest, largest = (int(block) for block in used.aminmax())
    expect(largest < num_blocks, "block_table", f"ids below {num_blocks}", largest)
    if smallest > 0:
        return None
    hidden = torch.zeros(len(used)).masked_fill(used <= 0, -math.inf)
    hidden = hidden.repeat_interleave(block_size)[first_key % block_size :]
    return hidden[: seq_len - first_key].contiguous()
