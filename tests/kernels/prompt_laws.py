"""What holds of every recurrence over prompts, on CPUs and in Triton: `scan` is each of them.

The `test_recurrences.py` of a folder says which those are, and collects the laws from here.
"""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from blockstride.kernels.common.dispatch import INTERPRET
from tests.kernels.gpu.support.budget import by_reference
from tests.kernels.recurrences import (
    BF16,
    F32,
    INF,
    NAN,
    STEPS,
    assert_close_by_row,
    by_token,
    keep,
    piece,
    turned,
)

# the interpreter is slow; either way there are chunks that are whole, and parts of them
LAW, LONGEST = (settings(max_examples=5), 35) if INTERPRET else (settings(), 70)


def test_a_state_is_not_read_without_has_initial_state(scan):
    """A block that another owner left full of NaN, or of anything, is a fresh one."""
    inputs = scan.make(initial=False)
    expected = scan.function(**inputs)
    inputs["ssm_state"].fill_(NAN)
    assert torch.equal(scan.function(**inputs), expected)


# before, at and behind the ends of chunks; nowhere near one; a piece longer than any chunk
@pytest.mark.parametrize("cut", [(1, 15, 1, 47, 1, 5), (13, 13, 44), (4, 66)], ids=str)
def test_a_prompt_in_pieces_ends_as_one_call_does(scan, cut):
    """The state of a piece that ended anywhere reaches the next, in a batch of one."""
    inputs = scan.make(lengths=(70,), initial=False)
    state = inputs["ssm_state"].clone()
    whole = scan.function(**inputs)
    outs, start = [], 0
    for length in cut:
        part = piece(inputs, 0, start, start + length, initial=start > 0)
        outs.append(scan.function(**(part | {"ssm_state": state})))
        start += length
    assert_close(torch.cat(outs), whole, **scan.in_pieces)
    assert_close(state, inputs["ssm_state"], **scan.in_pieces)


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_the_state_after_a_checkpoint_is_the_state_of_a_prompt_that_ends_there(scan, state_dtype):
    """A prefix resumed at token N must not get the state of N + 1, also where N ends a chunk."""
    inputs = scan.make(lengths=(3, 70), state_dtype=state_dtype)
    initial = inputs["ssm_state"].clone()
    tokens = (2, 3, 10, 11, 19, 66, 72) if state_dtype == F32 else (2, 19, 66)
    keep(inputs, *((token, 4 + i) for i, token in enumerate(tokens)))
    scan.function(**inputs)
    for block, token in enumerate(tokens, 4):
        i, start = (0, 0) if token < 3 else (1, 3)
        alone = piece(inputs, i, start, token + 1, initial=True) | {"ssm_state": initial.clone()}
        scan.function(**alone)
        assert_close(inputs["ssm_state"][block], alone["ssm_state"][2 + i], **scan.in_pieces)


