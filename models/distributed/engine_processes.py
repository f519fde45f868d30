"""The processes of one engine: how the front end starts them, talks to them and ends them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from threading import Event
from typing import Any

from msgspec.structs import replace

from blockstride.models.distributed.known_prefixes import KnownPrefixes
from blockstride.models.distributed.launcher import Launcher, Team
from blockstride.models.distributed.letters import Draining, Ended
from blockstride.models.distributed.load import Load
from blockstride.models.distributed.messages import Close, Setup
from blockstride.models.distributed.pipes import Inbox, Outbox

CLOSE_SECONDS = 10.0


class EngineDiedError(RuntimeError):
    """No engine is left that could do what was asked."""


@dataclass(eq=False)
class EngineProcesses:
    """One process a rank, wherever a launcher puts it. None spins while it waits.

    Args:
        setup: What rank 0 is; the others differ in rank and device.
        devices: Where each rank runs.
        launcher: Starts them.

    Attributes:
        requests: Ids of those that the engine works on.
        queued_tokens: Tokens that it is to compute before all of these have their next one.
        load: What it last said of its load.
        room: Tokens of one more sequence that it has free blocks for, as far as is known.
        known: Tokens that its prefix cache has, as far as can be told from here.
        is_alive: Whether it may be asked for anything.
        has_ended: Whether its rank 0 is gone, be it that nobody has read the letter that says so.
        is_leaving: Whether it takes no new requests while others can.
        has_left: Set when it has left, or is lost, and its processes have ended.
    """

    setup: Setup
    devices: Sequence[str]
    launcher: Launcher
    requests: set[int] = field(default_factory=set)
    queued_tokens: int = 0
    load: Load | None = None
    room: int = 0
    known: KnownPrefixes = field(default_factory=KnownPrefixes)
    is_alive: bool = True
    has_ended: bool = False
    is_leaving: bool = False
    has_left: Event = field(default_factory=Event)
    _team: Team | None = None
    _pipe: Connection | None = None
    _outbox: Outbox | None = None

    @property
    def engine_id(self) -> str:
        """Its name."""
        return self.setup.engine_id

    @property
    def pids(self) -> list[int]:
        """Process of each rank."""
        return [] if self._team is None else self._team.pids

    def start(self) -> None:
        """Begins to start all ranks."""
        setups = [replace(self.setup, rank=i, device=d) for i, d in enumerate(self.devices)]
        self._team = self.launcher.start(setups)

    def connect(self, seconds: float) -> Connection:
        """Waits until rank 0 can be spoken to; see `Team.connect`."""
        assert self._team is not None, "it was started"
        self._pipe = self._team.connect(seconds)
        return self._pipe

    def listen(self, inbox: Inbox) -> None:
        """Has all that rank 0 says from now on go to an inbox."""
        assert self._team is not None, "it was started"
        assert self._pipe is not None, "it is connected"
        self._outbox = Outbox(self._pipe)
        inbox.listen(self, self._pipe, self._note_end)
        self._team.watch(lambda: inbox.put(self, Ended()), lambda: inbox.put(self, Draining()))

    def _note_end(self) -> None:
        self.has_ended = True

    def note_load(self, load: Load) -> None:
        """Takes in what it says of its load, on any thread."""
        self.load, self.room = load, load.room

    def tell(self, message: Any) -> None:
        """Sends a message to rank 0, without waiting until it is received."""
        if self.is_alive:
            assert self._outbox is not None, "it was started"
            self._outbox.put(message)

    def how_it_ended(self) -> str:
        """What is known of the end of its processes, in words."""
        return (self._team is not None and self._team.how_it_ended()) or "it doesn't answer"

    def kill(self) -> None:
        """Ends all its processes now."""
        self.is_alive = False
        if self._team is not None:
            self._team.kill()
        if self._outbox is not None:
            self._outbox.close()
        # the threads that use it end with the processes
        self._pipe = None

    def close(self) -> None:
        """Asks it to end, and ends it if it doesn't."""
        if self.is_alive and self._outbox is not None and self._team is not None:
            self.tell(Close())
            self._team.wait(CLOSE_SECONDS)
        self.kill()
