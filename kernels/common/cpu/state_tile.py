"""What scans share: the states of 64 channels on the stack, channels innermost, and their steps."""

from blockstride.kernels.common.cpu.lanes import LANES, ZERO, load, store
from blockstride.kernels.common.cpu.native import (
    f32_at,
    i32_at,
    inlined,
    is_padding,
    shifted,
    transpose_16,
    u8_at,
)
from blockstride.kernels.common.cpu.vector_math import silu
from blockstride.kernels.common.recurrence import MAX_D_STATE

# side of the squares that are transposed at once
SQUARE = 16
STATE_FLOATS = LANES * MAX_D_STATE


@inlined
def _whole_squares(width, d_state, stride_state):
    """How many channels of a block go by squares, the others one number at a time."""
    return width // SQUARE * SQUARE if d_state % SQUARE == 0 and stride_state == 1 else 0


@inlined
def gather_states(tile, source, width, d_state, stride_channel, stride_state):
    """Read the states of a block of channels, channels becoming innermost; zeros past the width."""
    if stride_channel == 1:
        for n in range(d_state):
            load(shifted(tile, n * LANES), shifted(source, n * stride_state), width)
        return
    whole = _whole_squares(width, d_state, stride_state)
    for lane in range(0, whole, SQUARE):
        for n in range(0, d_state, SQUARE):
            corner = shifted(source, lane * stride_channel + n)
            transpose_16(shifted(tile, n * LANES + lane), LANES, corner, stride_channel)
    if whole < LANES:
        for n in range(d_state):
            for lane in range(whole, LANES):
                place = lane * stride_channel + n * stride_state
                tile[n * LANES + lane] = source[place] if lane < width else ZERO


@inlined
def scatter_states(target, tile, width, d_state, stride_channel, stride_state):
    """Write the states of a block of channels: the inverse of `gather_states`."""
    if stride_channel == 1:
        for n in range(d_state):
            store(shifted(target, n * stride_state), shifted(tile, n * LANES), width)
        return
    whole = _whole_squares(width, d_state, stride_state)
    for lane in range(0, whole, SQUARE):
        for n in range(0, d_state, SQUARE):
            corner = shifted(target, lane * stride_channel + n)
            transpose_16(corner, stride_channel, shifted(tile, n * LANES + lane), LANES)
    for lane in range(whole, width):
        for n in range(d_state):
            place = lane * stride_channel + n * stride_state
            target[place] = tile[n * LANES + lane]


@inlined
def multiply_by_silu(y, gate, row, width):
    """Multiply a block of outputs by `silu` of its gate."""
    load(gate, row, width)
    for lane in range(LANES):
        y[lane] *= silu(gate[lane])


@inlined
def next_checkpoint(checkpoint_tokens, num_checkpoints, checkpoint, bound):
    """The first checkpoint, from one on, that is not before token `bound`."""
    while checkpoint < num_checkpoints and i32_at(checkpoint_tokens)[checkpoint] < bound:
        checkpoint += 1
    return checkpoint


@inlined
def rows_of(query_start_loc, sequence):
    """The rows of a sequence, from and to; without prefix sums, sequence `i` has row `i`."""
    if query_start_loc == 0:
        return sequence, sequence + 1
    bounds = i32_at(query_start_loc)
    return int(bounds[sequence]), int(bounds[sequence + 1])


@inlined
def initial_states(
    tile, page, has_initial_state, sequence, width, d_state, stride_channel, stride_state
):
    """Read the states that a sequence continues from; zeros if there are none."""
    if has_initial_state == 0 or u8_at(has_initial_state)[sequence] != 0:
        gather_states(tile, page, width, d_state, stride_channel, stride_state)
    else:
        for i in range(d_state * LANES):
            tile[i] = ZERO


@inlined
def keep_states(
    address, tile, pool, blocks, first, last, num_blocks, width, d_state,
    stride_block, stride_channel, stride_state,
):  # fmt: skip
    """Write states to the blocks of some checkpoints; `pool` is where block 0 has this channel."""
    for checkpoint in range(first, last):
        block = int(i32_at(blocks)[checkpoint])
        if not is_padding(address, block, num_blocks):
            copy = f32_at(pool + 4 * block * stride_block)
            scatter_states(copy, tile, width, d_state, stride_channel, stride_state)
