"""Who owns a cache: Jamba and its kin, the engine that runs them, and the command line.

Names are looked up when they are asked for: the command line is in this package, and has to be
there before torch is, which takes seconds to import.
"""

from typing import TYPE_CHECKING

from blockstride.lazy import lazy

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

__getattr__ = lazy(
    __name__,
    {
        "async_llm": ("AsyncLLM",),
        "cache_types": ("CacheTypes",),
        "engine": ("Engine", "EngineConfig", "SamplingParams", "TokenLogprobs"),
        "families": ("FAMILIES", "cache_specs"),
        "generation": ("Completion",),
        "hybrid_model": ("HybridModel",),
        "llm": ("LLM",),
    },
)
