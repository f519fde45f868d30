from itertools import accumulate, permutations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import assert_within_budget
from support.pools import lazy_pool
from support.recurrences import recurrence, turned
from torch import Tensor

from blockstride.kernels.dispatch import INTERPRET
from blockstride.kernels.gpu import ssd_scan

DEVICE = "cpu" if INTERPRET else "cuda"
NAN = float("nan")
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
BY_TOKEN = ("x", "dt", "B", "C", "z")

# a base row, then one changed factor a row
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "one-token": {"lengths": (1,)},
    "no-sequence": {"lengths": ()},
    "no-token": {"lengths": (0, 0)},
    "chunk-64": {"chunk_size": 64, "lengths": (70, 3)},
    "chunk-256": {"chunk_size": 256, "lengths": (257, 3), "num_heads": 1, "num_groups": 1},
    "fresh": {"initial": False},
    "no-D": {"D": False},
    "no-z": {"z": False},
    "no-bias": {"dt_bias": False},
    "no-softplus": {"dt_softplus": False},
    "one-group": {"num_groups": 1},
    "a-group-a-head": {"num_groups": 4},
    "head_dim-1": {"head_dim": 1},
    "head_dim-80": {"head_dim": 80},
    "d_state-5": {"d_state": 5},
    "d_state-144": {"d_state": 144},
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
    lengths=(5, 0, 1, 37), num_heads=4, head_dim=24, num_groups=2, d_state=16, dtype=F32,
    state_dtype=F32, initial=True, D=True, z=True, dt_bias=True, dt_softplus=True, chunk_size=16,
) -> dict[str, Any]:  # fmt: skip
    """A scan over sequences of these lengths, in blocks 2, 3, ... of a pool."""
    num_tokens, num_seqs = sum(lengths), len(lengths)
    wide = torch.randn(num_tokens, 2, num_heads, head_dim + 3).to(dtype)[..., :head_dim]
    pool = (num_seqs + 8, num_heads, head_dim, d_state)
    return {
        "x": wide[:, 0],
        "dt": torch.rand(num_tokens, num_heads).sub(0.3 if dt_softplus else 0).to(dtype),
        "A": -torch.rand(num_heads) - 0.1,
        "B": torch.randn(num_tokens, num_groups, d_state).to(dtype),
        "C": torch.randn(num_tokens, num_groups, d_state).to(dtype),
        "ssm_state": torch.randn(pool).to(state_dtype),
        "state_indices": torch.arange(2, num_seqs + 2, dtype=torch.int32),
        "query_start_loc": torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
        "has_initial_state": torch.full((num_seqs,), initial),
        "D": torch.randn(num_heads).to(dtype) if D else None,
        "z": wide[:, 1] if z else None,
        "dt_bias": torch.randn(num_heads) if dt_bias and dt_softplus else None,
        "dt_softplus": dt_softplus,
        "chunk_size": chunk_size,
    }


def keep(inputs: dict[str, Any], *pairs: tuple[int, int]) -> None:
    """Ask for the state after each of some tokens, in a block of its own."""
    tokens, blocks = zip(*pairs, strict=True)
    inputs["checkpoint_tokens"] = torch.tensor(tokens, dtype=torch.int32)
    inputs["checkpoint_indices"] = torch.tensor(blocks, dtype=torch.int32)


def check(inputs: dict[str, Any]) -> None:
    """Hold outputs and all states to float64."""
    definition = {name: value for name, value in inputs.items() if name != "chunk_size"}
    exact, exact_states = recurrence(**definition)
    plain, plain_states = recurrence(**definition, dtype=inputs["x"].dtype)
    out = ssd_scan(**inputs)
    assert out.dtype == inputs["x"].dtype
    assert_within_budget(out, exact, plain)
    # states are sums of products in the dtype of x
    states = inputs["ssm_state"]
    coarser = max(states.dtype, out.dtype, key=lambda dtype: torch.finfo(dtype).eps)
    assert_within_budget(states.to(coarser), exact_states, plain_states.to(coarser))


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_outputs_and_states_follow_the_recurrence(row):
    check(make(**row))


@pytest.mark.parametrize("length", [255, 256, 4097])
def test_prompts_need_not_be_a_multiple_of_the_chunk(length):
    check(make(lengths=(length,), num_heads=1, num_groups=1, chunk_size=256))


