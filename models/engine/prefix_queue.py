"""Which kept page goes first."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from math import log

from blockstride.models.engine.prefix_tree import Node
from blockstride.models.engine.prefix_worth import Kind, Page, Usefulness, urgency

Entry = tuple[float, int, int, Node]


class PageQueue:
    """Pages in the order in which they are evicted.

    Pages of one kind fade alike, so their order stays as it is while time passes, and a heap of
    each kind has it; the least of all is the least of their heads. What a page spares can grow when
    others before it are evicted, which is seen when it comes to a head.

    Args:
        usefulness: What is known of kinds.
        page_of: A node -> the page of it that is queued here.
    """

    def __init__(self, usefulness: Usefulness, page_of: Callable[[Node], Page]) -> None:
        self._usefulness, self._page_of = usefulness, page_of
        self._heaps: dict[Kind, list[Entry]] = {}
        self._numbers = count()

    def push(self, node: Node) -> None:
        """Queues the page of a node; entries of earlier versions of the node count no more."""
        page = self._page_of(node)
        heap = self._heaps.setdefault(page.kind, [])
        heappush(heap, (self._order_of(page), next(self._numbers), node.version, node))

    def _order_of(self, page: Page) -> float:
        patience = self._usefulness.patience(page.kind)
        return log(page.spared / page.num_blocks + 1e-9) + page.last / patience

    def head(self) -> tuple[float, Node] | None:
        """The page of least urgency, and that; it stays in the queue until its node changes."""
        heads = [node for heap in self._heaps.values() if (node := self._head(heap)) is not None]
        found = [(urgency(self._page_of(node), self._usefulness), node) for node in heads]
        return min(found, key=lambda pair: pair[0], default=None)

    def _head(self, heap: list[Entry]) -> Node | None:
        while heap:
            order, _, version, node = heap[0]
            if version != node.version:
                heappop(heap)
                continue
            now = self._order_of(self._page_of(node))
            if now <= order + 1e-6:
                return node
            heapreplace(heap, (now, next(self._numbers), version, node))
        return None

    def forget_versions(self, most: int) -> None:
        """Drops entries that count no more, where there are more than so many of a kind."""
        for heap in self._heaps.values():
            if len(heap) > most:
                heap[:] = [entry for entry in heap if entry[2] == entry[3].version]
                heapify(heap)
