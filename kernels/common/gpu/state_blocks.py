"""Which block of a pool has the state of a sequence."""

import triton
import triton.language as tl


@triton.jit
def load_block(state_indices_ptr, sequence, NUM_BLOCKS: tl.constexpr, num_seqs=None):
    """State block of a sequence, padding if it isn't positive.

    With `num_seqs` the tokens behind the last sequence are one more, which is padding. `NUM_BLOCKS`
    is `None` but under full checks.
    """
    if num_seqs is None:
        block = tl.load(state_indices_ptr + sequence).to(tl.int64)
    else:
        is_there = sequence < num_seqs
        block = tl.load(state_indices_ptr + sequence, mask=is_there, other=0).to(tl.int64)
    if NUM_BLOCKS is not None:
        tl.device_assert(block < NUM_BLOCKS, "state_indices: a block past the pool")
    return block
