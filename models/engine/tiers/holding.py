"""Holders: who uses blocks of a store while a sequence is on its way to it or from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blockstride.models.engine.prefix_store import PrefixStore
from blockstride.models.engine.prefix_tree import Match, Tokens
from blockstride.models.engine.tiers.commands import Table


class Holder:
    """Blocks for a sequence: those that a store has of it, and new ones for the rest.

    Args:
        store: The store.
        number: Id of the holder in the store's block manager.
        tokens: The sequence.
        salt: Who may use it.
        has_states: Whether the states after it are to come here; those that the store has are not
            taken in vain.

    Attributes:
        has_room: Whether there was room; without it nothing is held.
        whole: Of each group of tokens, the position of the first block that is new.
    """

    def __init__(
        self, store: PrefixStore, number: int, tokens: Tokens, salt: str, *, has_states: bool
    ) -> None:
        self.store, self.number = store, number
        self.tokens, self.salt, self.has_states = tokens, salt, has_states
        self.whole: list[int] = []
        shared: list[tuple[int, int, Sequence[int] | np.ndarray]] = []
        length, match = len(tokens), store.tree.match(tokens, salt)
        for i, group in enumerate(store.token_groups):
            size = store.tree.block_sizes[i]
            first, stop = store.specs[i].live_blocks(length, size).start, match.length // size
            # nothing is written to a block in part where all is known
            stop = -(-length // size) if match.length == length else stop
            table = store.tree.table(match, i, match.length)[first:stop]
            if stop <= first or not table.all():
                # a window may have been kept in part only
                table, stop = table[:0], first
            self.whole.append(stop)
            shared.append((group, first, table))
        node = match.path[-1] if match.length == length and match.path else None
        known = node.states if node is not None and node.stop == length else None
        self.knows_states = has_states and bool(known)
        if self.knows_states and known is not None:
            shared += [
                (group, 0, [block]) for group, block in zip(store.state_groups, known, strict=True)
            ]
        self.has_room = store.blocks.adopt(number, shared, ())
        if self.has_room and not store.blocks.reserve(number, length, length):
            self.has_room = False
            self.release()

    def new_blocks(self, group: int) -> Table:
        """Those of a group of tokens that the store had not."""
        first, ids = self.store.blocks.held(self.number)[group]
        at = self.whole[self.store.token_groups.index(group)]
        return Table(at, ids[at - first :])

    def copies_from(self, tables: Sequence[np.ndarray], states: Sequence[int]) -> list:
        """What is copied to the new blocks: group, block that is read, block that is written.

        Args:
            tables: Blocks of the whole sequence elsewhere, of each group of tokens, by position.
            states: Blocks of the states there; none where they aren't wanted.
        """
        copies = []
        for i, group in enumerate(self.store.token_groups):
            at, ids, _ = self.new_blocks(group)
            copies += [(group, int(a), int(b)) for a, b in zip(tables[i][at:], ids, strict=True)]
        if states and not self.knows_states:
            groups = self.store.state_groups
            mine = self.store.blocks.states(self.number, groups)
            copies += [*zip(groups, (int(block) for block in states), mine, strict=True)]
        return copies

    def tables(self) -> list[np.ndarray]:
        """All its blocks, of each group of tokens, by position."""
        blocks = self.store.blocks
        tables = blocks.tables([blocks.row(self.number)])
        stops = (-(-len(self.tokens) // size) for size in self.store.tree.block_sizes)
        pairs = zip(self.store.token_groups, stops, strict=True)
        return [tables[group][0][:stop] for group, stop in pairs]

    def states(self) -> list[int]:
        """Its blocks of states; none where they aren't wanted."""
        if not self.has_states:
            return []
        return self.store.blocks.states(self.number, self.store.state_groups)

    def part(self, start: int, stop: int, *, has_states: bool, is_new: bool) -> list[Table]:
        """Blocks of all groups that have, or are to have, some of the tokens, and maybe states.

        Args:
            start: Tokens before the first.
            stop: Tokens up to the last.
            has_states: Whether states are among them.
            is_new: Whether blocks that the store had are left out.
        """
        tables, held = [], self.store.blocks.held(self.number)
        whole = dict(zip(self.store.token_groups, self.whole, strict=True))
        for group, (first, ids) in enumerate(held):
            placed = self.store.blocks.groups[group][1]
            spec, size = placed.group.spec, placed.block_size
            if not spec.has_tokens:
                tables.append(Table(0, ids if has_states else ids[:0]))
                continue
            live = spec.live_blocks(stop, size)
            begin = max(start, whole[group] * size if is_new else 0)
            at = max(live.start, first, live.stop if begin >= stop else begin // size)
            some = ids[at - first : max(at, live.stop) - first]
            present = max(0, begin - at * size) if is_new and len(some) else 0
            tables.append(Table(at, some, present))
        return tables

    def keep(self, kind: str) -> None:
        """Has the store keep what has come.

        Args:
            kind: What the states are after, one of `prefix_worth.ASSUMED`.
        """
        blocks = self.store.blocks
        held = [table[0] for table in blocks.tables([blocks.row(self.number)])]
        states = self.states() if self.has_states or not self.store.state_groups else None
        self.store.insert(self.tokens, self.salt, held, states, kind)

    def release(self) -> None:
        """Uses the blocks no longer."""
        blocks = self.store.blocks
        freed = blocks.release(self.number)
        if blocks.on_freed is not None:
            blocks.on_freed(freed)


def live_tables(store: PrefixStore, match: Match, length: int) -> list[np.ndarray] | None:
    """Blocks of a prefix in each group of tokens; None where windows are not all there."""
    if not store.has_windows(match, length):
        return None
    return [store.tree.table(match, i, length) for i in range(len(store.token_groups))]
