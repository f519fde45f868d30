"""DeepSeek V2 and V3: multi-head latent attention in every layer."""

from __future__ import annotations

from blockstride.layouts import latent_attention
from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.family import Family
from blockstride.models.families.keys import count
from blockstride.models.modules import Mixer, PlannedMixer


class DeepseekV2(Family):
    """DeepSeek-V2 (2024)."""

    layers = {"latent_attention": ("latent",)}
    kv_lora_rank = count(512)
    qk_rope_head_dim = count(64)

    def layer_types(self) -> list[str]:
        """All alike."""
        return ["latent_attention"] * self.num_hidden_layers

    def latent(self, types: CacheTypes) -> Mixer:
        """Multi-head latent attention, which caches one row for all heads."""
        return PlannedMixer(latent_attention(self.kv_lora_rank, self.qk_rope_head_dim, types.kv))


class DeepseekV3(DeepseekV2):
    """DeepSeek-V3 (2024)."""

    num_hidden_layers = count(61)
