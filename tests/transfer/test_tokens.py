"""Pieces: every token that two ranks share lies in exactly one of them, in one block each side."""

from math import lcm

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blockstride.transfer.tokens import TokenAxis, TokenPiece, common_pieces


@st.composite
def token_axes(draw: st.DrawFn) -> TokenAxis:
    interleave = draw(st.sampled_from([1, 2, 3]))
    block_size = interleave * draw(st.integers(1, 12))
    run_size = draw(st.sampled_from([n for n in range(1, block_size + 1) if block_size % n == 0]))
    cp_size = draw(st.integers(1, 4))
    return TokenAxis(block_size, run_size, draw(st.integers(0, cp_size - 1)), cp_size, interleave)


def held_tokens(axis: TokenAxis, period: int) -> list[int]:
    """Tokens of a period that a rank holds, one by one in the order in which it keeps them."""
    return [t for t in range(period) if t // axis.interleave % axis.cp_size == axis.cp_rank]


@given(token_axes(), token_axes())
def test_pieces_name_each_common_token_once_and_where_both_sides_keep_it(local, remote):
    period, pieces = common_pieces(local, remote)
    ours, theirs = held_tokens(local, period), held_tokens(remote, period)
    common = [token for token in ours if token in set(theirs)]
    found = []
    for piece in pieces:
        for i in range(piece.size):
            token = piece.start + i
            found.append(token)
            here = piece.local_block * local.block_size + piece.local_token + i
            there = piece.remote_block * remote.block_size + piece.remote_token + i
            assert (ours[here], theirs[there]) == (token, token)
    assert found == common


@given(token_axes(), token_axes())
def test_a_piece_never_leaves_a_run_of_either_side(local, remote):
    _, pieces = common_pieces(local, remote)
    for piece in pieces:
        for axis, first in ((local, piece.local_token), (remote, piece.remote_token)):
            last = first + piece.size - 1
            assert first // axis.run_size == last // axis.run_size < axis.block_size


@given(token_axes())
def test_positions_count_the_tokens_that_a_rank_holds(axis):
    period = lcm(axis.span, 12)
    found = axis.positions(np.arange(period))
    assert found.tolist() == list(range(len(held_tokens(axis, period))))


def test_block_sizes_that_do_not_divide_are_cut_at_the_boundaries_of_both():
    period, pieces = common_pieces(TokenAxis(8, 8), TokenAxis(12, 12))
    assert period == 24
    assert pieces == (
        TokenPiece(0, 8, 0, 0, 0, 0),
        TokenPiece(8, 4, 1, 0, 0, 8),
        TokenPiece(12, 4, 1, 4, 1, 0),
        TokenPiece(16, 8, 2, 0, 1, 4),
    )
