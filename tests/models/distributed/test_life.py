"""The life of a request: every state and event, and whatever order they come in."""

import random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from blockstride.models.distributed.life import ENGINE, FRONT_END, Event, News, Stage, State
from blockstride.models.distributed.messages import (
    Hold,
    Outcome,
    Progress,
    Read,
    Settled,
    Stop,
    Token,
)
from tests.models.distributed.paper import ID, Books
from tests.models.distributed.paper_deployment import PaperDeployment


def test_every_event_is_defined_in_every_state():
    assert list(ENGINE) == list(State)
    assert list(FRONT_END) == list(Stage)
    assert all(set(row) == set(Event) for row in ENGINE.values())
    assert all(set(row) == set(News) for row in FRONT_END.values())


def job_in(state):
    """Books with a job in some state."""
    books = Books()
    match state:
        case State.COMPUTING:
            books.start()
            books.step(1)
        case State.TO_READ:
            for request_id in range(4):
                books.start(request_id, source="elsewhere")
            books.start(source="elsewhere")
        case State.READING:
            books.start(source="elsewhere")
        case State.OFFERING | State.HELD | State.RETURNING:
            books.held()
            if state is State.HELD:
                books.hear(*[Outcome(ID, Event.OFFERED)] * 2)
            if state is State.RETURNING:
                books.jobs.on(ID, Event.STOP)
    return books


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_an_engine_does_what_the_table_says_of_any_event_in_any_state(state, event):
    books = job_in(state)
    job = books.jobs._jobs.get(ID)
    assert (State.OVER if job is None else job.state) is state
    # what the event says has happened
    if job is not None and (state, event) == (State.COMPUTING, Event.ENDED):
        books.engine.abort(job.request)
    if (state, event) == (State.TO_READ, Event.ADMITTED):
        books.jobs.on(0, Event.STOP)
        books.hear(*[Outcome(0, Event.ARRIVED), Settled(0)] * 2)
        books.engine.scheduler.admit()
    else:
        books.jobs.on(ID, event)
    assert job is None or job.state is ENGINE[state][event].state
    assert (ID in books.jobs._jobs) == (job is not None and job.state is not State.OVER)
    # whatever it was, the job can be ended, and leaves nothing behind
    for number in (*range(4), ID):
        books.jobs.on(number, Event.STOP)
    for command in books.told:
        match command:
            case Read(request_id):
                books.hear(*[Outcome(request_id, Event.ARRIVED), Settled(request_id)] * 2)
            case Hold(request_id):
                books.hear(*[Outcome(request_id, Event.RETURNED)] * 2)
    assert len(books.jobs) == 0
    assert books.engine.is_whole


def hear_token(deployment, tracked, token_id, reason):
    token = Token(tracked.request.request_id, token_id, reason, "why" if reason else "")
    deployment.requests.on_progress(tracked.engine, Progress([token], {}))


NEWS = {
    News.TOKEN: lambda d, t: hear_token(d, t, len(t.request.output_ids), None),
    News.LAST_TOKEN: lambda d, t: hear_token(d, t, None, "error"),
    News.HELD: lambda d, t: d.requests.on_held(t.engine, t.request.request_id),
    News.HELD_IN_VAIN: lambda d, t: (
        d.kill(d.decode[0]),
        d.requests.on_held(t.engine, t.request.request_id),
    ),
    News.ABORTED: lambda d, t: d.requests.abort(t.request, "abort"),
    News.ENGINE_GONE: lambda d, t: d.kill(t.engine),
    News.HOLDER_GONE: lambda d, t: d.kill(d.prefill[0]),
}


@pytest.mark.parametrize("news", News)
@pytest.mark.parametrize("stage", Stage)
def test_the_front_end_does_what_the_table_says_of_any_news_at_any_stage(stage, news):
    deployment, draw = PaperDeployment(2, 1), random.Random(0)
    request = deployment.submit(12, 4)
    tracked = deployment.requests._tracked[request.request_id]
    if stage is Stage.MOVING:
        while tracked.stage is not stage:
            draw.choice(deployment.moves())()
    if stage is Stage.ENDED:
        deployment.settle(draw)
    reason = request.finish_reason
    NEWS[news](deployment, tracked)
    if news is News.LAST_TOKEN and tracked.engine is not None:
        # an engine that says so has no such job any more
        tracked.engine.tell(Stop(request.request_id))
    # those that it didn't wait for are none of its business
    if news is not News.HELD_IN_VAIN and (stage, news) != (Stage.COMPUTING, News.HOLDER_GONE):
        assert tracked.stage is FRONT_END[stage][news].stage
    if stage is Stage.ENDED:
        assert request.finish_reason == reason
    if news is not News.TOKEN:
        deployment.settle(draw)
        deployment.check()


# `make prove` takes many more
@settings(max_examples=settings().max_examples // 4, phases=[Phase.generate])
@given(seed=st.integers(0, 10**9))
def test_faults_and_aborts_end_no_other_request(seed):
    draw = random.Random(seed)
    deployment = PaperDeployment(draw.randint(0, 2), draw.randint(1, 3))
    for _ in range(draw.randint(5, 40)):
        deployment.accidents(draw)
        for _ in range(draw.randint(0, 30)):
            if moves := deployment.moves():
                draw.choice(moves)()
    deployment.settle(draw)
    deployment.check()


def test_a_request_ends_with_an_error_after_three_engines_died_with_it():
    deployment = PaperDeployment(0, 5)
    request, other = deployment.submit(12, 4), deployment.submit(12, 4)
    while request.finish_reason is None:
        deployment.kill(deployment.requests._tracked[request.request_id].engine)
    assert (request.finish_reason, request.error) == ("error", "decode-3: killed")
    assert sum(engine.is_alive for engine in deployment.engines) == 2
    deployment.settle(random.Random(0))
    assert other.finish_reason == "length"
    deployment.check()
