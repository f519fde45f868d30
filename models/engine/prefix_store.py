"""Blocks that are kept for later requests: of which tokens, and which go when room is short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

import numpy as np

from blockstride.models.engine.block_manager import BlockManager
from blockstride.models.engine.prefix_tree import Match, Node, PrefixTree, Tokens

ATTENTION_ALONE = 0.1
"""What tokens are worth whose keys and values are kept and whose states are not: they are computed
again, though not stored again, and they show where sequences part."""

Entry = tuple[float, int, int, Node]


@dataclass
class PrefixStats:
    """What a prefix cache has been asked for, and what it had.

    Attributes:
        asked_tokens: Tokens of requests when they were admitted.
        hit_tokens: Those of them that needn't be computed.
        unread_tokens: Tokens that needn't be read from another engine, as they were here.
        kept_states: Tokens after which states were kept.
        evicted_blocks: Blocks that made room for others.
    """

    asked_tokens: int = 0
    hit_tokens: int = 0
    unread_tokens: int = 0
    kept_states: int = 0
    evicted_blocks: int = 0


class PrefixStore:
    """Kept blocks under the tokens that they cache.

    When blocks run out, what is worth least is evicted: an entry has a credit of the tokens that it
    spares over the blocks that it holds, plus the credit of the last entry that was evicted when it
    was last of use, so that what is of use no more is overtaken. Entries are ends of sequences,
    with their states, and states inside of sequences, each judged by itself.

    Args:
        blocks: Owner of the blocks; it asks here for room.

    Attributes:
        token_groups: Groups of the caches that hold tokens,
        state_groups: and those that hold states.
        inflation: The credit of the last entry that was evicted.

    Source: Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms" (GreedyDual-Size).
    """

    def __init__(self, blocks: BlockManager) -> None:
        self.blocks = blocks
        self.stats = PrefixStats()
        has_tokens = [placed.group.spec.has_tokens for _, placed in blocks.groups]
        self.token_groups = [group for group, has in enumerate(has_tokens) if has]
        self.state_groups = [group for group, has in enumerate(has_tokens) if not has]
        placements = [blocks.groups[group][1] for group in self.token_groups]
        self.specs = [placed.group.spec for placed in placements]
        sizes = [placed.block_size for placed in placements]
        self.tree = PrefixTree(sizes, len(self.state_groups))
        self.inflation = 0.0
        self._heap: list[Entry] = []
        self._order = count()
        blocks.make_room, blocks.kept = self.evict, self.kept_blocks

    def insert(
        self, tokens: Tokens, salt: str, held: Sequence[np.ndarray], states: list[int] | None
    ) -> None:
        """Keeps what is cached of some tokens.

        Args:
            tokens: The tokens, from the first of their sequence.
            salt: Who may use it.
            held: Blocks of the sequence in each group, by position.
            states: Blocks of the states after the tokens, one a group of states; None where they
                are gone.
        """
        match = self.tree.match(tokens, salt)
        node = match.path[-1] if match.path else self.tree.root(salt)
        if match.length < node.stop:
            node = self._split(node, match.length - node.start)
        for known in node.ancestors():
            self._fill(known, held)
        if match.length < len(tokens):
            node = self._append(node, tokens[match.length :], held)
        if states is not None and node.states is None:
            node.states = states
            for group, block in zip(self.state_groups, states, strict=True):
                self.blocks.keep(group, [block])
            self.stats.kept_states += 1
        self.renew(node)

    def _split(self, node: Node, length: int) -> Node:
        upper, shared = self.tree.split(node, length)
        for group, block in zip(self.token_groups, shared, strict=True):
            self.blocks.keep(group, [block])
        self._push(node)
        return upper

    def _fill(self, node: Node, held: Sequence[np.ndarray]) -> None:
        """Adds blocks that a node lacks, as a window had passed them, and that a sequence holds."""
        for i, group in enumerate(self.token_groups):
            if self.specs[i].window is None:
                continue
            own, first = node.blocks[i], node.start // self.tree.block_sizes[i]
            theirs = held[group][first : first + len(own)]
            lacking = (own == 0) & (theirs > 0)
            if lacking.any():
                node.blocks[i] = np.where(lacking, theirs, own)
                self.blocks.keep(group, theirs[lacking])

    def _append(self, node: Node, tokens: Tokens, held: Sequence[np.ndarray]) -> Node:
        start, blocks = node.stop, []
        for i, group in enumerate(self.token_groups):
            size = self.tree.block_sizes[i]
            blocks.append(held[group][start // size : -(-(start + len(tokens)) // size)].copy())
            self.blocks.keep(group, blocks[-1])
        leaf = Node(tokens, start, node, blocks, None if self.state_groups else [])
        self.tree.append(leaf)
        self._push(node)
        return leaf

    def renew(self, node: Node) -> None:
        """A node has been of use."""
        node.used = self.inflation
        self._push(node)

    def has_windows(self, match: Match, length: int) -> bool:
        """Whether the blocks are kept that the token after so many sees in windows."""
        for i, spec in enumerate(self.specs):
            if spec.window is not None and length > 0:
                live = spec.live_blocks(length, self.tree.block_sizes[i])
                if not self.tree.table(match, i, length)[live.start :].all():
                    return False
        return True

    def evict(self, wanted: Sequence[int], most: float = inf) -> None:
        """Makes room.

        Args:
            wanted: Blocks of each pool that are to be free.
            most: Nothing whose credit is as high is evicted.
        """
        while not self.blocks.has_free(wanted):
            found = self._cheapest()
            if found is None:
                return
            if found[0] >= most:
                heappush(self._heap, found)
                return
            self.inflation = max(self.inflation, found[0])
            self._drop(found[3])

    def _cheapest(self) -> Entry | None:
        """The entry of least credit, which is taken off the heap."""
        while self._heap:
            found = heappop(self._heap)
            if found[2] == found[3].version:
                return found
        return None

    def _drop(self, node: Node) -> None:
        """Forgets a node without children, or the states of one that has some."""
        node.version += 1
        if self.state_groups and node.states is not None:
            for group, block in zip(self.state_groups, node.states, strict=True):
                self._forget(group, [block])
            node.states = None
        if node.children:
            return
        for group, blocks in zip(self.token_groups, node.blocks, strict=True):
            self._forget(group, blocks)
        parent = node.parent
        self.tree.remove(node)
        assert parent is not None, "a root is never evicted"
        self._push(parent)

    def _forget(self, group: int, blocks: Sequence[int] | np.ndarray) -> None:
        self.blocks.forget(group, blocks)
        self.stats.evicted_blocks += int((np.asarray(blocks) > 0).sum())

    def _push(self, node: Node) -> None:
        """Puts a node up for eviction, if anything of it can be evicted apart from its children."""
        node.version += 1
        has_own_states = bool(self.state_groups) and node.states is not None
        if node.parent is None or (node.children and not has_own_states):
            return
        credit = node.used + self._worth(node)
        heappush(self._heap, (credit, next(self._order), node.version, node))
        if len(self._heap) > 64 + 4 * self.tree.num_nodes:
            self._heap = [entry for entry in self._heap if entry[2] == entry[3].version]
            heapify(self._heap)

    def _worth(self, node: Node) -> float:
        """Tokens that a node spares over the blocks that would be free without it."""
        spared, held = 0.0, 0
        if not node.children:
            held += sum(int((blocks > 0).sum()) for blocks in node.blocks)
        if self.state_groups and node.states is not None:
            above = node.parent.ancestors() if node.parent is not None else ()
            before = next((up.stop for up in above if up.states is not None), 0)
            spared, held = node.stop - before, held + len(node.states)
        elif not node.children:
            spared = len(node.tokens) * (ATTENTION_ALONE if self.state_groups else 1.0)
        return spared / max(1, held)

    def kept_blocks(self) -> list[list[np.ndarray]]:
        """Of each pool, the blocks that are kept, as often as they are."""
        kept: list[list[np.ndarray]] = [[] for _ in self.blocks.pools]
        for node in self.tree.nodes():
            pairs = [*zip(self.token_groups, node.blocks, strict=True)]
            if self.state_groups and node.states is not None:
                states = (np.array([block]) for block in node.states)
                pairs += zip(self.state_groups, states, strict=True)
            for group, blocks in pairs:
                kept[self.blocks.groups[group][0]].append(blocks)
        return kept
