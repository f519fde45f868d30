"""Copy runs of bytes of any lengths and alignments, from one memory to another.

All runs are one list of tiles, cut from the first byte of each: tile `c` of run `i`, before which
lie `start` bytes of other runs, is number `start // TILE_BYTES + i + c`. No two tiles share a
number, so a prefix sum of the lengths is all the list there is, and nothing waits for the device.
One program takes an equal share of the numbers, finds its first run by bisection and walks on from
run to run; a long run has many programs, and a program many short runs. Each run moves in the
widest words, of 16 bytes to one, that its two addresses and its length are multiples of.

Each byte is read once and written once, and 32 bytes of a run's place, length and sum are read.
"""

import triton
import triton.language as tl
from torch import Tensor

from blockstride.kernels.common.gpu.launching import count_processors, dense

# words that a program, one warp, has under way at once
TILE_WORDS = 128
TILE_BYTES = 16 * TILE_WORDS
# few enough that all run at once: shares are equal, so a late one would be waited for
PROGRAMS_PER_PROCESSOR = 20


@triton.jit
def find_run(lengths_ptr, ends_ptr, tile, num_runs, TILE_BYTES: tl.constexpr):
    """The run that a tile is cut from."""
    low, high = 0, num_runs
    while high - low > 1:
        middle = (low + high) // 2
        start = tl.load(ends_ptr + middle) - tl.load(lengths_ptr + middle)
        first_tile = start // TILE_BYTES + middle
        low = tl.where(first_tile <= tile, middle, low)
        high = tl.where(first_tile <= tile, high, middle)
    return low


@triton.jit
def copy_part(
    source_ptr, destination_ptr, begin, end,
    WORD_BYTES: tl.constexpr, ITEM: tl.constexpr, TILE_WORDS: tl.constexpr,
):  # fmt: skip
    """Bytes `begin` to `end` of a run, in words to which all of it is aligned."""
    # no integer has 16 bytes
    items_per_word: tl.constexpr = (WORD_BYTES + 7) // 8
    words = tl.arange(0, TILE_WORDS)[:, None]
    items = words * items_per_word + tl.arange(0, items_per_word)[None, :]
    for first in range(begin, end, WORD_BYTES * TILE_WORDS):
        source = tl.multiple_of(source_ptr + first, WORD_BYTES).to(tl.pointer_type(ITEM))
        target = tl.multiple_of(destination_ptr + first, WORD_BYTES).to(tl.pointer_type(ITEM))
        num_bytes = tl.minimum(end - first, WORD_BYTES * TILE_WORDS).to(tl.int32)
        mask = words * WORD_BYTES < num_bytes
        tl.store(target + items, tl.load(source + items, mask=mask), mask=mask)


@triton.jit(do_not_specialize=["num_runs"])
def copy_runs_kernel(
    source_ptr,
    destination_ptr,
    source_starts_ptr,
    destination_starts_ptr,
    lengths_ptr,
    ends_ptr,
    # sizes
    num_runs,
    # meta-parameters
    TILE_WORDS: tl.constexpr,
    TILE_BYTES: tl.constexpr,
):
    """A share of all tiles: parts of neighbouring runs."""
    num_tiles = tl.load(ends_ptr + num_runs - 1) // TILE_BYTES + num_runs
    share = tl.cdiv(num_tiles, tl.num_programs(0))
    tile = tl.program_id(0) * share
    stop = tl.minimum(tile + share, num_tiles)
    if tile >= stop:
        return
    run = find_run(lengths_ptr, ends_ptr, tile, num_runs, TILE_BYTES)
    while tile < stop:
        length, run_end = tl.load(lengths_ptr + run), tl.load(ends_ptr + run)
        first_tile = (run_end - length) // TILE_BYTES + run
        next_tile = tl.minimum(run_end // TILE_BYTES + run + 1, stop)
        begin = (tile - first_tile) * TILE_BYTES
        end = tl.minimum((next_tile - first_tile) * TILE_BYTES, length)
        source = source_ptr + tl.load(source_starts_ptr + run)
        target = destination_ptr + tl.load(destination_starts_ptr + run)
        alignment = source.to(tl.int64) | target.to(tl.int64) | length
        if alignment % 16 == 0:
            copy_part(source, target, begin, end, 16, tl.int64, TILE_WORDS)
        elif alignment % 8 == 0:
            copy_part(source, target, begin, end, 8, tl.int64, TILE_WORDS)
        elif alignment % 4 == 0:
            copy_part(source, target, begin, end, 4, tl.int32, TILE_WORDS)
        elif alignment % 2 == 0:
            copy_part(source, target, begin, end, 2, tl.int16, TILE_WORDS)
        else:
            copy_part(source, target, begin, end, 1, tl.int8, TILE_WORDS)
        tile, run = next_tile, run + 1


def copy_runs(
    source: Tensor,
    destination: Tensor,
    source_starts: Tensor,
    destination_starts: Tensor,
    lengths: Tensor,
) -> None:
    """See `blockstride.kernels.copy_runs`, which validates."""
    num_runs = lengths.shape[0]
    if num_runs == 0:
        return
    # runs are apart in the destination, so they are no longer than that is
    num_tiles = destination.shape[0] // TILE_BYTES + num_runs
    programs = count_processors(source.device) * PROGRAMS_PER_PROCESSOR
    copy_runs_kernel[(min(programs, num_tiles),)](
        source,
        destination,
        *dense(source_starts, destination_starts, lengths),
        lengths.cumsum(0),
        num_runs,
        TILE_WORDS=TILE_WORDS,
        TILE_BYTES=TILE_BYTES,
        num_warps=1,
        enable_fp_fusion=False,
    )
