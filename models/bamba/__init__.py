"""Bamba: attention with partly rotary positions, Mamba-2, MLPs."""

from blockstride.models.bamba.config import BambaConfig
from blockstride.models.bamba.model import BambaModel

__all__ = ["BambaConfig", "BambaModel"]
