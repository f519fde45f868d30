"""Engines that die, stop or come too late: requests go on elsewhere, and nothing hangs."""

import random
from time import monotonic

import pytest

from blockstride.models import LLM, SamplingParams
from blockstride.models.distributed import EngineDiedError
from blockstride.models.distributed.messages import Stop
from tests.models.distributed.deployments import (
    all_blocks_are_free,
    engine,
    greedy,
    kill,
    resume,
    stop,
    tokens_of,
    tokens_of_transformers,
    until,
)
from tests.models.distributed.walk import TIMEOUT_SECONDS, answers, walk

# the first step of a process loads compiled kernels, which takes a busy machine seconds
QUICK = 8.0
PATIENT = 120.0
PROMPTS = ["In the beginning", "x" * 47]
LONG = "the quick brown fox " * 40


def tokens_after(llm, fault, when, prompt, count, params=None):
    """Tokens of a request whose engines meet with a fault as soon as `when(request)` holds."""
    ids = llm.tokenizer.encode(prompt).ids
    request = llm.engine.add_request(ids, params or greedy(count))
    while request.finish_reason is None:
        if fault is not None and when(request):
            fault()
            fault = None
        llm.engine.step()
    assert fault is None, "the fault came too late"
    return tuple(request.output_ids)


@pytest.mark.parametrize("fault", [kill, stop])
def test_a_prompt_is_computed_elsewhere_when_its_engine_fails(deploy, reference, fault):
    slow = engine(prefill_chunk=8)
    llm = deploy(reference.path, prefill=slow, decode=engine(), timeout_seconds=QUICK)
    (wanted,) = tokens_of_transformers(reference, llm, [LONG], 5)
    failing = llm.engine.prefill[0]
    got = tokens_after(llm, lambda: fault(failing), lambda r: r.num_cached > 8, LONG, 5)
    assert got == wanted
    assert not failing.is_alive
    # and so is the next one
    assert tokens_of(llm, [LONG], greedy(5)) == [wanted]
    until(lambda: all_blocks_are_free(llm))


@pytest.mark.parametrize("fault", [kill, stop])
def test_a_continuation_goes_on_elsewhere_when_its_engine_fails(deploy, reference, fault):
    llm = deploy(reference.path, prefill=engine(), decode=engine(), timeout_seconds=QUICK)
    params = SamplingParams(max_tokens=200, temperature=1.0, seed=5, ignore_eos=True)
    (wanted,) = tokens_of(LLM(reference.path), PROMPTS[:1], params)
    failing = llm.engine.decode[0]
    got = tokens_after(
        llm, lambda: fault(failing), lambda r: len(r.output_ids) > 3, PROMPTS[0], 200, params
    )
    assert got == wanted
    assert not failing.is_alive
    assert tokens_of(llm, PROMPTS[:1], params) == [wanted]
    until(lambda: all_blocks_are_free(llm))


def test_an_engine_that_reads_no_messages_blocks_nobody(deploy, reference):
    llm = deploy(reference.path, decode=[engine(), engine()], timeout_seconds=QUICK)
    (wanted,) = tokens_of_transformers(reference, llm, PROMPTS[:1], 5)
    failing = llm.engine.decode[0]
    stop(failing)
    # more than a pipe holds
    for _ in range(20):
        failing.tell(list(range(100_000)))
    assert tokens_of(llm, PROMPTS[:1], greedy(5)) == [wanted]
    assert not failing.is_alive


def test_an_engine_fails_with_any_of_its_ranks(deploy, reference):
    llm = deploy(reference.path, prefill=engine(), decode=engine(tp_size=2))
    (wanted,) = tokens_of_transformers(reference, llm, PROMPTS[:1], 200)
    failing = llm.engine.decode[0]
    got = tokens_after(
        llm, lambda: kill(failing, 1), lambda r: len(r.output_ids) > 3, PROMPTS[0], 200
    )
    assert got == wanted
    assert not failing.is_alive


def test_requests_fail_by_name_when_no_engine_is_left(deploy, reference):
    llm = deploy(reference.path, prefill=engine(), decode=engine())

    def kill_all():
        for each in llm.engine.engines:
            kill(each)

    with pytest.raises(EngineDiedError, match=r"(prefill|decode)-0: rank 0 exited with -9.*no eng"):
        tokens_after(llm, kill_all, lambda r: len(r.output_ids) > 3, PROMPTS[0], 500)
    assert not llm.engine.has_work
    with pytest.raises(EngineDiedError, match="no engine is left"):
        llm.generate("abc")
    assert not llm.engine.has_work


