"""Experts that stand in groups, each scored by itself."""

from __future__ import annotations

import torch

from blockstride.models.families.family import ModelFamily
from blockstride.models.families.keys import count, number, switch
from blockstride.models.modules import LayerWeights, Router


class HasGroupedExperts(ModelFamily):
    """A family with experts in some layers, chosen as in DeepSeek-V3.

    Attributes:
        num_experts: Experts of a layer.
        num_experts_per_tok: Experts that each token visits.
        n_group: Groups that the experts stand in,
        topk_group: and those that a token's experts come from.
        norm_topk_prob: Whether the weights of a token's experts add up to one.
        routed_scaling_factor: What they are multiplied by.
        moe_intermediate_size: Inner width of an expert.
    """

    num_experts = count(8)
    num_experts_per_tok = count(2)
    n_group = count(1)
    topk_group = count(1)
    norm_topk_prob = switch(True)
    routed_scaling_factor = number(1.0)
    moe_intermediate_size = count(1024)

    def router(self, weights: LayerWeights) -> Router:
        """Chooses experts in float32, whatever weights are.

        Raises:
            ValueError: A tensor is missing, damaged or misshapen, or experts don't make up groups.
        """
        experts, wide = self.num_experts, torch.float32
        return Router(
            weights.tensor("weight", experts, self.hidden_size, dtype=wide),
            self.num_experts_per_tok,
            is_renormalised=self.norm_topk_prob,
            is_sigmoid=True,
            correction=weights.tensor("e_score_correction_bias", experts, dtype=wide),
            num_groups=self.n_group,
            num_chosen_groups=self.topk_group,
            scale=self.routed_scaling_factor,
            floor=1e-20,
        )
