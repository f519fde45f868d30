"""How much an engine has to do: what it says itself, for whoever places requests or counts."""

from __future__ import annotations

from msgspec import Struct


class Load(Struct, frozen=True):
    """What an engine has to do, and what it has done since it began.

    Attributes:
        num_running: Requests that have blocks.
        num_waiting: Requests that wait for some.
        queued_tokens: Tokens to compute until each of these has its next one.
        num_free: Blocks of each pool that no request needs.
        num_blocks: Blocks of each pool, but for the null block.
        room: Tokens of one more sequence that there are free blocks for.
        num_preemptions: Requests that lost their blocks for a while.
        asked_tokens: Tokens of prompts that were looked for among earlier ones.
        hit_tokens: Those of them that were known.
        num_reads: Sequences that were taken over from other engines.
        failed_reads: Sequences that were computed again, as they didn't arrive.
    """

    num_running: int
    num_waiting: int
    queued_tokens: int
    num_free: tuple[int, ...]
    num_blocks: tuple[int, ...]
    room: int
    num_preemptions: int
    asked_tokens: int
    hit_tokens: int
    num_reads: int
    failed_reads: int