@pytest.mark.parametrize("transfer", ["pull", "push"])
@pytest.mark.parametrize("fault", [kill, stop])
def test_blocks_that_do_not_arrive_are_computed_again(
    deploy, reference, fault, transfer, monkeypatch
):
    engines = {"prefill": engine(), "decode": engine()}
    llm = deploy(reference.path, **engines, transfer=transfer, timeout_seconds=QUICK)
    wanted = tokens_of_transformers(reference, llm, PROMPTS, 6)
    on_held, source = llm.engine._requests.on_held, llm.engine.prefill[0]

    def fail_first(holder, request_id):
        fault(source)
        on_held(holder, request_id)

    monkeypatch.setattr(llm.engine._requests, "on_held", fail_first)
    assert tokens_of(llm, PROMPTS[:1], greedy(6)) == wanted[:1]
    if transfer == "pull":
        source.kill()
    elif source.is_alive:
        # whoever is stopped may still write; readers wait until they are told that it is gone
        llm.engine.members.lose(source, "unresponsive")
    (report,) = llm.reports()
    assert report.failed_reads == 1
    until(lambda: all_blocks_are_free(llm))
    assert tokens_of(llm, PROMPTS, greedy(6)) == wanted


@pytest.mark.parametrize("ranks", [1, 2])
def test_blocks_come_back_from_a_reader_that_dies_as_it_is_written_to(
    deploy, reference, ranks, monkeypatch
):
    engines = {"prefill": engine(), "decode": [engine(tp_size=ranks), engine()]}
    llm = deploy(reference.path, **engines, transfer="push", timeout_seconds=QUICK)
    wanted = tokens_of_transformers(reference, llm, PROMPTS, 6)
    on_held, readers = llm.engine._requests.on_held, [*llm.engine.decode]

    def kill_reader(holder, request_id):
        on_held(holder, request_id)
        reader = next(each for each in readers if each.requests)
        if all(each.is_alive for each in readers):
            kill(reader, ranks - 1)

    monkeypatch.setattr(llm.engine._requests, "on_held", kill_reader)
    # the first to be asked is the one with several ranks; a lease would last longer than this waits
    assert tokens_of(llm, PROMPTS[:1], greedy(6)) == wanted[:1]
    assert [each.is_alive for each in readers] == [False, True]
    until(lambda: all_blocks_are_free(llm), 30.0)
    assert tokens_of(llm, PROMPTS, greedy(6)) == wanted


@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_a_request_is_computed_again_when_its_lease_ran_out(
    deploy, reference, transfer, monkeypatch
):
    llm = deploy(reference.path, prefill=engine(), decode=engine(), transfer=transfer)
    wanted = tokens_of_transformers(reference, llm, PROMPTS, 6)
    on_held, source = llm.engine._requests.on_held, llm.engine.prefill[0]

    def let_go_first(holder, request_id):
        source.tell(Stop(request_id))
        on_held(holder, request_id)

    monkeypatch.setattr(llm.engine._requests, "on_held", let_go_first)
    assert tokens_of(llm, PROMPTS[:1], greedy(6)) == wanted[:1]
    assert llm.reports()[1].failed_reads == 1


def test_held_blocks_are_freed_when_their_request_is_aborted(deploy, reference, monkeypatch):
    llm = deploy(reference.path, prefill=engine(), decode=engine())
    requests, reader = llm.engine._requests, llm.engine.decode[0]
    on_held = requests.on_held

    def abort_before_it_is_read(holder, request_id):
        request = requests._tracked[request_id].request
        stop(reader)
        # both messages are in the pipe before it goes on
        monkeypatch.setattr(reader, "tell", reader._pipe.send)
        on_held(holder, request_id)
        llm.engine.abort(request)
        resume(reader)

    monkeypatch.setattr(requests, "on_held", abort_before_it_is_read)
    # a lease would last longer than this test waits
    assert llm.generate(PROMPTS[0], greedy(9))[0].finish_reason == "abort"
    until(lambda: all_blocks_are_free(llm))
    assert llm.reports()[1].transfers.requests == 0


def test_a_request_that_went_back_to_its_holder_can_be_aborted(deploy, reference, monkeypatch):
    """What it is there now has nothing to do with the blocks that are held under its old id."""
    llm = deploy(reference.path, prefill=engine(), decode=engine())
    (wanted,) = tokens_of_transformers(reference, llm, PROMPTS[:1], 6)
    prefill, decode = llm.engine.prefill[0], llm.engine.decode[0]
    ids = llm.tokenizer.encode(PROMPTS[0]).ids
    # it holds the blocks as long as it hears nothing
    request = llm.engine.add_request(ids, greedy(50))
    while not decode.requests:
        llm.engine.step()
    stop(prefill)
    kill(decode)
    while decode.is_alive:
        llm.engine.step()
    llm.engine.abort(request)
    resume(prefill)
    assert request.finish_reason == "abort"
    assert tokens_of(llm, PROMPTS[:1], greedy(6)) == [wanted]
    until(lambda: all_blocks_are_free(llm))


