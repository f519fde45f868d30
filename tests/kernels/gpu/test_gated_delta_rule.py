from itertools import accumulate, permutations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import assert_within_budget
from support.pools import lazy_pool
from support.recurrences import as_prompts, delta_rule, turned
from torch import Tensor

from blockstride.kernels.dispatch import INTERPRET
from blockstride.kernels.gpu import gated_delta_rule, gated_delta_rule_update

DEVICE = "cpu" if INTERPRET else "cuda"
NAN = float("nan")
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
BY_TOKEN = ("q", "k", "v", "g", "beta")

# a base row, then one changed factor a row
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "one-token": {"lengths": (1,)},
    "no-sequence": {"lengths": ()},
    "no-token": {"lengths": (0, 0)},
    "fresh": {"initial": False},
    "given-unit-length": {"qk_l2norm": False},
    "a-value-head-a-head": {"num_heads": 4},
    "one-head": {"num_heads": 1},
    "key_dim-7": {"key_dim": 7},
    "key_dim-100": {"key_dim": 100},
    "value_dim-1": {"value_dim": 1},
    "value_dim-72": {"value_dim": 72},
    "bf16": {"dtype": BF16},
    "fp16": {"dtype": F16},
    "bf16-state": {"state_dtype": BF16},
    "fp16-state": {"state_dtype": F16},
}


@pytest.fixture(autouse=True)
def on_device():
    torch.manual_seed(0)
    with torch.device(DEVICE):
        yield


def make(
    lengths=(5, 0, 1, 70), num_heads=2, num_value_heads=4, key_dim=16, value_dim=24, dtype=F32,
    state_dtype=F32, initial=True, qk_l2norm=True,
) -> dict[str, Any]:  # fmt: skip
    """The rule over sequences of these lengths, in blocks 2, 3, ... of a pool."""
    num_tokens, num_seqs = sum(lengths), len(lengths)
    wide = torch.randn(num_tokens, 2, num_heads, key_dim + 3)[..., :key_dim]
    wide = wide.to(dtype) if qk_l2norm else torch.nn.functional.normalize(wide, dim=-1).to(dtype)
    pool = (num_seqs + 8, num_value_heads, key_dim, value_dim)
    return {
        "q": wide[:, 0],
        "k": wide[:, 1],
        "v": torch.randn(num_tokens, num_value_heads, value_dim).to(dtype),
        "g": -torch.rand(num_tokens, num_value_heads),
        "beta": torch.rand(num_tokens, num_value_heads).to(dtype),
        "ssm_state": torch.randn(pool).to(state_dtype),
        "state_indices": torch.arange(2, num_seqs + 2, dtype=torch.int32),
        "query_start_loc": torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
        "has_initial_state": torch.full((num_seqs,), initial),
        "scale": 0.3,
        "qk_l2norm": qk_l2norm,
    }


def keep(inputs: dict[str, Any], *pairs: tuple[int, int]) -> None:
    """Ask for the state after each of some tokens, in a block of its own."""
    tokens, blocks = zip(*pairs, strict=True)
    inputs["checkpoint_tokens"] = torch.tensor(tokens, dtype=torch.int32)
    inputs["checkpoint_indices"] = torch.tensor(blocks, dtype=torch.int32)


def check(inputs: dict[str, Any]) -> None:
    """Hold outputs and all states to float64."""
    exact, exact_states = delta_rule(**inputs)
    plain, plain_states = delta_rule(**inputs, dtype=inputs["q"].dtype)
    out = gated_delta_rule(**inputs)
    assert out.dtype == inputs["v"].dtype
    assert_within_budget(out, exact, plain)
    # states are sums of products in the dtype of k
    states = inputs["ssm_state"]
    coarser = max(states.dtype, out.dtype, key=lambda dtype: torch.finfo(dtype).eps)
    assert_within_budget(states.to(coarser), exact_states, plain_states.to(coarser))


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_outputs_and_states_follow_the_rule(row):
    check(make(**row))


@pytest.mark.parametrize("length", [63, 64, 65, 4097])
def test_prompts_need_not_be_a_multiple_of_the_chunk(length):
    check(make(lengths=(length,), num_heads=1, num_value_heads=1))


def test_a_key_that_repeats_costs_no_digits():
    """Powers of the triangle grow to 1e18 here, where its inverse has ones and zeros only."""
    inputs = make(lengths=(128,))
    inputs["k"], inputs["q"] = (part[:1].expand(128, -1, -1) for part in (inputs["k"], inputs["q"]))
    inputs["beta"] = torch.ones_like(inputs["beta"])
    inputs["g"] = torch.zeros_like(inputs["g"])
    check(inputs)


