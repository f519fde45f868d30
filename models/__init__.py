"""Who owns a cache: Jamba and its kin, the engine that runs them, and the command line."""

from blockstride.models.bamba import BambaConfig, BambaModel
from blockstride.models.engine import Engine, EngineConfig, SamplingParams
from blockstride.models.granite import GraniteHybridConfig, GraniteHybridModel
from blockstride.models.hybrid_model import HybridModel
from blockstride.models.jamba import JambaConfig, JambaModel
from blockstride.models.llm import LLM, DistributedLLM
from blockstride.models.modules import CacheDtypes
from blockstride.models.text_generator import Completion

__all__ = [
    "LLM",
    "BambaConfig",
    "BambaModel",
    "CacheDtypes",
    "Completion",
    "DistributedLLM",
    "Engine",
    "EngineConfig",
    "GraniteHybridConfig",
    "GraniteHybridModel",
    "HybridModel",
    "JambaConfig",
    "JambaModel",
    "SamplingParams",
]