def test_all_who_wait_for_a_dead_engine_hear_of_it_at_once(deploy, reference, monkeypatch):
    """Loads from a dead engine don't go on until their time is up."""
    llm = deploy(reference.path, prefill=engine(), decode=engine(), timeout_seconds=PATIENT)
    wanted = tokens_of_transformers(reference, llm, PROMPTS[:1], 6)
    on_held, source = llm.engine._requests.on_held, llm.engine.prefill[0]

    def stop_first(holder, request_id):
        stop(source)
        on_held(holder, request_id)

    monkeypatch.setattr(llm.engine._requests, "on_held", stop_first)
    tokens_of(llm, PROMPTS[1:], greedy(1))
    request = llm.engine.add_request(llm.tokenizer.encode(PROMPTS[0]).ids, greedy(6))
    while not llm.engine.decode[0].requests:
        llm.engine.step()
    begin = monotonic()
    kill(source)
    while request.finish_reason is None:
        llm.engine.step()
    # a load may take 30 s
    assert monotonic() - begin < 15
    assert [tuple(request.output_ids)] == wanted
    until(lambda: all_blocks_are_free(llm))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_engine_is_given_up_and_the_others_go_on(deploy, reference, rank):
    llm = deploy(reference.path, decode=[engine(tp_size=2), engine()], timeout_seconds=4.0)
    wanted = tokens_of_transformers(reference, llm, PROMPTS, 300)
    requests = [llm.engine.add_request(llm.tokenizer.encode(p).ids, greedy(300)) for p in PROMPTS]
    stopped = llm.engine.decode[0]
    while not all(request.output_ids for request in requests):
        llm.engine.step()
    given_up = begin = monotonic()
    stop(stopped, rank)
    other, during = requests[1], 0
    while any(request.finish_reason is None for request in requests):
        before = len(other.output_ids)
        llm.engine.step()
        if stopped.is_alive:
            during += len(other.output_ids) - before
            given_up = monotonic()
    assert [tuple(request.output_ids) for request in requests] == wanted
    assert during > 0
    # a beat more than the limit, at each of two places that count
    assert given_up - begin < 3 * 4.0
    until(lambda: all_blocks_are_free(llm))


@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_after_random_faults_answers_are_right_and_blocks_free(deploy, reference, transfer):
    llm = deploy(
        reference.path,
        transfer=transfer,
        prefill=engine(),
        decode=[engine(num_blocks=(4, 20)), engine()],
        timeout_seconds=TIMEOUT_SECONDS,
    )
    walk(llm, answers(reference), random.Random(3))
    until(lambda: all_blocks_are_free(llm))


def test_a_model_that_ranks_cannot_share_is_refused_by_name(deploy, reference):
    with pytest.raises(ValueError, match="decode-0: tp_size: expected a divisor of"):
        deploy(reference.path, decode=engine(tp_size=3))
    with pytest.raises(ValueError, match="config: expected None beside prefill and decode"):
        deploy(reference.path, config=engine(), decode=engine())
    with pytest.raises(ValueError, match="decode: expected at least one engine"):
        deploy(reference.path, prefill=engine(), decode=[])
    with pytest.raises(ValueError, match="transfer: expected settings, or one of pull, push, got"):
        deploy(reference.path, prefill=engine(), decode=engine(), transfer="throw")


def test_a_prompt_that_fits_no_engine_is_refused_before_it_is_sent(deploy, reference):
    llm = deploy(reference.path, prefill=engine(), decode=engine(num_blocks=(3, 4)))
    with pytest.raises(ValueError, match="prompt: expected at most 47 tokens"):
        llm.generate(["a", "x" * 60])
    with pytest.raises(ValueError, match="prompt: expected tokens from 0 to"):
        llm.engine.add_request([10**6], greedy(1))
    assert not llm.engine.has_work


def test_a_process_that_cannot_start_is_named(reference, deploy, monkeypatch):
    worker = "blockstride.models.distributed.local_ranks.WORKER"
    monkeypatch.setattr(worker, "blockstride.nothing")
    with pytest.raises(EngineDiedError, match="decode-0: rank 0 exited with 1"):
        deploy(reference.path, decode=engine())
