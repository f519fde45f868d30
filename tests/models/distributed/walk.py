"""A random walk with real processes: requests come, are aborted and end while engines die and stop.

python -m tests.models.distributed.walk [--walks N] [--first N]
"""

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from blockstride.models import LLM
from tests.models.conftest import seeded
from tests.models.distributed.deployments import (
    all_blocks_are_free,
    engine,
    greedy,
    kill,
    stop,
    until,
)

TIMEOUT_SECONDS = 8.0
LENGTHS = (1, 15, 40, 130)
"""Of prompts."""
MOST_TOKENS = 60


def answers(reference) -> dict[int, list[int]]:
    """What transformers makes of a prompt of each length."""
    return {length: reference.greedy(prompt(length), MOST_TOKENS) for length in LENGTHS}


def prompt(length: int) -> list[int]:
    """All begin alike, and each has a last token of its own."""
    return [*(3 + 7 * i % 250 for i in range(length - 1)), 3 + length]


def walk(llm: LLM, right: dict[int, list[int]], draw: random.Random) -> int:
    """Has requests come and end, with accidents, and checks what became of all.

    Returns:
        How many engines were lost; one is left alone.
    """
    deployment, requests, engines = llm.engine, [], llm.engine.engines
    harmed = draw.sample(deployment.engines, draw.randint(1, len(deployment.engines) - 1))
    when = {draw.randint(5, 120): each for each in harmed}
    for step in range(150):
        if draw.random() < 0.12:
            params = greedy(draw.randint(1, MOST_TOKENS))
            requests.append(deployment.add_request(prompt(draw.choice(LENGTHS)), params))
        if requests and draw.random() < 0.02:
            deployment.abort(draw.choice(requests))
        if step in when:
            rank = draw.randrange(len(when[step].pids))
            draw.choice([kill, kill, stop])(when[step], rank)
        deployment.step()
    while deployment.has_work:
        deployment.step()
    for request in requests:
        wanted = right[len(request.prompt_ids)]
        assert request.output_ids == wanted[: len(request.output_ids)]
        if request.finish_reason == "length":
            assert len(request.output_ids) == request.params.max_tokens
        else:
            assert request.finish_reason == "abort"
    return len(engines) - len(deployment.engines)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="walks to leave out")
    args = parser.parse_args(argv)
    with TemporaryDirectory() as folder:
        reference = seeded(Path(folder))
        right, lost = answers(reference), 0
        for seed in range(args.first, args.first + args.walks):
            draw = random.Random(seed)
            few = [{"num_blocks": (4, 20)}, {"tp_size": 2}, {"layout": "BHLNC"}, {}]
            with LLM(
                reference.path,
                prefill=[engine(**draw.choice(few)) for _ in range(draw.randint(0, 2))],
                decode=[engine(**draw.choice(few)) for _ in range(draw.randint(2, 3))],
                device="cpu",
                timeout_seconds=TIMEOUT_SECONDS,
            ) as llm:
                lost += walk(llm, right, draw)
                until(lambda: all_blocks_are_free(llm))
            sys.stdout.write(f"walk {seed} right; {lost} engines lost so far\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
