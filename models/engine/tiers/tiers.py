"""Tiers: the books of what host memory and files keep, and of what moves between them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from queue import Empty, SimpleQueue
from secrets import token_hex
from time import monotonic

import numpy as np

from blockstride.layouts import PoolLayout
from blockstride.models.engine.block_manager import BlockManager
from blockstride.models.engine.prefix_cache import PrefixCache
from blockstride.models.engine.prefix_store import PrefixStore
from blockstride.models.engine.prefix_tree import Match, Node, Tokens, common_length
from blockstride.models.engine.request import Request
from blockstride.models.engine.tiers.commands import (
    Demote,
    FilePart,
    Promote,
    Save,
    TierCommand,
    TierDone,
)
from blockstride.models.engine.tiers.file_index import FileIndex
from blockstride.models.engine.tiers.holding import Holder, live_tables
from blockstride.models.engine.tiers.stored_file import Part, tag_of

WORTH_LOADING = 16
"""Tokens that are loaded from a tier rather than computed."""

MOST_JOBS = 64
"""Sequences that are on their way between tiers at once."""

FLUSH_SECONDS = 8.0
"""Time for writing files at the end."""

FIRST_ID = -(1 << 40)
"""Ids of what moves between tiers, below those of requests and of blocks that are set apart."""

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Job:
    """Something that all ranks do beside compute.

    Attributes:
        missing: Ranks that are not done.
        on_end: What follows, with whether all ranks have done it.
        holders: Who uses blocks meanwhile.
        waiting: Requests that wait for it.
    """

    missing: int
    on_end: Callable[[bool], object]
    holders: Sequence[Holder]
    waiting: list[Request] = field(default_factory=list)
    is_failed: bool = False


class Tiers:
    """Keeps what is evicted in host memory and in files, and brings it back before it is needed.

    Host memory is one more pool with one more store of prefixes, whose blocks are of the size of
    the engine's own. Files are written from there as soon as something comes, so that what host
    memory has no room for any more is in a file by then. A request that a tier knows more of than
    the pools waits until that is in the pools, as if another request had computed it, and others
    go on.

    Args:
        cache: The engine's prefixes.
        host: Host memory of rank 0; that of the other ranks is alike.
        max_len: Most tokens of a sequence.
        num_ranks: Ranks of the engine.
        tell: Tells all ranks what to do.
        files: The files; None: none are kept.

    Attributes:
        store: What host memory has.
        patience: Seconds for which a step with nothing to compute waits for something.
    """

    patience = 0.0

    def __init__(
        self,
        cache: PrefixCache,
        host: Sequence[PoolLayout],
        max_len: int,
        num_ranks: int,
        tell: Callable[[TierCommand], object],
        files: FileIndex | None = None,
    ) -> None:
        self._cache, self._num_ranks, self._tell, self._files = cache, num_ranks, tell, files
        self.blocks = BlockManager(host, MOST_JOBS, max_len)
        self.store = PrefixStore(self.blocks)
        self.stats = cache.stats
        self._jobs: dict[int, _Job] = {}
        self._done: SimpleQueue[TierDone] = SimpleQueue()
        self._ids = count(FIRST_ID, -1)
        cache.store.on_evict = self.demote

    def demote(self, node: Node) -> None:
        """Copies a node that is about to be evicted to host memory, with all that is before it."""
        path, source = [*node.ancestors()][::-1], self._cache.store
        tables = live_tables(source, Match(path, node.stop), node.stop)
        if tables is None or not self.blocks.has_row:
            return
        salt, tokens = source.tree.salt_of(node), np.concatenate([each.tokens for each in path])
        states = node.states or []
        holder = self._hold(self.store, tokens, salt, has_states=bool(states))
        if holder is None:
            return
        copies = holder.copies_from(tables, states)
        if copies:
            self._tell(Demote(copies))
            self.stats.demoted_blocks += len(copies)
        holder.keep(node.of_states.kind)
        self._save(holder)

    def _hold(
        self, store: PrefixStore, tokens: Tokens, salt: str, *, has_states: bool
    ) -> Holder | None:
        holder = Holder(store, next(self._ids), tokens, salt, has_states=has_states)
        return holder if holder.has_room else None

    def _save(self, holder: Holder) -> None:
        """Writes what no file has yet, and lets the blocks go."""
        files, tokens, has_states = self._files, holder.tokens, holder.has_states
        file = None if files is None else files.begin(tokens, holder.salt, has_states)
        if files is None or file is None:
            holder.release()
            return
        tables = holder.part(file.start, len(tokens), has_states=has_states, is_new=False)
        number = self._begin([holder], lambda is_done: files.on_written(file, is_done))
        sizes = len(tokens), file.start, int(has_states)
        self._tell(Save(number, str(file.path), token_hex(8), *sizes, tables, tag_of(file)))

    def loads(self, request: Request) -> bool:
        """Whether a request waits for what a tier knows of it, which is loaded if it isn't yet."""
        if request.has_loaded or request.scores_prompt:
            return False
        # at least one token is computed
        tokens, salt = self._cache.tokens_of(request)[:-1], request.params.cache_salt
        start = self._cache.store.resumable(tokens, salt)
        for job in self._jobs.values():
            if job.waiting and self._suits(job, tokens, salt, start):
                return self._join(job, request)
        length, parts = self.store.resumable(tokens, salt), []
        found = self._files.match(tokens, salt) if self._files is not None else []
        if found and found[-1].num_tokens >= length + WORTH_LOADING:
            length, parts = found[-1].num_tokens, found
        request.num_in_tiers = self.store.tree.match(tokens, salt).length
        if self._files is not None:
            request.num_in_tiers = max(request.num_in_tiers, self._files.known(tokens, salt))
        if length < start + WORTH_LOADING:
            return False
        job = self._load(tokens[:length], salt, parts)
        return job is not None and self._join(job, request)

    def _suits(self, job: _Job, tokens: Tokens, salt: str, start: int) -> bool:
        """Whether what a job loads is what some tokens begin with, and worth waiting for."""
        loaded, length = job.holders[0], len(job.holders[0].tokens)
        is_known = loaded.salt == salt and common_length(loaded.tokens, tokens) == length
        return is_known and length >= start + WORTH_LOADING

    def _join(self, job: _Job, request: Request) -> bool:
        request.has_loaded = True
        job.waiting.append(request)
        return True

    def _load(self, tokens: Tokens, salt: str, parts: Sequence[Part]) -> _Job | None:
        """Begins to bring a sequence to the pools; None where there is no room for it."""
        pools, has_states = self._cache.store, bool(self.store.state_groups)
        if not (self.blocks.has_row and pools.blocks.has_row):
            return None
        host = self._hold(self.store, tokens, salt, has_states=has_states)
        if host is None:
            return None
        target = self._hold(pools, tokens, salt, has_states=has_states)
        if target is None:
            host.release()
            return None
        stats = self.stats

        def on_end(is_done: bool) -> None:
            if is_done:
                stats.host_tokens += 0 if parts else len(tokens)
                stats.file_tokens += len(tokens) if parts else 0
                if parts:
                    host.keep("prompt")
                target.keep("prompt")

        if not parts:
            self.store.on_match(self.store.tree.match(tokens, salt), len(tokens))
        number = self._begin([host, target], on_end)
        if self._files is not None:
            self._files.use([part.file for part in parts])
        copies = target.copies_from(host.tables(), host.states())
        self._tell(Promote(number, _reads(host, parts), copies))
        return self._jobs[number]

    def _begin(self, holders: Sequence[Holder], on_end: Callable[[bool], object]) -> int:
        self._jobs[holders[0].number] = _Job(self._num_ranks, on_end, holders)
        return holders[0].number

    @property
    def is_busy(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._jobs)

    def on_done(self, done: TierDone) -> None:
        """A rank has done its part of a job; any thread may say so."""
        self._done.put(done)

    def poll(self, seconds: float = 0.0) -> list[Request]:
        """Takes in what ranks have done.

        Args:
            seconds: How long to wait for something, if anything is on its way.

        Returns:
            Requests that need wait no longer.
        """
        ready: list[Request] = []
        while self._jobs:
            try:
                done = self._done.get(timeout=seconds) if seconds else self._done.get_nowait()
            except Empty:
                break
            ready += self._take_in(done)
            seconds = 0.0
        return ready

    def _take_in(self, done: TierDone) -> list[Request]:
        job = self._jobs[done.job]
        if done.error:
            job.is_failed = True
            logger.warning("tiers: %s", done.error)
            if done.path and self._files is not None:
                self._files.on_damaged(done.path)
        job.missing -= 1
        if job.missing:
            return []
        del self._jobs[done.job]
        job.on_end(not job.is_failed)
        for holder in job.holders:
            holder.release()
        return job.waiting

    def flush(
        self, seconds: float = FLUSH_SECONDS, wait: Callable[[float], object] | None = None
    ) -> None:
        """Writes to files what the pools have, what was of use last first, while there is time.

        Args:
            seconds: The time.
            wait: Waits at most so many seconds for what ranks say; None: as `poll`.
        """
        deadline = monotonic() + seconds

        def settle() -> None:
            while self._jobs and monotonic() < deadline:
                (wait or self.poll)(0.1)

        settle()
        for node in self._cache.store.ends() if self._files is not None else ():
            if monotonic() > deadline:
                logger.warning("tiers: not all that is known could be written in %g s", seconds)
                return
            self.demote(node)
            settle()

    def report(self) -> None:
        """Puts what tiers keep into the statistics."""
        self.stats.host_bytes = sum(
            pool.block_bytes * len({*np.concatenate([[0], *kept]).tolist()} - {0})
            for pool, kept in zip(self.blocks.pools, self.store.kept_blocks(), strict=True)
        )
        if self._files is not None:
            self.stats.file_bytes = self._files.nbytes
            self.stats.damaged_files = self._files.damaged


def _reads(host: Holder, parts: Sequence[Part]) -> list[FilePart]:
    """What is read of each file into blocks of host memory."""
    reads = []
    for part in parts:
        stop, start = part.num_tokens, part.file.start
        tables = host.part(start, stop, has_states=part.has_states, is_new=True)
        if any(len(table.ids) for table in tables):
            reads.append(FilePart(str(part.file.path), stop, tables))
    return reads
