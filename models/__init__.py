"""Who owns a cache: Jamba-style models, the engine that runs them, and the command line."""

from blockstride.models.engine import Engine, EngineConfig, SamplingParams
from blockstride.models.jamba import CacheDtypes, JambaConfig, JambaModel
from blockstride.models.llm import LLM, Completion

__all__ = [
    "LLM",
    "CacheDtypes",
    "Completion",
    "Engine",
    "EngineConfig",
    "JambaConfig",
    "JambaModel",
    "SamplingParams",
]
