"""Chunks of the sequences of a batch, found on the device: no list of them is ever made.

A sequence is cut from its own first token, whatever lies before it in the batch. Chunk `c` of
sequence `i`, which begins at token `start`, has slot `start // CHUNK + i + c`. No two chunks share
a slot, and `num_tokens // CHUNK + num_seqs` slots are enough for any batch, so a launcher knows the
grid from shapes alone. Slots that no chunk has are idle. Tokens that no sequence has, behind the
last one, are one more sequence to the kernels that write results: number `num_seqs`, padding.

Launches number their programs on the first axis of the grid alone, since the others end at 65,535:
all heads (or channels) of a slot, then those of the next. So programs that share tokens follow each
other, and tokens come from memory once.

Experts are sequences too, of the tokens that chose them.
"""

import triton
import triton.language as tl

from blockstride.kernels.common.gpu.launching import next_power_of_2

# what chunks do twice they pay for if they busy this many times more processors
WORTH = 3
SHORTEST_CHUNK = 64


def num_slots(num_tokens: int, num_seqs: int, chunk: int) -> int:
    """Slots of any batch with so many tokens and sequences."""
    return num_tokens // chunk + num_seqs


def choose_chunk(num_tokens: int, num_seqs: int, programs: int, processors: int) -> int:
    """Tokens of a chunk, a power of two; 0 where whole sequences busy the device well enough.

    Args:
        num_tokens: Tokens of the step.
        num_seqs: Sequences of the step, taken to be equally long.
        programs: One-warp programs that a launch over whole sequences has.
        processors: Multiprocessors, each of which has four warps at work at once.
    """
    wanted = 4 * processors
    if programs * WORTH > wanted or num_tokens < 2 * SHORTEST_CHUNK * num_seqs:
        return 0
    return max(SHORTEST_CHUNK, next_power_of_2(num_tokens * programs // (num_seqs * wanted)))


@triton.jit
def channels_of(dim, BLOCK_D: tl.constexpr):
    """The slot of a program, and its channels: all of a slot, then those of the next."""
    channel_blocks = tl.cdiv(dim, BLOCK_D)
    slot, channel_block = tl.program_id(0) // channel_blocks, tl.program_id(0) % channel_blocks
    return slot, channel_block * BLOCK_D + tl.arange(0, BLOCK_D)


@triton.jit
def end_of(query_start_loc_ptr, sequence, num_seqs, num_tokens):
    """Where a sequence ends; with `num_tokens`, which may be `None`, also the one behind all."""
    if num_tokens is None:
        end = tl.load(query_start_loc_ptr + sequence + 1)
    else:
        is_sequence = sequence < num_seqs
        end = tl.load(query_start_loc_ptr + sequence + 1, mask=is_sequence, other=num_tokens)
    return end


@triton.jit
def find_chunk(query_start_loc_ptr, slot, num_seqs, CHUNK: tl.constexpr, num_tokens=None):
    """Sequence of a slot, where its chunk begins and ends, and where the sequence does.

    An idle slot begins at or after its end. With `num_tokens` the tokens behind the last sequence
    have slots too.
    """
    count = num_seqs
    if num_tokens is not None:
        count += 1
    sequence = -1
    for first in range(0, count, 128):
        index = first + tl.arange(0, 128)
        is_there = index < count
        start = tl.load(query_start_loc_ptr + index, mask=is_there, other=0)
        is_before = is_there & (start // CHUNK + index <= slot)
        sequence += tl.sum(is_before.to(tl.int32))
    start = tl.load(query_start_loc_ptr + sequence)
    stop = end_of(query_start_loc_ptr, sequence, num_seqs, num_tokens)
    begin = start + (slot - start // CHUNK - sequence) * CHUNK
    return sequence, begin, tl.minimum(begin + CHUNK, stop), start, stop


@triton.jit
def count_below(tokens_ptr, count, bound):
    """How many of a list of tokens come before `bound`; none if there is no list."""
    below = 0
    if tokens_ptr is not None:
        for first in range(0, count, 128):
            index = first + tl.arange(0, 128)
            is_there = index < count
            token = tl.load(tokens_ptr + index, mask=is_there, other=0)
            below += tl.sum((is_there & (token < bound)).to(tl.int32))
    return below


@triton.jit
def find_slot(query_start_loc_ptr, token, num_seqs, CHUNK: tl.constexpr):
    """Slot of the chunk in which a token lies."""
    sequence = count_below(query_start_loc_ptr, num_seqs, token + 1) - 1
    start = tl.load(query_start_loc_ptr + sequence)
    return start // CHUNK + sequence + (token - start) // CHUNK


@triton.jit
def find_range(query_start_loc_ptr, slot, num_seqs, num_tokens, CHUNK: tl.constexpr):
    """Sequence of a slot, its tokens, and where the sequence ends; all of it without chunks."""
    if CHUNK > 0:
        sequence, begin, end, _, stop = find_chunk(
            query_start_loc_ptr, slot, num_seqs, CHUNK, num_tokens
        )
    else:
        sequence = slot
        begin = tl.load(query_start_loc_ptr + slot)
        stop = end_of(query_start_loc_ptr, slot, num_seqs, num_tokens)
        end = stop
    return sequence, begin, end, stop


@triton.jit
def find_run(
    checkpoint_tokens_ptr, checkpoint_indices_ptr, run, last, end, block, NUM_BLOCKS: tl.constexpr
):  # fmt: skip
    """Where a run of tokens ends and where its last state goes; `block` is for the last run."""
    run_end, target = end, block
    if checkpoint_tokens_ptr is not None:
        is_checkpoint = run < last
        token = tl.load(checkpoint_tokens_ptr + run, mask=is_checkpoint, other=0)
        kept = tl.load(checkpoint_indices_ptr + run, mask=is_checkpoint, other=0)
        if NUM_BLOCKS is not None:
            tl.device_assert(kept < NUM_BLOCKS, "checkpoint_indices: a block past the pool")
        run_end = tl.where(is_checkpoint, token + 1, end)
        target = tl.where(is_checkpoint, kept, block)
    return run_end, target
