"""Ranks as actors of a Ray cluster, on whatever machines Ray puts them.

The ranks of an engine are a placement group. They find the front end, and each other, by sockets,
and move caches by NIXL, so Ray itself carries no message of a request. It places ranks, says when
one has ended, and which machines are about to be taken away.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from secrets import token_bytes
from threading import Event, Thread, current_thread, main_thread
from typing import Any

import ray
from msgspec.structs import replace
from ray.exceptions import GetTimeoutError, RayError
from ray.util.client import ray as outside
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from blockstride.checks import expect
from blockstride.models.distributed.launcher import START_SECONDS, Launcher, Team
from blockstride.models.distributed.local_ranks import RANK_DEFAULTS
from blockstride.models.distributed.messages import Setup
from blockstride.models.distributed.sockets import Door, interface_of, knock

END_SECONDS = 5.0
"""How long an actor that was killed may take to be gone."""

REASON_SECONDS = 0.3
"""How long requests wait for Ray to say why their engine has ended."""

LOOK_SECONDS = 2.0
"""How often the cluster is asked which machines are about to be taken away."""

logger = logging.getLogger(__name__)


class RayRank:
    """A rank; its actor has nothing else to do."""

    def open(self, key: bytes) -> tuple[str, int, str]:
        """Where it can be spoken to, its process and its machine."""
        self._key, self._host = key, ray.util.get_node_ip_address()
        self._door = Door(self._host, key)
        return self._door.address, os.getpid(), ray.get_runtime_context().get_node_id()

    def run(self, setup: Setup, followers: Sequence[str]) -> int:
        """Does what it is told, to the end."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_of(self._host))
        # torch counts its threads as it is imported
        from blockstride.models.distributed.worker import run_rank  # noqa: PLC0415

        pipes = [knock(address, self._key, START_SECONDS) for address in followers]
        parent = self._door.let_in(START_SECONDS)
        self._door.close()
        return run_rank(replace(setup, host=self._host), parent, pipes)


class RayTeam(Team):
    """An actor a rank.

    Args:
        setups: What each is.
        actors: The actors.
        group: Their placement group.
        bundle: What each asks of the cluster.
        launcher: Has made them.
    """

    def __init__(
        self,
        setups: Sequence[Setup],
        actors: Sequence[Any],
        group: Any,
        bundle: Mapping[str, float],
        launcher: RayLauncher,
    ) -> None:
        self.pids = []
        self._setups, self._actors, self._group = setups, actors, group
        self._bundle, self._launcher = bundle, launcher
        self._key = token_bytes(32)
        self._opened = [actor.open.remote(self._key) for actor in actors]
        self._runs: list[Any] = []
        self._nodes: frozenset[str] = frozenset()

    def connect(self, seconds: float) -> Connection:
        """See `Team`."""
        patience = min(seconds, self._launcher.place_seconds)
        try:
            opened = ray.get(self._opened, timeout=patience)
        except GetTimeoutError:
            asks = ", ".join(f"{count:g} {name}" for name, count in self._bundle.items())
            wanted = f"room on the cluster for {len(self._actors)} ranks with {asks} each"
            raise TimeoutError(f"expected {wanted}, got none in {patience:g} s") from None
        except RayError as error:
            raise ChildProcessError(_first_line(error)) from None
        addresses, pids, nodes = zip(*opened, strict=True)
        self.pids, self._nodes = list(pids), frozenset(nodes)
        for rank, (actor, setup) in enumerate(zip(self._actors, self._setups, strict=True)):
            others = addresses[1:] if rank == 0 else ()
            self._runs.append(actor.run.remote(setup, others))
        return knock(addresses[0], self._key, seconds)

    def watch(self, on_end: Callable[[], object], on_drain: Callable[[], object]) -> None:
        """See `Team`."""
        for run in self._runs:
            run.future().add_done_callback(lambda _: on_end())
        self._launcher.look_out(self, self._nodes, on_drain)

    def how_it_ended(self) -> str:
        """See `Team`: what Ray says."""
        if not ray.is_initialized():
            return "Ray was shut down"
        # connections end first
        ended, _ = ray.wait(self._runs, timeout=REASON_SECONDS)
        for rank, run in enumerate(self._runs):
            if run in ended:
                try:
                    ray.get(run)
                except RayError as error:
                    return f"rank {rank}: {_first_line(error)}"
        return "its connection has ended"

    def wait(self, seconds: float) -> None:
        """See `Team`."""
        if self._runs and ray.is_initialized():
            ray.wait(self._runs, num_returns=len(self._runs), timeout=seconds)

    def kill(self) -> None:
        """See `Team`."""
        self._launcher.forget(self)
        # calls of Ray begin a session where there is none any more, as at the end of a program
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
            self.wait(END_SECONDS)
            remove_placement_group(self._group)


