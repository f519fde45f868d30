"""In Triton."""

from blockstride.kernels.mlp.gpu.expert_mlp import expert_mlp
from blockstride.kernels.mlp.gpu.gate_and_mul import gate_and_mul

__all__ = ["expert_mlp", "gate_and_mul"]
