"""Choosing experts, beside the choice by definition in float64."""

from itertools import product

import pytest
import torch

from blockstride.kernels import choose_experts
from blockstride.kernels.mlp import reference

NAN, INFINITY = float("nan"), float("inf")
HOW = [
    {"is_sigmoid": is_sigmoid, "is_renormalised": is_renormalised, **more}
    for is_sigmoid, is_renormalised, more in product(
        (False, True), (False, True), ({}, {"scale": 2.5, "floor": 0.25})
    )
]


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "top_k", "groups", "chosen"),
    [
        (0, 4, 2, 1, None),
        (1, 4, 1, 1, None),
        (40, 130, 8, 1, 1),
        (17, 24, 4, 4, 2),
        (5, 8, 3, 8, 3),
    ],
)
@pytest.mark.parametrize("is_corrected", [False, True])
def test_experts_and_weights_are_those_of_the_definition(
    num_tokens, num_experts, top_k, groups, chosen, is_corrected, how
):
    torch.manual_seed(num_experts)
    logits = 3 * torch.randn(num_tokens, num_experts)
    correction = torch.rand(num_experts) - 0.5 if is_corrected else None
    how = how | {"num_groups": groups, "num_chosen_groups": chosen}
    ids, weights = choose_experts(logits, top_k, correction=correction, **how)
    wide = None if correction is None else correction.double()
    exact_ids, exact = reference.choose_experts(logits.double(), top_k, correction=wide, **how)
    assert torch.equal(ids, exact_ids)
    assert weights.dtype is torch.float32
    torch.testing.assert_close(weights.double(), exact, rtol=1e-5, atol=1e-7)


def test_rows_may_be_slices_and_any_dtype():
    wide = torch.full((9, 40), NAN)
    wide[:, 3:19] = torch.randn(9, 16)
    ids, weights = choose_experts(wide[:, 3:19], 4)
    again, same = choose_experts(wide[:, 3:19].clone(), 4)
    assert torch.equal(ids, again)
    assert torch.equal(weights, same)
    narrow = wide[:, 3:19].bfloat16()
    assert torch.equal(choose_experts(narrow, 4)[0], choose_experts(narrow.float(), 4)[0])


@pytest.mark.parametrize("value", [NAN, INFINITY])
def test_logits_that_are_no_numbers_choose_experts_that_there_are(value):
    logits = torch.randn(3, 8)
    logits[1] = value
    ids, weights = choose_experts(logits, 3)
    assert ids.min() >= 0
    assert ids.max() < 8
    assert weights[1].isnan().all()
    assert not weights[[0, 2]].isnan().any()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "given", "error"),
    [
        ("logits", {"logits": torch.zeros(4)}, ValueError),
        ("logits", {"logits": torch.zeros(4, 8, dtype=torch.int64)}, TypeError),
        ("correction", {"correction": torch.zeros(7)}, ValueError),
        ("correction", {"correction": torch.zeros(8, dtype=torch.float64)}, TypeError),
        ("num_groups", {"num_groups": 3}, ValueError),
        ("num_chosen_groups", {"num_groups": 2, "num_chosen_groups": 3}, ValueError),
        ("top_k", {"num_groups": 4, "num_chosen_groups": 1}, ValueError),
        ("top_k", {"top_k": 0}, ValueError),
    ],
)
def test_a_wrong_argument_is_named(name, given, error):
    with pytest.raises(error, match=f"^{name}: expected"):
        choose_experts(**({"logits": torch.zeros(4, 8), "top_k": 3} | given))
