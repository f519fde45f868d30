"""Products with packed weights, gated activations and experts.

Read `reference.py` first, then `linear.py`, `gate.py`, `gate_and_mul.py`,
`choose_experts.py` and `expert_mlp.py`.
"""

from blockstride.kernels.mlp.choose_experts import choose_experts
from blockstride.kernels.mlp.expert_mlp import expert_mlp, pack_experts
from blockstride.kernels.mlp.gate import GELU_TANH, SILU, Gate
from blockstride.kernels.mlp.gate_and_mul import gate_and_mul
from blockstride.kernels.mlp.linear import linear, pack_weight
from blockstride.kernels.mlp.packed_weight import PackedWeight

__all__ = [
    "GELU_TANH",
    "SILU",
    "Gate",
    "PackedWeight",
    "choose_experts",
    "expert_mlp",
    "gate_and_mul",
    "linear",
    "pack_experts",
    "pack_weight",
]