@pytest.mark.parametrize("g", [0.0, -1e-6, -50.0, -1600.0])
@pytest.mark.parametrize("beta", [0.0, 1e-6, 1.0])
def test_decays_and_strengths_at_their_extremes_neither_overflow_nor_vanish(g, beta):
    inputs = make(lengths=(70,), num_heads=1, num_value_heads=2)
    inputs["g"][:, 0], inputs["beta"][:] = g, beta
    check(inputs)


def test_small_decays_among_large_ones_are_as_they_should_be():
    """A running sum that large decays have made large must not swallow the small ones."""
    inputs = make(lengths=(128,))
    inputs["g"] = torch.where(torch.rand(128, 4) < 0.3, -1600.0, -1e-3)
    check(inputs)


@pytest.mark.parametrize("order", list(permutations(range(4)))[::3], ids=str)
def test_every_memory_order_gives_the_same_bits(order, pool_of, assert_same_bits):
    inputs = make(lengths=(5, 19), num_value_heads=2)
    keep(inputs, (20, 7))
    pool = pool_of(inputs["ssm_state"], order)
    out = gated_delta_rule(**inputs)
    assert_same_bits(gated_delta_rule(**(inputs | {"ssm_state": pool.view})), out)
    assert_same_bits(pool.view, inputs["ssm_state"])


def test_inputs_may_lie_in_any_order_of_memory(assert_same_bits):
    inputs = make(lengths=(5, 19))
    keep(inputs, (20, 7))
    moved: dict[str, Any] = {
        name: turned(value) if isinstance(value, Tensor) and name != "ssm_state" else value
        for name, value in inputs.items()
    }
    moved["ssm_state"] = inputs["ssm_state"].clone()
    expected = gated_delta_rule(**inputs)
    assert_same_bits(gated_delta_rule(**moved), expected)
    assert_same_bits(moved["ssm_state"], inputs["ssm_state"])


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_nothing_is_touched_but_the_blocks_of_sequences_and_checkpoints(
    state_dtype, pool_of, assert_same_bits
):
    inputs = make(lengths=(5, 0, 3, 70, 9), state_dtype=state_dtype)
    inputs["state_indices"] = torch.tensor([2, 3, 0, 5, -1], dtype=torch.int32)
    keep(inputs, (2, 0), (3, 7), (6, 8), (40, 9), (77, -1), (80, 10), (87, 11))
    written = [2, 5, 7, 9]
    untouched = [block for block in range(13) if block not in {2, 5}]
    inputs["ssm_state"][untouched] = NAN
    inputs["k"][5:8], inputs["v"][78:] = NAN, NAN
    pool = pool_of(inputs["ssm_state"], (1, 0, 2, 3))
    expected = pool.memory.clone()
    wide = torch.full((89, 5, 30), NAN)
    out = wide[1:-1, 1:, 2:-4]
    assert gated_delta_rule(**(inputs | {"ssm_state": pool.view}), out=out) is out
    assert (out[5:8] == 0).all()
    assert (out[78:] == 0).all()
    assert out.isfinite().all()
    assert pool.view[written].isfinite().all()
    pool.view[written] = inputs["ssm_state"][written]
    assert_same_bits(pool.memory, expected)
    out.fill_(NAN)
    assert wide.isnan().all()


def test_a_state_is_not_read_without_has_initial_state():
    """A block that another owner left full of NaN, or of anything, is a fresh one."""
    inputs = make(initial=False)
    expected = gated_delta_rule(**inputs)
    inputs["ssm_state"].fill_(NAN)
    assert torch.equal(gated_delta_rule(**inputs), expected)


def test_checkpoints_hold_the_states_that_the_rule_passes():
    """A prefix resumed at token N must not get the state of N + 1, also where N ends a chunk."""
    inputs = make(lengths=(3, 70))
    keep(inputs, *((3 + end, 4 + i) for i, end in enumerate((0, 62, 63, 64, 69))))
    check(inputs)


@pytest.mark.parametrize("cut", [(1, 69), (64, 6), (65, 5), (20, 30, 20)], ids=str)
def test_a_prompt_in_pieces_ends_as_one_call_does(cut):
    """The state of a piece that ended anywhere reaches the next, in a batch of one."""
    inputs = make(lengths=(70,), initial=False)
    state = inputs["ssm_state"].clone()
    whole = gated_delta_rule(**inputs)
    outs, start = [], 0
    for i, length in enumerate(cut):
        rows = {name: inputs[name][start : start + length] for name in BY_TOKEN}
        rows |= {
            "ssm_state": state,
            "query_start_loc": torch.tensor([0, length], dtype=torch.int32),
            "has_initial_state": torch.tensor([i > 0]),
        }
        outs.append(gated_delta_rule(**(inputs | rows)))
        start += length
    torch.testing.assert_close(torch.cat(outs), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, inputs["ssm_state"], rtol=1e-4, atol=1e-5)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(0, 80), min_size=1, max_size=4))