@LAW
@given(lengths=st.lists(st.integers(0, LONGEST), max_size=4))
def test_a_sequence_does_not_depend_on_its_batch(scan, lengths):
    inputs = scan.make(lengths=tuple(lengths))
    states = inputs["ssm_state"].clone()
    out, starts = scan.function(**inputs), inputs["query_start_loc"].tolist()
    for i in range(len(lengths)):
        alone = piece(inputs, i, starts[i], starts[i + 1], initial=True) | {"ssm_state": states}
        rows = scan.function(**alone)
        assert_close(rows, out[starts[i] : starts[i + 1]], **scan.in_company)
    assert_close(states, inputs["ssm_state"], **scan.in_company)


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_nothing_is_touched_but_the_blocks_of_sequences_and_checkpoints(
    scan, state_dtype, pool_of, assert_same_bits
):
    inputs = scan.make(lengths=(5, 0, 3, 70, 9), state_dtype=state_dtype)
    inputs["state_indices"] = torch.tensor([2, 3, 0, 5, -1], dtype=torch.int32)
    keep(inputs, (2, 0), (3, 7), (6, 8), (40, 9), (77, -1), (80, 10), (87, 11))
    states, written, padding = inputs["ssm_state"], [2, 5, 7, 9], [*range(5, 8), *range(78, 87)]
    states[[block for block in range(len(states)) if block not in {2, 5}]] = NAN
    for tensor in by_token(inputs).values():
        tensor[padding] = NAN
    pool = pool_of(states, (1, 0, *reversed(range(2, states.dim()))))
    expected = pool.memory.clone()
    around, out = pool_of(torch.full_like(inputs[scan.replaceable[0]], NAN))
    assert scan.function(**(inputs | {"ssm_state": pool.view}), out=out) is out
    assert (out[padding] == 0).all()
    assert out.isfinite().all()
    assert pool.view[written].isfinite().all()
    pool.view[written] = states[written]
    assert_same_bits(pool.memory, expected)
    out.fill_(NAN)
    assert around.isnan().all()


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_a_batch_of_nothing_but_padding_gives_zeros_and_touches_nothing(
    scan, state_dtype, assert_same_bits
):
    inputs = scan.make(lengths=(3, 0, 4), state_dtype=state_dtype)
    inputs["state_indices"] = torch.tensor([0, 2, -1], dtype=torch.int32)
    keep(inputs, (1, 3), (3, 4), (7, 5))
    inputs["ssm_state"].fill_(NAN)
    before = inputs["ssm_state"].clone()
    assert (scan.function(**inputs) == 0).all()
    assert_same_bits(inputs["ssm_state"], before)


@pytest.mark.parametrize("lengths", [(5, 0, 33), ()], ids=str)
def test_rows_behind_the_last_sequence_are_zero_and_touch_nothing(
    scan, lengths, pool_of, assert_same_bits
):
    """A step of fewer tokens than it has room for, as a padding sequence at its end would be."""
    inputs, num_tokens = scan.make(lengths=lengths), sum(lengths)
    keep(inputs, (0, 9), (num_tokens, 10), (num_tokens + 20, 11))
    inputs["ssm_state"][[1, *range(9, len(inputs["ssm_state"]))]] = NAN
    slack = {
        name: part.new_full((21, *part.shape[1:]), NAN) for name, part in by_token(inputs).items()
    }
    padded = inputs | {name: torch.cat([inputs[name], rows]) for name, rows in slack.items()}
    initial = inputs["ssm_state"].clone()
    pool = pool_of(initial)
    memory = pool.memory.clone()
    around, out = pool_of(torch.full_like(padded[scan.replaceable[0]], NAN))
    scan.function(**(padded | {"ssm_state": pool.view}), out=out)
    assert_same_bits(out[:num_tokens], scan.function(**inputs))
    assert_same_bits(pool.view, inputs["ssm_state"])
    assert (out[num_tokens:] == 0).all()
    out.fill_(NAN)
    assert around.isnan().all()
    pool.view.copy_(initial)
    assert_same_bits(pool.memory, memory)


LIMITS = {
    "every rate minus infinity": ("A", ..., -INF),
    "some rates minus infinity": ("A", slice(1, None, 2), -INF),
    "a step of minus infinity": ("dt", 7, -INF),
    "a huge step": ("dt", 7, 1e30),
    "a step of infinity": ("dt", 7, INF),
    "every state is kept": ("recurrence_gate", ..., -INF),
    "a gate is open": ("recurrence_gate", 7, 1e30),
    "an input is kept out": ("input_gate", 7, -1e30),
    "every gate minus infinity": ("g", ..., -INF),
    "some gates minus infinity": ("g", slice(3, None, 5), -INF),
}


