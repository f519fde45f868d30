"""A router chooses and weighs experts as those of transformers do."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.lfm2_moe.modeling_lfm2_moe import Lfm2MoeTopKRouter
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter

from blockstride.models.modules import Router

NUM_EXPERTS, HIDDEN, TOP_K = 12, 16, 3


def theirs(kind: type, **config: Any) -> Any:
    sizes = {"hidden_size": HIDDEN, "num_experts_per_tok": TOP_K, "routed_scaling_factor": 1.0}
    counts = dict.fromkeys(("num_experts", "num_local_experts"), NUM_EXPERTS)
    router = kind(SimpleNamespace(**sizes, **counts, **config))
    for tensor in (*router.parameters(), *router.buffers()):
        tensor.data.normal_()
    return router


def compare(router: Any, expected: tuple[torch.Tensor, ...], hidden: torch.Tensor) -> None:
    _, weights, ids = expected
    got_ids, got_weights = router.choose(hidden)
    # their order among themselves is free
    dense = torch.zeros(len(hidden), NUM_EXPERTS)
    wanted = dense.scatter(-1, ids, weights)
    torch.testing.assert_close(dense.scatter(-1, got_ids, got_weights), wanted)


@pytest.fixture
def hidden() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(50, HIDDEN)


@pytest.mark.parametrize("is_renormalised", [True, False])
@torch.no_grad()
def test_the_softmax_of_all_is_divided_by_the_sum_of_the_chosen_or_not(hidden, is_renormalised):
    model = theirs(Qwen2MoeTopKRouter, norm_topk_prob=is_renormalised)
    router = Router(model.weight, TOP_K, is_renormalised=is_renormalised)
    compare(router, model(hidden), hidden)


@torch.no_grad()
def test_the_softmax_of_the_chosen_is_what_they_have_of_that_of_all(hidden):
    model = theirs(GptOssTopKRouter)
    router = Router(model.weight, TOP_K, is_renormalised=True, bias=model.bias)
    compare(router, model(hidden), hidden)


@pytest.mark.parametrize(
    "said",
    [
        {"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5},
        {"n_group": 4, "topk_group": 2, "norm_topk_prob": True},
        {"n_group": 4, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 0.5},
        {"n_group": 3, "topk_group": 3, "norm_topk_prob": False},
    ],
    ids=str,
)
@torch.no_grad()
def test_a_correction_and_groups_bear_on_the_choice_alone(hidden, said):
    scale = said.pop("routed_scaling_factor", 1.0)
    model = theirs(DeepseekV3TopkRouter, **said)
    model.routed_scaling_factor = scale
    router = Router(
        model.weight,
        TOP_K,
        is_renormalised=said["norm_topk_prob"],
        is_sigmoid=True,
        correction=model.e_score_correction_bias,
        num_groups=said["n_group"],
        num_chosen_groups=said["topk_group"],
        scale=scale,
        floor=1e-20,
    )
    compare(router, model(hidden), hidden)


@pytest.mark.parametrize("has_correction", [True, False])
@torch.no_grad()
def test_sigmoids_without_groups_may_be_corrected_or_not(hidden, has_correction):
    model = theirs(Lfm2MoeTopKRouter, use_expert_bias=has_correction, norm_topk_prob=True)
    # scores so small that what is added to their sum shows
    model.weight.mul_(0.1).sub_(3)
    correction = torch.randn(NUM_EXPERTS)
    router = Router(
        model.weight,
        TOP_K,
        is_renormalised=True,
        is_sigmoid=True,
        correction=correction if has_correction else None,
        floor=1e-6,
    )
    compare(router, model(hidden.abs(), correction), hidden.abs())


@torch.no_grad()
def test_scores_are_computed_in_the_type_of_the_routers_weight(hidden):
    weight = torch.randn(NUM_EXPERTS, HIDDEN)
    router = Router(weight, TOP_K, is_renormalised=True)
    ids, weights = router.choose(hidden.bfloat16())
    wanted_ids, wanted = router.choose(hidden.bfloat16().float())
    assert weights.dtype is torch.float32
    assert torch.equal(ids, wanted_ids)
    assert torch.equal(weights, wanted)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"top_k": 13}, "top_k: expected 1 to 12 experts, got 13"),
        ({"top_k": 0}, "top_k: expected 1 to 12 experts, got 0"),
        ({"num_groups": 5}, "num_groups: expected a divisor of 12 experts, got 5"),
        ({"num_groups": 4, "num_chosen_groups": 5}, "num_chosen_groups: expected 1 to 4, got 5"),
        (
            {"num_groups": 6, "num_chosen_groups": 1},
            "top_k: expected 1 to 2 experts, got 3",
        ),
    ],
)
def test_what_cannot_be_chosen_is_refused(said, message):
    arguments: dict[str, Any] = {"top_k": TOP_K, "is_renormalised": True, **said}
    with pytest.raises(ValueError, match=message):
        Router(torch.zeros(NUM_EXPERTS, HIDDEN), **arguments)
