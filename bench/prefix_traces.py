"""Seeded traces of requests that begin alike, and what a cache can save of them at most.

Five workloads, one of them at two splits: a system prompt before short texts of one's own, few-shot
prompts with many questions, chats that grow turn by turn, agents that send tools and history again
and branch off, documents with many questions. Tokens are random, so two texts begin alike only
where the trace says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

VOCAB = 1 << 20
"""So many that no two random texts begin with the same token."""

Text = Int32[np.ndarray, " num_tokens"]


@dataclass(frozen=True)
class Ask:
    """A prompt, and the answer that it gets."""

    prompt: Text
    answer: Text

    @property
    def computed(self) -> Text:
        """What is in caches after it: the last token of an answer is never computed."""
        return np.concatenate([self.prompt, self.answer[:-1]])


class _Author:
    """Writes texts of random tokens, of lengths that are a multiple of those that are asked for."""

    def __init__(self, seed: int, scale: float) -> None:
        self.rng, self.scale = np.random.default_rng(seed), scale

    def text(self, least: int, most: int | None = None) -> Text:
        length = least if most is None else int(self.rng.integers(least, most + 1))
        count = max(2, round(length * self.scale))
        return self.rng.integers(0, VOCAB, count).astype(np.int32)

    def popular(self, count: int) -> int:
        """One of some things, the first the most popular: that of rank r has a share like 1 / r."""
        weights = 1 / np.arange(1, count + 1)
        return int(self.rng.choice(count, p=weights / weights.sum()))


def system_prompt(author: _Author, count: int, shared: int, own: int) -> list[Ask]:
    """One long prompt before short ones."""
    trunk = author.text(shared)
    return [
        Ask(np.concatenate([trunk, author.text(own)]), author.text(32, 96)) for _ in range(count)
    ]


def few_shot(author: _Author, count: int) -> list[Ask]:
    """Examples of a task, then a question; tasks differ in popularity."""
    tasks = [author.text(800, 1600) for _ in range(max(2, count // 16))]
    return [
        Ask(
            np.concatenate([tasks[author.popular(len(tasks))], author.text(60, 200)]),
            author.text(8, 40),
        )
        for _ in range(count)
    ]


def chats(author: _Author, count: int, at_once: int = 16) -> list[Ask]:
    """Chats under one system prompt, some of them open at any time; a turn has all before it."""
    system = author.text(300)
    histories = [system] * at_once
    turns = [0] * at_once
    asks = []
    for _ in range(count):
        chat = int(author.rng.integers(at_once))
        ask = Ask(np.concatenate([histories[chat], author.text(20, 150)]), author.text(50, 300))
        asks.append(ask)
        turns[chat] += 1
        histories[chat] = np.concatenate([ask.prompt, ask.answer])
        # one in eight turns is the last of its chat, and another begins in its place
        if author.rng.random() < 1 / 8:
            histories[chat], turns[chat] = system, 0
    return asks


def agents(author: _Author, count: int, at_once: int = 8) -> list[Ask]:
    """Tasks under the same tools; a step has all before it, and one in four goes back first."""
    tools = author.text(1500)
    steps: list[list[Text]] = [[] for _ in range(at_once)]
    asks = []
    for _ in range(count):
        task = int(author.rng.integers(at_once))
        if not steps[task] or len(steps[task]) > 12:
            steps[task] = [np.concatenate([tools, author.text(200, 400)])]
        elif len(steps[task]) > 1 and author.rng.random() < 1 / 4:
            # to any step before, and there is told something else
            del steps[task][int(author.rng.integers(1, len(steps[task]))) :]
        ask = Ask(np.concatenate([steps[task][-1], author.text(60, 300)]), author.text(20, 80))
        asks.append(ask)
        steps[task].append(np.concatenate([ask.prompt, ask.answer]))
    return asks


def documents(author: _Author, count: int) -> list[Ask]:
    """A document, then a question; documents differ in popularity and length."""
    instructions = author.text(100)
    texts = [author.text(1500, 4000) for _ in range(max(2, count // 12))]
    return [
        Ask(
            np.concatenate([instructions, texts[author.popular(len(texts))], author.text(20, 60)]),
            author.text(30, 120),
        )
        for _ in range(count)
    ]


WORKLOADS: dict[str, tuple[Callable[[_Author, int], list[Ask]], int]] = {
    "system prompt, 1,600 + 600": (lambda a, n: system_prompt(a, n, 1600, 600), 64),
    "system prompt, 1,500 + 700": (lambda a, n: system_prompt(a, n, 1500, 700), 64),
    "few-shot": (few_shot, 256),
    "chats": (chats, 256),
    "agents": (agents, 256),
    "documents": (documents, 192),
}
"""Name -> what writes it, and how many requests it has."""


def make_trace(name: str, seed: int = 0, scale: float = 1.0, share: float = 1.0) -> list[Ask]:
    """One of `WORKLOADS`.

    Args:
        name: Which one.
        seed: Of its tokens, lengths and order.
        scale: Factor of all lengths.
        share: Factor of the number of requests.
    """
    write, count = WORKLOADS[name]
    return write(_Author(seed, scale), max(4, round(count * share)))


def common_length(first: Text, second: Text) -> int:
    """Tokens that two texts begin with alike."""
    length = min(len(first), len(second))
    differ = np.flatnonzero(first[:length] != second[:length])
    return int(differ[0]) if len(differ) else length


@dataclass(frozen=True)
class Bounds:
    """What needn't be computed of each prompt, found by comparing it with all before it.

    Attributes:
        anywhere: If sequences could go on after any token: the longest prefix of it that any
            earlier prompt, with its answer, begins with.
        seen: If they can go on only where one ended, or was seen to part from another before.
    """

    anywhere: list[int]
    seen: list[int]


def bounds(trace: Sequence[Ask]) -> Bounds:
    """The most that can be saved of each prompt; one token of it is always computed."""
    found = Bounds([], [])
    points: list[tuple[int, ...]] = []
    texts: list[Text] = []
    for ask in trace:
        most = len(ask.prompt) - 1
        common = [min(most, common_length(ask.prompt, text)) for text in texts]
        found.anywhere.append(max(common, default=0))
        reached = [p for c, ps in zip(common, points, strict=True) for p in ps if p <= c]
        found.seen.append(max(reached, default=0))
        text = ask.computed
        texts.append(text)
        points.append((len(ask.prompt), len(text), found.anywhere[-1]))
    return found
