"""In Triton."""

from blockstride.kernels.mlp.gpu.expert_mlp import expert_mlp
from blockstride.kernels.mlp.gpu.silu_and_mul import silu_and_mul

__all__ = ["expert_mlp", "silu_and_mul"]
