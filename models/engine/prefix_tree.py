"""A radix tree of token sequences whose caches are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Int32

Tokens = Int32[np.ndarray, " num_tokens"]
Blocks = Int32[np.ndarray, " num_blocks"]


@dataclass
class Uses:
    """How often something that is kept was of use, and when it last was.

    Attributes:
        kind: What it is.
        count: How often.
        last: When, in requests so far; when it was kept, if never.
    """

    kind: str
    count: int = 0
    last: int = 0


@dataclass(eq=False)
class Node:
    """A run of tokens after those of its parent, and the blocks that cache them.

    A block that begins before the run holds the tokens before it as well, so two runs that follow
    the same one in the middle of a block have a block each there.

    Attributes:
        tokens: The run.
        start: Tokens before it.
        parent: The node of those; None for a root.
        blocks: For each group with tokens, the blocks at the positions that the run touches; 0
            where there is none, as before a window. Nothing for groups of states.
        states: Of each group of states, the block of the state after the run; None where none is
            kept. Empty for models without states, which can go on after any token.
        children: First token -> a run after this one.
        of_tokens: Uses of its tokens, as the last of a known prefix.
        of_states: Uses of its states.
        salt: Of a root, who may use what is below it.
        version: Changes with whatever bears on its worth.
    """

    tokens: Tokens
    start: int
    parent: Node | None
    blocks: list[Blocks]
    states: list[int] | None
    children: dict[int, Node] = field(default_factory=dict)
    of_tokens: Uses = field(default_factory=lambda: Uses("tokens"))
    of_states: Uses = field(default_factory=lambda: Uses("answer"))
    version: int = 0
    salt: str = ""

    @property
    def stop(self) -> int:
        """Tokens up to its end."""
        return self.start + len(self.tokens)

    def ancestors(self) -> Iterator[Node]:
        """Itself, its parent, and so on, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


@dataclass(frozen=True)
class Match:
    """A known prefix of a sequence.

    Attributes:
        path: The nodes of it, from the first; the last may be matched in part.
        length: Its tokens.
    """

    path: Sequence[Node]
    length: int


class PrefixTree:
    """Sequences of tokens, those with a common prefix under one node.

    Args:
        block_sizes: Tokens per block of each group with tokens.
        num_state_groups: Groups of states.
    """

    def __init__(self, block_sizes: Sequence[int], num_state_groups: int) -> None:
        self.block_sizes = tuple(block_sizes)
        self.num_state_groups = num_state_groups
        self.num_nodes = 0
        self._roots: dict[str, Node] = {}

    def root(self, salt: str) -> Node:
        """Where the sequences begin that share a salt."""
        if salt not in self._roots:
            self._roots[salt] = Node(np.zeros(0, np.int32), 0, None, [], [], salt=salt)
        return self._roots[salt]

    def salt_of(self, node: Node) -> str:
        """Who may use what a node has."""
        while node.parent is not None:
            node = node.parent
        return node.salt

    def match(self, tokens: Tokens, salt: str = "") -> Match:
        """The longest known prefix of a sequence."""
        node, path, length = self.root(salt), [], 0
        while length < len(tokens):
            child = node.children.get(int(tokens[length]))
            if child is None:
                break
            common = common_length(child.tokens, tokens[length:])
            path.append(child)
            length += common
            if common < len(child.tokens):
                break
            node = child
        return Match(path, length)

    def split(self, node: Node, length: int) -> tuple[Node, list[int]]:
        """Cuts a node's run after its first tokens.

        Args:
            node: Which one; it keeps the rest of the run.
            length: Tokens of the part before, at least one and fewer than all.

        Returns:
            The node of the first part, which has no states, and for each group with tokens the
            block that both have now, or 0.
        """
        assert node.parent is not None, "a root has no run"
        assert 0 < length < len(node.tokens), "both parts have tokens"
        at = node.start + length
        upper = Node(
            node.tokens[:length],
            node.start,
            node.parent,
            [],
            None if self.num_state_groups else [],
            {int(node.tokens[length]): node},
            replace(node.of_tokens),
        )
        shared = []
        for group, size in enumerate(self.block_sizes):
            blocks, first = node.blocks[group], node.start // size
            upper.blocks.append(blocks[: -(-at // size) - first])
            node.blocks[group] = blocks[at // size - first :]
            shared.append(int(node.blocks[group][0]) if at % size else 0)
        node.parent.children[int(upper.tokens[0])] = upper
        self.num_nodes += 1
        node.tokens, node.start, node.parent = node.tokens[length:], at, upper
        return upper, shared

    def append(self, leaf: Node) -> None:
        """Adds a node without children under its parent."""
        assert leaf.parent is not None, "a root is no run"
        leaf.parent.children[int(leaf.tokens[0])] = leaf
        self.num_nodes += 1

    def table(self, match: Match, group: int, length: int) -> Blocks:
        """Blocks of the first tokens of a match, by position; 0 where there is none."""
        size = self.block_sizes[group]
        table = np.zeros(-(-length // size), np.int32)
        for node in match.path:
            if node.start >= length:
                break
            first = node.start // size
            blocks = node.blocks[group][: len(table) - first]
            table[first : first + len(blocks)] = blocks
        return table

    def nodes(self) -> Iterator[Node]:
        """All of them but the roots."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def remove(self, node: Node) -> None:
        """Takes a node without children out."""
        assert node.parent is not None, "a root stays"
        assert not node.children, "they need its blocks"
        del node.parent.children[int(node.tokens[0])]
        node.parent = None
        self.num_nodes -= 1


def common_length(first: Int32[np.ndarray, " first"], second: Int32[np.ndarray, " second"]) -> int:
    """Tokens that two sequences begin with alike."""
    length = min(len(first), len(second))
    differ = first[:length] != second[:length]
    return int(differ.argmax()) if differ.any() else length
