"""Root mean square normalisation by definition, in the dtype of its inputs.

It checks nothing. The kernels are held to it, in float64.
"""

import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import silu


def rms_norm(
    x: Float[Tensor, "*batch dim"],
    weight: Float[Tensor, " dim"],
    eps: float,
    *,
    residual: Float[Tensor, "*batch dim"] | None = None,
    gate: Float[Tensor, "*batch dim"] | None = None,
    norm_before_gate: bool = False,
    group_size: int | None = None,
) -> Float[Tensor, "*batch dim"] | tuple[Float[Tensor, "*batch dim"], Float[Tensor, "*batch dim"]]:
    """See `blockstride.kernels.rms_norm`.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization".
    """
    if residual is not None:
        residual += x
        x = residual
    if gate is not None and not norm_before_gate:
        x = x * silu(gate)
    groups = rearrange(x, "... (g c) -> ... g c", c=group_size or x.shape[-1])
    rms = torch.sqrt(reduce(groups**2, "... g c -> ... g 1", "mean") + eps)
    y = rearrange(groups / rms, "... g c -> ... (g c)") * weight
    if gate is not None and norm_before_gate:
        y = y * silu(gate)
    return y if residual is None else (y, residual)
