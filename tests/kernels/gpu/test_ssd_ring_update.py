from copy import deepcopy
from typing import Any

import pytest
import torch
from support.budget import assert_within_budget
from support.pools import lazy_pool
from support.recurrences import recurrence
from torch import Tensor

from blockstride.kernels import StateRing
from blockstride.kernels.dispatch import INTERPRET
from blockstride.kernels.gpu import fold_state_ring, ssd_ring_update

DEVICE = "cpu" if INTERPRET else "cuda"
NAN = float("nan")
F32, BF16 = torch.float32, torch.bfloat16
BY_TOKEN = ("x", "dt", "B", "C", "z")

# a base row, then one changed factor a row
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "a-ring-of-one": {"length": 1},
    "a-ring-of-five": {"length": 5},
    "no-sequence": {"num_seqs": 0},
    "no-D": {"D": False},
    "no-z": {"z": False},
    "no-bias": {"dt_bias": False},
    "two-groups-of-two-heads": {"num_heads": 4, "num_groups": 2},
    "head_dim-20": {"head_dim": 20},
    "d_state-5": {"d_state": 5},
    "d_state-128": {"d_state": 128},
    "bf16": {"dtype": BF16},
}


@pytest.fixture(autouse=True)
def on_device():
    torch.manual_seed(0)
    with torch.device(DEVICE):
        yield


def make(
    num_seqs=2, steps=8, num_heads=2, head_dim=16, num_groups=1, d_state=16, length=3, dtype=F32,
    D=True, z=True, dt_bias=True,
) -> dict[str, Any]:  # fmt: skip
    """Inputs of some steps, in blocks 2, 3, ... of a pool; the axes are sequences and steps."""
    tokens, num_blocks = (num_seqs, steps), num_seqs + 3
    ring = StateRing(
        torch.full((num_blocks, length, num_heads, head_dim), NAN),
        torch.full((num_blocks, length, num_groups, d_state), NAN, dtype=dtype),
        torch.full((num_blocks, length, num_heads), NAN),
        torch.zeros(num_blocks, num_heads),
    )
    return {
        "x": torch.randn(*tokens, num_heads, head_dim).to(dtype),
        "dt": torch.rand(*tokens, num_heads).sub(0.3).to(dtype),
        "A": -torch.rand(num_heads) - 0.1,
        "B": torch.randn(*tokens, num_groups, d_state).to(dtype),
        "C": torch.randn(*tokens, num_groups, d_state).to(dtype),
        "ssm_state": torch.randn(num_blocks, num_heads, head_dim, d_state),
        "ring": ring,
        "state_indices": torch.arange(2, num_seqs + 2, dtype=torch.int32),
        "D": torch.randn(num_heads) if D else None,
        "z": torch.randn(*tokens, num_heads, head_dim).to(dtype) if z else None,
        "dt_bias": torch.randn(num_heads) if dt_bias else None,
    }


def stepped(inputs: dict[str, Any], steps: range) -> Tensor:
    """Outputs of single steps, one after the other."""
    outs = []
    for t in steps:
        token = {n: inputs[n][:, t] for n in BY_TOKEN if inputs[n] is not None}
        outs.append(ssd_ring_update(**(inputs | token)))
    return torch.stack(outs, dim=1)


