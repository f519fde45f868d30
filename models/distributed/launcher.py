"""Where ranks run: what a deployment asks of those who start them, watch them and end them.

`local_ranks.py` makes them processes of this machine, `ray_ranks.py` actors of a Ray cluster.
Nothing else knows which of the two it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from blockstride.models.distributed.messages import Setup

START_SECONDS = 600.0
"""Time for loading a model; ranks and engines wait so long for each other."""


class Team(ABC):
    """The ranks of one engine, which begin and end together.

    Attributes:
        pids: Process of each rank, on whatever machine that is.
    """

    pids: list[int]

    @abstractmethod
    def connect(self, seconds: float) -> Connection:
        """Waits until rank 0 can be spoken to.

        Args:
            seconds: How long at most.

        Returns:
            A connection to it, through which it says first that it is ready, or why it isn't.

        Raises:
            ChildProcessError: It has ended before that.
            TimeoutError: It isn't there in time; the message says what it waits for.
        """

    @abstractmethod
    def watch(self, on_end: Callable[[], object], on_drain: Callable[[], object]) -> None:
        """Has told what the connection to rank 0 doesn't tell; on any thread, once or more.

        Args:
            on_end: Called when a rank has ended.
            on_drain: Called when a machine that ranks run on is about to be taken away.
        """

    @abstractmethod
    def how_it_ended(self) -> str:
        """What is known of the end of its ranks, in words; "" when nothing is."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Waits until all ranks have ended, or that time is over."""

    @abstractmethod
    def kill(self) -> None:
        """Ends all ranks now; nothing that they have begun goes on when this returns."""


class Launcher(ABC):
    """Starts ranks.

    Attributes:
        is_local: Whether they share this machine, its memory, devices and folders.
    """

    is_local: bool

    @abstractmethod
    def deal(self, device: str | None, num_ranks: Sequence[int]) -> list[list[str]]:
        """On which device each rank of each engine runs.

        Args:
            device: As a user says it; `"cuda"` leaves to the launcher which GPUs that are, None
                whether there are any.
            num_ranks: Ranks of each engine.

        Raises:
            ValueError: A device that there isn't.
        """

    @abstractmethod
    def start(self, setups: Sequence[Setup]) -> Team:
        """Begins to start the ranks of an engine, without waiting for them.

        Args:
            setups: What each is, rank 0 first.
        """

    def close(self) -> None:  # noqa: B027
        """Ends what it needed for starting ranks; they have ended by then."""
