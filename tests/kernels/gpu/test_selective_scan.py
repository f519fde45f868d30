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
from blockstride.kernels.gpu import selective_scan
from blockstride.kernels.gpu.selective_scan import choose_chunk

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
    "fresh": {"initial": False},
    "no-D": {"D": False},
    "no-z": {"z": False},
    "no-bias": {"dt_bias": False},
    "no-softplus": {"dt_softplus": False},
    "dim-1": {"dim": 1},
    "dim-40": {"dim": 40},
    "d_state-1": {"d_state": 1},
    "d_state-5": {"d_state": 5},
    "d_state-128": {"d_state": 128, "dim": 3},
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
    lengths=(5, 0, 1, 41), dim=20, d_state=16, dtype=F32, state_dtype=F32, initial=True,
    D=True, z=True, dt_bias=True, dt_softplus=True,
) -> dict[str, Any]:  # fmt: skip
    """A scan over sequences of these lengths, in blocks 2, 3, ... of a pool."""
    num_tokens, num_seqs = sum(lengths), len(lengths)
    wide = torch.randn(num_tokens, 2 * dim + 3).to(dtype)
    return {
        "x": wide[:, :dim],
        "dt": torch.rand(num_tokens, dim).sub(0.3 if dt_softplus else 0).to(dtype),
        "A": -torch.rand(dim, d_state) - 0.1,
        "B": torch.randn(num_tokens, d_state).to(dtype),
        "C": torch.randn(num_tokens, d_state).to(dtype),
        "ssm_state": torch.randn(num_seqs + 8, dim, d_state).to(state_dtype),
        "state_indices": torch.arange(2, num_seqs + 2, dtype=torch.int32),
        "query_start_loc": torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
        "has_initial_state": torch.full((num_seqs,), initial),
        "D": torch.randn(dim).to(dtype) if D else None,
        "z": wide[:, dim : 2 * dim] if z else None,
        "dt_bias": torch.randn(dim) if dt_bias and dt_softplus else None,
        "dt_softplus": dt_softplus,
    }


def keep(inputs: dict[str, Any], *pairs: tuple[int, int]) -> None:
    """Ask for the state after each of some tokens, in a block of its own."""
    tokens, blocks = zip(*pairs, strict=True)
    inputs["checkpoint_tokens"] = torch.tensor(tokens, dtype=torch.int32)
    inputs["checkpoint_indices"] = torch.tensor(blocks, dtype=torch.int32)


def check(inputs: dict[str, Any], chunk_size: int) -> Tensor:
    """Hold outputs and all states to float64."""
    exact, exact_states = recurrence(**inputs)
    plain, plain_states = recurrence(**inputs, dtype=F32)
    out = selective_scan(**inputs, chunk_size=chunk_size)
    assert out.dtype == inputs["x"].dtype
    assert_within_budget(out, exact, plain.to(out.dtype))
    states = inputs["ssm_state"]
    assert_within_budget(states, exact_states, plain_states.to(states.dtype))
    return out


@pytest.mark.parametrize("chunk_size", [0, 16])
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_outputs_and_states_follow_the_recurrence(row, chunk_size):
    check(make(**row), chunk_size)


@pytest.mark.parametrize(("length", "chunk_size"), [(129, 0), (127, 64), (4096, 512)])
def test_long_prompts_of_any_length_keep_the_budget(length, chunk_size):
    check(make(lengths=(length,), dim=4, d_state=4, z=False, dt_softplus=False), chunk_size)


