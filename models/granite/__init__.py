"""Granite 4 hybrids: attention with or without positions, Mamba-2, experts beside an MLP."""

from blockstride.models.granite.config import GraniteHybridConfig
from blockstride.models.granite.model import GraniteHybridModel

__all__ = ["GraniteHybridConfig", "GraniteHybridModel"]
