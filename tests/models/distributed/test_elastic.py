"""Engines that join, leave and are chosen while requests run."""

from threading import Thread
from time import monotonic

import pytest

from blockstride.models.distributed import EngineDiedError, fleet
from blockstride.models.distributed.routing import REQUEST_TOKENS, Candidate, choose_engine
from tests.models.distributed.deployments import (
    all_blocks_are_free,
    engine,
    greedy,
    is_running,
    kill,
    tokens_of,
    tokens_of_transformers,
    until,
)
from tests.models.distributed.paper_deployment import PaperDeployment

PROMPTS = ["In the beginning", "x" * 47, "And the king said", "abc"]
LONG = 300


def idle(**options):
    return Candidate(**{"queued_tokens": 0, "num_requests": 0, "room": 1000, **options})


def test_a_request_goes_where_it_waits_least_and_has_room():
    assert choose_engine(10, [idle(queued_tokens=500), idle(queued_tokens=100)]) == 1
    # a few requests with short answers to come cost less than a long prompt
    few = idle(queued_tokens=3, num_requests=3)
    assert choose_engine(10, [idle(queued_tokens=4 * REQUEST_TOKENS, num_requests=1), few]) == 1
    # whoever is full lets it wait for other requests, however little it has to compute
    assert choose_engine(10, [idle(room=9), idle(queued_tokens=500, room=10)]) == 1
    assert choose_engine(10, [idle(room=9), idle(queued_tokens=500, room=8)]) == 0
    assert choose_engine(10, [idle(room=20), idle(room=30), idle(room=30)]) == 1


def test_short_prompts_go_round_an_engine_that_computes_long_ones(deploy, reference):
    llm = deploy(reference.path, decode=[engine(prefill_chunk=8), engine(prefill_chunk=8)])
    deployment = llm.engine
    deployment.add_request([5] * 400, greedy(1))
    for _ in range(3):
        deployment.add_request([7] * 4, greedy(1))
    assert [len(each.requests) for each in deployment.decode] == [1, 3]
    while deployment.has_work:
        deployment.step()
    assert [each.queued_tokens for each in deployment.decode] == [0, 0]


def test_who_is_about_to_leave_gets_requests_only_if_nobody_else_can():
    deployment = PaperDeployment(num_prefill=1, num_decode=2)
    prefill, first, second = deployment.engines
    prefill.is_leaving = first.is_leaving = True
    for _ in range(3):
        deployment.submit(prompt=10, answer=5)
    assert [len(each.requests) for each in deployment.engines] == [0, 0, 3]
    deployment.kill(second)
    # new ones are what prefill engines are for, leaving or not
    assert [len(each.requests) for each in (prefill, first)] == [3, 0]
    assert not deployment.requests.is_idle(prefill)
    deployment.kill(prefill)
    assert [len(first.requests), first.queued_tokens] == [3, 30]
    assert deployment.requests.is_idle(prefill)


def test_engines_join_and_leave_while_requests_run(deploy, reference):
    llm = deploy(reference.path, prefill=engine(tp_size=2), decode=engine())
    wanted = tokens_of_transformers(reference, llm, PROMPTS, LONG)
    answers = []

    def ask():
        for _ in range(2):
            answers.append(tokens_of(llm, PROMPTS, greedy(LONG)))

    asking = Thread(target=ask)
    asking.start()
    names = [llm.engines.add("decode", engine(layout="LBHNC")) for _ in range(2)]
    assert names == ["decode-1", "decode-2"]
    names.append(llm.engines.add("prefill", engine()))
    llm.engines.remove("decode-0")
    llm.engines.remove("prefill-0")
    asking.join()
    assert answers == [wanted] * 2
    assert [llm.engines.names(role) for role in ("prefill", "decode")] == [names[2:], names[:2]]
    assert tokens_of(llm, PROMPTS, greedy(9)) == [tokens[:9] for tokens in wanted]
    reports = {report.engine_id: report for report in llm.reports()}
    assert list(reports) == [names[2], *names[:2]]
    # all that came last was computed by one and read by the others
    assert reports["prefill-1"].stats.prefill_tokens > 0
    assert sum(reports[name].transfers.requests for name in names[:2]) > 0
    assert all(report.failed_reads == 0 for report in reports.values())
    until(lambda: all_blocks_are_free(llm))


