"""Products with packed weights, gated activations and experts.

Read `reference.py` first, then `linear.py`, `silu_and_mul.py` and `expert_mlp.py`.
"""

from blockstride.kernels.mlp.expert_mlp import PackedExperts, expert_mlp, pack_experts
from blockstride.kernels.mlp.linear import linear, pack_weight
from blockstride.kernels.mlp.silu_and_mul import silu_and_mul

__all__ = ["PackedExperts", "expert_mlp", "linear", "pack_experts", "pack_weight", "silu_and_mul"]
