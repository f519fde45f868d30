"""What the front end knows of the prefix caches of engines: which tokens it has sent where."""

from __future__ import annotations

from itertools import count

import numpy as np

from blockstride.models.engine.prefix_tree import Node, PrefixTree, Tokens

KEPT = 0.75
"""Share of the tokens that stays when there are too many."""


class KnownPrefixes:
    """Sequences that an engine has had lately, as many tokens as its cache has room for.

    Whether they are still there the engine knows alone; one that is wrong costs a request no more
    than what it would cost anywhere.

    Args:
        capacity: Tokens that the engine can cache.
    """

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = capacity
        self.num_tokens = 0
        self._tree = PrefixTree((), 0)
        self._clock = count(1)

    def match(self, tokens: Tokens, salt: str) -> int:
        """Tokens that a sequence begins with and that the engine has had."""
        return self._tree.match(tokens, salt).length

    def add(self, tokens: Tokens, salt: str) -> None:
        """The engine has a sequence now."""
        if len(tokens) > self.capacity:
            return
        match = self._tree.match(tokens, salt)
        node = match.path[-1] if match.path else self._tree.root(salt)
        if match.length < node.stop:
            node, _ = self._tree.split(node, match.length - node.start)
        if match.length < len(tokens):
            node = Node(tokens[match.length :], match.length, node, [], [])
            self._tree.append(node)
            self.num_tokens += len(node.tokens)
        now = next(self._clock)
        for each in node.ancestors():
            each.of_tokens.last = now
        if self.num_tokens > self.capacity:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Forgets what was of use longest ago, ends of sequences first."""
        # a run was of use whenever one after it was, and among equals the later ones go first
        for node in sorted(self._tree.nodes(), key=lambda node: (node.of_tokens.last, -node.start)):
            if self.num_tokens <= KEPT * self.capacity or node.children:
                break
            self.num_tokens -= len(node.tokens)
            self._tree.remove(node)


def as_tokens(ids: list[int]) -> Tokens:
    """Token ids, to be compared."""
    return np.array(ids, np.int32)
