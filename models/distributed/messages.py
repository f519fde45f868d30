"""Messages between the processes of a deployment: the front end, the engines, their ranks.

All trust each other: they talk through pipes that nobody else can open, or sockets that take a key,
so messages are pickled; they carry arrays, and seeds of any size. A request has one id in all of
them, which is also what its blocks are held under.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Int32
from msgspec import Struct
from torch import Tensor

from blockstride.models.batch import GroupTable, StepBatch
from blockstride.models.distributed.life import Event
from blockstride.models.engine import EngineConfig, PromptLimits, SamplingParams, TokenLogprobs
from blockstride.models.engine.request import FinishReason
from blockstride.models.logs import LogFormat
from blockstride.transfer.connector import ConnectorSettings

GroupBlocks = list[tuple[int, Int32[np.ndarray, " _"]]]
"""For each group, the first position of a block table that counts, and the ids from there on."""


class Setup(Struct, frozen=True):
    """What a process is: the first thing that it is told.

    Attributes:
        engine_id: Its engine.
        config: The engine.
        device: Where this rank runs.
        path: Checkpoint folder of the model.
        dtype: What it computes in; see `load_model`.
        folder: Where the ranks of an engine find each other.
        transfer: How it hands sequences over; None: it doesn't.
        timeout_seconds: After how long without a heartbeat a process is given up.
        model_fingerprint: What its caches are told apart by; "" when they stay within the engine.
        log_level: What it says on standard error.
        log_format: In which form; None: as a line that begins with its name.
        rank: Its tensor-parallel rank; rank 0 leads the others.
        host: Where ranks on other machines reach it; "": there are none.
    """

    engine_id: str
    config: EngineConfig
    device: str
    path: str
    dtype: str
    folder: str
    transfer: ConnectorSettings | None
    timeout_seconds: float
    model_fingerprint: str = ""
    log_level: int = logging.WARNING
    log_format: LogFormat | None = None
    rank: int = 0
    host: str = ""


# to an engine


class Start(Struct, frozen=True):
    """Go on with a request.

    Attributes:
        request_id: Its id, which this engine has never heard before.
        prompt_ids: Tokens of the prompt.
        output_ids: Tokens that were generated elsewhere.
        params: How to continue it.
        max_len: Most tokens of it.
        hands_over: Whether to hold its blocks for another engine once the prompt is computed.
        source: The engine that holds its blocks for this one; "" when it is to be computed here.
    """

    request_id: int
    prompt_ids: list[int]
    output_ids: list[int]
    params: SamplingParams
    max_len: int
    hands_over: bool = False
    source: str = ""


class Stop(Struct, frozen=True):
    """A request isn't wanted any more; a rank neither holds its blocks nor reads into them."""

    request_id: int


class Peer(Struct, frozen=True):
    """Where the ranks of an engine listen that hands over; nowhere: it is gone."""

    engine_id: str
    addresses: tuple[str, ...]


class Ask(Struct, frozen=True):
    """Send an `EngineReport`."""


class Close(Struct, frozen=True):
    """End politely."""


# from rank 0 to the other ranks; holding and reading it does itself, too


class Forward(Struct, frozen=True):
    """Compute a batch."""

    values: dict[str, Any]
    tables: list[tuple[np.ndarray, np.ndarray | None]]

    @classmethod
    def of(cls, batch: StepBatch) -> Forward:
        """Arrays instead of tensors, which would be pickled as shared memory."""
        made = {"tables", "schedules", "angles"}
        names = [f.name for f in fields(batch) if f.name not in made]
        return cls(
            {name: _array(getattr(batch, name)) for name in names},
            [(_array(table.block_table), _array(table.slot_mapping)) for table in batch.tables],
        )

    @property
    def batch(self) -> StepBatch:
        """What was sent."""
        tables = tuple(GroupTable(_tensor(ids), _tensor(slots)) for ids, slots in self.tables)
        values: dict[str, Any] = {name: _tensor(value) for name, value in self.values.items()}
        return StepBatch(tables=tables, **values)


def _array(value: Any) -> Any:
    return value.numpy() if isinstance(value, Tensor) else value


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


class Poison(Struct, frozen=True):
    """Fill freed blocks of each pool with NaN."""

    blocks: Sequence[Sequence[int]]


class Meet(Struct, frozen=True):
    """Join the group of all ranks, which find each other there; "": in the folder of all."""

    address: str


class Hold(Struct, frozen=True):
    """Hold the blocks of a request for readers."""

    request_id: int
    num_tokens: int
    blocks: GroupBlocks


class Read(Struct, frozen=True):
    """Read the blocks of a request from the engine that holds them.

    Attributes:
        request_id: The request.
        num_tokens: Its tokens that are cached then.
        blocks: Blocks that lack any of them.
        source: Who holds them.
        present: Tokens that the first block of each group has already.
        copies: What is copied here first: group, block that is read, block that is written.
    """

    request_id: int
    num_tokens: int
    blocks: GroupBlocks
    source: str
    present: Sequence[int] = ()
    copies: Sequence[tuple[int, int, int]] = ()


# from a rank to rank 0, or from rank 0 to the front end


class Ready(Struct, frozen=True):
    """A rank has loaded its part of the model; from rank 0: the engine runs.

    Attributes:
        addresses: Where it listens for readers, or all ranks do; "" when nothing is handed over.
        limits: Prompts that the engine can take; from rank 0 only.
        capacity: Tokens that it can cache; from rank 0 only.
    """

    addresses: tuple[str, ...]
    limits: PromptLimits | None = None
    capacity: int = 0


class Failed(Struct, frozen=True):
    """A process ends, or is given up, and why."""

    error: type[Exception]
    reason: str

    @classmethod
    def of(cls, error: Exception) -> Failed:
        """What is known of an exception in a process that needn't have its type."""
        kind = type(error) if type(error) in {ValueError, TypeError, OSError} else RuntimeError
        text = str(error) if kind is type(error) else f"{type(error).__name__}: {error}"
        return cls(kind, text)


class Beat(Struct, frozen=True):
    """A process is alive; whether its work makes progress."""

    makes_progress: bool


class Outcome(Struct, frozen=True):
    """What has come of the blocks of a request on one rank, as the table `ENGINE` calls it."""

    request_id: int
    event: Event
    error: str = ""


class Settled(Struct, frozen=True):
    """Nothing writes any more to the blocks that one rank was to read into."""

    request_id: int


class Token(Struct, frozen=True):
    """A token of a request; with a reason, its last. None: it ends without another.

    Attributes:
        request_id: The request.
        token_id: The token.
        finish_reason: Why it ends with it; None: it goes on.
        error: What went wrong, in words.
        logprobs: Of the token, where they are asked for.
        prompt_logprobs: Of the tokens of the prompt, with its first token.
        num_resumed: Tokens that weren't computed for its first token.
    """

    request_id: int
    token_id: int | None
    finish_reason: FinishReason | None
    error: str = ""
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    num_resumed: int = 0


class Progress(Struct, frozen=True):
    """What a step has brought.

    Attributes:
        tokens: New tokens.
        cached: Request id -> tokens computed so far, for those in the middle of their prompt.
    """

    tokens: list[Token]
    cached: dict[int, int]


class Held(Struct, frozen=True):
    """The blocks of a request are held on all ranks for whoever goes on."""

    request_id: int