# numpy warns of what the interpreter computes with
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("limit", LIMITS)
def test_decays_to_zero_and_steps_without_end_are_as_in_float64(scan, limit):
    """A difference of two infinite sums, or zero times infinity, would be NaN."""
    inputs, (name, place, value) = scan.make(lengths=(40, 3)), LIMITS[limit]
    if name not in inputs:
        pytest.skip(f"no {name}")
    inputs[name][place] = value
    keep(inputs, (4, 9), (41, 10))
    exact, states = by_reference(scan.reference, inputs)
    out = scan.function(**inputs)
    if value == INF:
        # what comes after such a step is not finite in float64 either
        assert not exact[7:40].isfinite().any()
        exact, out = (torch.cat([part[:7], part[40:]]) for part in (exact, out))
        states[2], inputs["ssm_state"][2] = 0, 0
    assert_close_by_row(out, exact)
    assert_close_by_row(inputs["ssm_state"], states)


# numpy warns of what the interpreter computes with
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_step_that_is_no_number_is_seen_in_its_own_sequence_alone(scan):
    inputs = scan.make(lengths=(40, 3))
    alone = piece(inputs, 1, 40, 43, initial=True) | {"ssm_state": inputs["ssm_state"].clone()}
    wanted = scan.function(**alone)
    inputs[next(name for name in STEPS if name in inputs)][7] = NAN
    out = scan.function(**inputs)
    assert out[7:40].isnan().all()
    assert inputs["ssm_state"][2].isnan().all()
    assert_close(out[40:], wanted, **scan.in_company)


def test_every_memory_order_gives_the_same_bits(scan, pool_of, assert_same_bits):
    # strides count where a state is read, passed and left, however many tokens lie between
    inputs = scan.make(lengths=(9,))
    keep(inputs, (7, 7))
    initial = inputs["ssm_state"].clone()
    out = scan.function(**inputs)
    for order in permutations(range(initial.dim())):
        state = pool_of(initial, order).view
        assert_same_bits(scan.function(**(inputs | {"ssm_state": state})), out)
        assert_same_bits(state, inputs["ssm_state"])


def test_inputs_and_result_may_lie_in_any_order_of_memory(scan):
    inputs = scan.make(lengths=(5, 19))
    keep(inputs, (20, 7))
    moved = {
        name: turned(value) if isinstance(value, Tensor) else value
        for name, value in inputs.items()
    }
    moved["ssm_state"] = inputs["ssm_state"].clone()
    out = turned(torch.full_like(inputs[scan.replaceable[0]], NAN))
    expected = scan.function(**inputs)
    assert scan.function(**moved, out=out) is out
    assert_close(out, expected, **scan.in_company)
    assert_close(moved["ssm_state"], inputs["ssm_state"], **scan.in_company)


def test_the_result_may_replace_an_input(scan, assert_same_bits):
    for name in scan.replaceable:
        inputs = scan.make()
        expected = scan.function(**(inputs | {"ssm_state": inputs["ssm_state"].clone()}))
        assert scan.function(**inputs, out=inputs[name]) is inputs[name]
        assert_same_bits(inputs[name], expected)


def test_block_ids_times_strides_may_pass_2_to_the_31(
    scan, lazy_memory, overflow_is_an_error, assert_same_bits
):
    inputs = scan.make(lengths=(20,))
    if inputs["ssm_state"].is_cuda:
        pytest.skip("no device has memory that takes no room")
    keep(inputs, (4, 3))
    dense, stride = inputs["ssm_state"], 2**30 + 8
    state = lazy_memory(3 * stride + dense[0].numel(), F32).as_strided(
        (4, *dense.shape[1:]), (stride, *dense.stride()[1:])
    )
    state[3] = dense[2]
    moved = inputs | {
        "ssm_state": state,
        "state_indices": torch.tensor([3], dtype=torch.int32),
        "checkpoint_indices": torch.tensor([2], dtype=torch.int32),
    }
    assert_same_bits(scan.function(**moved), scan.function(**inputs))
    assert_same_bits(state[3], dense[2])
    assert_same_bits(state[2], dense[3])
