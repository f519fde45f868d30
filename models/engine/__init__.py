"""Engine: block manager, continuous batching, sampling."""

from blockstride.models.engine.config import EngineConfig
from blockstride.models.engine.engine import Engine, TokenEvent
from blockstride.models.engine.limits import PromptLimits
from blockstride.models.engine.report import EngineReport, EngineStats
from blockstride.models.engine.request import Request
from blockstride.models.engine.sampling import SamplingParams
from blockstride.models.engine.token_logprobs import TokenLogprobs

__all__ = [
    "Engine",
    "EngineConfig",
    "EngineReport",
    "EngineStats",
    "PromptLimits",
    "Request",
    "SamplingParams",
    "TokenEvent",
    "TokenLogprobs",
]
