"""Rows of a mixture of experts: sorted by expert before the products, summed by token after them.

A pair is one of a token's choices; pair `p` is choice `p % TOP_K` of token `p // TOP_K`. Sorting is
counting, by one program an expert: its pairs come after those of all experts before it, in their
own order. So nothing depends on which program ran first, nothing waits for the host, and the sum
over a token's choices is in the order of the choices.
"""

import triton
import triton.language as tl

from blockstride.kernels.common.gpu.sequence_chunks import find_chunk


@triton.jit
def load_experts(
    expert_ids_ptr, pairs, mask, num_experts, stride_token, stride_choice, TOP_K: tl.constexpr
):
    """The expert of each pair; -1 where there is none, or none of that number."""
    token, choice = (pairs // TOP_K).to(tl.int64), (pairs % TOP_K).to(tl.int64)
    places = expert_ids_ptr + token * stride_token + choice * stride_choice
    expert = tl.load(places, mask=mask, other=-1)
    return tl.where((expert >= 0) & (expert < num_experts), expert, -1).to(tl.int32)


@triton.jit(do_not_specialize=["num_pairs"])
def sort_pairs_kernel(
    expert_ids_ptr, order_ptr, starts_ptr,
    # sizes
    num_pairs, num_experts,
    # strides, in elements
    stride_ids_token, stride_ids_choice,
    # meta-parameters
    TOP_K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Where one expert's pairs begin in the order, and which they are; the last: where all end."""
    expert = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    start = 0
    for first in tl.range(0, num_pairs, BLOCK):
        pairs = first + offs
        ids = load_experts(
            expert_ids_ptr, pairs, pairs < num_pairs, num_experts,
            stride_ids_token, stride_ids_choice, TOP_K,
        )  # fmt: skip
        start += tl.sum(((ids >= 0) & (ids < expert)).to(tl.int32))
    tl.store(starts_ptr + expert, start)
    place = start
    for first in tl.range(0, num_pairs, BLOCK):
        pairs = first + offs
        ids = load_experts(
            expert_ids_ptr, pairs, pairs < num_pairs, num_experts,
            stride_ids_token, stride_ids_choice, TOP_K,
        )  # fmt: skip
        is_mine = (ids == expert).to(tl.int32)
        tl.store(order_ptr + place + tl.cumsum(is_mine, 0) - 1, pairs, mask=is_mine > 0)
        place += tl.sum(is_mine)


@triton.jit
def find_rows(
    expert_ids_ptr, order_ptr, starts_ptr, slot, num_experts, stride_ids_token, stride_ids_choice,
    TOP_K: tl.constexpr, BY_PAIR: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Expert of a slot, and the places in the order of up to `BLOCK_M` pairs of it; or no places.

    Slots are those of `sequence_chunks`, or, where pairs are fewer than those, one a pair.
    """
    if BY_PAIR:
        num_placed = tl.load(starts_ptr + num_experts)
        pair = tl.load(order_ptr + slot, mask=slot < num_placed, other=0)
        expert = load_experts(
            expert_ids_ptr, pair, slot < num_placed, num_experts,
            stride_ids_token, stride_ids_choice, TOP_K,
        )  # fmt: skip
        start = tl.load(starts_ptr + expert, mask=expert >= 0, other=0)
        stop = tl.load(starts_ptr + expert + 1, mask=expert >= 0, other=0)
        begin = slot
        # the first pair of a tile takes all of it
        end = tl.where((slot - start) % BLOCK_M == 0, tl.minimum(slot + BLOCK_M, stop), begin)
    else:
        expert, begin, end, _, _ = find_chunk(starts_ptr, slot, num_experts, BLOCK_M)
    return expert, begin, end


@triton.jit
def sum_choices_kernel(
    outputs_ptr, expert_ids_ptr, expert_weights_ptr, out_ptr,
    # sizes
    num_experts,
    # strides, in elements
    stride_ids_token, stride_ids_choice, stride_weights_token, stride_weights_choice,
    # meta-parameters
    HIDDEN: tl.constexpr, TOP_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Some columns of one token: its choices' outputs times their weights, one after the other."""
    token = tl.program_id(0)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = offs_n < HIDDEN
    weight_ptr = expert_weights_ptr + token.to(tl.int64) * stride_weights_token
    total = tl.zeros([BLOCK_N], tl.float32)
    for choice in tl.static_range(TOP_K):
        pair = token * TOP_K + choice
        expert = load_experts(
            expert_ids_ptr, pair, True, num_experts, stride_ids_token, stride_ids_choice, TOP_K
        )
        weight = tl.load(weight_ptr).to(tl.float32)
        weight_ptr += stride_weights_choice
        row_ptr = outputs_ptr + pair.to(tl.int64) * HIDDEN
        # what no expert wrote is not read
        total += weight * tl.load(row_ptr + offs_n, mask=mask_n & (expert >= 0), other=0.0)
    places = out_ptr + token.to(tl.int64) * HIDDEN + offs_n
    tl.store(places, total.to(out_ptr.dtype.element_ty), mask=mask_n)
