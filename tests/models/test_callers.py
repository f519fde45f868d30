"""Any number of callers on one LLM: each gets what it would alone, and leaves nothing behind."""

import asyncio
import copy
import gc
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from blockstride.models import LLM, AsyncLLM, EngineConfig
from blockstride.models.detokenizer import TokenDecoder
from tests.models.callers import ENDLESS, PARAMS, PROMPTS, SECONDS, Caller, run_threads, until


@pytest.fixture(scope="module")
def shared(reference):
    """Few rows, so that requests wait for each other."""
    config = EngineConfig(cache_bytes=1 << 24, max_num_seqs=4)
    with LLM(reference.path, config=config) as llm:
        yield llm


@pytest.fixture
def llm(shared):
    """Checked for what a test has left behind."""
    yield shared
    gc.collect()
    until(lambda: not shared.engine.has_work)
    shared.engine.blocks.check()
    assert shared.engine.blocks.num_free == tuple(
        p.layout.num_blocks - 1 for p in shared.engine.pools
    )


@pytest.fixture(scope="module")
def alone(shared):
    """Every prompt with every parameters, one after the other."""
    return {
        (prompt, at): shared.generate(prompt, params)[0].text
        for prompt in PROMPTS
        for at, params in enumerate(PARAMS)
    }


def test_streams_that_are_read_in_turn_keep_their_texts_apart(llm, alone):
    streams = [llm.stream(prompt, PARAMS[1]) for prompt in PROMPTS]
    texts = [""] * len(streams)
    left = list(enumerate(streams))
    while left:
        for item in list(left):
            piece = next(item[1], None)
            if piece is None:
                left.remove(item)
            else:
                texts[item[0]] += piece
    assert texts == [alone[prompt, 1] for prompt in PROMPTS]


@pytest.mark.parametrize("seed", range(2))
def test_callers_of_every_kind_get_the_texts_that_they_get_alone(llm, alone, seed):
    run_threads(*(Caller(llm, alone, f"{seed} {i}").run for i in range(3)))


@pytest.mark.parametrize("pieces", [0, 2])
def test_a_stream_that_nobody_holds_ends_its_request(llm, pieces):
    stream = llm.stream("abc", ENDLESS)
    for _ in range(pieces):
        next(stream)
    assert llm.engine.has_work or pieces == 0
    del stream
    until(lambda: not llm.engine.has_work)


def test_closing_a_stream_that_never_began_frees_its_blocks(llm):
    llm.stream("abc", ENDLESS).close()
    assert not llm.engine.has_work


def test_a_request_ends_with_the_thread_that_reads_it(llm):
    def read():
        next(llm.stream("abc", ENDLESS))
        raise KeyError("its own trouble")

    with pytest.raises(KeyError):
        run_threads(read)
    gc.collect()
    until(lambda: not llm.engine.has_work)


def test_a_stream_ends_with_its_event_loop(llm, caplog):
    left = []

    async def leave():
        left.append(AsyncLLM(llm).stream("abc", ENDLESS))
        await anext(left[0])

    asyncio.run(leave())
    until(lambda: not llm.engine.has_work)
    assert left[0].completion.finish_reason == "abort"
    assert not caplog.records
    with pytest.raises(RuntimeError, match="stream: expected the event loop that it was made in"):
        asyncio.run(left[0].aclose())


def test_completions_come_in_order_and_end_with_their_iterator(llm, alone):
    completions = llm.completions([PROMPTS[0], "abc"], [PARAMS[0], ENDLESS])
    assert next(completions).text == alone[PROMPTS[0], 0]
    completions.close()
    assert not llm.engine.has_work
    assert next(completions).finish_reason == "abort"


def test_an_interrupt_is_raised_at_once_and_ends_the_request(llm):
    main = threading.main_thread().ident
    assert main is not None

    def interrupt():
        until(lambda: llm.engine.has_work)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate("abc", ENDLESS)
    until(lambda: not llm.engine.has_work)


def test_what_the_engine_raises_goes_to_all_who_wait(llm, alone, monkeypatch):
    streams = [llm.stream("abc", ENDLESS) for _ in range(3)]
    for stream in streams:
        next(stream)

    def fail():
        raise MemoryError("no memory")

    with monkeypatch.context() as broken:
        broken.setattr(llm.engine, "step", fail)
        for stream in streams:
            with pytest.raises(MemoryError, match="no memory"):
                list(stream)
        with pytest.raises(MemoryError, match="no memory"):
            llm.generate("abc")
        with pytest.raises(MemoryError, match="no memory"):
            asyncio.run(AsyncLLM(llm).generate("abc"))
    assert llm.generate(PROMPTS[1], PARAMS[1])[0].text == alone[PROMPTS[1], 1]


