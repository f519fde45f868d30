"""Settings of a connector: where it listens, how long it waits, how it copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from blockstride.checks import expect
from blockstride.transfer.argument_types import expect_seconds, expect_type, whole
from blockstride.transfer.cost_model import CostModel
from blockstride.transfer.peer_plan import StrategyChoice

LOOPBACK = ("127.0.0.1", "::1", "localhost")

WRITABLE = ("direct", "pack")
"""Strategies by which a producer can write."""

LEAST = {
    "port": 0,
    "max_tokens": 1,
    "max_states": 1,
    "chunk_bytes": 1,
    "max_staging_bytes": 0,
    "max_message_bytes": 1,
    "num_threads": 0,
}
"""Settings that count something, with the smallest that can be."""


@dataclass(frozen=True)
class ConnectorSettings:
    """How one rank's connector behaves. The defaults suit one machine, and a CPU as well as a GPU.

    NIXL's progress thread is off: measured on two cores (NIXL 1.5.1, UCX, process memory), it
    costs 3.2 to 6.6 us a descriptor instead of 1.8, and half to two thirds of the rate of long
    runs. The connector's own thread makes NIXL progress instead, and it alone touches the agent, so
    that the agent needs no locks.

    Attributes:
        host: Interface that others reach this rank at.
        port: TCP port; 0 lets the system choose.
        key: Secret that peers share; whoever doesn't know it can't make a message that is decoded.
            NIXL's own metadata can crash a process when it is forged, so only loopback
            interfaces may do without.
        strategy: Strategy of reads, or `auto`.
        push: Whether producers write what this rank asks for, instead of this rank reading it: the
            bytes then cost this rank's thread nothing, and there is one message less to wait for.
            What is written can't be converted on arrival, so the strategy is `direct` or `pack`.
        cost_model: What `auto` predicts with; None is the default one.
        max_tokens: Longest sequence that staging areas hold, and the one that `auto` decides for.
        max_states: Most states of a request in a group without tokens that staging areas hold.
        cast: Whether to read from engines whose dtypes differ. Quantised values are taken as they
            are, with a scale of 1.
        lease_seconds: How long blocks are held for readers that say nothing.
        answer_seconds: How long a peer may take to answer a message.
        backoff_seconds: Longest pause between two attempts to reach a peer.
        chunk_bytes: Bytes that one NIXL request moves at most: over process memory the call blocks
            for as long, and other messages wait.
        max_staging_bytes: Most memory that one peer can make this rank allocate.
        max_message_bytes: Longer messages close the connection that they come from.
        progress_thread: NIXL's own progress thread.
        num_threads: NIXL's UCX worker threads; 0 is one.

    Raises:
        ValueError: A value out of range, or no key on an interface that others can reach.
        TypeError: A value of another type.
    """

    host: str = "127.0.0.1"
    port: int = 0
    key: bytes = field(default=b"", repr=False)
    strategy: StrategyChoice = "direct"
    push: bool = False
    cost_model: CostModel | None = None
    max_tokens: int = 8192
    max_states: int = 1
    cast: bool = False
    lease_seconds: float = 30.0
    answer_seconds: float = 5.0
    backoff_seconds: float = 2.0
    chunk_bytes: int = 16 << 20
    max_staging_bytes: int = 1 << 32
    max_message_bytes: int = 16 << 20
    progress_thread: bool = False
    num_threads: int = 0

    def __post_init__(self) -> None:
        expect_type(self.host, "host", str)
        expect_type(self.key, "key", bytes)
        expect_type(self.cost_model, "cost_model", CostModel | None)
        for name in ("push", "cast", "progress_thread"):
            expect_type(getattr(self, name), name, bool)
        for name, least in LEAST.items():
            object.__setattr__(self, name, whole(getattr(self, name), name, least))
        for name in ("lease_seconds", "answer_seconds", "backoff_seconds"):
            expect_seconds(getattr(self, name), name)
        choices = get_args(StrategyChoice)
        known = isinstance(self.strategy, str) and self.strategy in choices
        expect(known, "strategy", f"one of {', '.join(choices)}", repr(self.strategy))
        can_push = not self.push or self.strategy in WRITABLE
        expect(can_push, "strategy", f"{' or '.join(WRITABLE)} to push", repr(self.strategy))
        expect(self.port < 1 << 16, "port", "below 65536", self.port)
        safe = bool(self.key) or self.host in LOOPBACK
        expect(safe, "key", f"a shared secret to listen on {self.host}", "none")
        expect(len(self.key) <= 64, "key", "at most 64 bytes", len(self.key))

    @property
    def heartbeat_seconds(self) -> float:
        """How often a reader says that it is alive: three may be lost before a lease ends."""
        return self.lease_seconds / 4
