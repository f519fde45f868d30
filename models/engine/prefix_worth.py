"""What it is worth to keep something for later requests, learned from what became of its like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log

from blockstride.models.engine.prefix_tree import Node, Uses

PRIOR = 8.0
"""What is assumed of a kind counts like so many that were kept."""

MEMORY = 512
"""When so many of a kind have been kept, those so far count half."""

MOST_USES = 3
"""Something that was used more often is of the same kind."""

FIRST_GAP = 16.0
"""Requests from one use to the next, before anything is known."""

PATIENCE = 4.0
"""An age of so many gaps makes a later use less likely by a factor of e."""

BRANCHES = 0.2
"""What a token is worth whose keys and values are asked for and whose states aren't there: it is
computed again, though not stored again, and shows where sequences part."""

Kind = tuple[str, int]
"""What something is, and how often it was of use."""

ASSUMED = {"parting": 0.8, "prompt": 0.3, "answer": 0.5, "tokens": 0.5}
"""Share of each kind of which later requests make use, before anything is known: states where
sequences part, after a prompt, after an answer, and tokens that nothing follows."""


@dataclass
class _Seen:
    kept: float
    used: float
    gaps: float


class Usefulness:
    """How many of what was kept were used (again), and how soon, by what they are.

    States after a prompt are rarely of use where every prompt gets one answer, those after an
    answer nearly always where chats go on, and once only; so this is counted, not assumed.

    Attributes:
        now: Requests so far, the measure of time here.
    """

    def __init__(self) -> None:
        self.now = 0
        self._seen: dict[Kind, _Seen] = {}

    def on_kept(self, uses: Uses) -> None:
        """Something is kept that was used so often; its time begins."""
        uses.last = self.now
        seen = self._of(kind_of(uses))
        seen.kept += 1
        if seen.kept > MEMORY:
            seen.kept, seen.used, seen.gaps = seen.kept / 2, seen.used / 2, seen.gaps / 2

    def on_used(self, uses: Uses) -> None:
        """It is used once more."""
        seen = self._of(kind_of(uses))
        seen.used += 1
        seen.gaps += self.now - uses.last
        uses.count += 1
        self.on_kept(uses)

    def share(self, kind: Kind) -> float:
        """How many of a kind are used again."""
        seen = self._of(kind)
        return min(1.0, seen.used / seen.kept)

    def patience(self, kind: Kind) -> float:
        """Requests in which a use that hasn't come becomes less likely by a factor of e."""
        seen = self._of(kind)
        return PATIENCE * max(1.0, seen.gaps / seen.used)

    def _of(self, kind: Kind) -> _Seen:
        if kind not in self._seen:
            # one that was of use may well be again
            share = ASSUMED[kind[0]] if kind[1] == 0 else 0.5
            used = PRIOR * share
            self._seen[kind] = _Seen(PRIOR, used, used * FIRST_GAP)
        return self._seen[kind]


def kind_of(uses: Uses) -> Kind:
    """Of what kind something is that was used so often."""
    return uses.kind, min(uses.count, MOST_USES)


@dataclass(frozen=True)
class Page:
    """What can be evicted at once: the states after a node, or all of a node without children.

    Attributes:
        kind: What decides how likely and how soon it is of use.
        last: When it was last.
        spared: Tokens that it spares if it is of use; those of keys and values count in part.
        num_blocks: Blocks that it holds.
    """

    kind: Kind
    last: int
    spared: float
    num_blocks: int


def urgency(page: Page, usefulness: Usefulness) -> float:
    """How much is to be gained by keeping a page, which decides who goes first.

    It is the logarithm of the tokens that a block of it may be expected to spare a request, until
    it is used: how often its like is used, times what it spares, over its blocks and the time that
    this takes, fading with its age.
    """
    share, patience = usefulness.share(page.kind), usefulness.patience(page.kind)
    worth = share * page.spared / (page.num_blocks * patience)
    return log(worth + 1e-9) - (usefulness.now - page.last) / patience


def states_page(node: Node) -> Page:
    """The states after a node, which has some."""
    assert node.states is not None, "else there is nothing to evict"
    uses = node.of_states
    return Page(kind_of(uses), uses.last, float(spared(node)), len(node.states))


def leaf_page(node: Node, has_states: bool, is_shared: bool) -> Page:
    """All of a node without children, and what before it serves nothing else.

    Args:
        node: The node.
        has_states: Whether the model has any.
        is_shared: Whether they take blocks of the same pool as tokens.
    """
    alone = list(_alone(node))
    blocks = sum(int((ids > 0).sum()) for each in alone for ids in each.blocks)
    length = sum(len(each.tokens) for each in alone)
    uses, worth = node.of_tokens, float(length)
    if has_states:
        worth *= BRANCHES
        if node.states is not None:
            uses, worth = node.of_states, worth + spared(node)
            blocks += len(node.states) if is_shared else 0
    last = max(node.of_tokens.last, uses.last)
    return Page(kind_of(uses), last, worth, max(1, blocks))


def spared(node: Node) -> int:
    """Tokens that the states after a node spare: all since the last states before."""
    above = node.parent.ancestors() if node.parent is not None else ()
    return node.stop - next((up.stop for up in above if up.states is not None), 0)


def _alone(leaf: Node) -> Iterator[Node]:
    """A leaf, and the nodes before it that are of use to nothing else."""
    yield leaf
    for node in leaf.ancestors():
        if node is not leaf:
            if len(node.children) > 1 or node.states:
                return
            yield node
