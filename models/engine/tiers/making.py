"""Making the tiers of an engine, of its config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from blockstride.checks import expect
from blockstride.layouts import CacheSpec, KVCachePool
from blockstride.models.engine.config import EngineConfig
from blockstride.models.engine.prefix_cache import PrefixCache
from blockstride.models.engine.tiers.commands import TierCommand, TierDone
from blockstride.models.engine.tiers.file_index import FileIndex
from blockstride.models.engine.tiers.rank_tiers import RankTiers
from blockstride.models.engine.tiers.tiers import Tiers
from blockstride.models.hybrid_model import HybridModel

if TYPE_CHECKING:
    from blockstride.models.engine.engine import Followers

STEP_SECONDS = 0.05
"""How long a step with nothing to compute waits for what a thread of this process does."""


class EngineTiers(Tiers):
    """The tiers of an engine as rank 0 has them: the books, and its own part of the work.

    Args:
        model: Rank 0's part of the model.
        pools: Its pools.
        config: The engine.
        cache: The engine's prefixes.
        max_len: Most tokens of a sequence.
        fingerprint: That of the model, by which files are told apart.
        followers: The other ranks; None: there are none, and nobody else says what comes.

    Attributes:
        on_change: Called, on any thread, when rank 0 has done something.

    Raises:
        ValueError: Too little host memory, or files without a fingerprint.
        OSError: The folder of the files can't be used.
    """

    def __init__(
        self,
        model: HybridModel,
        pools: Sequence[KVCachePool],
        config: EngineConfig,
        cache: PrefixCache,
        max_len: int,
        fingerprint: str,
        followers: Followers | None,
    ) -> None:
        specs, is_known = model.cache_specs(), bool(fingerprint) or not config.file_cache
        expect(is_known, "fingerprint", "that of the model, for a file cache", "none")
        self.on_change: Callable[[], object] = lambda: None

        def on_done(done: TierDone) -> None:
            self.on_done(done)
            self.on_change()

        self._own = RankTiers(pools, specs, config, model.parallel, fingerprint, on_done)
        files = None
        if config.file_cache:
            files = FileIndex(
                Path(config.file_cache) / _model_folder(specs, fingerprint),
                config.file_cache_bytes,
                has_states=any(not spec.has_tokens for spec in specs.values()),
                has_windows=any(spec.window is not None for spec in specs.values()),
            )

        def tell_all(command: TierCommand) -> None:
            if followers is not None:
                followers.tier(command)
            self._own.do(command)

        layouts = [pool.layout for pool in self._own.host]
        if followers is None:
            self.patience = STEP_SECONDS
        super().__init__(cache, layouts, max_len, config.tp_size, tell_all, files)

    def close(self) -> None:
        """Ends what runs beside compute."""
        self._own.close()


def _model_folder(specs: Mapping[str, CacheSpec], fingerprint: str) -> str:
    """A name for a model and the types that it caches in: others' files can't be loaded."""
    types = [
        f"{name}/{field.name}/{field.dtype}"
        for name, spec in specs.items()
        for segment in spec.segments
        for field in segment.fields
    ]
    return blake2b("\n".join([fingerprint, *sorted(types)]).encode(), digest_size=16).hexdigest()
