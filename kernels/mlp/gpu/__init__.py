"""In Triton, and the choice of experts in torch."""

from blockstride.kernels.mlp.gpu.choose_experts import choose_experts
from blockstride.kernels.mlp.gpu.expert_mlp import expert_mlp
from blockstride.kernels.mlp.gpu.gate_and_mul import gate_and_mul

__all__ = ["choose_experts", "expert_mlp", "gate_and_mul"]