def test_nobody_waits_for_a_request_that_the_engine_has_lost(llm, monkeypatch):
    monkeypatch.setattr(llm.engine, "step", list)
    monkeypatch.setattr(type(llm.engine), "has_work", False)
    with pytest.raises(RuntimeError, match="engine: expected work on 1 requests, got none"):
        llm.generate("abc")


def test_tokens_without_text_end_their_own_request_alone(llm, alone, monkeypatch):
    decode = TokenDecoder.decode
    wrong = llm.generate("xyz", PARAMS[0])[0].token_ids[0]
    assert wrong not in llm.tokenizer.encode("xyz" + PROMPTS[0]).ids
    assert wrong not in llm.generate(PROMPTS[0], PARAMS[0])[0].token_ids

    def trip(self, token_ids):
        if wrong in token_ids:
            raise BaseException("a panic")  # as tokenizers' own are
        return decode(self, token_ids)

    prompts = ["xyz", PROMPTS[0]]
    with monkeypatch.context() as broken:
        broken.setattr(TokenDecoder, "decode", trip)
        first, second = llm.generate(prompts, PARAMS[0])
        with pytest.raises(RuntimeError, match=r"text: expected some for all tokens, got .*a pa"):
            list(llm.stream(prompts[0], PARAMS[0]))
    assert (first.finish_reason, first.text, len(first.token_ids)) == ("error", "", 1)
    assert second.text == alone[PROMPTS[0], 0]


def test_all_callers_of_a_closed_llm_are_told_so(reference):
    llm = LLM(reference.path)
    waiting, read = llm.stream("abc", ENDLESS), llm.stream("abc", PARAMS[0])
    next(waiting)
    until(lambda: read.completion.finish_reason == "length")
    llm.close()
    llm.close()
    with pytest.raises(RuntimeError, match="LLM: expected an open one, got one that was closed"):
        list(waiting)
    assert len("".join(read)) > 0
    for use in (llm.generate, llm.stream, lambda text: asyncio.run(AsyncLLM(llm).generate(text))):
        with pytest.raises(RuntimeError, match="LLM: expected an open one"):
            use("abc")
    assert not llm.engine.has_work


def test_a_thread_ends_when_nobody_holds_its_llm(reference):
    before = set(threading.enumerate())
    llm = LLM(reference.path)
    stream = llm.stream("abc", PARAMS[1])
    next(stream)
    (thread,) = set(threading.enumerate()) - before
    del llm
    assert len("".join(stream)) > 0
    del stream
    gc.collect()
    until(lambda: not thread.is_alive())


def test_an_llm_stays_in_its_process(llm):
    with pytest.raises(TypeError, match="LLM: expected to stay in the process that made it"):
        copy.copy(llm)


SCRIPT = """
import os, sys, threading
from blockstride.models import LLM, SamplingParams
llm = LLM(sys.argv[1])
endless = SamplingParams(max_tokens=3000, ignore_eos=True)
stream = llm.stream("abc", endless)
next(stream)
if (child := os.fork()) == 0:
    llm.close()
    try:
        llm.generate("abc")
    except RuntimeError as error:
        sys.exit(7 if "a fork of that" in str(error) else 1)
    sys.exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
threading.Thread(target=llm.generate, args=("abc", endless), daemon=True).start()
next(stream)
"""


def test_a_process_ends_in_order_in_the_middle_of_requests(reference, tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(reference.path)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=tmp_path, timeout=SECONDS
    )
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


def test_a_task_reads_several_answers_as_they_grow(llm):
    wanted = llm.generate(PROMPTS, replace(PARAMS[1], n=3))

    async def read():
        batch = await AsyncLLM(llm).submit(PROMPTS, replace(PARAMS[1], n=3))
        tokens, texts = [[] for _ in batch.generations], [[] for _ in batch.generations]
        num_looks = 0
        while True:
            is_done = batch.is_done
            for generation, ids, text in zip(batch.generations, tokens, texts, strict=True):
                new_ids, pieces = generation.news(len(ids), len(text))
                ids.extend(new_ids)
                text.extend(pieces)
            if is_done:
                return num_looks, [tuple(ids) for ids in tokens], ["".join(text) for text in texts]
            num_looks += 1
            await asyncio.wait_for(batch.changed(), SECONDS)

    num_looks, tokens, texts = asyncio.run(read())
    assert (tokens, texts) == ([c.token_ids for c in wanted], [c.text for c in wanted])
    assert num_looks > 3

    async def leave():
        batch = await AsyncLLM(llm).submit(PROMPTS, replace(ENDLESS, n=2))
        await asyncio.wait_for(batch.changed(), SECONDS)

    asyncio.run(leave())
