"""What an engine has done: counts, seconds, and the pools it did it with."""

from __future__ import annotations

from dataclasses import dataclass

from blockstride.layouts import PoolLayout
from blockstride.models.engine.prefix_store import PrefixStats
from blockstride.transfer.connector import Counters


@dataclass
class EngineStats:
    """Counts and seconds since the engine was made.

    Attributes:
        steps: Forward passes.
        prefill_tokens: Tokens computed in steps with a prompt among them.
        prefill_seconds: Time of those steps.
        decode_tokens: Tokens computed in steps in which every request had one.
        decode_seconds: Time of those steps.
        compile_seconds: Time it took, before the first step, to have everything compiled.
    """

    steps: int = 0
    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    compile_seconds: float = 0.0

    def count(self, num_tokens: int, seconds: float, is_decode: bool) -> None:
        """Takes in the tokens of one step, or of several that one time was taken of."""
        if is_decode:
            self.decode_tokens += num_tokens
            self.decode_seconds += seconds
        else:
            self.prefill_tokens += num_tokens
            self.prefill_seconds += seconds

    @property
    def prefill_rate(self) -> float:
        """Tokens per second of steps with a prompt among them."""
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens per second of steps in which every request had one token."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0


@dataclass(frozen=True)
class EngineReport:
    """What an engine has done until some moment.

    Attributes:
        stats: Steps and tokens.
        num_preemptions: Requests that lost their blocks for a while.
        num_free: Blocks of each pool that nobody holds.
        pools: Where its caches lie, on rank 0.
        engine_id: Its name, where there are several.
        transfers: What rank 0 has read from other engines; None when it hands nothing over.
        prefixes: What requests had in common with earlier ones; None where that is not looked at.
        failed_reads: Requests that were computed again, as their blocks didn't arrive.
    """

    stats: EngineStats
    num_preemptions: int
    num_free: tuple[int, ...]
    pools: tuple[PoolLayout, ...]
    engine_id: str = ""
    transfers: Counters | None = None
    prefixes: PrefixStats | None = None
    failed_reads: int = 0