class RayLauncher(Launcher):
    """Starts ranks as actors.

    Models must be at the same path on all machines, and this package installed. The machines reach
    each other, and whoever makes this reaches them, at any port.

    Args:
        address: Of the cluster: `"auto"` for the one that this machine belongs to, `"HOST:PORT"`,
            or `"ray://HOST:PORT"` from outside.
        cpus: Processors of each rank, which has as many threads.
        resources: For engines whose names begin with a role, what else each rank asks of its
            machine, as in `{"prefill": {"fast-node": 0.1}}`.
        place_seconds: How long ranks may wait for room on the cluster.
    """

    is_local = False

    def __init__(
        self,
        address: str = "auto",
        *,
        cpus: float = 1,
        resources: Mapping[str, Mapping[str, float]] | None = None,
        place_seconds: float = 120.0,
    ) -> None:
        expect(cpus > 0, "cpus", "more than 0", cpus)
        expect(place_seconds > 0, "place_seconds", "more than 0", place_seconds)
        self.place_seconds = place_seconds
        self._address, self._cpus, self._resources = address, cpus, resources or {}
        self._has_connected = False
        self._is_over = Event()
        self._lookouts: dict[Team, tuple[frozenset[str], Callable[[], object]]] = {}
        self._lookout: Thread | None = None

    def deal(self, device: str | None, num_ranks: Sequence[int]) -> list[list[str]]:
        """See `Launcher`: Ray shows each rank a GPU of its own.

        Raises:
            ValueError: A GPU by its number.
            ConnectionError: There is no cluster.
        """
        self._connect()
        if device is None:
            device = "cuda" if ray.cluster_resources().get("GPU", 0) >= 1 else "cpu"
        expect(device in {"cpu", "cuda"}, "device", "cpu or cuda, as Ray has the numbers", device)
        name = "cuda:0" if device == "cuda" else device
        return [[name] * count for count in num_ranks]

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        is_main = current_thread() is main_thread()
        before = signal.getsignal(signal.SIGTERM)
        # what a program outside of the cluster asks for goes to the server that it asks
        is_outside = self._address.startswith("ray://")
        options = {} if is_outside else {"logging_level": logging.WARNING}
        try:
            ray.init(self._address, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = "of this machine" if self._address == "auto" else f"at {self._address}"
            raise ConnectionError(f"no Ray cluster {where}: {_first_line(error)}") from error
        self._has_connected = True
        if is_main:
            # this program's own ways to end are not Ray's
            signal.signal(signal.SIGTERM, before)

    def start(self, setups: Sequence[Setup]) -> RayTeam:
        """See `Launcher`."""
        engine_id = setups[0].engine_id
        bundle = {"CPU": self._cpus, **self._resources.get(engine_id.partition("-")[0], {})}
        if setups[0].device != "cpu":
            bundle["GPU"] = 1
        group = placement_group([bundle] * len(setups), strategy="PACK")
        threads = {"OMP_NUM_THREADS": str(max(1, int(self._cpus)))}
        others = {name: count for name, count in bundle.items() if name not in {"CPU", "GPU"}}
        actors = [
            ray.remote(RayRank)
            .options(
                num_cpus=self._cpus,
                num_gpus=bundle.get("GPU", 0),
                resources=others,
                runtime_env={"env_vars": {**RANK_DEFAULTS, **threads}},
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank),
            )
            .remote()
            for rank in range(len(setups))
        ]
        return RayTeam(setups, actors, group, bundle, self)

    def look_out(self, team: Team, nodes: frozenset[str], on_drain: Callable[[], object]) -> None:
        """Calls a function once one of these machines is about to be taken away."""
        self._lookouts[team] = nodes, on_drain
        if self._lookout is None:
            self._lookout = Thread(target=self._look, name="blockstride-lookout", daemon=True)
            self._lookout.start()

    def forget(self, team: Team) -> None:
        """Its machines don't matter any more."""
        self._lookouts.pop(team, None)

    def _look(self) -> None:
        # a program outside of the cluster has to ask somebody inside
        task = ray.remote(num_cpus=0)(_draining)
        is_outside = outside.is_connected()
        while not self._is_over.wait(LOOK_SECONDS):
            try:
                nodes = ray.get(task.remote(), timeout=END_SECONDS) if is_outside else _draining()
            except Exception:
                logger.debug(
                    "the cluster doesn't say what is about to be taken away", exc_info=True
                )
                continue
            for team, (its_nodes, on_drain) in list(self._lookouts.items()):
                if its_nodes & nodes:
                    self.forget(team)
                    on_drain()

    def close(self) -> None:
        """See `Launcher`."""
        self._is_over.set()
        if self._has_connected and ray.is_initialized():
            ray.shutdown()


def _draining() -> frozenset[str]:
    """Ids of machines that are about to be taken away; Ray has no public name for it."""
    return frozenset(ray._private.state.state.get_draining_nodes())


def _first_line(error: BaseException) -> str:
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
