"""Paged attention for a few query tokens a sequence, read straight from the pages.

A task is one key-value head of one sequence and one span of keys, for all query rows that share the
head. It keeps a running softmax over tiles of 64 keys. Spans begin at fixed positions, so a result
depends neither on the rest of the batch nor on the number of threads. The task that finishes the
last span of a head merges them.
"""

import math

import numpy as np
import torch
from torch import Tensor

from blockstride.checks import expect
from blockstride.kernels.attention.cpu.decode_tile import (
    MAX_HEAD_SIZE,
    add_tile,
    gather_tile,
    score,
    weigh,
)
from blockstride.kernels.attention.cpu.softmax import INFINITY, Softmax, hide
from blockstride.kernels.common.cpu.lanes import LANES, ZERO, fill, load, store
from blockstride.kernels.common.cpu.native import (
    Program,
    arguments,
    arrive,
    claim,
    f32_at,
    float_bits,
    float_of,
    i32_at,
    i64_at,
    inlined,
    num_tasks,
    shifted,
    stack_f32,
)
from blockstride.kernels.common.cpu.tensors import address_of
from blockstride.kernels.common.cpu.vector_math import exp, fma
from blockstride.kernels.common.cpu.widen import KINDS, itemsize_of

SPAN = 512
MAX_ROWS = 16
QUERY_FLOATS = MAX_ROWS * MAX_HEAD_SIZE
ROW_FLOATS = MAX_ROWS * LANES
TILE_FLOATS = LANES * LANES
# floats after the output of a row: the largest score and the sum of the weights
RUNNING = 2


@inlined
def _merge(out, lanes, spans, row_floats, num_spans, value_size, sink, v_scale):
    """Write the output of a query row from its spans; the logarithm of its denominator."""
    padded = row_floats - RUNNING
    largest, total = sink, ZERO
    for span in range(num_spans):
        largest = max(largest, spans[span * row_floats + padded])
    if largest == -INFINITY:
        for i in range(value_size):
            out[i] = ZERO
        return -INFINITY
    if sink > -INFINITY:
        total = exp(sink - largest)
    for span in range(num_spans):
        running = shifted(spans, span * row_floats + padded)
        running[0] = exp(running[0] - largest) if running[0] > -INFINITY else ZERO
        total = fma(running[0], running[1], total)
    for i in range(0, value_size, LANES):
        fill(lanes, ZERO)
        for span in range(num_spans):
            part = shifted(spans, span * row_floats + i)
            weight = spans[span * row_floats + padded] * (v_scale / total)
            for lane in range(LANES):
                lanes[lane] = fma(weight, part[lane], lanes[lane])
        store(shifted(out, i), lanes, min(LANES, value_size - i))
    return largest + np.float32(math.log(total))


