"""Counters: what a connector has done, for people and for metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter

from blockstride.transfer.errors import KINDS


@dataclass
class Counters:
    """Sums since the connector began.

    Attributes:
        requests: Requests that ended well.
        failures: Kind of error -> requests that ended with it.
        nbytes: Bytes that own reads and writes moved.
        descriptors: Pairs of byte ranges that they named.
        merged: Descriptors that NIXL made of those.
        predicted: What the plans said that would be.
        plan_seconds: From block ids to index arrays.
        post_seconds: In the calls that start transfers; over process memory those copy, too.
        wait_seconds: From there until all had stopped.
        convert_seconds: Packing and converting between staging areas and pools.
        handshakes: Sessions that began.
        failed_handshakes: Attempts to begin one that nobody answered.
        refused_messages: Messages that were none, or refused.
        failed_claims: Claims of readers in the midst of which something went wrong here.
        retries: Requests that went on to another replica.
    """

    requests: int = 0
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    nbytes: int = 0
    descriptors: int = 0
    merged: int = 0
    predicted: int = 0
    plan_seconds: float = 0.0
    post_seconds: float = 0.0
    wait_seconds: float = 0.0
    convert_seconds: float = 0.0
    handshakes: int = 0
    failed_handshakes: int = 0
    refused_messages: int = 0
    failed_claims: int = 0
    retries: int = 0

    def snapshot(self) -> Counters:
        """A copy of the current numbers."""
        return replace(self, failures=dict(self.failures))

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Adds the seconds inside to the sum called `name`."""
        start = perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + perf_counter() - start)
