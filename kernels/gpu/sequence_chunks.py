"""Chunks of the sequences of a batch, found on the device: no list of them is ever made.

A sequence is cut from its own first token, whatever lies before it in the batch. Chunk `c` of
sequence `i`, which begins at token `start`, has slot `start // CHUNK + i + c`. No two chunks share
a slot, and `num_tokens // CHUNK + num_seqs` slots are enough for any batch, so a launcher knows the
grid from shapes alone. Slots that no chunk has are idle.

Experts are sequences too, of the tokens that chose them.
"""

import triton
import triton.language as tl


def num_slots(num_tokens: int, num_seqs: int, chunk: int) -> int:
    """Slots of any batch with so many tokens and sequences."""
    return num_tokens // chunk + num_seqs


@triton.jit
def find_chunk(query_start_loc_ptr, slot, num_seqs, CHUNK: tl.constexpr):
    """Sequence of a slot, where its chunk begins and ends, and where the sequence does.

    An idle slot begins at or after its end.
    """
    sequence = -1
    for first in range(0, num_seqs, 128):
        index = first + tl.arange(0, 128)
        is_there = index < num_seqs
        start = tl.load(query_start_loc_ptr + index, mask=is_there, other=0)
        is_before = is_there & (start // CHUNK + index <= slot)
        sequence += tl.sum(is_before.to(tl.int32))
    start = tl.load(query_start_loc_ptr + sequence)
    stop = tl.load(query_start_loc_ptr + sequence + 1)
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
