"""On CPUs."""

from blockstride.kernels.mlp.cpu.choose_experts import choose_experts
from blockstride.kernels.mlp.cpu.expert_mlp import expert_mlp
from blockstride.kernels.mlp.cpu.gate_and_mul import gate_and_mul
from blockstride.kernels.mlp.cpu.linear import linear

__all__ = ["choose_experts", "expert_mlp", "gate_and_mul", "linear"]
