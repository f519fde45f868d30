"""In Triton."""

from blockstride.kernels.lru.gpu.rg_lru import rg_lru
from blockstride.kernels.lru.gpu.rg_lru_update import rg_lru_update

__all__ = ["rg_lru", "rg_lru_update"]
