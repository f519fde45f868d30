"""One tile of 64 keys, and then of their values, against all query rows of a task."""

from blockstride.kernels.attention.cpu.softmax import INFINITY
from blockstride.kernels.common.cpu.lanes import LANES, ZERO, fill, max_lanes, sum_lanes
from blockstride.kernels.common.cpu.native import inlined, is_padding, shifted, transpose_16
from blockstride.kernels.common.cpu.vector_math import ONE, exp, fma
from blockstride.kernels.common.cpu.widen import itemsize_of, widen

# side of the squares that are transposed at once
SQUARE = 16
# elements of a query row, wherever the row of the next one begins
MAX_HEAD_SIZE = 1024


@inlined
def gather_tile(tile, readable, side, i, size, blocks, first, begin, count, paging):
    """Bring a piece of each key or value of a tile onto the stack; a padding block gives zeros."""
    cache, stride_block, stride_token, stride_content, kind = side
    address, num_blocks, block_size = paging
    for t in range(begin, count):
        position = first + t
        block = int(blocks[position // block_size])
        row = shifted(tile, t * LANES)
        padding = is_padding(address, block, num_blocks)
        readable[t] = ZERO if padding else ONE
        if not padding:
            place = block * stride_block + position % block_size * stride_token + i * stride_content
            source = cache + itemsize_of(kind) * place
            widen(row, source, min(LANES, size - i), stride_content, kind)
        else:
            fill(row, ZERO)


@inlined
def score(scores, queries, tile, across, part, num_rows, size):
    """Add the products of a piece of 64 keys, of `size` elements or 64, with every query row."""
    for key in range(0, LANES, SQUARE):
        for d in range(0, LANES, SQUARE):
            corner = shifted(across, d * LANES + key)
            transpose_16(corner, LANES, shifted(tile, key * LANES + d), LANES)
    for row in range(num_rows):
        query, total = shifted(queries, row * MAX_HEAD_SIZE), shifted(scores, row * LANES)
        # short partial sums keep rounding errors near those of a library's product
        for begin in range(0, min(LANES, size), SQUARE):
            fill(part, ZERO)
            for d in range(begin, min(begin + SQUARE, size)):
                factor = query[d]
                for lane in range(LANES):
                    part[lane] = fma(factor, across[d * LANES + lane], part[lane])
            for lane in range(LANES):
                total[lane] += part[lane]


@inlined
def weigh(outputs, distance, weights, tile, begin, count, num_rows):
    """Add a piece of 64 values to that of every row's output, by weight."""
    for row in range(num_rows):
        weight, output = shifted(weights, row * LANES), shifted(outputs, row * distance)
        for t in range(begin, count):
            factor = weight[t]
            for lane in range(LANES):
                output[lane] = fma(factor, tile[t * LANES + lane], output[lane])


@inlined
def add_tile(scores, output, running, value_size):
    """Turn a row of scores into weights, and bring what was summed before to their scale."""
    before = running[0]
    largest = max(before, max_lanes(scores))
    if largest == -INFINITY:
        # nothing is seen, or nothing but NaN, which is no largest and yet counts
        if sum_lanes(scores) == -INFINITY:
            fill(scores, ZERO)
            return
        largest = ZERO
    for lane in range(LANES):
        scores[lane] = exp(scores[lane] - largest) if scores[lane] != -INFINITY else ZERO
    rescale = exp(before - largest) if before > -INFINITY else ZERO
    running[0] = largest
    running[1] = fma(running[1], rescale, sum_lanes(scores))
    for i in range(0, value_size, LANES):
        for lane in range(LANES):
            output[i + lane] *= rescale
