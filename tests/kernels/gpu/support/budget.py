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


def cast(arguments: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Copies of arguments, with all floats in one dtype."""
    return {
        name: value.to(dtype if value.is_floating_point() else value.dtype, copy=True)
        if isinstance(value, Tensor)
        else value
        for name, value in arguments.items()
    }


def exact_and_plain(
    reference: Callable[..., Any],
    arguments: dict[str, Any],
    plain_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """What a reference returns in float64, and in the dtype that a kernel computes in."""
    exact, plain = (reference(**cast(arguments, dtype)) for dtype in (torch.float64, plain_dtype))
    return exact, plain


def by_reference(
    reference: Callable[..., Any], arguments: dict[str, Any], dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """What a reference returns, computed in a dtype, and the states that it leaves in the pool."""
    own = cast(arguments, dtype)
    return reference(**own), own["conv_state" if "conv_state" in own else "ssm_state"]


def assert_follows(
    function: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    arguments: dict[str, Any],
    plain_dtype: torch.dtype = torch.float32,
) -> None:
    """Hold outputs and all states to float64.

    Args:
        function: The recurrence that is tested.
        reference: The same by definition, of `reference.py`.
        arguments: Those of both.
        plain_dtype: What the kernel multiplies in; its states are no finer.
    """
    exact, exact_states = by_reference(reference, arguments)
    plain, plain_states = by_reference(reference, arguments, plain_dtype)
    out, states = function(**arguments), arguments["ssm_state"]
    assert out.dtype == (arguments["x"] if "x" in arguments else arguments["v"]).dtype
    assert_within_budget(out, exact, plain.to(out.dtype))
    coarser = max(states.dtype, plain_dtype, key=lambda dtype: torch.finfo(dtype).eps)
    assert_within_budget(states.to(coarser), exact_states, plain_states.to(coarser))