def test_requests_of_an_engine_that_leaves_end_there_or_go_on_elsewhere_in_time(deploy, reference):
    llm = deploy(reference.path, decode=[engine(), engine()])
    wanted = tokens_of_transformers(reference, llm, PROMPTS[:2], LONG)
    first, second = llm.engine.decode
    batch = llm.submit(PROMPTS[:2], greedy(LONG))
    until(lambda: all(generation.num_computed for generation in batch.generations))
    begin = monotonic()
    llm.engines.remove("decode-0", seconds=0)
    assert monotonic() - begin < 10
    assert not is_running(first.pids[0])
    llm.engines.add("decode", engine())
    # it takes its time, as its requests do
    llm.engines.remove("decode-1")
    assert not is_running(second.pids[0])
    tokens = [each.result().token_ids for each in batch.generations if each.done.wait()]
    assert tokens == wanted
    assert llm.engines.names("decode") == ["decode-2"]
    assert tokens_of(llm, PROMPTS[:2], greedy(9)) == [each[:9] for each in wanted]


def test_an_engine_that_dies_is_started_anew_as_often_as_is_wanted(deploy, reference, monkeypatch):
    llm = deploy(reference.path, decode=[engine(), engine()], restarts=1)
    start, attempts = llm.engine.fleet.start, []

    def fail_first(wanted):
        # as on a cluster that doesn't know yet that a machine is gone
        attempts.append(wanted)
        if len(attempts) == 1:
            raise EngineDiedError("decode-2: its node has died")
        return start(wanted)

    monkeypatch.setattr(llm.engine.fleet, "start", fail_first)
    monkeypatch.setattr(fleet, "PAUSES", (0.0, 0.1))
    (wanted,) = tokens_of_transformers(reference, llm, PROMPTS[:1], LONG)
    batch = llm.submit([PROMPTS[0]] * 4, greedy(LONG))
    kill(llm.engine.decode[0])
    assert [each.result().token_ids for each in batch.generations if each.done.wait()] == [
        wanted
    ] * 4
    # nobody waits for anything, and the next request finds who has joined meanwhile
    until(lambda: llm.generate(PROMPTS[0], greedy(1)) and len(llm.engines.names("decode")) == 2)
    assert llm.engines.names("decode") == ["decode-1", "decode-2"]
    kill(llm.engine.decode[1])
    assert tokens_of(llm, [PROMPTS[0]] * 4, greedy(LONG)) == [wanted] * 4
    assert llm.engines.names("decode") == ["decode-1"]
    assert len(attempts) == 2


def test_engines_that_cannot_join_or_leave_are_refused_by_name(deploy, reference):
    llm = deploy(reference.path, decode=engine())
    with pytest.raises(ValueError, match="role: expected decode where no prefill engine"):
        llm.engines.add("prefill", engine())
    with pytest.raises(ValueError, match="role: expected prefill or decode, got 'both'"):
        llm.engines.add("both", engine())
    with pytest.raises(ValueError, match=r"decode-1: max_len: expected at least .* got 20"):
        llm.engines.add("decode", engine(max_len=20))
    with pytest.raises(ValueError, match="decode-2: tp_size: expected a divisor"):
        llm.engines.add("decode", engine(tp_size=3))
    with pytest.raises(ValueError, match="engine_id: expected one of decode-0, got 'decode-7'"):
        llm.engines.remove("decode-7")
    with pytest.raises(ValueError, match="engine_id: expected one that isn't the last"):
        llm.engines.remove("decode-0")
    with pytest.raises(ValueError, match="seconds: expected a time"):
        llm.engines.remove("decode-0", seconds=-1)
    assert llm.generate("abc", greedy(1))[0].finish_reason == "length"
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.engines.remove("decode-0")
