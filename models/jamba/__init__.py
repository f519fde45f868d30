"""Jamba: attention and Mamba-1 mixers, MLPs and mixtures of experts."""

from blockstride.models.jamba.config import JambaConfig
from blockstride.models.jamba.mixers import CacheDtypes
from blockstride.models.jamba.model import JambaModel

__all__ = ["CacheDtypes", "JambaConfig", "JambaModel"]
