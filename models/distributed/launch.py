"""Planning the engines of a deployment, and starting them: what can't be is told before that."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from time import monotonic
from typing import Any

import torch

from blockstride.checks import expect
from blockstride.models.checkpoint import CheckpointOutline
from blockstride.models.distributed.engine_processes import EngineDiedError, EngineProcesses
from blockstride.models.distributed.launcher import START_SECONDS, Launcher
from blockstride.models.distributed.messages import Failed, Ready, Setup
from blockstride.models.engine import EngineConfig
from blockstride.models.engine.pools import memory_argument, plan_model_pools
from blockstride.models.families import model_family
from blockstride.models.families.roles import HasAttention
from blockstride.models.loading import find_device, outline_model
from blockstride.models.logs import chosen_format
from blockstride.models.memory import expect_room
from blockstride.models.parallel import TensorParallel

logger = logging.getLogger(__name__)


def plan_engines(
    configs: Mapping[str, EngineConfig], device: str | None, launcher: Launcher, **shared: Any
) -> list[EngineProcesses]:
    """Engines that are not started yet.

    Args:
        configs: Name of each engine -> its config.
        device: Where they run; see `Launcher.deal`.
        launcher: Will start them.
        **shared: Fields of `Setup` that are the same for all.

    Raises:
        ValueError: A device, a model or sizes that can't be; the message names the engine.
    """
    places = launcher.deal(device, [config.tp_size for config in configs.values()])
    shared["log_level"] = logging.getLogger("blockstride").getEffectiveLevel()
    shared["log_format"] = chosen_format()
    engines = [
        EngineProcesses(Setup(engine_id, config, devices[0], **shared), devices, launcher)
        for (engine_id, config), devices in zip(configs.items(), places, strict=True)
    ]
    check_engines([engine.setup for engine in engines], launcher.is_local)
    return engines


def check_engines(setups: Sequence[Setup], are_local: bool = True) -> None:
    """Raise unless the model can be cut into these engines, and their caches fit the machine.

    The weights are looked at, and not read: what else ranks find wrong with them is left to them.

    Args:
        setups: Rank 0 of every engine.
        are_local: Whether they run on this machine; what others have is left to their ranks.

    Raises:
        ValueError: Ranks that can't share the heads, channels or inner widths, weights that are
            missing, misshapen or quantised, sizes that can't work together,
            more ranks than GPUs, or more memory than there is; the message names the engine.
    """
    needed: dict[str, int] = {}
    for setup in setups:
        try:
            device = find_device(setup.device) if are_local else torch.device(setup.device)
            nbytes = setup.config.tp_size * _rank_bytes(setup, device, are_local)
            if device.type == "cpu" and are_local:
                # a GPU has its caches to itself, and is asked by its rank
                needed[setup.engine_id] = nbytes
                expect_room(memory_argument(setup.config), sum(needed.values()), device)
        except ValueError as error:
            raise type(error)(f"{setup.engine_id}: {error}") from error


def _rank_bytes(setup: Setup, device: torch.device, is_local: bool) -> int:
    """What a rank caches, in bytes."""
    config, outline = setup.config, CheckpointOutline(setup.path)
    family = model_family(outline.config)
    if device.type == "cuda" and is_local:
        count = torch.cuda.device_count()
        most = f"at most {count}, one for each GPU"
        expect(config.tp_size <= count, "tp_size", most, config.tp_size)
    first = TensorParallel(0, config.tp_size)
    # there are fewer of them than of anything else that ranks share
    if isinstance(family, HasAttention) and any("attention" in kinds for kinds in family.kinds()):
        first.share("num_attention_heads", family.num_attention_heads)
    model = outline_model(outline, config, dtype=setup.dtype, device=device, parallel=first)
    return sum(plan.nbytes for plan in plan_model_pools(model.cache_specs(), config, first))


def start_engines(engines: Sequence[EngineProcesses]) -> list[Ready]:
    """Starts all, and waits until all are ready.

    Args:
        engines: The engines.

    Returns:
        What each said.

    Raises:
        ValueError: A model or sizes that can't be; the message names the engine.
        EngineDiedError: A process ended.
        TimeoutError: An engine wasn't ready in `START_SECONDS`.
    """
    deadline = monotonic() + START_SECONDS
    for engine in engines:
        engine.start()
    pipes: dict[Any, EngineProcesses] = {}
    for engine in engines:
        try:
            pipes[engine.connect(max(0.0, deadline - monotonic()))] = engine
        except (ChildProcessError, TimeoutError) as error:
            kind = TimeoutError if isinstance(error, TimeoutError) else EngineDiedError
            raise kind(f"{engine.engine_id}: {error}") from error
    answers: dict[EngineProcesses, Ready] = {}
    while len(answers) < len(engines):
        speaking = wait([*pipes], max(0.0, deadline - monotonic()))
        if not speaking:
            late = ", ".join(engine.engine_id for engine in engines if engine not in answers)
            raise TimeoutError(f"{late}: expected to be ready in {START_SECONDS} s")
        for pipe in speaking:
            engine = pipes.pop(pipe)
            answers[engine] = ready = _first_word(engine, pipe)
            if engine.setup.config.prefix_caching:
                engine.known.capacity = ready.capacity
            logger.info("%s: ready, processes %s", engine.engine_id, engine.pids)
    return [answers[engine] for engine in engines]


def _first_word(engine: EngineProcesses, pipe: Any) -> Ready:
    """That an engine is ready; raises why it isn't."""
    try:
        message = pipe.recv()
    except (EOFError, OSError):
        raise EngineDiedError(f"{engine.engine_id}: {engine.how_it_ended()}") from None
    if isinstance(message, Failed):
        raise message.error(f"{engine.engine_id}: {message.reason}")
    assert isinstance(message, Ready), "it says nothing else first"
    return message
