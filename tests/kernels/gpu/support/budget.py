"""How far a kernel may be from float64: what plain arithmetic of its dtype costs, and no more."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

RMS_RATIO = {torch.bfloat16: 4e-3, torch.float16: 6e-4, torch.float32: 1e-5}


def assert_within_budget(actual: Tensor, exact: Tensor, plain: Tensor) -> None:
    """Hold `actual` to twice the largest error of `plain` plus one ulp, and to an RMS ratio.

    Args:
        actual: What the kernel gave, in its own dtype.
        exact: The same in float64, from the inputs as they are stored.
        plain: The same by torch in the kernel's dtype, rounding after every step.
    """
    assert actual.isfinite().all()
    if actual.numel() == 0:
        return
    error = (actual.double() - exact).abs()
    ulp = torch.finfo(actual.dtype).eps * exact.abs().max()
    allowed = 2 * (plain.double() - exact).abs().max() + ulp
    assert error.max() <= allowed, f"largest error {error.max():.3g}, allowed {allowed:.3g}"
    ratio = error.square().mean().sqrt() / exact.square().mean().sqrt().clamp(min=1e-30)
    limit = RMS_RATIO[actual.dtype]
    assert ratio < limit, f"rms ratio {ratio:.3g}, allowed {limit:.3g}"


def assert_follows(
    function: Callable[..., Tensor],
    definition: Callable[..., tuple[Tensor, Tensor]],
    prompts: dict[str, Any],
    plain_dtype: torch.dtype = torch.float32,
) -> None:
    """Hold outputs and all states to float64.

    Args:
        function: The recurrence that is tested.
        definition: The same by definition, of `recurrences`.
        prompts: The arguments of both.
        plain_dtype: What the kernel multiplies in; its states are no finer.
    """
    exact, exact_states = definition(**prompts)
    plain, plain_states = definition(**prompts, dtype=plain_dtype)
    out, states = function(**prompts), prompts["ssm_state"]
    assert out.dtype == (prompts["x"] if "x" in prompts else prompts["v"]).dtype
    assert_within_budget(out, exact, plain.to(out.dtype))
    coarser = max(states.dtype, plain_dtype, key=lambda dtype: torch.finfo(dtype).eps)
    assert_within_budget(states.to(coarser), exact_states, plain_states.to(coarser))
