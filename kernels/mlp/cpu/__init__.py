"""On CPUs."""

from blockstride.kernels.mlp.cpu.expert_mlp import expert_mlp
from blockstride.kernels.mlp.cpu.silu_and_mul import silu_and_mul

__all__ = ["expert_mlp", "silu_and_mul"]
