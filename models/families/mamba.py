"""Models of Mamba alone: Mamba, Falcon-Mamba and Mamba-2."""

from __future__ import annotations

from blockstride.layouts import mamba1
from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.keys import anything, count, optional
from blockstride.models.families.roles import HasMamba, HasMamba2
from blockstride.models.modules import Mixer, PlannedMixer


class Mamba(HasMamba):
    """Mamba (Gu and Dao 2023), and Falcon-Mamba (TII 2024)."""

    layers = {"mamba": ("mamba1",)}
    hidden_size = count(768)
    d_state = count(16, "state_size")
    d_conv = count(4, "conv_kernel")
    expand = anything(2)

    def layer_types(self) -> list[str]:
        """All alike."""
        return ["mamba"] * self.num_hidden_layers

    def mamba1(self, types: CacheTypes) -> Mixer:
        """Mamba-1."""
        sizes = (self.channels, self.d_state, self.conv_width)
        return PlannedMixer(mamba1(*sizes, **types.state))


class Mamba2(HasMamba2):
    """Mamba-2 (Dao and Gu 2024)."""

    layers = {"mamba": ("mamba2",)}
    num_hidden_layers = count(64)
    d_state = count(128, "state_size")
    d_conv = count(4, "conv_kernel")
    expand = anything(2)
    ssm_heads = count(128, "num_heads")
    ssm_head_dim = optional(64, "head_dim")
    groups = count(8, "n_groups")

    def layer_types(self) -> list[str]:
        """All alike."""
        return ["mamba"] * self.num_hidden_layers