@pytest.mark.parametrize("step", [1e-6, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("rate", [1e-5, 1.0, 16.0, 1e4])
def test_steps_and_decay_rates_at_their_extremes_neither_overflow_nor_vanish(step, rate):
    inputs = make(lengths=(20,), num_heads=2)
    # softplus makes the steps of these
    dt = torch.tensor(step, dtype=torch.float64)
    inputs["dt"].fill_(float(dt if step > 20 else dt.expm1().log()))
    inputs["dt_bias"] = None
    inputs["A"] *= rate
    check(inputs)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_small_steps_among_large_ones_decay_as_they_should(dtype):
    """A running sum that large steps have made large must not swallow the small ones."""
    inputs = make(lengths=(300,), num_heads=2, dt_bias=False, dt_softplus=False, chunk_size=256)
    steps = torch.where(torch.rand(300, 2) < 0.3, 100.0, 0.01 * torch.rand(300, 2))
    inputs["dt"] = steps.to(dtype)
    inputs |= {name: inputs[name].to(dtype) for name in ("x", "B", "C", "D", "z")}
    inputs["A"] *= 16
    check(inputs)


@pytest.mark.parametrize("order", list(permutations(range(4)))[::3], ids=str)
def test_every_memory_order_gives_the_same_bits(order, pool_of, assert_same_bits):
    inputs = make(lengths=(5, 19), num_heads=2)
    keep(inputs, (20, 7))
    pool = pool_of(inputs["ssm_state"], order)
    out = ssd_scan(**inputs)
    assert_same_bits(ssd_scan(**(inputs | {"ssm_state": pool.view})), out)
    assert_same_bits(pool.view, inputs["ssm_state"])


def test_inputs_may_lie_in_any_order_of_memory(assert_same_bits):
    inputs = make(lengths=(5, 19))
    keep(inputs, (20, 7))
    moved: dict[str, Any] = {
        name: turned(value) if isinstance(value, Tensor) and name != "ssm_state" else value
        for name, value in inputs.items()
    }
    moved["ssm_state"] = inputs["ssm_state"].clone()
    expected = ssd_scan(**inputs)
    assert_same_bits(ssd_scan(**moved), expected)
    assert_same_bits(moved["ssm_state"], inputs["ssm_state"])


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_nothing_is_touched_but_the_blocks_of_sequences_and_checkpoints(
    state_dtype, pool_of, assert_same_bits
):
    inputs = make(lengths=(5, 0, 3, 41, 9), state_dtype=state_dtype)
    inputs["state_indices"] = torch.tensor([2, 3, 0, 5, -1], dtype=torch.int32)
    keep(inputs, (2, 0), (3, 7), (6, 8), (40, 9), (48, -1), (51, 10), (58, 11))
    written = [2, 5, 7, 9]
    untouched = [block for block in range(13) if block not in {2, 5}]
    inputs["ssm_state"][untouched] = NAN
    inputs["x"][5:8], inputs["dt"][49:], inputs["B"][49:] = NAN, NAN, NAN
    pool = pool_of(inputs["ssm_state"], (1, 0, 2, 3))
    expected = pool.memory.clone()
    wide = torch.full((60, 5, 30), NAN)
    out = wide[1:-1, 1:, 2:-4]
    assert ssd_scan(**(inputs | {"ssm_state": pool.view}), out=out) is out
    assert (out[5:8] == 0).all()
    assert (out[49:] == 0).all()
    assert out.isfinite().all()
    assert pool.view[written].isfinite().all()
    pool.view[written] = inputs["ssm_state"][written]
    assert_same_bits(pool.memory, expected)
    out.fill_(NAN)
    assert wide.isnan().all()


def test_a_state_is_not_read_without_has_initial_state():
    """A block that another owner left full of NaN, or of anything, is a fresh one."""
    inputs = make(initial=False)
    expected = ssd_scan(**inputs)
    inputs["ssm_state"].fill_(NAN)
    assert torch.equal(ssd_scan(**inputs), expected)


def test_checkpoints_hold_the_states_that_the_recurrence_passes():
    """A prefix resumed at token N must not get the state of N + 1, also where N ends a chunk."""
    inputs = make(lengths=(3, 40), D=False, z=False)
    keep(inputs, *((3 + end, 4 + i) for i, end in enumerate((0, 14, 15, 16, 39))))
    check(inputs)


@pytest.mark.parametrize("cut", [(1, 40), (16, 25), (17, 24), (40, 1), (13, 13, 15)], ids=str)
def test_a_prompt_in_pieces_ends_as_one_call_does(cut):
    """The state of a piece that ended anywhere reaches the next, in a batch of one."""
    inputs = make(lengths=(41,), initial=False)
    state = inputs["ssm_state"].clone()
    whole = ssd_scan(**inputs)
    outs, start = [], 0
    for i, length in enumerate(cut):
        rows = {name: inputs[name][start : start + length] for name in BY_TOKEN}
        rows |= {
            "ssm_state": state,
            "query_start_loc": torch.tensor([0, length], dtype=torch.int32),
            "has_initial_state": torch.tensor([i > 0]),
        }
        outs.append(ssd_scan(**(inputs | rows)))
        start += length
    torch.testing.assert_close(torch.cat(outs), whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state, inputs["ssm_state"], rtol=1e-4, atol=1e-4)


@settings(max_examples=5, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=5))
def test_chunks_begin_with_their_sequence_and_see_no_other(lengths):
    with torch.device(DEVICE):
        inputs = make(lengths=tuple(lengths), num_heads=1, num_groups=1)
        states = inputs["ssm_state"].clone()
        out = ssd_scan(**inputs)
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
            assert torch.equal(ssd_scan(**(inputs | alone)), out[rows])
        assert torch.equal(states, inputs["ssm_state"])


def test_the_result_may_replace_the_gate(assert_same_bits):
    inputs = make()
    state = inputs["ssm_state"].clone()
    expected = ssd_scan(**inputs)
    assert_same_bits(ssd_scan(**(inputs | {"ssm_state": state}), out=inputs["z"]), expected)


def test_block_ids_times_strides_may_pass_2_to_the_31(overflow_is_an_error, assert_same_bits):
    if not INTERPRET:
        pytest.skip("lazily mapped memory is the interpreter's")
    far, inputs = 65_537, make(lengths=(20,), num_heads=2, head_dim=16)
    keep(inputs, (4, 3))
    state = lazy_pool((far + 1, 2, 16, 16), (32_768, 256, 16, 1), F32)
    state[far] = inputs["ssm_state"][2]
    moved: dict[str, Any] = inputs | {
        "ssm_state": state,
        "state_indices": torch.tensor([far], dtype=torch.int32),
        "checkpoint_indices": torch.tensor([far - 1], dtype=torch.int32),
    }
    assert_same_bits(ssd_scan(**moved), ssd_scan(**inputs))
    assert_same_bits(state[far], inputs["ssm_state"][2])
    assert_same_bits(state[far - 1], inputs["ssm_state"][3])
