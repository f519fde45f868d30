"""Who owns a cache: Jamba-style models, the engine that runs them, and the command line."""

from blockstride.models.engine import Engine, EngineConfig, SamplingParams
from blockstride.models.jamba import CacheDtypes, JambaConfig, JambaModel
from blockstride.models.llm import LLM, DistributedLLM
from blockstride.models.text_generator import Completion

__all__ = [
    "LLM",
    "CacheDtypes",
    "Completion",
    "DistributedLLM",
    "Engine",
    "EngineConfig",
    "JambaConfig",
    "JambaModel",
    "SamplingParams",
]
