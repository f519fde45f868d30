from functools import partial

import pytest
import torch

from blockstride.kernels import fold_state_ring, ssd_ring_update, ssd_state_update
from tests.kernels import ring_laws
from tests.kernels.recurrences import BF16, CLOSE, F32, by_token
from tests.kernels.ring_laws import *  # noqa: F403

make = partial(ring_laws.make, num_seqs=3, num_heads=4, num_groups=2, head_dim=10)


@pytest.fixture
def rings() -> ring_laws.Rings:
    return ring_laws.Rings(ssd_ring_update, fold_state_ring, CLOSE)


@pytest.mark.parametrize("length", [1, 3, 5, 16])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_steps_over_a_ring_are_steps_without_one_and_folding_gives_the_state(rings, length, dtype):
    inputs = make(steps=9, length=length, dtype=dtype)
    plain = {name: value for name, value in inputs.items() if name != "ring"}
    plain["ssm_state"] = inputs["ssm_state"].clone()
    expected = []
    for t in range(9):
        token = {name: tensor[:, t] for name, tensor in by_token(inputs).items()}
        expected.append(ssd_state_update(**(plain | token)))
    torch.testing.assert_close(rings.stepped(inputs, range(9)), torch.stack(expected, dim=1))
    rings.folded(inputs)
    torch.testing.assert_close(inputs["ssm_state"], plain["ssm_state"], rtol=1e-5, atol=1e-5)
    assert (inputs["ring"].held == 0).all()


BAD_RINGS = {
    "x": torch.zeros(15, 3, 4, 9),
    "B": torch.zeros(15, 2, 2, 16),
    "log_decay": torch.zeros(15, 3, 5),
    "held": torch.zeros(14, 4),
}


@pytest.mark.parametrize("name", BAD_RINGS)
def test_a_ring_that_does_not_fit_its_states_is_refused(rings, name):
    inputs = make()
    inputs["ring"] = inputs["ring"]._replace(**{name: BAD_RINGS[name]})
    with pytest.raises(ValueError, match=rf"^ring\.{name}: expected shape"):
        rings.stepped(inputs, range(1))


def test_a_ring_longer_than_any_kernel_has_is_refused(rings):
    with pytest.raises(ValueError, match=r"^ring: expected from 1 to 16 tokens, got 17"):
        rings.stepped(make(length=17), range(1))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["dt", "A", "B", "C", "ssm_state", "D", "z", "dt_bias", "out"])
def test_a_wrong_argument_is_named(name):
    inputs = make()
    inputs |= {name: tensor[:, 0] for name, tensor in by_token(inputs).items()}
    inputs[name] = torch.zeros(2, 4, 17)
    with pytest.raises(ValueError, match=f"^{name}: expected "):
        ssd_ring_update(**inputs)
