"""Two other ways to keep what prompts may begin with, which ours are measured beside.

Both work on bytes alone, with no blocks to round up to, one request at a time, and pay for the
request that runs as ours do: its new tokens and one state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bench.prefix_traces import Ask, Text, common_length


@dataclass(frozen=True)
class Costs:
    """Bytes of a token's keys and values, and of a sequence's states, in all layers."""

    token: float
    state: float


class SequenceLRU:
    """Whole sequences, of which the one goes that has been of no use for the longest.

    A sequence is a prompt with its answer, and the states after both. One that goes on from another
    takes its place.

    Args:
        costs: Bytes of what is kept.
        capacity: Most bytes.
        parts: Whether states are kept as well where a prompt parts from an earlier sequence.
    """

    def __init__(self, costs: Costs, capacity: float, parts: bool) -> None:
        self.costs, self.capacity, self.parts = costs, capacity, parts
        self._kept: list[tuple[Text, tuple[int, ...]]] = []

    def _bytes(self) -> float:
        return sum(
            len(text) * self.costs.token + len(points) * self.costs.state
            for text, points in self._kept
        )

    def ask(self, ask: Ask) -> int:
        """Tokens of a prompt that needn't be computed."""
        most = len(ask.prompt) - 1
        common = [min(most, common_length(ask.prompt, text)) for text, _ in self._kept]
        best, hit = -1, 0
        for i, (_, points) in enumerate(self._kept):
            reached = max((p for p in points if p <= common[i]), default=0)
            if reached > hit:
                best, hit = i, reached
        parted = max(common, default=0)
        if best >= 0:
            self._kept.append(self._kept.pop(best))
        text = ask.computed
        points = {len(ask.prompt), len(text)} | ({parted} if self.parts and parted > hit else set())
        if best >= 0:
            points |= {p for p in self._kept[-1][1] if p <= hit}
            if len(self._kept[-1][0]) == hit:
                self._kept.pop()
        needed = len(text) * self.costs.token + len(points) * self.costs.state
        while self._kept and self._bytes() + needed > self.capacity:
            self._kept.pop(0)
        if needed <= self.capacity:
            self._kept.append((text, tuple(points)))
        return hit


@dataclass(eq=False)
class _Node:
    tokens: Text
    start: int
    parent: _Node | None
    has_state: bool = False
    used: int = 0
    children: dict[int, _Node] = field(default_factory=dict)

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


class Marconi:
    """A radix tree with states at ends of sequences and where they part, and Marconi's eviction.

    What goes is the node with at most one child whose utility is least: how recently it was of use,
    plus `alpha` times the operations that it saves beyond its parent over the bytes that it holds,
    both scaled to 0..1 among the candidates. A node with a child gives up its states alone.

    Args:
        costs: Bytes of what is kept.
        capacity: Most bytes.
        alpha: Weight of what a byte saves; Marconi tunes it as it runs.

    Source: Pan et al., "Marconi: Prefix Caching for the Era of Hybrid LLMs", 4.1 and 4.2.
    """

    def __init__(self, costs: Costs, capacity: float, alpha: float) -> None:
        self.costs, self.capacity, self.alpha = costs, capacity, alpha
        self._root = _Node(np.zeros(0, np.int32), 0, None)
        # in the order in which they came, which decides between equals
        self._nodes: dict[_Node, None] = {}
        self._held = 0.0
        self._now = 0

    def ask(self, ask: Ask) -> int:
        """Tokens of a prompt that needn't be computed."""
        self._now += 1
        path, length = self._match(ask.prompt)
        most = min(length, len(ask.prompt) - 1)
        resumed = next((n for n in reversed(path) if n.has_state and n.stop <= most), None)
        if resumed is not None:
            resumed.used = self._now
        hit = 0 if resumed is None else resumed.stop
        # what a running sequence begins with isn't evicted under it
        pinned = set(path)
        text = ask.computed
        self._make_room((len(text) - length) * self.costs.token + self.costs.state, pinned)
        if path and length < path[-1].stop:
            upper = self._split(path[-1], length - path[-1].start)
            pinned.add(upper)
            if hit < length:
                self._make_room(self.costs.state, pinned)
                self._add_state(upper)
        self._insert(text, pinned)
        return hit

    def _match(self, text: Text) -> tuple[list[_Node], int]:
        node, path, length = self._root, [], 0
        while length < len(text) and (child := node.children.get(int(text[length]))):
            common = common_length(child.tokens, text[length:])
            path.append(child)
            length += common
            if common < len(child.tokens):
                break
            node = child
        return path, length

    def _split(self, node: _Node, length: int) -> _Node:
        assert node.parent is not None
        upper = _Node(node.tokens[:length], node.start, node.parent, used=node.used)
        node.parent.children[int(node.tokens[0])] = upper
        node.tokens, node.start, node.parent = node.tokens[length:], upper.stop, upper
        upper.children[int(node.tokens[0])] = node
        self._nodes[upper] = None
        return upper

    def _add_state(self, node: _Node) -> None:
        node.used = self._now
        if not node.has_state and self._held + self.costs.state <= self.capacity:
            node.has_state = True
            self._held += self.costs.state

    def _insert(self, text: Text, pinned: set[_Node]) -> None:
        path, length = self._match(text)
        node = path[-1] if path else self._root
        if path and length < node.stop:
            node = self._split(node, length - node.start)
        if length < len(text):
            needed = (len(text) - length) * self.costs.token
            self._make_room(needed + self.costs.state, pinned)
            if self._held + needed > self.capacity:
                return
            leaf = _Node(text[length:], length, node)
            node.children[int(text[length])] = leaf
            self._nodes[leaf] = None
            self._held += needed
            node = leaf
        self._add_state(node)

    def _saved(self, node: _Node) -> float:
        """Tokens that a node saves beyond its parent, over its bytes."""
        nbytes = self._freed(node)
        return len(node.tokens) / nbytes if nbytes else 0.0

    def _freed(self, node: _Node) -> float:
        tokens = 0 if node.children else len(node.tokens)
        return tokens * self.costs.token + node.has_state * self.costs.state

    def _make_room(self, needed: float, pinned: set[_Node]) -> None:
        while self._held + needed > self.capacity:
            candidates = [n for n in self._nodes if len(n.children) < 2 and n not in pinned]
            candidates = [n for n in candidates if self._freed(n)]
            if not candidates:
                return
            recency = _scaled([float(n.used) for n in candidates])
            saved = _scaled([self._saved(n) for n in candidates])
            self._evict(candidates[int((recency + self.alpha * saved).argmin())])

    def _evict(self, node: _Node) -> None:
        self._held -= self._freed(node)
        node.has_state = False
        assert node.parent is not None
        if not node.children:
            del node.parent.children[int(node.tokens[0])]
            self._nodes.pop(node)
            return
        [child] = node.children.values()
        child.tokens, child.start = np.concatenate([node.tokens, child.tokens]), node.start
        child.parent = node.parent
        node.parent.children[int(child.tokens[0])] = child
        self._nodes.pop(node)


def _scaled(values: list[float]) -> np.ndarray:
    array = np.array(values)
    span = array.max() - array.min()
    return (array - array.min()) / span if span else np.zeros_like(array)