@inlined
def _spans_of(seq_len, query_len, window):
    """The first key that a sequence sees, the span in which it lies, and how many spans follow."""
    first_key = max(0, seq_len - query_len - window + 1)
    first_span = first_key // SPAN
    return first_key, first_span, max(1, (seq_len + SPAN - 1) // SPAN - first_span)


@inlined
def _load_row(query, source, scale, head_size, output, row_floats):
    """Scale a query row onto the stack, and begin its running softmax."""
    for i in range(0, head_size, LANES):
        piece = shifted(query, i)
        load(piece, shifted(source, i), min(LANES, head_size - i))
        for lane in range(LANES):
            piece[lane] *= scale
    for i in range(row_floats):
        output[i] = ZERO
    output[row_floats - RUNNING] = -INFINITY


@inlined
def _hide_keys(weights, readable, first_seen, last_seen, soft_cap):
    """Take out of a row's softmax the keys that it may not see and those that are not there."""
    hide(weights, first_seen, last_seen, soft_cap)
    for lane in range(LANES):
        weights[lane] = weights[lane] if readable[lane] > ZERO else -INFINITY


@Program
def _attend(address):
    (
        query, key_cache, value_cache, block_table, seq_lens, query_start_loc, sinks, out, lse,
        partial, arrivals, num_heads, num_kv_heads, head_size, value_size, block_size, num_blocks,
        max_rows, max_spans, window, key_kind, value_kind, scale, soft_cap, v_scale,
        stride_query_token, stride_query_head, stride_block_table,
        stride_key_block, stride_key_head, stride_key_token, stride_key_content,
        stride_value_block, stride_value_head, stride_value_token, stride_value_content,
        stride_out_token, stride_out_head,
    ) = arguments(address, 38)  # fmt: skip
    queries, scores = stack_f32(QUERY_FLOATS), stack_f32(ROW_FLOATS)
    tile, across, lanes = stack_f32(TILE_FLOATS), stack_f32(TILE_FLOATS), stack_f32(LANES)
    readable = stack_f32(LANES)
    group = num_heads // num_kv_heads
    row_floats = (value_size + LANES - 1) // LANES * LANES + RUNNING
    distance = row_floats * max_spans
    task = claim(address)
    while task < num_tasks(address):
        span, pair = task % max_spans, task // max_spans
        task = claim(address)
        sequence, kv_head = pair // num_kv_heads, pair % num_kv_heads
        start = int(i32_at(query_start_loc)[sequence])
        query_len = int(i32_at(query_start_loc)[sequence + 1]) - start
        seq_len = int(i32_at(seq_lens)[sequence])
        num_rows = query_len * group
        first_key, first_span, num_spans = _spans_of(seq_len, query_len, window)
        if num_rows == 0 or num_rows > max_rows or not 0 <= span - first_span < num_spans:
            continue
        first_key, end = max(first_key, span * SPAN), min((span + 1) * SPAN, seq_len)
        blocks = i32_at(block_table + 4 * sequence * stride_block_table)
        paging = (address, num_blocks, block_size)
        keys = (
            key_cache + itemsize_of(key_kind) * kv_head * stride_key_head,
            stride_key_block, stride_key_token, stride_key_content, key_kind,
        )  # fmt: skip
        values = (
            value_cache + itemsize_of(value_kind) * kv_head * stride_value_head,
            stride_value_block, stride_value_token, stride_value_content, value_kind,
        )  # fmt: skip
        outputs = f32_at(partial + 4 * (pair * max_rows * max_spans + span) * row_floats)
        for row in range(num_rows):
            token, head = start + row // group, kv_head * group + row % group
            source = f32_at(query + 4 * (token * stride_query_token + head * stride_query_head))
            target, output = shifted(queries, row * MAX_HEAD_SIZE), shifted(outputs, row * distance)
            _load_row(target, source, float_of(scale), head_size, output, row_floats)
        for first in range(first_key // LANES * LANES, end, LANES):
            begin, count = max(0, first_key - first), min(LANES, end - first)
            for i in range(num_rows * LANES):
                scores[i] = ZERO
            for i in range(0, head_size, LANES):
                gather_tile(tile, readable, keys, i, head_size, blocks, first, begin, count, paging)
                score(scores, shifted(queries, i), tile, across, lanes, num_rows, head_size - i)
            for row in range(num_rows):
                last = seq_len - query_len + row // group - first
                first_seen, last_seen = max(begin, last - window + 1), min(count - 1, last)
                weights, output = shifted(scores, row * LANES), shifted(outputs, row * distance)
                _hide_keys(weights, readable, first_seen, last_seen, float_of(soft_cap))
                add_tile(weights, output, shifted(output, row_floats - RUNNING), value_size)
            for i in range(0, value_size, LANES):
                gather_tile(
                    tile, readable, values, i, value_size, blocks, first, begin, count, paging
                )
                weigh(shifted(outputs, i), distance, scores, tile, begin, count, num_rows)
        if arrive(arrivals + 8 * pair) < num_spans - 1:
            continue
        for row in range(num_rows):
            token, head = start + row // group, kv_head * group + row % group
            sink = f32_at(sinks)[head] if sinks != 0 else -INFINITY
            place = (pair * max_rows + row) * distance + first_span * row_floats
            spans = f32_at(partial + 4 * place)
            target = f32_at(out + 4 * (token * stride_out_token + head * stride_out_head))
            total = _merge(
                target, lanes, spans, row_floats, num_spans, value_size, sink, float_of(v_scale)
            )
            if lse != 0:
                f32_at(lse)[token * num_heads + head] = total


@Program
def _clear(address):
    words, count = arguments(address, 2)
    task = claim(address)
    while task < num_tasks(address):
        task = claim(address)
        for i in range(count):
            i64_at(words)[i] = 0


def attend_rows(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    softmax: Softmax,
    result: Tensor,
    lse: Tensor | None,
    *,
    longest: int,
    max_rows: int,
) -> None:
    """Attend for the sequences that have at most `max_rows` query rows a key-value head.

    Args:
        query: New tokens of the whole batch, float32.
        key_cache: Pool of keys.
        value_cache: Pool of values.
        block_table: Blocks of each sequence.
        seq_lens: Tokens of each sequence.
        query_start_loc: Where the new tokens of each sequence begin.
        softmax: The rest of the options.
        result: Where the output goes, float32.
        lse: Where the logarithms of the denominators go, if they are wanted.
        longest: The largest of those sequences' lengths.
        max_rows: Query tokens times query heads that share a key-value head; at most `MAX_ROWS`.
    """
    num_heads, head_size = query.shape[1:]
    num_blocks, num_kv_heads, block_size, value_size = value_cache.shape
    num_pairs = len(seq_lens) * num_kv_heads
    max_spans = max(1, -(-longest // SPAN))
    row_floats = -(-value_size // LANES) * LANES + RUNNING
    partial = torch.empty(num_pairs * max_rows * max_spans * row_floats)
    arrivals = torch.empty(num_pairs, dtype=torch.int64)
    _clear(1, 1, arrivals.data_ptr(), num_pairs)
    fault = _attend(
        num_pairs * max_spans, 2,
        query.data_ptr(), key_cache.data_ptr(), value_cache.data_ptr(), block_table.data_ptr(),
        seq_lens.data_ptr(), query_start_loc.data_ptr(), address_of(softmax.sinks),
        result.data_ptr(), address_of(lse), partial.data_ptr(), arrivals.data_ptr(),
        num_heads, num_kv_heads, head_size, value_size, block_size, num_blocks, max_rows, max_spans,
        longest + 1 if softmax.window is None else softmax.window,
        KINDS[key_cache.dtype], KINDS[value_cache.dtype], float_bits(softmax.scale),
        float_bits(softmax.soft_cap or 0.0), float_bits(softmax.v_scale),
        *query.stride()[:2], block_table.stride()[0], *key_cache.stride(), *value_cache.stride(),
        *result.stride()[:2],
    )  # fmt: skip
    if fault:
        expect(False, "block_table", f"ids below {num_blocks}", fault)
