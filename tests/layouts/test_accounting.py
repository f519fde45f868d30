"""Accounting against an allocator that is simulated token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockstride.layouts import (
    CacheSpec,
    KVCacheLayout,
    KVCachePool,
    PoolLayout,
    full_attention,
    mamba1,
    plan_pools,
    sequence_bytes,
    short_conv,
    sliding_window_attention,
    tokens_that_fit,
)
from blockstride.layouts.accounting import MAX_TOKENS, account, sequence_blocks
from tests.layouts.support import BF16, LAW, byte_addresses, pool_cases

FULL = full_attention(1, 8, BF16)
WINDOW = sliding_window_attention(1, 8, BF16, window=7)
STATE = short_conv(16, 3, conv_dtype=BF16)
models = st.lists(st.sampled_from([FULL, WINDOW, STATE]), min_size=1, max_size=6).map(
    lambda specs: {str(i): spec for i, spec in enumerate(specs)}
)
policies = st.sampled_from(["unified", "split"])


def plan(layers, policy, num_blocks, block_size=4) -> tuple[PoolLayout, ...]:
    return plan_pools(
        layers,
        layout=KVCacheLayout.BLHNC,
        policy=policy,
        num_blocks=num_blocks,
        block_size=block_size,
    )


def affordable(layers, policy, memory_bytes, num_seqs=8) -> tuple[PoolLayout, ...]:
    return plan_pools(
        layers,
        layout="BLHNC",
        policy=policy,
        memory_bytes=memory_bytes,
        block_size=4,
        num_seqs=num_seqs,
    )


def live(spec: CacheSpec, num_tokens: int, block_size: int) -> set[int]:
    """Blocks of one sequence, from what the next token reads and where the last one lies."""
    if spec is STATE:
        return {0}
    first = max(0, num_tokens + 1 - spec.window) if spec.window else 0
    return {token // block_size for token in [*range(first, num_tokens), num_tokens - 1]}


def simulated(pools: tuple[PoolLayout, ...], num_seqs: int, limit: int) -> int:
    """Tokens that `num_seqs` sequences, grown in step, reach before a pool runs out of blocks."""
    for num_tokens in range(1, limit + 1):
        for pool in pools:
            blocks = sum(
                len(live(group.group.spec, num_tokens, group.block_size)) for group in pool.groups
            )
            if num_seqs * blocks > pool.num_blocks - 1:
                return num_tokens - 1
    return MAX_TOKENS


@LAW
@given(models, policies, st.integers(1, 3), st.integers(1, 30), st.integers(1, 5))
def test_tokens_that_fit_are_what_an_allocator_reaches(
    layers, policy, num_seqs, num_blocks, block_size
):
    pools = plan(layers, policy, num_blocks, block_size)
    assert tokens_that_fit(pools, num_seqs) == simulated(pools, num_seqs, 31 * block_size)


@LAW
@given(models, st.integers(1, 3), st.integers(0, 8000))
def test_split_budget_buys_the_longest_common_length(layers, num_seqs, spare):
    ones = plan(layers, "split", 1)

    def price(num_tokens):
        return sum(
            (num_seqs * sequence_blocks(pool, num_tokens) + 1) * pool.block_bytes for pool in ones
        )

    memory = price(1) + spare
    pools = affordable(layers, "split", memory, num_seqs)
    spent = sum(pool.nbytes for pool in pools)
    assert spent <= memory
    length = tokens_that_fit(pools, num_seqs)
    assert price(length) <= memory < price(length + 1) or length == MAX_TOKENS
    growing = [pool.block_bytes for pool in pools if pool.groups[0].group.spec is FULL]
    assert all(memory - spent < nbytes for nbytes in growing)


@LAW
@given(models, st.integers(0, 8000))
def test_unified_budget_goes_to_the_one_pool_whole(layers, spare):
    [one] = plan(layers, "unified", 1)
    memory = (sequence_blocks(one, 1) + 1) * one.block_bytes + spare
    [pool] = affordable(layers, "unified", memory)
    assert pool.nbytes <= memory < pool.nbytes + one.block_bytes


@pytest.mark.parametrize("policy", ["unified", "split"])
def test_a_budget_too_small_names_the_bytes_that_would_do(policy):
    layers = {"a": FULL, "m": STATE}
    with pytest.raises(ValueError, match=r"memory_bytes: expected at least .+, got 100") as error:
        affordable(layers, policy, 100, 2)
    least = int(str(error.value).split("at least ")[1].split(" bytes")[0].replace(",", ""))
    pools = affordable(layers, policy, least, 2)
    assert tokens_that_fit(pools, 2 if policy == "split" else 1) >= 1
    with pytest.raises(ValueError, match="memory_bytes"):
        affordable(layers, policy, least - 1, 2)


def test_zero_sequences_are_refused():
    pools = plan({"a": FULL}, "split", 4)
    with pytest.raises(ValueError, match="num_seqs: expected at least 1, got 0"):
        tokens_that_fit(pools, 0)
    with pytest.raises(ValueError, match="num_seqs: expected at least 1, got 0"):
        affordable({"a": FULL}, "split", 4096, 0)


def test_the_null_block_is_never_counted():
    assert tokens_that_fit(plan({"a": FULL}, "split", 1)) == 0
    assert tokens_that_fit(plan({"a": FULL}, "split", 2)) == 4


def test_states_alone_bound_sequences_but_no_tokens():
    pools = plan({"m": STATE}, "split", 4)
    assert tokens_that_fit(pools, 3) == MAX_TOKENS
    assert tokens_that_fit(pools, 4) == 0


def test_a_sequence_pays_for_whole_blocks_in_every_group():
    layers = {"a": FULL, "m": STATE, "n": STATE}
    [unified] = plan(layers, "unified", 8)
    assert sequence_blocks(unified, 5) == 2 + 1 + 1
    assert sequence_bytes([unified], 5) == 4 * unified.block_bytes
    split = plan(layers, "split", 8)
    assert [sequence_blocks(pool, 5) for pool in split] == [2, 1]
    assert sequence_bytes(split, 5) == 2 * split[0].block_bytes + split[1].block_bytes


@LAW
@given(pool_cases())
def test_used_bytes_are_those_that_fields_fill(case):
    pool = KVCachePool(case.plan())
    for part in account(pool.layout):
        filled = sum(
            len(byte_addresses(part.placement.byte_view(pool.storage, placed, slot), pool.storage))
            for slot in range(len(part.placement.group.layer_names))
            for placed in part.placement.fields
        )
        assert part.used_bytes * pool.layout.num_blocks == filled


def test_costs_of_a_group_include_its_padding():
    attention, state = full_attention(2, 8, BF16), mamba1(16, 4, 4, conv_dtype=BF16)
    [pool] = plan({"a": attention, "m": state}, "unified", 4)
    tokens, fixed = account(pool)
    assert pool.block_bytes == state.page(1).nbytes == 352
    assert (tokens.token_bytes, tokens.state_bytes) == (352 / 4, 0)
    assert (fixed.token_bytes, fixed.state_bytes) == (0, 352)
    assert (tokens.used_bytes, fixed.used_bytes) == (4 * 64, 352)
