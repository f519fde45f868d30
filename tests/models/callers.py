"""Callers of an LLM for tests: on threads of their own, doing anything in any order."""

import asyncio
import random
import threading
from time import monotonic, sleep

from blockstride.models import AsyncLLM, SamplingParams

SECONDS = 60.0
PROMPTS = ["In the beginning", "x"]
PARAMS = [
    SamplingParams(max_tokens=3, ignore_eos=True),
    SamplingParams(max_tokens=12, temperature=1.0, seed=7),
    SamplingParams(max_tokens=12, temperature=0.8, seed=3, stop=["a", "\x01"]),
]
ENDLESS = SamplingParams(max_tokens=3000, ignore_eos=True)


def until(condition):
    end = monotonic() + SECONDS
    while not condition():
        assert monotonic() < end, "too late"
        sleep(0.005)


def run_threads(*functions):
    """Runs functions at once, and raises what one of them does."""
    errors = []

    def guard(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guard, args=(each,), daemon=True) for each in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive(), "it hangs"
    if errors:
        raise errors[0]


class Caller:
    """Does anything in any order, and checks what it gets."""

    def __init__(self, llm, alone, seed):
        self.llm, self.alone, self.random = llm, alone, random.Random(seed)

    def case(self):
        key = (self.random.choice(PROMPTS), self.random.randrange(len(PARAMS)))
        return key[0], PARAMS[key[1]], self.alone[key]

    def run(self):
        acts = [self.generate, self.stream, self.leave_a_stream, self.tasks, self.two_streams]
        for act in self.random.sample(acts, 4):
            act()

    def generate(self):
        cases = [self.case() for _ in range(self.random.randrange(4))]
        completions = self.llm.generate([c[0] for c in cases], [c[1] for c in cases])
        assert [c.text for c in completions] == [c[2] for c in cases]

    def stream(self):
        prompt, params, text = self.case()
        assert "".join(self.llm.stream(prompt, params)) == text

    def two_streams(self):
        (first, second) = cases = [self.case(), self.case()]
        streams = [self.llm.stream(c[0], c[1]) for c in cases]
        assert "".join(streams[1]) == second[2]
        assert "".join(streams[0]) == first[2]

    def leave_a_stream(self):
        prompt, params, _ = self.case()
        stream = self.llm.stream(prompt, self.random.choice([params, ENDLESS]))
        for _ in range(self.random.randrange(4)):
            next(stream, None)
        if self.random.random() < 0.5:
            stream.close()
            assert next(stream, None) is not None or stream.completion.finish_reason is not None

    def tasks(self):
        asyncio.run(self.gather())

    async def gather(self):
        llm = AsyncLLM(self.llm)
        cases = [self.case() for _ in range(2)]
        prompt, params, text = self.case()
        texts, completions = await asyncio.gather(
            asyncio.gather(*(self.read(llm, *case) for case in cases)),
            llm.generate([prompt, prompt], params),
        )
        assert texts == [case[2] for case in cases]
        assert [c.text for c in completions] == [text, text]
        task = asyncio.create_task(llm.generate(PROMPTS, ENDLESS))
        await asyncio.sleep(0)
        task.cancel()
        left = llm.stream(prompt, ENDLESS)
        if self.random.random() < 0.5:
            await anext(left)
            await left.aclose()

    async def read(self, llm, prompt, params, _):
        return "".join([piece async for piece in llm.stream(prompt, params)])
