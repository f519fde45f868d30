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

ENGINE = {
    State.COMPUTING: {
        Event.STOP: Move(State.OVER, (Act.REMOVE,)),
        Event.LEAVES: Move(State.OFFERING, (Act.OFFER,)),
        Event.ENDED: Move(State.OVER),
        # what it was to be read from, or how reading ended on a rank that was late
        Event.SOURCE_GONE: Move(State.COMPUTING),
        Event.ADMITTED: Move(State.COMPUTING),
        Event.ARRIVED: Move(State.COMPUTING),
        Event.LOST: Move(State.COMPUTING),
        Event.OFFERED: Move(State.COMPUTING),
        Event.RETURNED: Move(State.COMPUTING),
    },
    State.TO_READ: {
        Event.STOP: Move(State.OVER, (Act.REMOVE,)),
        Event.SOURCE_GONE: Move(State.COMPUTING, (Act.COMPUTE,)),
        Event.ADMITTED: Move(State.READING, (Act.READ,)),
        # nothing of it is with ranks or in a step
        Event.ARRIVED: Move(State.TO_READ),
        Event.LOST: Move(State.TO_READ),
        Event.LEAVES: Move(State.TO_READ),
        Event.ENDED: Move(State.TO_READ),
        Event.OFFERED: Move(State.TO_READ),
        Event.RETURNED: Move(State.TO_READ),
    },
    State.READING: {
        Event.STOP: Move(State.OVER, (Act.SET_APART, Act.DROP)),
        Event.SOURCE_GONE: Move(State.COMPUTING, (Act.SET_APART, Act.COMPUTE)),
        Event.ARRIVED: Move(State.COMPUTING, (Act.RUN,)),
        Event.LOST: Move(State.COMPUTING, (Act.SET_APART, Act.COMPUTE)),
        # it is in no step, and nobody's but its own
        Event.ADMITTED: Move(State.READING),
        Event.LEAVES: Move(State.READING),
        Event.ENDED: Move(State.READING),
        Event.OFFERED: Move(State.READING),
        Event.RETURNED: Move(State.READING),
    },
    State.OFFERING: {
        Event.STOP: Move(State.RETURNING, (Act.WITHDRAW,)),
        Event.OFFERED: Move(State.HELD, (Act.ANNOUNCE,)),
        # whoever is to read it finds out, and computes
        Event.RETURNED: Move(State.OVER, (Act.ANNOUNCE, Act.RELEASE)),
        # it is read by others, and in no step
        Event.SOURCE_GONE: Move(State.OFFERING),
        Event.ADMITTED: Move(State.OFFERING),
        Event.ARRIVED: Move(State.OFFERING),
        Event.LOST: Move(State.OFFERING),
        Event.LEAVES: Move(State.OFFERING),
        Event.ENDED: Move(State.OFFERING),
    },
    State.HELD: {
        Event.STOP: Move(State.RETURNING, (Act.WITHDRAW,)),
        Event.RETURNED: Move(State.OVER, (Act.RELEASE,)),
        Event.OFFERED: Move(State.HELD),
        Event.SOURCE_GONE: Move(State.HELD),
        Event.ADMITTED: Move(State.HELD),
        Event.ARRIVED: Move(State.HELD),
        Event.LOST: Move(State.HELD),
        Event.LEAVES: Move(State.HELD),
        Event.ENDED: Move(State.HELD),
    },
    State.RETURNING: {
        Event.RETURNED: Move(State.OVER, (Act.RELEASE,)),
        # it was not wanted any more before all ranks held it
        Event.OFFERED: Move(State.RETURNING),
        Event.STOP: Move(State.RETURNING),
        Event.SOURCE_GONE: Move(State.RETURNING),
        Event.ADMITTED: Move(State.RETURNING),
        Event.ARRIVED: Move(State.RETURNING),
        Event.LOST: Move(State.RETURNING),
        Event.LEAVES: Move(State.RETURNING),
        Event.ENDED: Move(State.RETURNING),
    },
    State.OVER: dict.fromkeys(Event, Move(State.OVER)),
}
