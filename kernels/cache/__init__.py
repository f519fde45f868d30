"""Writing, copying and unpacking what caches hold.

Read `reference.py` first, then `kv_cache_update.py`, `block_copy.py` and `copy_runs.py`; of states,
`state_reference.py`, `state_field.py` and `state_pages.py`. The implementations are in the files of
the same names in `gpu/` and `cpu/`.
"""

from blockstride.kernels.cache.block_copy import block_copy
from blockstride.kernels.cache.copy_runs import copy_runs
from blockstride.kernels.cache.kv_cache_update import PAD_SLOT_ID, kv_cache_update
from blockstride.kernels.cache.state_field import StateField
from blockstride.kernels.cache.state_pages import copy_state, pack_state, unpack_state

__all__ = [
    "PAD_SLOT_ID",
    "StateField",
    "block_copy",
    "copy_runs",
    "copy_state",
    "kv_cache_update",
    "pack_state",
    "unpack_state",
]
