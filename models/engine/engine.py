"""Engine: a model, its pools, and the loop that turns requests into tokens."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from blockstride.checks import expect
from blockstride.layouts.accounting import tokens_that_fit
from blockstride.layouts.poison import poison_blocks
from blockstride.models.batch import StepBatch
from blockstride.models.engine import tiers
from blockstride.models.engine.batching import make_batch
from blockstride.models.engine.block_manager import BlockManager
from blockstride.models.engine.config import EngineConfig
from blockstride.models.engine.limits import PromptLimits
from blockstride.models.engine.logit_changes import LogitChanges, change_logits
from blockstride.models.engine.logprobs import new_logprobs, tell_prompt_logprobs
from blockstride.models.engine.pools import make_pools
from blockstride.models.engine.prefix_cache import PrefixCache
from blockstride.models.engine.recorded_steps import RecordedSteps
from blockstride.models.engine.report import EngineReport, EngineStats
from blockstride.models.engine.request import FinishReason, Request
from blockstride.models.engine.sampler import sample
from blockstride.models.engine.sampling import SamplingParams
from blockstride.models.engine.scheduler import Scheduled, Scheduler
from blockstride.models.engine.step_timer import StepTimer
from blockstride.models.engine.tiers.commands import TierCommand
from blockstride.models.engine.token_logprobs import TokenLogprobs
from blockstride.models.engine.warm_up import warm_up_batches
from blockstride.models.hybrid_model import HybridModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenEvent:
    """A new token of a request; with `request.finish_reason` set, its last.

    Without a token its scores were no numbers, and the request has ended with an error.
    """

    request: Request
    token_id: int | None


@runtime_checkable
class Followers(Protocol):
    """The other ranks of a model, which do what this one does."""

    def forward(self, batch: StepBatch) -> None:
        """Has them compute a batch, beside this rank."""

    def poison(self, blocks: Sequence[Sequence[int]]) -> None:
        """Has them poison freed blocks of each pool."""

    def tier(self, command: TierCommand) -> None:
        """Has them move blocks between their pools, host memory and files."""


class Engine:
    """Runs requests on one model with continuous batching over paged caches.

    Args:
        model: The model, or rank 0's part of it; its mixers are bound to pools made here.
        config: Layout, policy, sizes.
        followers: The other ranks; None when there are none.
        fingerprint: That of the model; of use where there is a file cache.

    Attributes:
        capacity: Most tokens of one sequence that the caches hold.

    Raises:
        ValueError: Sizes that can't work together; the message names one.
    """

    def __init__(
        self,
        model: HybridModel,
        config: EngineConfig | None = None,
        followers: Followers | None = None,
        fingerprint: str = "",
    ) -> None:
        self.config = config = config or EngineConfig()
        self.model = model
        self.stats = EngineStats()
        self._timer = StepTimer(self.stats, model.device)
        self._followers = followers
        self.pools = make_pools(model, config)
        layouts = [pool.layout for pool in self.pools]
        self.groups = [group for layout in layouts for group in layout.groups]
        self.capacity = tokens_that_fit(layouts)
        lengths = config.max_len, model.config.max_position_embeddings, self.capacity
        self.limits = PromptLimits.of(*lengths, model.config.vocab_size)
        self.max_len = self.limits.max_len
        expect(config.max_len != 1, "max_len", "at least 2 tokens", config.max_len)
        enough = self.max_len >= 2
        expect(enough, "num_blocks", "room for two tokens", [p.num_blocks for p in layouts])
        self.blocks = BlockManager(layouts, config.max_num_seqs, self.max_len)
        self.scheduler = Scheduler(
            self.blocks,
            config.max_num_batched_tokens,
            config.prefill_chunk or config.max_num_batched_tokens,
            self._on_freed,
            PrefixCache(self.blocks) if config.prefix_caching else None,
        )
        self._ids = count()
        self.tiers = self.scheduler.tiers = None
        if self.scheduler.prefixes is not None and config.has_tiers:
            made = model, self.pools, config, self.scheduler.prefixes, self.max_len, fingerprint
            self.tiers = self.scheduler.tiers = tiers.EngineTiers(*made, followers)
        model.bind(self.pools)
        self.steps = RecordedSteps(model, is_off=not config.record_steps)

    def add_request(self, prompt_ids: Sequence[int], params: SamplingParams) -> Request:
        """Queues a request.

        Args:
            prompt_ids: Tokens of the prompt, at least one.
            params: How to continue it.

        Raises:
            ValueError: An empty prompt, a token outside the vocabulary, or a prompt that leaves no
                room in the cache for one more token.
        """
        request = self.new_request(prompt_ids, params)
        self.scheduler.add(request)
        return request

    def new_request(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        output_ids: Sequence[int] = (),
        max_len: int | None = None,
        request_id: int | None = None,
    ) -> Request:
        """A request that is not queued yet.

        Args:
            prompt_ids: Tokens of the prompt, at least one.
            params: How to continue it.
            output_ids: Tokens that another engine has generated already.
            max_len: A limit of its length below that of this engine.
            request_id: Its id, which no other request of this engine has; the next one when None.

        Raises:
            ValueError: As `add_request`.
        """
        self.limits.check(prompt_ids, params)
        limit = min(max_len or self.max_len, self.limits.longest(prompt_ids, params))
        if request_id is None:
            request_id = next(self._ids)
        request = Request(request_id, list(prompt_ids), params, limit, list(output_ids))
        if params.changes_logits:
            ends, vocab_size = self.model.eos_token_ids, self.limits.vocab_size
            request.changes = LogitChanges(params, request.prompt_ids, ends, vocab_size)
        return request

    def abort(self, request: Request, reason: FinishReason = "abort") -> None:
        """Ends a request now, for whatever reason, and takes its blocks back."""
        if request.finish_reason is None:
            request.finish_reason = reason
            self.scheduler.remove(request)

    def wake(self) -> None:
        """Makes a step that waits return; no step of this engine waits."""

    def close(self) -> None:
        """Ends what runs beside this engine, after files are written of what it knows."""
        if self.tiers is not None:
            self.tiers.flush()
            self.tiers.close()

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return self.scheduler.has_work

    @torch.inference_mode()
    def step(self) -> list[TokenEvent]:
        """Computes one batch of tokens.

        Returns:
            The new token of each request whose known tokens are all computed; requests in the
            middle of their prompt have none.

        Raises:
            BaseException: What comes in the way, such as an interrupt, or memory that is used up;
                the next step computes the same requests again, from their first tokens.
        """
        self._timer.start()
        step = self.scheduler.schedule()
        try:
            return self._run(step) if step else []
        except BaseException:
            self.scheduler.on_failed(step)
            raise

    def _run(self, step: Sequence[Scheduled]) -> list[TokenEvent]:
        batch = make_batch(step, self.blocks, self.groups)
        if batch.is_decode:
            self._timer.settle()
        logits = self._forward(batch)
        scored = [(s.request, s.scored) for s in step if s.request.scores_prompt]
        self.scheduler.on_computed()
        done = [s.request for s in step if s.request.num_uncached == 0]
        if scored:
            logits, of_prompts = logits.split([len(done), len(logits) - len(done)])
            tell_prompt_logprobs(of_prompts, scored)
        tokens = _sample(logits, done) if done else []
        told = new_logprobs(logits, done, tokens)
        self._timer.stop(batch.token_ids.shape[0], is_decode=batch.is_decode, is_awaited=bool(done))
        return [self._accept(*each) for each in zip(done, tokens, told, strict=True)]

    def _forward(self, batch: StepBatch) -> Tensor:
        """Logits of a batch, which all ranks compute."""
        if self._followers is not None:
            self._followers.forward(batch)
        return self.steps.forward(batch)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Has everything compiled that steps will need, by steps of padding."""
        begin = time.perf_counter()
        device = self.model.device
        params = SamplingParams(temperature=1.0, top_k=2, top_p=0.5)
        for batch in warm_up_batches(self.config, self.max_len, self.groups, device):
            logits = self._forward(batch)
            sample(logits, [params] * len(logits), [0] * len(logits), [0] * len(logits))
        self.stats.compile_seconds += time.perf_counter() - begin

    def _accept(self, request: Request, token: int, told: TokenLogprobs | None) -> TokenEvent:
        if token < 0:
            request.error = request.error or "expected finite scores, got NaN or infinity"
            logger.info("request %d ends here: %s", request.request_id, request.error)
            self.abort(request, "error")
            return TokenEvent(request, None)
        request.output_ids.append(token)
        if told is not None:
            request.logprobs.append(told)
        params, ends = request.params, self.model.eos_token_ids
        is_end = token in ends and not params.ignore_eos
        if is_end or token in params.stop_token_ids:
            self.abort(request, "stop")
        elif request.num_tokens >= request.max_len:
            self.abort(request, "length")
        return TokenEvent(request, token)

    def report(self) -> EngineReport:
        """What it has done so far, and its pools."""
        layouts = tuple(pool.layout for pool in self.pools)
        self._timer.settle()
        preemptions, free = self.scheduler.num_preemptions, self.blocks.num_free
        prefixes = self.scheduler.prefixes
        found = None if prefixes is None else prefixes.stats
        if self.tiers is not None:
            self.tiers.report()
        return EngineReport(self.stats, preemptions, free, layouts, prefixes=found)

    def release(self, request_id: int) -> None:
        """Frees the blocks of a request that is not scheduled here any more."""
        self._on_freed(self.blocks.release(request_id))

    def _on_freed(self, blocks: list[list[int]]) -> None:
        if self.config.poison:
            for pool, ids in zip(self.pools, blocks, strict=True):
                poison_blocks(pool, ids)
            if self._followers is not None:
                self._followers.poison(blocks)


def _sample(logits: Tensor, requests: Sequence[Request]) -> list[int]:
    """A token for each row and request; below 0 where none could be chosen."""
    try:
        edits = [
            (row, request.changes.edits(request.output_ids))
            for row, request in enumerate(requests)
            if request.changes is not None
        ]
        if edits:
            logits = change_logits(logits, edits)
        return sample(
            logits,
            [request.params for request in requests],
            [request.seed for request in requests],
            [len(request.output_ids) for request in requests],
        )
    except Exception as error:
        if len(requests) == 1:
            requests[0].error = f"{type(error).__name__}: {error}"
            return [-1]
        # one by one, so that only those end that fail alone
        return [_sample(row, [r])[0] for row, r in zip(logits.split(1), requests, strict=True)]
