"""Blocks that are kept for later requests: of which tokens, and which go when room is short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from blockstride.models.engine.block_manager import BlockManager
from blockstride.models.engine.prefix_queue import PageQueue
from blockstride.models.engine.prefix_tree import Match, Node, PrefixTree, Tokens, Uses
from blockstride.models.engine.prefix_worth import (
    Page,
    Usefulness,
    leaf_page,
    states_page,
    urgency,
)


@dataclass
class PrefixStats:
    """What a prefix cache has been asked for, and what it had.

    Attributes:
        asked_tokens: Tokens of requests when they were admitted.
        hit_tokens: Those of them that needn't be computed.
        unread_tokens: Tokens that needn't be read from another engine, as they were here.
        kept_states: Tokens after which states were kept.
        evicted_blocks: Blocks that made room for others.
        demoted_blocks: Those of them that were copied to host memory.
        host_tokens: Tokens that were brought back from there,
        file_tokens: and from files.
        host_bytes: What host memory keeps, on rank 0,
        file_bytes: and files, those of other processes among them.
        damaged_files: Files that could not be used.
    """

    asked_tokens: int = 0
    hit_tokens: int = 0
    unread_tokens: int = 0
    kept_states: int = 0
    evicted_blocks: int = 0
    demoted_blocks: int = 0
    host_tokens: int = 0
    file_tokens: int = 0
    host_bytes: int = 0
    file_bytes: int = 0
    damaged_files: int = 0


class PrefixStore:
    """Kept blocks under the tokens that they cache.

    When blocks run out, the page is evicted that is worth least (`prefix_worth.py`), of those that
    hold blocks of a pool that has too few. Pages are the states after a node, and all of a node
    without children, each judged by itself.

    Args:
        blocks: Owner of the blocks; it asks here for room.

    Attributes:
        token_groups: Groups of the caches that hold tokens,
        state_groups: and those that hold states.
        usefulness: What has become of what was kept.
        on_evict: Called with a node before it, or its states alone, are evicted.
    """

    on_evict: Callable[[Node], object] | None = None

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
        self.usefulness = Usefulness()
        pool_of = [pool for pool, _ in blocks.groups]
        self._state_pools = {pool_of[group] for group in self.state_groups}
        self._token_pools = {pool_of[group] for group in self.token_groups}
        self._states = PageQueue(self.usefulness, states_page)
        self._leaves = PageQueue(self.usefulness, self._leaf_page)
        blocks.make_room, blocks.kept = self.evict, self.kept_blocks

    def insert(
        self,
        tokens: Tokens,
        salt: str,
        held: Sequence[np.ndarray],
        states: list[int] | None,
        kind: str,
    ) -> None:
        """Keeps what is cached of some tokens.

        Args:
            tokens: The tokens, from the first of their sequence.
            salt: Who may use it.
            held: Blocks of the sequence in each group, by position.
            states: Blocks of the states after the tokens, one a group of states; None where they
                are gone.
            kind: What the states are after, one of `prefix_worth.ASSUMED`.
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
            node.of_states = Uses(kind)
            self.usefulness.on_kept(node.of_states)
        self._push(node)

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
        self.usefulness.on_kept(leaf.of_tokens)
        self._push(node)
        return leaf

    def on_match(self, match: Match, start: int = 0) -> None:
        """A request begins with known tokens, and goes on after the first `start` of them."""
        self.usefulness.now += 1
        if not match.path:
            return
        if self.state_groups and start:
            resumed = next(node for node in match.path if node.stop == start)
            self.usefulness.on_used(resumed.of_states)
            self._push(resumed)
        last = match.path[-1]
        if last.children:
            last.of_tokens.last = self.usefulness.now
        else:
            self.usefulness.on_used(last.of_tokens)
            self._push(last)

    def resumable(self, tokens: Tokens, salt: str) -> int:
        """Tokens after which a sequence can go on with what is kept."""
        match = self.tree.match(tokens, salt)
        return self.resumable_of(match, match.length)

    def resumable_of(self, match: Match, most: int) -> int:
        """Tokens of a match, at most so many, after which a sequence can go on."""
        most = min(match.length, most)
        ends = [node.stop for node in match.path if node.states is not None and node.stop <= most]
        if not self.state_groups:
            ends.append(most)
        return next((end for end in reversed(ends) if self.has_windows(match, end)), 0)

    def ends(self) -> list[Node]:
        """All that can be evicted by itself, what was of use last first."""
        found = [
            (max(node.of_tokens.last, node.of_states.last), node)
            for node in self.tree.nodes()
            if not node.children or (self.state_groups and node.states is not None)
        ]
        return [node for _, node in sorted(found, key=lambda pair: -pair[0])]

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
            most: Nothing that is as urgent to keep is evicted.
        """
        while lacking := self.blocks.lacking(wanted):
            heads = []
            for queue, pools in self._queues():
                if not pools.isdisjoint(lacking) and (head := queue.head()) is not None:
                    heads.append((*head, queue is self._states))
            found = min(heads, key=lambda head: head[0], default=None)
            if found is None or found[0] >= most:
                return
            _, node, is_states = found
            if self.on_evict is not None:
                self.on_evict(node)
            self._drop_states(node)
            if not is_states:
                self._drop_leaf(node)
            self._push(node)

    def _queues(self) -> tuple[tuple[PageQueue, set[int]], ...]:
        return (self._states, self._state_pools), (self._leaves, self._token_pools)

    def urgency_of_states(self, kind: str, num_tokens: int) -> float:
        """How urgent it is to keep states that spare so many tokens."""
        blocks = len(self.state_groups)
        page = Page((kind, 0), self.usefulness.now, float(num_tokens), blocks)
        return urgency(page, self.usefulness)

    def _drop_states(self, node: Node) -> None:
        if self.state_groups and node.states is not None:
            for group, block in zip(self.state_groups, node.states, strict=True):
                self._forget(group, [block])
            node.states = None

    def _drop_leaf(self, node: Node) -> None:
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
        """Puts up for eviction what of a node can be evicted apart from its children."""
        node.version += 1
        if node.parent is None:
            return
        if self.state_groups and node.states is not None:
            self._states.push(node)
        if not node.children:
            self._leaves.push(node)
        for queue, _ in self._queues():
            queue.forget_versions(64 + 4 * self.tree.num_nodes)

    def _leaf_page(self, node: Node) -> Page:
        is_shared = not self._state_pools.isdisjoint(self._token_pools)
        return leaf_page(node, bool(self.state_groups), is_shared)

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
