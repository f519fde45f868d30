"""Starting the engines of a deployment."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from time import monotonic

import torch

from blockstride.checks import expect
from blockstride.models.distributed.engine_processes import EngineDiedError, EngineProcesses
from blockstride.models.distributed.inbox import Ended, Inbox
from blockstride.models.distributed.messages import START_SECONDS, Failed, Ready, Setup
from blockstride.models.distributed.sizes import check_engines
from blockstride.models.engine import EngineConfig
from blockstride.models.loading import find_device
from blockstride.transfer.connector import ConnectorSettings

logger = logging.getLogger(__name__)


def deal_places(device: str, num_ranks: Sequence[int]) -> list[list[str]]:
    """Where the ranks of every engine run.

    Args:
        device: As a user says it; `"cuda"` deals ranks to all GPUs in turn.
        num_ranks: Ranks of each engine.

    Raises:
        ValueError: A device that isn't there, or a GPU that two ranks of an engine would be on.
    """
    find_device(device)
    is_shared = device.startswith("cuda:") and max(num_ranks) > 1
    expect(not is_shared, "device", "'cuda', whose GPUs ranks share out, for several ranks", device)
    places = cycle(
        [f"cuda:{i}" for i in range(torch.cuda.device_count())] if device == "cuda" else [device]
    )
    return [[next(places) for _ in range(count)] for count in num_ranks]


def plan_engines(
    configs: Sequence[tuple[str, EngineConfig]],
    *,
    path: str | Path,
    dtype: str,
    device: str,
    folder: str,
    transfer: ConnectorSettings | None,
    answer_seconds: float,
    model_fingerprint: str = "",
) -> list[EngineProcesses]:
    """Engines that are not started yet.

    Args:
        configs: Name and config of each.
        path: Checkpoint folder.
        dtype: See `load_model`.
        device: Where they run; ranks are dealt to all GPUs in turn.
        folder: Where ranks find each other.
        transfer: How sequences are handed over; None: they are not.
        answer_seconds: After how long without a heartbeat a process is given up.
        model_fingerprint: What their caches are told apart by, where sequences are handed over.

    Raises:
        ValueError: A device, a model or sizes that can't be; the message names the engine.
    """
    places = deal_places(device, [config.tp_size for _, config in configs])
    engines = []
    for (engine_id, config), devices in zip(configs, places, strict=True):
        store = f"{folder}/{engine_id}"
        setup = Setup(
            engine_id,
            0,
            str(path),
            dtype,
            config,
            devices[0],
            store,
            transfer,
            answer_seconds,
            model_fingerprint,
            logging.getLogger("blockstride").getEffectiveLevel(),
        )
        engines.append(EngineProcesses(setup, devices))
    check_engines([engine.setup for engine in engines])
    return engines


def start_engines(engines: Sequence[EngineProcesses], inbox: Inbox) -> list[Ready]:
    """Starts all, and waits until all are ready.

    Args:
        engines: The engines.
        inbox: Where they are heard.

    Returns:
        What each said.

    Raises:
        ValueError: A model or sizes that can't be; the message names the engine.
        EngineDiedError: A process ended.
        TimeoutError: An engine wasn't ready in `START_SECONDS`.
    """
    for engine in engines:
        engine.start(inbox)
    deadline = monotonic() + START_SECONDS
    answers: dict[EngineProcesses, Ready] = {}
    while len(answers) < len(engines):
        letter = inbox.take(max(0.0, deadline - monotonic()))
        if letter is None:
            late = ", ".join(engine.engine_id for engine in engines if engine not in answers)
            raise TimeoutError(f"{late}: expected to be ready in {START_SECONDS} s")
        engine, message = letter
        match message:
            case Ready():
                answers[engine] = message
                logger.info("%s: ready, processes %s", engine.engine_id, engine.pids)
            case Failed():
                raise message.error(f"{engine.engine_id}: {message.reason}")
            case Ended():
                raise EngineDiedError(f"{engine.engine_id}: {engine.exit_codes()}")
    return [answers[engine] for engine in engines]
