"""Prefix cache: what one request has computed, a later one that begins alike need not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from blockstride.models.engine.block_manager import BlockManager, Copy
from blockstride.models.engine.prefix_store import PrefixStore
from blockstride.models.engine.prefix_tree import Match, Tokens, common_length
from blockstride.models.engine.request import Request

WORTH_WAITING = 16
"""Tokens that a request waits for another to compute, rather than compute them beside it."""


class PrefixCache:
    """Lends requests what others have computed of their tokens, exactly to the token.

    Keys and values serve any sequence that begins with the same tokens: blocks are shared, and the
    last of them is copied where it is shared in part. A recurrent state serves only a sequence that
    goes on right after it. So states are kept where that is likely: after a prompt, after an
    answer, and where a second sequence has been seen to part from a first. Where the states of the
    longest known prefix are missing, a request begins after an earlier one, and computes tokens
    again whose keys and values it needn't store; it leaves the states there to the next. One that
    comes while another still computes what both begin with waits for that.

    Args:
        blocks: Owner of the blocks.

    Source: Pan et al., "Marconi: Prefix Caching for the Era of Hybrid LLMs", for states where
    sequences part.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self.blocks = blocks
        self.store = PrefixStore(blocks)
        self.stats = self.store.stats

    def adopt(self, request: Request) -> bool:
        """Gives a request that is admitted all that is known of its tokens.

        Returns:
            Whether it holds blocks now; else it begins with nothing, if there is room for that.
        """
        tokens = _tokens(request, request.num_tokens)
        match = self.store.tree.match(tokens, request.params.cache_salt)
        self.stats.asked_tokens += len(tokens)
        # at least one token is computed, whose scores are asked for
        known = min(match.length, len(tokens) - 1)
        if request.scores_prompt:
            # so are all of a prompt whose tokens are to be told the scores of
            known = min(known, len(request.prompt_logprobs))
        start = self.store.resumable_of(match, known)
        has_states = bool(self.store.state_groups)
        # where it parts from others, though they be in a tier
        parting = max(known, min(request.num_in_tiers, len(tokens) - 1))
        request.keep_after = [*([parting] if has_states and start < parting else []), len(tokens)]
        self.store.on_match(match, start)
        shared = known if has_states else start
        if shared == 0 or not self._lend(request, match, start, shared):
            return False
        request.num_cached = request.num_resumed = start
        request.num_stored = shared
        self.stats.hit_tokens += start
        return True

    def tokens_of(self, request: Request) -> Tokens:
        """All tokens of a request that are known."""
        return _tokens(request, request.num_tokens)

    def awaits(self, request: Request, running: Iterable[Request]) -> bool:
        """Whether a request had better begin when another has computed what both begin with.

        That one will leave its states there.
        """
        salt = request.params.cache_salt
        prompts = [each for each in running if each.num_uncached > 1]
        if request.scores_prompt or not prompts:
            return False
        match = self.store.tree.match(request.prompt, salt)
        known = self.store.resumable_of(match, len(request.prompt) - 1)
        for other in (each for each in prompts if each.params.cache_salt == salt):
            common = common_length(other.prompt, request.prompt[:-1])
            if common >= known + WORTH_WAITING and common > other.num_cached:
                other.keep_after = sorted({*other.keep_after, common})
                return True
        return False

    def adopt_tokens(self, request: Request) -> bool:
        """Gives a request that is to be filled from elsewhere the blocks of tokens that are here.

        What it lacks then are the tokens beyond `Request.present`, and its states.

        Returns:
            Whether it holds blocks for all its tokens but the last; else it is to be read whole, if
            there is room for that.
        """
        store, length = self.store, request.num_tokens - 1
        match = store.tree.match(_tokens(request, length), request.params.cache_salt)
        tables: list[tuple[int, int, np.ndarray]] = []
        copies: list[tuple[int, int, int]] = []
        present = [0] * len(self.blocks.groups)
        for i, group in enumerate(store.token_groups):
            size = store.tree.block_sizes[i]
            table = store.tree.table(match, i, match.length)
            first, whole = store.specs[i].live_blocks(length, size).start, match.length // size
            # a window that is there in part is read
            if match.length > first * size and table[first:].all():
                present[group] = match.length
                tables.append((group, first, table[first:whole]))
                if match.length % size:
                    copies.append((group, whole, int(table[whole])))
        if not tables or not self._take(request, tables, copies, length, length):
            return False
        store.on_match(match)
        request.present = present
        self.stats.unread_tokens += match.length
        return True

    def on_arrived(self, request: Request) -> None:
        """Keeps the tokens of a request that has been filled from elsewhere, while it runs."""
        self._insert(request, request.num_cached, None, "prompt")

    def _lend(self, request: Request, match: Match, start: int, shared: int) -> bool:
        """Fills a request's tables; undoes it where its first token finds no room."""
        store = self.store
        tables: list[tuple[int, int, np.ndarray]] = []
        copies: list[tuple[int, int, int]] = []
        for i, group in enumerate(store.token_groups):
            spec, size = store.specs[i], store.tree.block_sizes[i]
            # what a window forgets is not all there, and is stored again
            length = shared if spec.window is None else start
            table = store.tree.table(match, i, length)
            first, whole = spec.live_blocks(length, size).start, length // size
            tables.append((group, first, table[first:whole]))
            if length % size:
                copies.append((group, whole, int(table[whole])))
        if start and store.state_groups:
            states = next(node.states for node in match.path if node.stop == start)
            assert states is not None, "sequences can go on there"
            for group, block in zip(store.state_groups, states, strict=True):
                copies.append((group, 0, block))
        return self._take(request, tables, copies, start, start + 1)

    def _take(
        self,
        request: Request,
        tables: Sequence[tuple[int, int, np.ndarray]],
        copies: Sequence[tuple[int, int, int]],
        start: int,
        stop: int,
    ) -> bool:
        """Gives a request blocks of others, and its own from there on; all of them or none."""
        if not self.blocks.adopt(request.request_id, tables, copies):
            return False
        if self.blocks.reserve(request.request_id, start, stop):
            return True
        self.blocks.release(request.request_id)
        return False

    def room_for_states(self, request: Request) -> list[Copy]:
        """Blocks for the states after a step, if there is room or they are worth making some.

        Returns:
            Copies of the request's states, whose targets count as used until `on_computed`.
        """
        groups = self.store.state_groups
        if not groups:
            return []
        wanted = [0] * len(self.blocks.pools)
        for group in groups:
            wanted[self.blocks.groups[group][0]] += 1
        length = request.keep_after[0]
        spared = length - request.num_resumed
        self.store.evict(wanted, self.store.urgency_of_states(_kind(request, length), spared))
        if self.blocks.lacking(wanted):
            return []
        return self.blocks.new_copies(request.request_id, groups)

    def on_computed(self, request: Request, copies: Sequence[Copy]) -> None:
        """Keeps what a request has computed up to a token after which its states were left."""
        length = request.keep_after.pop(0)
        has_states = bool(copies) or not self.store.state_groups
        states = [copy.target for copy in copies] if has_states else None
        self._insert(request, length, states, _kind(request, length))
        for copy in copies:
            self.blocks.leave(copy.group, [copy.target])

    def donate(self, request: Request) -> None:
        """Keeps what a request has computed, and its states, before it gives its blocks back."""
        # one that has not run yet has nothing of its own, and its copies are not made
        if request.num_cached > 0 and not self.blocks.copies(request.request_id):
            states = self.blocks.states(request.request_id, self.store.state_groups)
            self._insert(request, request.num_cached, states, "answer")

    def _insert(self, request: Request, length: int, states: list[int] | None, kind: str) -> None:
        tables = self.blocks.tables([self.blocks.row(request.request_id)])
        held, salt = [table[0] for table in tables], request.params.cache_salt
        self.store.insert(_tokens(request, length), salt, held, states, kind)


def _kind(request: Request, length: int) -> str:
    """What states are after that stand after so many tokens of a request's beginning."""
    return "parting" if length < len(request.prompt) else "prompt"


def _tokens(request: Request, length: int) -> Tokens:
    """The first tokens of a request."""
    if length <= len(request.prompt):
        return request.prompt[:length]
    outputs = request.output_ids[: length - len(request.prompt)]
    return np.concatenate([request.prompt, np.array(outputs, np.int32)])
