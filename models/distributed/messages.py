"""What the processes of a deployment say to each other.

All are children of one program and talk through pipes that nobody else can open, hence pickle.
Blocks are, for each group, the first position of a block table that counts, and ids from there on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Int32
from torch import Tensor

from blockstride.models.batch import GroupTable, StepBatch
from blockstride.models.engine import EngineConfig, EngineReport, SamplingParams
from blockstride.models.engine.request import FinishReason
from blockstride.transfer.connector import ConnectorSettings, Counters

START_SECONDS = 600.0
"""Time for loading a model; ranks and engines wait so long for each other."""

GroupBlocks = list[tuple[int, Int32[np.ndarray, " blocks"]]]


# what a process is told first


@dataclass(frozen=True)
class Setup:
    """What a process is.

    Attributes:
        engine_id: Its engine.
        rank: Its tensor-parallel rank; rank 0 leads the others.
        path: Checkpoint folder of the model.
        dtype: What it computes in; see `load_model`.
        config: The engine.
        device: Where this rank runs.
        store: File in which ranks find each other.
        transfer: How it hands sequences over; None: it doesn't.
        answer_seconds: How long ranks wait for each other while they compute.
    """

    engine_id: str
    rank: int
    path: str
    dtype: str
    config: EngineConfig
    device: str
    store: str
    transfer: ConnectorSettings | None
    answer_seconds: float


@dataclass(frozen=True)
class Join:
    """To followers: all ranks have loaded, and meet now."""


# from the front end to rank 0


@dataclass(frozen=True)
class Submit:
    """A request.

    Attributes:
        request_id: The front end's number of it.
        prompt_ids: Tokens of the prompt.
        output_ids: Tokens that were generated elsewhere.
        params: How to continue it.
        max_len: Most tokens of it.
        hands_over: Whether to hold it for another engine once the prompt is computed.
        source: The engine that holds it for this one; "" when it is to be computed here.
    """

    request_id: int
    prompt_ids: list[int]
    output_ids: list[int]
    params: SamplingParams
    max_len: int
    hands_over: bool = False
    source: str = ""


@dataclass(frozen=True)
class Abort:
    """A request isn't wanted any more, wherever it is."""

    request_id: int


@dataclass(frozen=True)
class Ask:
    """For a report."""


@dataclass(frozen=True)
class Close:
    """End politely; also from rank 0 to its followers."""


# from rank 0 to the front end


@dataclass(frozen=True)
class Ready:
    """An engine runs.

    Attributes:
        max_len: Most tokens of a request.
        vocab_size: Tokens that there are.
        addresses: Where its ranks listen for readers.
    """

    max_len: int
    vocab_size: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class NewToken:
    """A token of a request; with a reason, its last."""

    request_id: int
    token_id: int
    finish_reason: FinishReason | None


@dataclass(frozen=True)
class Progress:
    """What a step has brought.

    Attributes:
        tokens: New tokens.
        cached: Request -> tokens computed so far, for those in the middle of their prompt.
    """

    tokens: list[NewToken]
    cached: dict[int, int]


@dataclass(frozen=True)
class Held:
    """A request whose prompt is computed is held on all ranks for whoever continues it."""

    request_id: int


@dataclass(frozen=True)
class Report:
    """What an engine has done.

    Attributes:
        engine_id: Which one.
        engine: Its steps, tokens and pools.
        transfers: Counters of rank 0; None when it hands nothing over.
        failed_loads: Requests that were computed again, as their blocks didn't arrive.
    """

    engine_id: str
    engine: EngineReport
    transfers: Counters | None
    failed_loads: int


@dataclass(frozen=True)
class Failed:
    """A process ends, and why; also from a follower to rank 0."""

    error: type[Exception]
    reason: str

    @classmethod
    def of(cls, error: Exception) -> Failed:
        """What is known of an exception in a process that needn't have its type."""
        kind = type(error) if type(error) in {ValueError, TypeError, OSError} else RuntimeError
        text = str(error) if kind is type(error) else f"{type(error).__name__}: {error}"
        return cls(kind, text)


# from rank 0 to all ranks, itself among them


@dataclass(frozen=True)
class Forward:
    """Compute a batch."""

    values: dict[str, Any] = field(repr=False)
    tables: list[tuple[np.ndarray, np.ndarray | None]] = field(repr=False)

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


@dataclass(frozen=True)
class Poison:
    """Fill freed blocks of each pool with NaN."""

    blocks: Sequence[Sequence[int]]


@dataclass(frozen=True)
class Peers:
    """Where the ranks of an engine that hands over listen; also from the front end to rank 0."""

    engine_id: str
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Offer:
    """Hold blocks for readers."""

    name: str
    num_tokens: int
    blocks: GroupBlocks


@dataclass(frozen=True)
class Withdraw:
    """Don't hold them any more."""

    name: str


@dataclass(frozen=True)
class Load:
    """Read blocks from the engine that holds them."""

    name: str
    num_tokens: int
    blocks: GroupBlocks
    source: str


@dataclass(frozen=True)
class GiveUp:
    """Don't read them any more."""

    name: str


# from every rank to rank 0


@dataclass(frozen=True)
class Listening:
    """A rank has loaded its part of the model; "" when it hands nothing over."""

    address: str


@dataclass(frozen=True)
class Offered:
    """This rank holds the blocks."""

    name: str


@dataclass(frozen=True)
class LeaseOver:
    """It doesn't hold them any more."""

    name: str


@dataclass(frozen=True)
class Arrived:
    """Its part of a load has ended, well if there is no error."""

    name: str
    error: str


@dataclass(frozen=True)
class Changed:
    """To a rank from itself: its hand-overs have brought something."""


@dataclass(frozen=True)
class Settled:
    """Nothing writes to the blocks of a load any more."""

    name: str
