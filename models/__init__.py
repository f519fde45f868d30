"""Who owns a cache: Jamba and its kin, the engine that runs them, and the command line.

Names are looked up when they are asked for: the command line is in this package, and has to be
there before torch is, which takes seconds to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockstride.models.async_llm import AsyncLLM
    from blockstride.models.cache_types import CacheTypes
    from blockstride.models.engine import Engine, EngineConfig, SamplingParams, TokenLogprobs
    from blockstride.models.families import FAMILIES, cache_specs
    from blockstride.models.generation import Completion
    from blockstride.models.hybrid_model import HybridModel
    from blockstride.models.llm import LLM

__all__ = [
    "FAMILIES",
    "LLM",
    "AsyncLLM",
    "CacheTypes",
    "Completion",
    "Engine",
    "EngineConfig",
    "HybridModel",
    "SamplingParams",
    "TokenLogprobs",
    "cache_specs",
]

_HOMES = {
    "async_llm": ("AsyncLLM",),
    "cache_types": ("CacheTypes",),
    "engine": ("Engine", "EngineConfig", "SamplingParams", "TokenLogprobs"),
    "families": ("FAMILIES", "cache_specs"),
    "generation": ("Completion",),
    "hybrid_model": ("HybridModel",),
    "llm": ("LLM",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
