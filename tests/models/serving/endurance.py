"""Streams for as long as one likes, engines killed and clients leaving at random.

python -m tests.models.serving.endurance [--seconds 1800] [--streams 1000] [--kill-every 20]

Every answer that ends is compared with that of one engine in this process. At the end no request,
block, descriptor or process may be left, and the server may not have grown.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import monotonic

import openai

from blockstride.models import LLM, EngineConfig, SamplingParams
from tests.models.conftest import SHIPPED
from tests.models.distributed.deployments import is_running
from tests.models.serving.servers import KEY, MODEL, Server, until

PROMPTS = [f"{beginning} {i}" for beginning in ("In the beginning", "x" * 90) for i in range(8)]
LONGEST = 48
DEADLINE = 300.0
GROWTH_BYTES = 100 << 20
"""What allocators and caches of the server may keep."""


class Endurance:
    """Clients of a server, and whoever kills its engines.

    Args:
        server: The server.
        wanted: Tokens of the answer to each prompt.
        seed: Of all that is drawn.
    """

    def __init__(self, server: Server, wanted: dict[str, list[int]], seed: int):
        self.server, self.wanted = server, wanted
        self.random = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.slowest = 0.0
        self.killed = 0

    async def client(self, api: openai.AsyncOpenAI, end: float) -> None:
        """One stream after the other until the time is over."""
        while monotonic() < end:
            prompt = self.random.choice(PROMPTS)
            size = self.random.randint(1, LONGEST)
            leaves_after = self.random.randint(1, size) if self.random.random() < 0.25 else None
            began = monotonic()
            try:
                outcome = await self.stream(api, prompt, size, leaves_after)
            except openai.APIStatusError as error:
                outcome = f"status {error.status_code}"
                await asyncio.sleep(1)
            except openai.APIError as error:
                outcome = f"error: {error.message}"[:60]
            self.outcomes[outcome] += 1
            self.slowest = max(self.slowest, monotonic() - began)

    async def stream(self, api, prompt: str, size: int, leaves_after: int | None) -> str:
        got: list[int] = []
        async with await api.completions.create(
            model=MODEL,
            prompt=prompt,
            max_tokens=size,
            temperature=0,
            stream=True,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        ) as stream:
            async for chunk in stream:
                got += chunk.choices[0].token_ids
                assert got == self.wanted[prompt][: len(got)], prompt
                if leaves_after is not None and len(got) >= leaves_after:
                    return "left"
        assert len(got) == size
        return "right"

    async def kill(self, every: float, end: float) -> None:
        """Kills an engine at random, again and again."""
        while monotonic() + every < end:
            await asyncio.sleep(every)
            living = [pid for pid in self.server.engines().values() if is_running(pid)]
            if len(living) > 1:
                os.kill(self.random.choice(living), signal.SIGKILL)
                self.killed += 1

    async def run(self, seconds: float, count: int, every: float) -> None:
        """All of it."""
        end = monotonic() + seconds
        async with openai.AsyncOpenAI(
            base_url=self.server.url, api_key=KEY, max_retries=0, timeout=DEADLINE
        ) as api:
            await asyncio.gather(
                self.kill(every, end), *(self.client(api, end) for _ in range(count))
            )


def answers() -> dict[str, list[int]]:
    """What one engine says."""
    params = SamplingParams(max_tokens=LONGEST, ignore_eos=True)
    with LLM(SHIPPED, config=EngineConfig(cache_bytes=1 << 26)) as llm:
        completions = llm.generate(PROMPTS, params)
    return {p: list(c.token_ids) for p, c in zip(PROMPTS, completions, strict=True)}


def files_and_bytes(server: Server) -> tuple[float, float]:
    names = ("process_open_fds", "process_resident_memory_bytes")
    files, size = (server.metric(name) for name in names)
    return files, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--kill-every", type=float, default=20.0)
    parser.add_argument("--deadline", type=float, default=DEADLINE)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    wanted = answers()
    engines = ("--prefill", "mib=64", "--decode", "mib=64", "--decode", "mib=64,layout=LBHNC")
    more = ("--max-num-seqs", "32", "--restarts", "100000", "--max-waiting", "2000")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        server = Server(SHIPPED, Path(folder), *engines, *more)
        stack.callback(server.end)
        endurance = Endurance(server, wanted, args.seed)
        # what is only made once, is made
        asyncio.run(endurance.run(5.0, args.streams, 60.0))
        until(server.is_idle)
        files, size = files_and_bytes(server)
        asyncio.run(endurance.run(args.seconds, args.streams, args.kill_every))
        until(lambda: server.metric("blockstride:engine_up") == 3, DEADLINE)
        until(server.is_idle)
        until(lambda: files_and_bytes(server)[0] <= files)
        grown = files_and_bytes(server)[1] - size
        running = [pid for pid in server.engines().values() if is_running(pid)]
        assert len(running) == 3, running
    sys.stdout.write(
        f"{dict(endurance.outcomes)}, {endurance.killed} engines killed, slowest answer "
        f"{endurance.slowest:.1f} s, server grown by {grown / 2**20:.0f} MiB\n"
    )
    assert grown < GROWTH_BYTES
    assert endurance.slowest < args.deadline


if __name__ == "__main__":
    main()
