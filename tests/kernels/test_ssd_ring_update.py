from typing import Any

import pytest
import torch
from torch import Tensor

from blockstride.kernels import StateRing, fold_state_ring, ssd_ring_update, ssd_state_update

NAN = float("nan")
F32, BF16 = torch.float32, torch.bfloat16
BY_TOKEN = ("x", "dt", "B", "C", "z")


def make(
    num_seqs=3, steps=9, num_heads=4, head_dim=10, num_groups=2, d_state=16, length=3, dtype=F32
) -> dict[str, Any]:
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
        "dt": torch.rand(*tokens, num_heads).to(dtype),
        "A": -torch.rand(num_heads) - 0.1,
        "B": torch.randn(*tokens, num_groups, d_state).to(dtype),
        "C": torch.randn(*tokens, num_groups, d_state).to(dtype),
        "ssm_state": torch.randn(num_blocks, num_heads, head_dim, d_state),
        "ring": ring,
        "state_indices": torch.arange(2, num_seqs + 2, dtype=torch.int32),
        "D": torch.randn(num_heads),
        "z": torch.randn(*tokens, num_heads, head_dim).to(dtype),
        "dt_bias": torch.randn(num_heads),
    }


def stepped(inputs: dict[str, Any], steps: range) -> Tensor:
    """Outputs of single steps, one after the other."""
    return torch.stack(
        [
            ssd_ring_update(**(inputs | {name: inputs[name][:, t] for name in BY_TOKEN}))
            for t in steps
        ],
        dim=1,
    )


@pytest.mark.parametrize("length", [1, 3, 5, 16])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_steps_over_a_ring_are_steps_without_one_and_folding_gives_the_state(length, dtype):
    inputs = make(length=length, dtype=dtype)
    plain = {name: value for name, value in inputs.items() if name != "ring"}
    plain["ssm_state"] = inputs["ssm_state"].clone()
    expected = [
        ssd_state_update(**(plain | {n: plain[n][:, t] for n in BY_TOKEN})) for t in range(9)
    ]
    torch.testing.assert_close(stepped(inputs, range(9)), torch.stack(expected, dim=1))
    fold_state_ring(inputs["ssm_state"], inputs["ring"], inputs["state_indices"])
    torch.testing.assert_close(inputs["ssm_state"], plain["ssm_state"], rtol=1e-5, atol=1e-5)
    assert (inputs["ring"].held == 0).all()


def test_a_state_is_written_when_its_ring_is_full_and_not_before():
    inputs = make(steps=5)
    before = inputs["ssm_state"].clone()
    for t in range(5):
        stepped(inputs, range(t, t + 1))
        assert torch.equal(inputs["ssm_state"], before) == (t < 3)
        assert (inputs["ring"].held[2:5] == (1, 2, 3, 0, 1)[t]).all()


def test_padding_gives_zeros_and_touches_neither_states_nor_rings(assert_same_bits):
    inputs = make()
    inputs["state_indices"] = torch.tensor([0, -1, 0], dtype=torch.int32)
    pools = [inputs["ssm_state"], *inputs["ring"]]
    before = [pool.clone() for pool in pools]
    assert (stepped(inputs, range(5)) == 0).all()
    fold_state_ring(inputs["ssm_state"], inputs["ring"], inputs["state_indices"])
    for pool, kept in zip(pools, before, strict=True):
        assert_same_bits(pool, kept)


def test_an_empty_ring_folds_into_nothing(assert_same_bits):
    inputs = make()
    before = inputs["ssm_state"].clone()
    fold_state_ring(inputs["ssm_state"], inputs["ring"], inputs["state_indices"])
    assert_same_bits(inputs["ssm_state"], before)


BAD_RINGS = {
    "x": torch.zeros(6, 3, 4, 9),
    "B": torch.zeros(6, 2, 2, 16),
    "log_decay": torch.zeros(6, 3, 5),
    "held": torch.zeros(5, 4),
}


@pytest.mark.parametrize("name", BAD_RINGS)
def test_a_ring_that_does_not_fit_its_states_is_refused(name):
    inputs = make()
    inputs["ring"] = inputs["ring"]._replace(**{name: BAD_RINGS[name]})
    with pytest.raises(ValueError, match=rf"^ring\.{name}: expected shape"):
        stepped(inputs, range(1))


def test_a_ring_longer_than_any_kernel_has_is_refused():
    with pytest.raises(ValueError, match=r"^ring: expected from 1 to 16 tokens, got 17"):
        stepped(make(length=17), range(1))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["dt", "A", "B", "C", "ssm_state", "D", "z", "dt_bias", "out"])
def test_a_wrong_argument_is_named(name):
    inputs = make(steps=1)
    token = inputs | {n: inputs[n][:, 0] for n in BY_TOKEN}
    token[name] = torch.zeros(3, 4, 17)[:2]
    with pytest.raises(ValueError, match=f"^{name}: expected shape"):
        ssd_ring_update(**token)
