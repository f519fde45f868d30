"""In Triton."""

from blockstride.kernels.cache.gpu.block_copy import block_copy
from blockstride.kernels.cache.gpu.copy_runs import copy_runs
from blockstride.kernels.cache.gpu.kv_cache_update import kv_cache_update
from blockstride.kernels.cache.gpu.state_pages import copy_state, pack_state, unpack_state

__all__ = ["block_copy", "copy_runs", "copy_state", "kv_cache_update", "pack_state", "unpack_state"]
