"""Engine: block manager, continuous batching, sampling."""

from blockstride.models.engine.engine import Engine, EngineConfig, EngineStats, TokenEvent
from blockstride.models.engine.request import Request
from blockstride.models.engine.sampling import SamplingParams

__all__ = ["Engine", "EngineConfig", "EngineStats", "Request", "SamplingParams", "TokenEvent"]