@pytest.mark.parametrize("chunk_size", [0, 8])
@pytest.mark.parametrize("step", [1e-6, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("rate", [1e-5, 1.0, 16.0, 1e4])
def test_steps_and_decay_rates_at_their_extremes_neither_overflow_nor_vanish(
    step, rate, chunk_size
):
    inputs = make(lengths=(12,), dim=4)
    # softplus makes the steps of these
    dt = torch.tensor(step, dtype=torch.float64)
    inputs["dt"].fill_(float(dt if step > 20 else dt.expm1().log()))
    inputs["dt_bias"] = None
    inputs["A"] *= rate
    check(inputs, chunk_size)


@pytest.mark.parametrize("chunk_size", [0, 16])
@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_every_memory_order_gives_the_same_bits(order, chunk_size, pool_of, assert_same_bits):
    inputs = make(lengths=(5, 19))
    keep(inputs, (20, 7))
    pool = pool_of(inputs["ssm_state"], order)
    out = selective_scan(**inputs, chunk_size=chunk_size)
    moved = selective_scan(**(inputs | {"ssm_state": pool.view}), chunk_size=chunk_size)
    assert_same_bits(moved, out)
    assert_same_bits(pool.view, inputs["ssm_state"])


@pytest.mark.parametrize("chunk_size", [0, 16])
@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_nothing_is_touched_but_the_blocks_of_sequences_and_checkpoints(
    state_dtype, chunk_size, pool_of, assert_same_bits
):
    inputs = make(lengths=(5, 0, 3, 41, 9), state_dtype=state_dtype)
    inputs["state_indices"] = torch.tensor([2, 3, 0, 5, -1], dtype=torch.int32)
    keep(inputs, (2, 0), (3, 7), (6, 8), (40, 9), (48, -1), (51, 10), (58, 11))
    written = [2, 5, 7, 9]
    untouched = [block for block in range(13) if block not in {2, 5}]
    inputs["ssm_state"][untouched] = NAN
    inputs["x"][5:8], inputs["dt"][49:] = NAN, NAN
    pool = pool_of(inputs["ssm_state"], (1, 0, 2))
    expected = pool.memory.clone()
    wide = torch.full((60, 25), NAN)
    out = wide[1:-1, 2:-3]
    result = selective_scan(**(inputs | {"ssm_state": pool.view}), out=out, chunk_size=chunk_size)
    assert result is out
    assert (out[5:8] == 0).all()
    assert (out[49:] == 0).all()
    assert out.isfinite().all()
    assert pool.view[written].isfinite().all()
    pool.view[written] = inputs["ssm_state"][written]
    assert_same_bits(pool.memory, expected)
    out.fill_(NAN)
    assert wide.isnan().all()


@pytest.mark.parametrize("chunk_size", [0, 16])
def test_a_state_is_not_read_without_has_initial_state(chunk_size):
    """A block that another owner left full of NaN, or of anything, is a fresh one."""
    inputs = make(initial=False)
    expected = selective_scan(**inputs, chunk_size=chunk_size)
    inputs["ssm_state"].fill_(NAN)
    assert torch.equal(selective_scan(**inputs, chunk_size=chunk_size), expected)


@pytest.mark.parametrize("chunk_size", [0, 8])
def test_the_state_after_a_checkpoint_is_the_state_of_a_prompt_that_ends_there(chunk_size):
    """A prefix resumed at token N must not get the state of N + 1, also where N ends a chunk."""
    inputs = make(lengths=(3, 40), initial=False)
    ends = (0, 7, 8, 16, 39)
    keep(inputs, *((3 + end, 4 + i) for i, end in enumerate(ends)))
    inputs["ssm_state"] = torch.full((12, 20, 16), NAN)
    selective_scan(**inputs, chunk_size=chunk_size)
    for i, end in enumerate(ends):
        rows = {name: inputs[name][3 : 4 + end] for name in BY_TOKEN}
        alone: dict[str, Any] = inputs | rows
        alone |= {
            "ssm_state": torch.full((2, 20, 16), NAN),
            "state_indices": torch.tensor([1], dtype=torch.int32),
            "query_start_loc": torch.tensor([0, end + 1], dtype=torch.int32),
            "has_initial_state": torch.tensor([False]),
            "checkpoint_tokens": None,
            "checkpoint_indices": None,
        }
        selective_scan(**alone, chunk_size=chunk_size)
        torch.testing.assert_close(inputs["ssm_state"][4 + i], alone["ssm_state"][1])


@pytest.mark.parametrize("cut", [(1, 40), (16, 25), (17, 24), (40, 1), (13, 13, 15)], ids=str)
def test_a_prompt_in_pieces_ends_as_one_call_does(cut):
    """The state of a piece that ended anywhere reaches the next, in a batch of one."""
    inputs = make(lengths=(41,), initial=False)
    state = inputs["ssm_state"].clone()
    whole = selective_scan(**inputs, chunk_size=16)
    outs, start = [], 0
    for i, length in enumerate(cut):
        rows = {name: inputs[name][start : start + length] for name in BY_TOKEN}
        rows |= {
            "ssm_state": state,
            "query_start_loc": torch.tensor([0, length], dtype=torch.int32),
            "has_initial_state": torch.tensor([i > 0]),
        }
        outs.append(selective_scan(**(inputs | rows), chunk_size=16))
        start += length
    torch.testing.assert_close(torch.cat(outs), whole)
    torch.testing.assert_close(state, inputs["ssm_state"])


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    chunk_size=st.sampled_from([0, 8, 32]),
)
def test_sequences_of_a_batch_do_not_see_each_other(lengths, chunk_size):
    with torch.device(DEVICE):
        inputs = make(lengths=tuple(lengths), dim=3, d_state=4)
        states = inputs["ssm_state"].clone()
        out = selective_scan(**inputs, chunk_size=chunk_size)
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
            assert torch.equal(selective_scan(**(inputs | alone), chunk_size=chunk_size), out[rows])
        assert torch.equal(states, inputs["ssm_state"])


@pytest.mark.parametrize("chunk_size", [0, 16])
@pytest.mark.parametrize("target", ["x", "z", "dt"])
def test_the_result_may_replace_an_input(target, chunk_size, assert_same_bits):
    inputs = make()
    state = inputs["ssm_state"].clone()
    expected = selective_scan(**inputs, chunk_size=chunk_size)
    out = inputs[target]
    replaced = inputs | {"ssm_state": state}
    assert selective_scan(**replaced, out=out, chunk_size=chunk_size) is out
    assert_same_bits(out, expected)


def test_inputs_may_lie_in_any_order_of_memory(assert_same_bits):
    inputs = make(lengths=(5, 19))
    keep(inputs, (20, 7))
    moved: dict[str, Any] = {
        name: turned(value) if isinstance(value, Tensor) and name != "ssm_state" else value
        for name, value in inputs.items()
    }
    moved["ssm_state"] = inputs["ssm_state"].clone()
    expected = selective_scan(**inputs)
    out = torch.full((20, 24), NAN).T
    assert_same_bits(selective_scan(**moved, out=out), expected)
    assert_same_bits(moved["ssm_state"], inputs["ssm_state"])


@pytest.mark.parametrize("chunk_size", [0, 8])
def test_block_ids_times_strides_may_pass_2_to_the_31(
    chunk_size, overflow_is_an_error, assert_same_bits
):
    if not INTERPRET:
        pytest.skip("lazily mapped memory is the interpreter's")
    far, inputs = 65_537, make(lengths=(12,), dim=16)
    keep(inputs, (4, 3))
    state = lazy_pool((far + 1, 16, 16), (32_768, 16, 1), F32)
    state[far] = inputs["ssm_state"][2]
    moved: dict[str, Any] = inputs | {
        "ssm_state": state,
        "state_indices": torch.tensor([far], dtype=torch.int32),
        "checkpoint_indices": torch.tensor([far - 1], dtype=torch.int32),
    }
    out = selective_scan(**moved, chunk_size=chunk_size)
    assert_same_bits(out, selective_scan(**inputs, chunk_size=chunk_size))
    assert_same_bits(state[far], inputs["ssm_state"][2])
    assert_same_bits(state[far - 1], inputs["ssm_state"][3])


def test_sequences_are_cut_only_where_whole_ones_leave_processors_idle():
    assert choose_chunk(num_tokens=8192, num_seqs=1, dim=8192, processors=132) == 0
    assert choose_chunk(num_tokens=64, num_seqs=1, dim=1024, processors=132) == 0
    assert choose_chunk(num_tokens=8192, num_seqs=1, dim=1024, processors=132) == 512
    assert choose_chunk(num_tokens=16384, num_seqs=2, dim=1024, processors=132) == 1024
