"""Jamba: attention without positions, Mamba-1, MLPs and mixtures of experts."""

from blockstride.models.jamba.config import JambaConfig
from blockstride.models.jamba.model import JambaModel

__all__ = ["JambaConfig", "JambaModel"]
