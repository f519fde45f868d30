"""Who owns a cache: Jamba and its kin, the engine that runs them, and the command line.

Names are looked up when they are asked for: the command line is in this package, and has to be
there before torch is, which takes seconds to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockstride.models.async_llm import AsyncLLM
    from blockstride.models.bamba import BambaConfig, BambaModel
    from blockstride.models.engine import Engine, EngineConfig, SamplingParams
    from blockstride.models.generation import Completion
    from blockstride.models.granite import GraniteHybridConfig, GraniteHybridModel
    from blockstride.models.hybrid_model import HybridModel
    from blockstride.models.jamba import JambaConfig, JambaModel
    from blockstride.models.llm import LLM
    from blockstride.models.modules import CacheDtypes

__all__ = [
    "LLM",
    "AsyncLLM",
    "BambaConfig",
    "BambaModel",
    "CacheDtypes",
    "Completion",
    "Engine",
    "EngineConfig",
    "GraniteHybridConfig",
    "GraniteHybridModel",
    "HybridModel",
    "JambaConfig",
    "JambaModel",
    "SamplingParams",
]

_HOMES = {
    "async_llm": ("AsyncLLM",),
    "bamba": ("BambaConfig", "BambaModel"),
    "engine": ("Engine", "EngineConfig", "SamplingParams"),
    "generation": ("Completion",),
    "granite": ("GraniteHybridConfig", "GraniteHybridModel"),
    "hybrid_model": ("HybridModel",),
    "jamba": ("JambaConfig", "JambaModel"),
    "llm": ("LLM",),
    "modules": ("CacheDtypes",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
