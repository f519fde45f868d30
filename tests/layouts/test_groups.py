"""Groups of layers, and the block size that all ranks of all engines agree on."""

import pytest
import torch
from hypothesis import given

from blockstride.layouts import choose_block_size, full_attention, group_layers, mamba1, mamba2
from tests.layouts.support import BF16, LAW, SPECS, pool_cases

ATTENTION, STATE = full_attention(8, 128, BF16), mamba1(4096, 16, 4, conv_dtype=BF16)


def jamba(attention: int, mamba: int) -> dict:
    return {f"a{i}": ATTENTION for i in range(attention)} | {f"m{i}": STATE for i in range(mamba)}


def names(layers, policy):
    return [group.layer_names for group in group_layers(layers, policy)]


def test_split_makes_one_group_of_every_spec():
    layers = {"m0": STATE, "a0": ATTENTION, "m1": STATE}
    assert names(layers, "split") == [("m0", "m1"), ("a0",)]


def test_unified_fills_the_slots_of_a_block_with_every_group():
    groups = group_layers(jamba(4, 28), "unified")
    assert [len(group.layer_names) for group in groups] == [4] * 8
    assert [group.spec for group in groups] == [ATTENTION] + [STATE] * 7


def test_unified_leaves_slots_empty_where_layers_do_not_divide():
    groups = group_layers(jamba(3, 7), "unified")
    assert [len(group.layer_names) for group in groups] == [3, 3, 3, 1]


@LAW
@given(pool_cases())
def test_every_layer_is_in_one_group_of_its_spec_in_order(case):
    layers = case.layers()
    groups = group_layers(layers, case.policy)
    assert sorted(name for group in groups for name in group.layer_names) == sorted(layers)
    for group in groups:
        assert all(layers[name] == group.spec for name in group.layer_names)
        assert list(group.layer_names) == [n for n in layers if n in group.layer_names]


def test_a_model_needs_layers():
    with pytest.raises(ValueError, match="layers: expected at least one layer, got 0"):
        group_layers({}, "split")


def test_block_size_is_inflated_until_tokens_hold_the_state():
    block_size = choose_block_size(jamba(4, 28), "unified")
    assert block_size % 16 == 0
    assert ATTENTION.page(block_size).nbytes >= STATE.page(1).nbytes
    assert ATTENTION.page(block_size - 16).nbytes < STATE.page(1).nbytes


@pytest.mark.parametrize("wanted", [1, 16, 48])
def test_block_size_is_what_was_asked_where_nothing_forces_more(wanted):
    assert choose_block_size(jamba(4, 28), "split", wanted) == wanted
    assert choose_block_size(jamba(4, 0), "unified", wanted) == wanted
    assert choose_block_size(jamba(0, 28), "unified", wanted) == wanted
    small = {"a": ATTENTION, "m": SPECS["short-conv-DS"]}
    assert choose_block_size(small, "unified", wanted) == wanted


def test_block_size_does_not_depend_on_the_number_of_ranks():
    # vllm-project/vllm#45575: 1,040 tokens on 1 to 8 ranks and 528 on 16, where heads are shared
    layers = {"a": ATTENTION, "m": mamba2(128, 64, 128, 4, n_groups=8, conv_dtype=BF16)}
    assert choose_block_size(layers, "unified") == 1040
    for tp_size in (2, 4, 8, 16):
        part = {name: spec.tp_shard(tp_size - 1, tp_size) for name, spec in layers.items()}
        with pytest.raises(ValueError, match="a: expected the spec of the whole model, got one of"):
            choose_block_size(part, "unified")
        assert part["a"].page(1040).nbytes >= part["m"].page(1).nbytes
    # what one rank of 16 would have chosen by itself
    assert -(-part["m"].page(1).nbytes // (part["a"].token_bytes * 16)) * 16 == 528


@pytest.mark.parametrize("block_size", [0, -16])
def test_a_block_needs_tokens(block_size):
    with pytest.raises(ValueError, match="block_size: expected a positive number"):
        choose_block_size(jamba(1, 1), "split", block_size)


def test_quantised_attention_is_inflated_twice_as_far():
    fp8 = full_attention(8, 128, torch.float8_e4m3fn)
    wide = choose_block_size({"a": ATTENTION, "m": STATE}, "unified", 1)
    narrow = choose_block_size({"a": fp8, "m": STATE}, "unified", 1)
    assert narrow in (2 * wide - 1, 2 * wide)