def test_chunks_begin_with_their_sequence_and_see_no_other(lengths):
    with torch.device(DEVICE):
        inputs = make(lengths=tuple(lengths), num_heads=1, num_value_heads=1)
        states = inputs["ssm_state"].clone()
        out = gated_delta_rule(**inputs)
        starts = [0, *accumulate(lengths)]
        for i, length in enumerate(lengths):
            rows = slice(starts[i], starts[i + 1])
            alone: dict[str, Any] = {name: inputs[name][rows] for name in BY_TOKEN}
            alone |= {
                "ssm_state": states,
                "state_indices": inputs["state_indices"][i : i + 1],
                "query_start_loc": torch.tensor([0, length], dtype=torch.int32),
                "has_initial_state": inputs["has_initial_state"][i : i + 1],
            }
            assert torch.equal(gated_delta_rule(**(inputs | alone)), out[rows])
        assert torch.equal(states, inputs["ssm_state"])


def test_the_result_may_replace_the_values(assert_same_bits):
    inputs = make()
    state = inputs["ssm_state"].clone()
    expected = gated_delta_rule(**inputs)
    replaced = inputs | {"ssm_state": state}
    assert_same_bits(gated_delta_rule(**replaced, out=inputs["v"]), expected)


def make_step(num_seqs: int = 3, **options: Any) -> dict[str, Any]:
    """One token of each sequence."""
    inputs = make(lengths=(1,) * num_seqs, **options)
    del inputs["query_start_loc"], inputs["has_initial_state"]
    return inputs


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "lengths" not in row])
def test_an_update_is_a_prompt_of_one_token(name):
    inputs = make_step(**(ROWS[name] | {"initial": True}))
    starts, initial = as_prompts(3, 1)
    prompts = inputs | {"query_start_loc": starts, "has_initial_state": initial}
    exact, exact_states = delta_rule(**prompts)
    plain, plain_states = delta_rule(**prompts, dtype=inputs["q"].dtype)
    out = gated_delta_rule_update(**inputs)
    assert_within_budget(out, exact, plain)
    states = inputs["ssm_state"]
    coarser = max(states.dtype, out.dtype, key=lambda dtype: torch.finfo(dtype).eps)
    assert_within_budget(states.to(coarser), exact_states, plain_states.to(coarser))


def test_an_update_passes_over_padding_and_touches_nothing_else(pool_of, assert_same_bits):
    inputs = make_step(4)
    inputs["state_indices"] = torch.tensor([3, 0, 5, -1], dtype=torch.int32)
    inputs["ssm_state"][[0, 1, 2, 4, 6]] = NAN
    inputs["k"][[1, 3]] = NAN
    pool = pool_of(inputs["ssm_state"], (1, 0, 3, 2))
    expected = pool.memory.clone()
    out = gated_delta_rule_update(**(inputs | {"ssm_state": pool.view}), out=inputs["v"])
    assert out is inputs["v"]
    assert (out[[1, 3]] == 0).all()
    assert out.isfinite().all()
    assert pool.view[[3, 5]].isfinite().all()
    pool.view[[3, 5]] = inputs["ssm_state"][[3, 5]]
    assert_same_bits(pool.memory, expected)


def test_block_ids_times_strides_may_pass_2_to_the_31(overflow_is_an_error, assert_same_bits):
    if not INTERPRET:
        pytest.skip("lazily mapped memory is the interpreter's")
    far, inputs = 65_537, make(lengths=(20,), num_value_heads=2)
    keep(inputs, (4, 3))
    state = lazy_pool((far + 1, 2, 16, 24), (32_768, 384, 24, 1), F32)
    state[far] = inputs["ssm_state"][2]
    indices = torch.tensor([far], dtype=torch.int32)
    moved: dict[str, Any] = inputs | {"ssm_state": state, "state_indices": indices}
    moved["checkpoint_indices"] = indices - 1
    assert_same_bits(gated_delta_rule(**moved), gated_delta_rule(**inputs))
    assert_same_bits(state[far], inputs["ssm_state"][2])
    assert_same_bits(state[far - 1], inputs["ssm_state"][3])
    step = make_step(1, num_value_heads=2)
    step["ssm_state"][2] = state[far]
    far_step: dict[str, Any] = step | {"ssm_state": state, "state_indices": indices}
    assert_same_bits(gated_delta_rule_update(**far_step), gated_delta_rule_update(**step))
    assert_same_bits(state[far], step["ssm_state"][2])
