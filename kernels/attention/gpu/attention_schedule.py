"""The work list of paged attention: which program walks which part of which sequence's cache.

A step is cut into row tiles (query tokens of one sequence that fill 16 to 128 rows together with
the heads that share a key-value head), and a row tile's cache into as many ranges as it takes to
busy the device. The cut follows from key-value length, query rows and processor count alone, for
every batch: one long sequence among short ones is split, and so is a single decode step.

Everything is computed on the device, in a fixed number of operations and with sizes bounded by
shapes, so nothing waits for the device and a CUDA graph may hold it. Make it once a step: all
layers of one shape share it. Source of the idea: FlashAttention-3's and FlashInfer's plans.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int32
from torch import Tensor
from torch.nn.functional import pad

from blockstride.kernels.attention.gpu.tile import (
    LONG_ROWS,
    Tile,
    choose_tile,
    padded_size,
    specialise,
)
from blockstride.kernels.attention.gpu.work_item import NO_SLOT, WorkItem
from blockstride.kernels.common.gpu.launching import count_processors, next_power_of_2

# programs that a processor should get before ranges grow longer. Every compiler leaves room for as
# many of the short kind at once (150 registers with Triton 3.6; 126, and so four, with 3.9); a
# fourth would wait for one of three, which have loads enough under way for a processor's share of
# memory. What was compiled is not asked, so that a step is cut alike from the first one on
PROGRAMS_PER_PROCESSOR = 3
# a range shorter than this costs more to add up than it saves
SHORTEST_SPLIT = 256
SHORT_ROWS = 64
# query tokens from which 128 rows of one head are better than 128 rows of a group of heads
SPECIALISED_TOKENS = 512


class WorkList(NamedTuple):
    """Items of one shape, a row each, and scratch for the partial results of what is split.

    The columns of an item are those of `WorkItem`. Rows that no sequence has are one more sequence
    of the lengths, which sees nothing. The layers of a step share the scratch, so calls with one
    schedule belong on one stream.
    """

    items: Int32[Tensor, "num_items 8"]
    tile: Tile
    seq_lens: Int32[Tensor, " num_seqs_plus_1"]
    query_start_loc: Int32[Tensor, " num_seqs_plus_2"]
    partial_acc: Float[Tensor, "num_slots tiles_h rows block_v"]
    partial_stats: Float[Tensor, "num_slots tiles_h rows 2"]


def attention_schedule(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    *,
    window: int | None = None,
    max_query_len: int | None = None,
    num_processors: int | None = None,
) -> tuple[WorkList, ...]:
    """Plan a call of `paged_attention` with these arguments, for all layers of their shapes.

    Tokens past the end of the block table are those of missing blocks: nothing beyond it is read.

    Args:
        query: As in the public function, as are the others.
        key_cache: Pool of keys.
        value_cache: Pool of values.
        block_table: Blocks of each sequence.
        seq_lens: Tokens of each sequence.
        query_start_loc: Prefix sum of the query lengths.
        window: Tokens that a query sees.
        max_query_len: Queries that are longer after all take more of the short tiles.
        num_processors: Multiprocessors to keep busy; those of the device if not given, and 1 on a
            CPU.

    Returns:
        One work list for a batch whose queries are all short; otherwise one of the short and one of
        the long.
    """
    num_tokens, num_heads, _ = query.shape
    num_kv_heads = key_cache.shape[1]
    group = num_heads // num_kv_heads
    starts = pad(query_start_loc.clamp(max=num_tokens), (0, 1), value=num_tokens)
    lens = pad(seq_lens, (0, 1))
    if max_query_len is None:
        max_query_len = int(starts.diff().max()) if starts.is_cpu else num_tokens
    if num_processors is None:
        num_processors = count_processors(query.device)
    programs = num_processors * PROGRAMS_PER_PROCESSOR

    def work_list(rows: int, longer_than: int, at_most: int | None) -> WorkList:
        tile = choose_tile(rows, query, key_cache, value_cache)
        if at_most is None and max_query_len >= SPECIALISED_TOKENS and window is None:
            tile = specialise(tile, query, key_cache, value_cache)
        tiles_h = num_kv_heads * -(-group // tile.heads)
        target = max(1, programs // tiles_h)
        items = _items(
            tile, num_tokens, block_table, lens, starts, window,
            key_cache.shape[2], longer_than, at_most, target,
        )  # fmt: skip
        # a row tile in `n` parts has `n - 1` whole chunks, of which there are at most `target`
        partial = (min(2 * target, items.shape[0]), tiles_h, tile.rows)
        block_v = padded_size(value_cache.shape[-1])
        return WorkList(
            items,
            tile,
            lens,
            starts,
            query.new_empty((*partial, block_v), dtype=torch.float32),
            query.new_empty((*partial, 2), dtype=torch.float32),
        )

    rows = next_power_of_2(max_query_len * group)
    if rows <= SHORT_ROWS or max_query_len == 1:
        return (work_list(min(max(16, rows), LONG_ROWS), 0, None),)
    # decode steps of a mixed batch would fill an eighth of a long tile
    short = max(1, 16 // group)
    rows = min(max(16, next_power_of_2(group)), LONG_ROWS)
    return work_list(rows, 0, short), work_list(LONG_ROWS, short, None)


def _items(
    tile: Tile,
    num_tokens: int,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    window: int | None,
    block_size: int,
    longer_than: int,
    at_most: int | None,
    target: int,
) -> Int32[Tensor, "num_items 8"]:
    """Cut the sequences whose query is longer than `longer_than` and has `at_most` tokens."""
    num_seqs, capacity = seq_lens.shape[0], block_table.shape[1] * block_size
    rows, step = tile.rows // tile.heads, tile.tokens
    query_lens = query_start_loc.diff()
    is_chosen = query_lens > longer_than
    if at_most is not None:
        is_chosen &= query_lens <= at_most
    row_tiles = ((query_lens + rows - 1) // rows) * is_chosen

    # each row tile: its sequence, its tokens, what they see
    num_row_tiles = min(num_tokens, num_tokens // rows + num_seqs)
    sequence, rank, exists = _expand(row_tiles, num_row_tiles)
    first = rank * rows
    context = (seq_lens - query_lens)[sequence]
    last = context + torch.minimum(first + rows, query_lens[sequence]) - 1
    first = context + first
    end = (last + 1).clamp(0, capacity)
    lowest = (first - (window - 1)).clamp(min=0) if window is not None else torch.zeros_like(first)
    begin = lowest // step * step
    full_begin = -((window - 1 - last) // step) * step if window is not None else begin
    full_end = torch.minimum(first + 1, end) // step * step
    # where blocks are missing every tile asks for its blocks
    holes = pad((block_table <= 0).cumsum(1, dtype=torch.int32), (1, 0, 0, 1))
    last_entry = ((end + block_size - 1) // block_size).clamp(max=block_table.shape[1])
    first_entry = torch.minimum(lowest // block_size, last_entry)
    has_holes = holes[sequence, last_entry] > holes[sequence, first_entry]
    has_full = (full_begin < full_end) & ~has_holes
    full_begin = torch.where(has_full, full_begin, begin)
    full_end = torch.where(has_full, full_end, begin)

    # each range: one program
    tiles = (end - begin + step - 1).clamp(min=0) // step * exists
    chunk = ((tiles.sum() + target - 1) // target).clamp(min=SHORTEST_SPLIT // step)
    splits = ((tiles + chunk - 1) // chunk).clamp(min=1) * exists
    whole_step = max(1, tile.specialised_tokens)
    is_whole = (
        (end + whole_step - 1) // whole_step * whole_step <= seq_lens.clamp(max=capacity)[sequence]
    ) & ~has_holes
    is_whole &= (splits == 1) & (tile.specialised_tokens > 0)
    parent, split, exists = _expand(splits, num_row_tiles + target)
    range_begin = begin[parent] + split * chunk * step
    range_end = torch.minimum(range_begin + chunk * step, end[parent])
    range_end = torch.maximum(range_end, range_begin)
    slots = splits * (splits > 1)
    columns = WorkItem(
        sequence=torch.where(exists, sequence[parent], -1),
        first_token=rank[parent] * rows,
        begin=range_begin,
        full_begin=full_begin[parent].clamp(range_begin, range_end),
        full_end=full_end[parent].clamp(range_begin, range_end),
        end=range_end,
        slot=torch.where(is_whole, NO_SLOT.value, slots.cumsum(0) - slots)[parent] + split,
        num_splits=splits[parent] * (split == 0),
    )
    return torch.stack(columns, dim=1).int()


def _expand(counts: Tensor, bound: int) -> tuple[Tensor, Tensor, Tensor]:
    """Number `bound` things, the first `counts[0]` of which belong to 0, the next to 1, and on.

    Returns:
        The owner of each thing, its number among that owner's, and whether there is such a thing.
    """
    ends = counts.cumsum(0)
    index = torch.arange(bound, device=counts.device)
    owner = torch.searchsorted(ends, index, right=True)
    exists = owner < counts.shape[0]
    owner = owner.clamp(max=counts.shape[0] - 1)
    return owner, index - (ends - counts)[owner], exists
