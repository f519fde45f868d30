"""OpenAI's client against a server of this package: one stream, then many at once.

blockstride serve --model models/checkpoints/jamba-kjv --served-model-name jamba --port 8000
python examples/serve_client.py --url http://127.0.0.1:8000/v1 --model jamba
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

import openai

PROMPTS = ("In the beginning", "And the king said", "The waters of the sea", "Blessed are")


async def stream(client: openai.AsyncOpenAI, model: str, prompt: str) -> int:
    """Writes an answer piece by piece; returns its number of tokens."""
    pieces = await client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=60,
        temperature=0.5,
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    sys.stdout.write(prompt)
    num_tokens = 0
    async for piece in pieces:
        if piece.usage is not None:
            num_tokens = piece.usage.completion_tokens
        for choice in piece.choices:
            sys.stdout.write(choice.text)
            sys.stdout.flush()
    sys.stdout.write("\n")
    return num_tokens


async def many(client: openai.AsyncOpenAI, model: str, count: int) -> list[str]:
    """Answers to many prompts that are asked for at once."""
    answers = await asyncio.gather(
        *(
            client.completions.create(
                model=model, prompt=PROMPTS[i % len(PROMPTS)], max_tokens=20, temperature=0
            )
            for i in range(count)
        )
    )
    return [answer.choices[0].text for answer in answers]


async def run(args: argparse.Namespace) -> None:
    """Asks, and says how long it took."""
    async with openai.AsyncOpenAI(base_url=args.url, api_key=args.api_key) as client:
        begin = time.perf_counter()
        num_tokens = await stream(client, args.model, PROMPTS[0])
        seconds = time.perf_counter() - begin
        sys.stdout.write(f"{num_tokens} tokens in {seconds:.2f} s\n")
        begin = time.perf_counter()
        answers = await many(client, args.model, args.count)
        seconds = time.perf_counter() - begin
        different = len(set(answers))
        sys.stdout.write(f"{args.count} answers, {different} different, in {seconds:.2f} s\n")


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", required=True, help="as the server calls it")
    parser.add_argument("--api-key", default="-")
    parser.add_argument("--count", type=int, default=16, help="prompts that are asked at once")
    asyncio.run(run(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
