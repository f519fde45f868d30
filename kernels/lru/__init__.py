"""The real-gated linear recurrent unit of Griffin and RecurrentGemma.

Read `reference.py` first, then `rg_lru.py`, which has prompts and decode steps.
"""

from blockstride.kernels.lru.rg_lru import rg_lru, rg_lru_update

__all__ = ["rg_lru", "rg_lru_update"]
