"""Callers on several threads of one deployment: none waits for another's engine."""

import threading

from blockstride.models import LLM
from blockstride.models.distributed.letters import Wake
from tests.models.callers import ENDLESS, PARAMS, PROMPTS, Caller, run_threads
from tests.models.distributed.deployments import all_blocks_are_free, engine, until


def test_callers_of_several_engines_get_the_texts_of_one_engine(deploy, reference):
    one = LLM(reference.path)
    alone = {
        (prompt, at): one.generate(prompt, params)[0].text
        for prompt in PROMPTS
        for at, params in enumerate(PARAMS)
    }
    llm = deploy(reference.path, prefill=engine(), decode=engine())
    run_threads(*(Caller(llm, alone, i).run for i in range(3)))
    until(lambda: not llm.engine.has_work)
    until(lambda: all_blocks_are_free(llm))
    goes_on = threading.Event()
    step = llm.engine.step

    def stall():
        # as if its engines said nothing: only a new request ends the wait
        while not isinstance(llm.engine._inbox.take(None).message, Wake):
            pass
        goes_on.set()
        return []

    llm.engine.step = stall
    first = llm.stream(PROMPTS[0], ENDLESS)
    # the request itself has woken it
    assert goes_on.wait(60)
    goes_on.clear()
    second = llm.stream(PROMPTS[1], ENDLESS)
    assert goes_on.wait(60)
    llm.engine.step = step
    second.close()
    first.close()


def test_engines_say_how_much_they_have_to_do(deploy, reference):
    llm = deploy(reference.path, prefill=engine(), decode=engine(max_num_seqs=1))
    first, second = (llm.stream("In the beginning", ENDLESS) for _ in range(2))
    next(first)

    def counts():
        load = llm.engine.loads.get("decode-0")
        return load and (load.num_running, load.num_waiting, load.num_reads)

    until(lambda: counts() == (1, 1, 1))
    busy = llm.engine.loads["decode-0"]
    assert busy.queued_tokens >= 2
    assert all(free < blocks for free, blocks in zip(busy.num_free, busy.num_blocks, strict=True))
    first.close()
    second.close()
    # the last word of each comes when it has nothing to do any more
    until(
        lambda: all(load.num_running == load.num_waiting == 0 for load in llm.engine.loads.values())
    )
    until(lambda: llm.engine.loads["decode-0"].num_free == llm.engine.loads["decode-0"].num_blocks)
    assert llm.engine.loads["prefill-0"].asked_tokens > 0
