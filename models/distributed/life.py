"""The life of a request across engines: two tables, of every state and every event.

One table is the front end's, the other that of every engine, where a request is called a job. Both
know it by the same id. A request that begins anew gets a new one, and no engine hears of an id
twice, so a late message is about a request that nobody knows: that is the last row of a table,
where nothing happens.

A row is a state; an entry says what an event does to it: the next state, and what is done on the
way, in order. `FRONT_END` is carried out by `Requests`, `ENGINE` by `Jobs`.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Stage(Enum):
    """Where a request is, as the front end sees it."""

    COMPUTING = "an engine works on it"
    MOVING = "an engine takes it over from another one, which holds its blocks"
    ENDED = "it has ended, or never was"


class News(Enum):
    """What happens to a request at the front end."""

    TOKEN = "its engine has a token, which its caller has now"
    LAST_TOKEN = "its engine has ended it, and its caller knows"
    HELD = "its engine holds its blocks for another one"
    HELD_IN_VAIN = "its engine holds its blocks, and none is left to read them"
    ABORTED = "its caller doesn't want it any more, or it has failed too often"
    ENGINE_GONE = "its engine is gone"
    HOLDER_GONE = "the engine that holds its blocks is gone"


class Deed(Enum):
    """What the front end does about it."""

    PLACE = "starts it in the engine that suits best, with the tokens there are"
    MOVE = "starts it in an engine that reads the blocks"
    STOP = "tells the engine to stop it"
    LET_GO = "tells the holder to free its blocks"
    FORGET_HOLDER = "expects nothing more of the holder"


class State(Enum):
    """Where a request is, as an engine sees it: a job."""

    COMPUTING = "it waits or runs, and owns its blocks"
    TO_READ = "it waits for blocks that are to be read"
    READING = "ranks read into its blocks"
    OFFERING = "ranks begin to hold its blocks for another engine"
    HELD = "all ranks hold its blocks"
    RETURNING = "ranks have been told to hold its blocks no longer"
    OVER = "it is over, or never was; it has no blocks"


class Event(Enum):
    """What happens to a job."""

    STOP = "the front end doesn't want it any more"
    SOURCE_GONE = "the engine that it is read from is gone"
    ADMITTED = "it has blocks to be read into"
    ARRIVED = "all ranks have read their parts"
    LOST = "a rank can't read its part"
    LEAVES = "its prompt is computed, and another engine is to go on"
    ENDED = "it has had its last token, or failed, and its blocks are back"
    OFFERED = "all ranks hold its blocks"
    RETURNED = "no rank holds its blocks any more"


class Act(Enum):
    """What an engine does about it."""

    REMOVE = "takes it out of the schedule, and its blocks back"
    READ = "has ranks read its blocks"
    RUN = "lets it run with what has been read"
    SET_APART = "stops reading, and sets its blocks apart until nothing writes to them"
    DROP = "takes it out of the schedule; its blocks are not its own any more"
    COMPUTE = "has it computed here"
    OFFER = "takes it out of the schedule, and has ranks hold its blocks"
    ANNOUNCE = "tells the front end that it is held"
    WITHDRAW = "has ranks hold its blocks no longer"
    RELEASE = "takes its blocks back"


class Turn(NamedTuple):
    """The next stage of a request, and what the front end does on the way."""

    stage: Stage
    deeds: tuple[Deed, ...] = ()


class Move(NamedTuple):
    """The next state of a job, and what its engine does on the way."""

    state: State
    acts: tuple[Act, ...] = ()


FRONT_END = {
    Stage.COMPUTING: {
        News.TOKEN: Turn(Stage.COMPUTING),
        News.LAST_TOKEN: Turn(Stage.ENDED),
        News.HELD: Turn(Stage.MOVING, (Deed.MOVE,)),
        News.HELD_IN_VAIN: Turn(Stage.COMPUTING, (Deed.STOP, Deed.PLACE)),
        News.ABORTED: Turn(Stage.ENDED, (Deed.STOP,)),
        News.ENGINE_GONE: Turn(Stage.COMPUTING, (Deed.PLACE,)),
        News.HOLDER_GONE: Turn(Stage.COMPUTING),
    },
    Stage.MOVING: {
        # it was read, or is computed again
        News.TOKEN: Turn(Stage.COMPUTING, (Deed.LET_GO,)),
        News.LAST_TOKEN: Turn(Stage.ENDED, (Deed.LET_GO,)),
        # nobody who reads is asked to hold
        News.HELD: Turn(Stage.MOVING),
        News.HELD_IN_VAIN: Turn(Stage.MOVING),
        News.ABORTED: Turn(Stage.ENDED, (Deed.STOP, Deed.LET_GO)),
        News.ENGINE_GONE: Turn(Stage.COMPUTING, (Deed.LET_GO, Deed.PLACE)),
        # all engines hear of an engine that is gone, so this one reads no more, and computes
        News.HOLDER_GONE: Turn(Stage.COMPUTING, (Deed.FORGET_HOLDER,)),
    },
    Stage.ENDED: dict.fromkeys(News, Turn(Stage.ENDED)),
}


def _ignored(state: State, *events: Event) -> dict[Event, Move]:
    """Events that change nothing in a state."""
    return dict.fromkeys(events, Move(state))


ENGINE = {
    State.COMPUTING: {
        Event.STOP: Move(State.OVER, (Act.REMOVE,)),
        Event.LEAVES: Move(State.OFFERING, (Act.OFFER,)),
        Event.ENDED: Move(State.OVER),
        # what it was to be read from, or how reading ended on a rank that was late
        **_ignored(State.COMPUTING, Event.SOURCE_GONE, Event.ADMITTED, Event.ARRIVED, Event.LOST),
        **_ignored(State.COMPUTING, Event.OFFERED, Event.RETURNED),
    },
    State.TO_READ: {
        Event.STOP: Move(State.OVER, (Act.REMOVE,)),
        Event.SOURCE_GONE: Move(State.COMPUTING, (Act.COMPUTE,)),
        Event.ADMITTED: Move(State.READING, (Act.READ,)),
        # nothing of it is with ranks or in a step
        **_ignored(State.TO_READ, Event.ARRIVED, Event.LOST, Event.LEAVES, Event.ENDED),
        **_ignored(State.TO_READ, Event.OFFERED, Event.RETURNED),
    },
    State.READING: {
        Event.STOP: Move(State.OVER, (Act.SET_APART, Act.DROP)),
        Event.SOURCE_GONE: Move(State.COMPUTING, (Act.SET_APART, Act.COMPUTE)),
        Event.ARRIVED: Move(State.COMPUTING, (Act.RUN,)),
        Event.LOST: Move(State.COMPUTING, (Act.SET_APART, Act.COMPUTE)),
        # it is in no step, and no other engine reads its blocks
        **_ignored(State.READING, Event.ADMITTED, Event.LEAVES, Event.ENDED),
        **_ignored(State.READING, Event.OFFERED, Event.RETURNED),
    },
    State.OFFERING: {
        Event.STOP: Move(State.RETURNING, (Act.WITHDRAW,)),
        Event.OFFERED: Move(State.HELD, (Act.ANNOUNCE,)),
        # whoever is to read it finds out, and computes
        Event.RETURNED: Move(State.OVER, (Act.ANNOUNCE, Act.RELEASE)),
        # it is read by others, and in no step
        **_ignored(State.OFFERING, Event.SOURCE_GONE, Event.ADMITTED, Event.ARRIVED, Event.LOST),
        **_ignored(State.OFFERING, Event.LEAVES, Event.ENDED),
    },
    State.HELD: {
        Event.STOP: Move(State.RETURNING, (Act.WITHDRAW,)),
        Event.RETURNED: Move(State.OVER, (Act.RELEASE,)),
        **_ignored(State.HELD, Event.SOURCE_GONE, Event.ADMITTED, Event.ARRIVED, Event.LOST),
        **_ignored(State.HELD, Event.LEAVES, Event.ENDED, Event.OFFERED),
    },
    State.RETURNING: {
        Event.RETURNED: Move(State.OVER, (Act.RELEASE,)),
        # it was not wanted any more before all ranks held it
        **_ignored(State.RETURNING, Event.STOP, Event.OFFERED),
        **_ignored(State.RETURNING, Event.SOURCE_GONE, Event.ADMITTED, Event.ARRIVED, Event.LOST),
        **_ignored(State.RETURNING, Event.LEAVES, Event.ENDED),
    },
    State.OVER: _ignored(State.OVER, *Event),
}
