"""What the front end and rank 0 of an engine say to each other.

All are children of one program and talk through pipes that nobody else can open, hence pickle.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from blockstride.models.engine import EngineConfig, SamplingParams
from blockstride.models.engine.limits import PromptLimits
from blockstride.models.engine.request import FinishReason
from blockstride.transfer.connector import ConnectorSettings

START_SECONDS = 600.0
"""Time for loading a model; ranks and engines wait so long for each other."""


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
        answer_seconds: After how long without a heartbeat a process is given up.
        model_fingerprint: What its caches are told apart by; "" when it hands nothing over.
        log_level: What it says on standard error.
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
    model_fingerprint: str = ""
    log_level: int = logging.WARNING


# from the front end to rank 0


@dataclass(frozen=True)
class Submit:
    """A job: to go on with a request.

    Attributes:
        job: Its number, never used before.
        prompt_ids: Tokens of the prompt.
        output_ids: Tokens that were generated elsewhere.
        params: How to continue it.
        max_len: Most tokens of it.
        hands_over: Whether to hold it for another engine once the prompt is computed.
        source: The engine that holds it for this one; "" when it is to be computed here.
        source_job: Its job there.
    """

    job: int
    prompt_ids: list[int]
    output_ids: list[int]
    params: SamplingParams
    max_len: int
    hands_over: bool = False
    source: str = ""
    source_job: int = -1


@dataclass(frozen=True)
class Stop:
    """A job isn't wanted any more, whatever its state."""

    job: int


@dataclass(frozen=True)
class Gone:
    """An engine is no more: nobody reads from it; also to all ranks."""

    engine_id: str


@dataclass(frozen=True)
class Ask:
    """For a report."""


@dataclass(frozen=True)
class Close:
    """End politely; also from rank 0 to its followers."""


@dataclass(frozen=True)
class Peers:
    """Where the ranks of an engine that hands over listen; rank 0 tells the others."""

    engine_id: str
    addresses: tuple[str, ...]


# from rank 0 to the front end


@dataclass(frozen=True)
class Ready:
    """An engine runs.

    Attributes:
        limits: Prompts that it can take.
        addresses: Where its ranks listen for readers.
    """

    limits: PromptLimits
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class NewToken:
    """A token of a job; with a reason, its last. None: it ends without another."""

    job: int
    token_id: int | None
    finish_reason: FinishReason | None
    error: str = ""


@dataclass(frozen=True)
class Progress:
    """What a step has brought.

    Attributes:
        tokens: New tokens.
        cached: Job -> tokens computed so far, for those in the middle of their prompt.
    """

    tokens: list[NewToken]
    cached: dict[int, int]


@dataclass(frozen=True)
class Held:
    """The blocks of a job are held on all ranks for whoever goes on."""

    job: int


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
