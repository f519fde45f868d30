"""Which experts each token visits, and what each counts."""

from jaxtyping import Float, Int64
from torch import Tensor

from blockstride.checks import FLOAT32, FLOATS, expect, expect_tensor, shape_of
from blockstride.kernels.common.dispatch import implementation, runs_on_triton


def choose_experts(
    logits: Float[Tensor, "num_tokens num_experts"],
    top_k: int,
    *,
    is_sigmoid: bool = False,
    correction: Float[Tensor, " num_experts"] | None = None,
    num_groups: int = 1,
    num_chosen_groups: int | None = None,
    is_renormalised: bool = False,
    scale: float = 1.0,
    floor: float = 0.0,
) -> tuple[Int64[Tensor, "num_tokens top_k"], Float[Tensor, "num_tokens top_k"]]:
    """Choose the best experts of each token by the scores that its logits give.

    Args:
        logits: What a router says of each expert.
        top_k: Experts that a token visits.
        is_sigmoid: Whether each expert is scored by itself, by the sigmoid of its logit; else
            scores are the softmax of all.
        correction: Added to scores where experts are chosen, and not where they are weighed.
        num_groups: Groups that experts stand in, one after the other.
        num_chosen_groups: Groups that a token's experts come from: those whose two best add up to
            most; all when None.
        is_renormalised: Whether the weights of a token add up to one.
        scale: What weights are multiplied by in the end.
        floor: Added to the sum that weights are divided by.

    Returns:
        Ids of each token's experts, the best first, and their weights, float32. Which of two that
        score alike comes first is not said.

    Raises:
        ValueError: Experts don't make up groups, there are fewer to choose from than are to be
            chosen, or a shape or a device does not fit.
        TypeError: A dtype is not accepted.

    Source: Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated
    Mixture-of-Experts Layer", 2.1; DeepSeek-AI, "DeepSeek-V3 Technical Report", 2.1.2.
    """
    num_tokens, num_experts = shape_of(logits, "logits", 2)
    expect_tensor(logits, "logits", (num_tokens, num_experts), FLOATS, logits.device)
    if correction is not None:
        expect_tensor(correction, "correction", (num_experts,), FLOAT32, logits.device)
    chosen = expect_groups(num_experts, top_k, num_groups, num_chosen_groups)
    return implementation(choose_experts, runs_on_triton(logits))(
        logits,
        top_k,
        is_sigmoid=is_sigmoid,
        correction=correction,
        num_groups=num_groups,
        num_chosen_groups=chosen,
        is_renormalised=is_renormalised,
        scale=scale,
        floor=floor,
    )


def expect_groups(
    num_experts: int, top_k: int, num_groups: int, num_chosen_groups: int | None
) -> int:
    """How many groups are chosen from; raises unless that leaves enough experts.

    Raises:
        ValueError: See `choose_experts`.
    """
    fits = num_groups > 0 and num_experts % num_groups == 0
    expect(fits, "num_groups", f"a divisor of {num_experts} experts", num_groups)
    chosen = num_groups if num_chosen_groups is None else num_chosen_groups
    expect(0 < chosen <= num_groups, "num_chosen_groups", f"1 to {num_groups}", num_chosen_groups)
    available = chosen * (num_experts // num_groups)
    expect(0 < top_k <= available, "top_k", f"1 to {available} experts", top_k)
    return chosen
