"""What holds of every recurrence a step at a time, on CPUs and in Triton.

`step` is each of them, `several` each that takes several tokens at once, `draft` each that can keep
the state after every token.
"""

from itertools import permutations

import pytest
import torch
from torch.testing import assert_close

from tests.kernels.recurrences import BF16, F32, INF, NAN, RATES, by_token


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_padding_of_either_id_gives_zeros_and_no_other_block_is_touched(
    step, state_dtype, pool_of, assert_same_bits
):
    inputs = step.make(num_seqs=4, state_dtype=state_dtype)
    inputs["state_indices"] = torch.tensor([3, 0, 5, -1], dtype=torch.int32)
    states, written, padding = inputs["ssm_state"], [3, 5], [1, 3]
    states[[block for block in range(len(states)) if block not in written]] = NAN
    for tensor in by_token(inputs).values():
        tensor[padding] = NAN
    pool = pool_of(states, (1, 0, *reversed(range(2, states.dim()))))
    expected = pool.memory.clone()
    around, out = pool_of(torch.full_like(inputs[step.replaceable[0]], NAN))
    assert step.function(**(inputs | {"ssm_state": pool.view}), out=out) is out
    assert (out[padding] == 0).all()
    assert out.isfinite().all()
    assert pool.view[written].isfinite().all()
    assert not torch.equal(pool.view[written], states[written])
    pool.view[written] = states[written]
    assert_same_bits(pool.memory, expected)
    out.fill_(NAN)
    assert around.isnan().all()


def test_a_sequence_of_a_step_does_not_depend_on_the_others(step):
    inputs = step.make(num_seqs=5)
    states = inputs["ssm_state"].clone()
    out = step.function(**inputs)
    for i in range(5):
        alone = {name: tensor[i : i + 1] for name, tensor in by_token(inputs).items()}
        alone |= {"state_indices": inputs["state_indices"][i : i + 1], "ssm_state": states}
        assert_close(step.function(**(inputs | alone)), out[i : i + 1], **step.in_company)
    assert_close(states, inputs["ssm_state"], **step.in_company)


def test_every_memory_order_gives_a_step_the_same_bits(step, pool_of, assert_same_bits):
    inputs = step.make()
    initial = inputs["ssm_state"].clone()
    out = step.function(**inputs)
    for order in permutations(range(initial.dim())):
        state = pool_of(initial, order).view
        assert_same_bits(step.function(**(inputs | {"ssm_state": state})), out)
        assert_same_bits(state, inputs["ssm_state"])


def test_the_result_of_a_step_may_replace_an_input(step, assert_same_bits):
    for name in step.replaceable:
        inputs = step.make()
        expected = step.function(**(inputs | {"ssm_state": inputs["ssm_state"].clone()}))
        assert step.function(**inputs, out=inputs[name]) is inputs[name]
        assert_same_bits(inputs[name], expected)


def test_ids_times_strides_of_a_step_may_pass_2_to_the_31(
    step, lazy_memory, overflow_is_an_error, assert_same_bits
):
    # blocks far apart, then heads, then rows; never the numbers of a row
    for axis in range(step.make()["ssm_state"].dim() - 1):
        inputs = step.make(num_seqs=1)
        dense = inputs["ssm_state"]
        if dense.is_cuda:
            pytest.skip("no device has memory that takes no room")
        shape, strides = (3, *dense.shape[1:]), list(dense.stride())
        # the stride itself fits 31 bits
        strides[axis] = 2**31 // (shape[axis] - 1) + 16
        last = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
        state = lazy_memory(last + 1, F32).as_strided(shape, strides)
        state[2] = dense[2]
        out = step.function(**(inputs | {"ssm_state": state}))
        assert_same_bits(out, step.function(**inputs))
        assert_same_bits(state[2], dense[2])


def test_a_step_that_decays_everything_is_one_to_minus_infinity(step, assert_same_bits):
    inputs = step.make()
    # every other channel or head forgets, by a rate or by a gate
    name = next(name for name in RATES if name in inputs)
    place = (..., slice(0, None, 2)) if name == "g" else slice(0, None, 2)
    low = inputs | {name: inputs[name].clone(), "ssm_state": inputs["ssm_state"].clone()}
    low[name][place], inputs[name][place] = -1e30, -INF
    out = step.function(**inputs)
    assert out.isfinite().all()
    assert_same_bits(out, step.function(**low))
    assert_same_bits(inputs["ssm_state"], low["ssm_state"])


def test_several_tokens_are_as_many_steps(several):
    inputs = several.make(num_new=5)
    states = inputs["ssm_state"].clone()
    steps = []
    for t in range(5):
        token = {name: tensor[:, t] for name, tensor in by_token(inputs).items()}
        steps.append(several.function(**(inputs | token | {"ssm_state": states})))
    assert_close(several.function(**inputs), torch.stack(steps, dim=1), **several.in_pieces)
    assert_close(inputs["ssm_state"], states, **several.in_pieces)


def test_one_token_needs_no_axis_of_its_own(several, assert_same_bits):
    inputs = several.make(num_new=1)
    flat = {name: tensor[:, 0] for name, tensor in by_token(inputs).items()}
    flat["ssm_state"] = inputs["ssm_state"].clone()
    expected = several.function(**inputs)
    assert_same_bits(several.function(**(inputs | flat)), expected[:, 0])
    assert_same_bits(flat["ssm_state"], inputs["ssm_state"])


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_the_state_after_each_token_of_a_draft_is_that_of_a_step_that_ends_there(
    draft, state_dtype, assert_same_bits
):
    inputs = draft.make(num_seqs=4, num_new=3, state_dtype=state_dtype)
    inputs["state_indices"][3] = 0
    kept = torch.tensor([[7, 8, 9], [3, 0, 10], [11, 4, -1], [12, 13, 14]], dtype=torch.int32)
    initial = inputs["ssm_state"].clone()
    expected = initial.clone()
    wanted = draft.function(**(inputs | {"ssm_state": initial.clone()}))
    for t in range(3):
        states = initial.clone()
        some = {name: tensor[:, : t + 1] for name, tensor in by_token(inputs).items()}
        draft.function(**(inputs | some | {"ssm_state": states}))
        for i, block in enumerate(kept[:3, t].tolist()):
            if block > 0:
                expected[block] = states[2 + i]
    out = draft.function(**inputs, checkpoint_indices=kept)
    assert_same_bits(out, wanted)
    assert_same_bits(inputs["ssm_state"], expected)
