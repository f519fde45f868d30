"""What holds of Mamba-2's updates over a ring, on CPUs and in Triton.

`rings` has both functions; `test_ssd_ring_update.py` of a folder says which, and collects the laws.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from blockstride.kernels import StateRing
from tests.kernels.gpu.support.recurrences import recurrence
from tests.kernels.recurrences import (
    EXACT,
    INF,
    NAN,
    Arguments,
    Tolerance,
    as_step,
    assert_close_by_row,
    by_token,
    ssd,
)


class Rings(NamedTuple):
    """A step over a ring, and the end of all of them."""

    update: Callable[..., Tensor]
    fold: Callable[[Tensor, StateRing, Tensor], None]
    in_company: Tolerance = EXACT  # of other sequences, or strides of pools, in the call

    def stepped(self, inputs: Arguments, steps: range) -> Tensor:
        """Outputs of single steps, one after the other."""
        tokens = [{name: tensor[:, t] for name, tensor in by_token(inputs).items()} for t in steps]
        return torch.stack([self.update(**(inputs | token)) for token in tokens], dim=1)

    def folded(self, inputs: Arguments) -> None:
        """Leave in each state what it and its ring are together."""
        self.fold(inputs["ssm_state"], inputs["ring"], inputs["state_indices"])


def with_ring(prompts: Arguments, num_new: int, length: int = 3) -> Arguments:
    """The steps of prompts of `num_new` tokens, and empty rings full of poison."""
    num_blocks, num_heads, head_dim, d_state = prompts["ssm_state"].shape
    num_groups, dtype = prompts["B"].shape[1], prompts["B"].dtype
    ring = StateRing(
        torch.full((num_blocks, length, num_heads, head_dim), NAN),
        torch.full((num_blocks, length, num_groups, d_state), NAN, dtype=dtype),
        torch.full((num_blocks, length, num_heads), NAN),
        torch.zeros(num_blocks, num_heads),
    )
    steps: Arguments = as_step(prompts, num_new) | {"ring": ring}
    if steps["D"] is not None:
        # parameters may be finer than activations
        steps["D"] = steps["D"].float()
    return steps


def make(num_seqs: int = 2, steps: int = 8, length: int = 3, **options: Any) -> Arguments:
    """Inputs of some steps; the axes are sequences and steps."""
    sizes: Arguments = {"num_heads": 2, "num_groups": 1, "head_dim": 16}
    prompts = ssd(lengths=(steps,) * num_seqs, **(sizes | options))
    return with_ring(prompts, steps, length)


def test_a_state_is_written_when_its_ring_is_full_and_not_before(rings):
    inputs = make(steps=5)
    before = inputs["ssm_state"].clone()
    for t in range(5):
        rings.stepped(inputs, range(t, t + 1))
        assert torch.equal(inputs["ssm_state"], before) == (t < 3)
        assert (inputs["ring"].held[2:4] == (1, 2, 3, 0, 1)[t]).all()


def test_sequences_fill_their_rings_apart(rings):
    inputs = make(steps=4)
    rings_alone = StateRing(*(part.clone() for part in inputs["ring"]))
    alone = inputs | {"ssm_state": inputs["ssm_state"].clone(), "ring": rings_alone}
    names = (*by_token(inputs), "state_indices")
    rings.stepped(inputs | {name: inputs[name][1:] for name in names}, range(2))
    together = rings.stepped(inputs, range(4))
    first = rings.stepped(alone | {name: inputs[name][:1] for name in names}, range(4))
    assert_close(first, together[:1], **rings.in_company)


@pytest.mark.parametrize("fold_after", [2, 4, 6])
def test_after_a_decay_to_zero_a_ring_keeps_the_small_ones(rings, fold_after):
    """Neither a difference of two infinite sums, nor one of two huge ones, tells them."""
    prompts = ssd(lengths=(6, 6), num_heads=4, num_groups=1, head_dim=16, dt_bias=False)
    prompts["A"][0], prompts["A"][1] = -INF, -1e8
    # a token that lets all heads forget, and brings nothing
    prompts["dt"][1::6], prompts["x"][1::6] = 1e30, 0
    exact, states = recurrence(**prompts)
    inputs = with_ring(prompts, 6, length=5)
    outs = []
    for steps in (range(fold_after), range(fold_after, 6)):
        outs += [rings.stepped(inputs, range(t, t + 1)) for t in steps]
        rings.folded(inputs)
    assert_close_by_row(torch.cat(outs, dim=1).flatten(0, 1), exact)
    assert_close_by_row(inputs["ssm_state"], states)


def test_padding_gives_zeros_and_touches_neither_states_nor_rings(rings, assert_same_bits):
    inputs = make(num_seqs=3)
    inputs["state_indices"] = torch.tensor([0, -1, 0], dtype=torch.int32)
    pools = [inputs["ssm_state"], *inputs["ring"]]
    before = [pool.clone() for pool in pools]
    assert (rings.stepped(inputs, range(5)) == 0).all()
    rings.folded(inputs)
    for pool, kept in zip(pools, before, strict=True):
        assert_same_bits(pool, kept)


def test_an_empty_ring_folds_into_nothing(rings, assert_same_bits):
    inputs = make()
    before = inputs["ssm_state"].clone()
    rings.folded(inputs)
    assert_same_bits(inputs["ssm_state"], before)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (3, 1, 0, 2)], ids=str)
def test_every_memory_order_gives_the_same(rings, order, pool_of):
    inputs = make()
    state, x, B = (pool_of(part, order).view for part in (inputs["ssm_state"], *inputs["ring"][:2]))
    ring = StateRing(x, B, *(part.clone() for part in inputs["ring"][2:]))
    out = rings.stepped(inputs, range(6))
    moved = rings.stepped(inputs | {"ssm_state": state, "ring": ring}, range(6))
    assert_close(moved, out, **rings.in_company)
    assert_close(state, inputs["ssm_state"], **rings.in_company)
