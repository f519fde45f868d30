"""Which engines the arguments of `LLM` ask for, and where they run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

from blockstride.checks import expect
from blockstride.models.distributed.launcher import Launcher
from blockstride.models.distributed.local_ranks import LocalLauncher
from blockstride.models.engine import EngineConfig
from blockstride.models.engine.values import expect_type, whole

Configs = EngineConfig | Sequence[EngineConfig]


class Engines(NamedTuple):
    """Engines by what they are there for.

    Attributes:
        prefill: Engines that compute prompts.
        decode: Engines that continue them.
        launcher: Starts their ranks; None: there is one engine, in this process.
    """

    prefill: list[EngineConfig]
    decode: list[EngineConfig]
    launcher: Launcher | None


def read_engines(
    config: EngineConfig | None,
    prefill: Configs,
    decode: Configs | None,
    on: str | Launcher | None,
    restarts: int,
) -> Engines:
    """The engines that the arguments of `LLM` ask for.

    Raises:
        TypeError, ValueError: Something else was given, or arguments that contradict each other.
    """
    prompts = _configs(prefill, "prefill")
    has_roles = bool(prompts) or decode is not None
    is_clear = config is None or not has_roles
    expect(is_clear, "config", "None beside prefill and decode", config)
    config = EngineConfig() if config is None else config
    expect_type(config, "config", EngineConfig, "an EngineConfig")
    answers = [config] if decode is None else _configs(decode, "decode")
    launcher = None if on is None else find_launcher(on)
    if launcher is None and (has_roles or config.tp_size > 1):
        launcher = LocalLauncher()
    whole(restarts, "restarts", 0, "a number of engines")
    can_be = launcher is not None or restarts == 0
    expect(can_be, "restarts", "0 for an engine in this process", restarts)
    return Engines(prompts, answers, launcher)


def find_launcher(on: str | Launcher, rank_cpus: int = 1) -> Launcher:
    """What starts ranks there.

    Args:
        on: As in `LLM`.
        rank_cpus: Processors of each rank, where it is known by its name only.

    Raises:
        TypeError, ValueError: Something else, or Ray where that isn't installed.
    """
    if isinstance(on, Launcher):
        return on
    expect_type(on, "on", str, "a name, or a launcher")
    fits = on == "ray" or on.startswith("ray://")
    expect(fits, "on", "ray, or ray://HOST:PORT", repr(on))
    expect(find_spec("ray") is not None, "on", "ray installed (pip install 'blockstride[ray]')", on)
    # whoever doesn't use Ray needn't have it
    from blockstride.models.distributed.ray_ranks import RayLauncher  # noqa: PLC0415

    return RayLauncher("auto" if on == "ray" else on, cpus=rank_cpus)


def _configs(given: object, name: str) -> list[EngineConfig]:
    """One engine or several, as a list."""
    configs = [given] if isinstance(given, EngineConfig) else given
    expect_type(configs, name, (list, tuple), "an EngineConfig or several")
    for config in configs:  # type: ignore[union-attr]
        expect_type(config, name, EngineConfig, "an EngineConfig or several")
    return list(configs)  # type: ignore[call-overload]