def by_definition(inputs: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """All steps as prompts that go on from their states."""
    num_seqs, steps = inputs["x"].shape[:2]
    prompts = {name: value for name, value in inputs.items() if name != "ring"}
    prompts |= {n: inputs[n].flatten(0, 1) for n in BY_TOKEN if inputs[n] is not None}
    prompts["query_start_loc"] = torch.arange(0, num_seqs * steps + 1, steps, dtype=torch.int32)
    prompts["has_initial_state"] = torch.ones(num_seqs, dtype=torch.bool)
    out, states = recurrence(**prompts, dtype=dtype)
    return out.view(inputs["x"].shape), states


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_steps_over_a_ring_follow_the_recurrence_and_folding_gives_the_state(row):
    inputs = make(**row)
    exact, exact_states = by_definition(inputs, torch.float64)
    plain, plain_states = by_definition(inputs, F32)
    out = stepped(inputs, range(8))
    assert_within_budget(out, exact, plain.to(out.dtype))
    fold_state_ring(inputs["ssm_state"], inputs["ring"], inputs["state_indices"])
    assert_within_budget(inputs["ssm_state"], exact_states, plain_states)
    assert (inputs["ring"].held == 0).all()


def test_a_state_is_written_when_its_ring_is_full_and_not_before():
    inputs = make(steps=5)
    before = inputs["ssm_state"].clone()
    for t in range(5):
        stepped(inputs, range(t, t + 1))
        assert torch.equal(inputs["ssm_state"], before) == (t < 3)
        assert (inputs["ring"].held[2:4] == (1, 2, 3, 0, 1)[t]).all()


def test_sequences_fill_their_rings_apart(assert_same_bits):
    inputs = make(steps=4)
    alone = deepcopy(inputs)
    second = {n: inputs[n][1:] for n in (*BY_TOKEN, "state_indices")}
    stepped(inputs | second, range(2))
    together = stepped(inputs, range(4))
    second = {n: alone[n][:1] for n in (*BY_TOKEN, "state_indices")}
    assert_same_bits(stepped(alone | second, range(4)), together[:1])


@pytest.mark.parametrize("rate", [1e-5, 1.0, 1e4])
def test_decay_rates_at_their_extremes_neither_overflow_nor_vanish(rate):
    inputs = make(length=6)
    inputs["A"] *= rate
    inputs["dt"] += 20
    exact, _ = by_definition(inputs, torch.float64)
    plain, _ = by_definition(inputs, F32)
    assert_within_budget(stepped(inputs, range(8)), exact, plain)


def test_padding_gives_zeros_and_touches_neither_states_nor_rings(assert_same_bits):
    inputs = make()
    inputs["state_indices"] = torch.tensor([0, -1], dtype=torch.int32)
    pools = [inputs["ssm_state"], *inputs["ring"]]
    before = [pool.clone() for pool in pools]
    assert (stepped(inputs, range(5)) == 0).all()
    fold_state_ring(inputs["ssm_state"], inputs["ring"], inputs["state_indices"])
    for pool, kept in zip(pools, before, strict=True):
        assert_same_bits(pool, kept)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (3, 1, 0, 2)], ids=str)
def test_every_memory_order_gives_the_same_bits(order, pool_of, assert_same_bits):
    inputs = make()
    pools = [pool_of(inputs["ssm_state"], order).view, *inputs["ring"]]
    pools[1], pools[2] = (pool_of(ring, order).view for ring in pools[1:3])
    moved = {"ssm_state": pools[0], "ring": StateRing(*pools[1:3], *(p.clone() for p in pools[3:]))}
    out = stepped(inputs, range(6))
    assert_same_bits(stepped(inputs | moved, range(6)), out)
    assert_same_bits(pools[0], inputs["ssm_state"])


def test_block_ids_times_strides_may_pass_2_to_the_31(overflow_is_an_error, assert_same_bits):
    if not INTERPRET:
        pytest.skip("lazily mapped memory is the interpreter's")
    far, inputs = 65_537, make(num_seqs=1, steps=3, length=1)
    rings = []
    for pool in inputs["ring"]:
        strides = (32_768, *torch.empty(pool.shape[1:]).stride())
        rings.append(lazy_pool((far + 1, *pool.shape[1:]), strides, F32))
    state = lazy_pool((far + 1, 2, 16, 16), (32_768, 256, 16, 1), F32)
    state[far] = inputs["ssm_state"][2]
    indices = torch.tensor([far], dtype=torch.int32)
    moved = {"ssm_state": state, "ring": StateRing(*rings), "state_indices": indices}
    assert_same_bits(stepped(inputs | moved, range(3)), stepped(inputs, range(3)))
    assert_same_bits(state[far], inputs["ssm_state"][2])
