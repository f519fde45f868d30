"""Whole generations with every annotated shape checked; other tests of models leave that out."""

import jaxtyping
import pytest
import torch

from blockstride import kernels
from tests.models.conftest import FAMILIES
from tests.models.generations import generate, tokens

pytestmark = pytest.mark.shapes


@pytest.mark.parametrize("policy", ["split", "unified"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_shape_of_a_step_is_as_its_signature_says(make_reference, family, policy):
    reference = make_reference(family=family)
    prompts = [tokens(259, n, seed=n) for n in (19, 1, 8)]
    outputs, _ = generate(
        reference.path, prompts, count=6, policy=policy, prefill_chunk=7, poison=True
    )
    assert [len(output) for output in outputs] == [6, 6, 6]


def test_a_shape_that_differs_is_seen_here():
    with pytest.raises(jaxtyping.TypeCheckError):
        kernels.rms_norm(torch.zeros(3, 8), torch.zeros(1, 8), 1e-6)
