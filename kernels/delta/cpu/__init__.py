"""On CPUs."""

from blockstride.kernels.delta.cpu.gated_delta_rule import gated_delta_rule
from blockstride.kernels.delta.cpu.gated_delta_rule_update import gated_delta_rule_update

__all__ = ["gated_delta_rule", "gated_delta_rule_update"]
