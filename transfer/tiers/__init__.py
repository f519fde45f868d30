"""Tiers: caches of single sequences kept in host memory and in files, readable by any engine."""

from blockstride.transfer.tiers.cache_file import CacheFile, CacheFileWriter
from blockstride.transfer.tiers.file_format import CacheFileError
from blockstride.transfer.tiers.host_cache import HostCache
from blockstride.transfer.tiers.offloader import Moved, Offloader
from blockstride.transfer.tiers.stored_cache import StoredCache

__all__ = [
    "CacheFile",
    "CacheFileError",
    "CacheFileWriter",
    "HostCache",
    "Moved",
    "Offloader",
    "StoredCache",
]
