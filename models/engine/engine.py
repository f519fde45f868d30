"""Engine: a model, its pools, and the loop that turns requests into tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from blockstride.kernels.checks import expect
from blockstride.layouts import (
    KVCacheLayout,
    KVCachePool,
    choose_block_size,
    plan_pools,
)
from blockstride.layouts.accounting import choose_num_blocks, tokens_that_fit
from blockstride.layouts.groups import check_policy
from blockstride.layouts.poison import poison_blocks, poison_pool
from blockstride.models.engine.batching import make_batch
from blockstride.models.engine.block_manager import BlockManager
from blockstride.models.engine.request import FinishReason, Request
from blockstride.models.engine.sampling import SamplingParams, sample
from blockstride.models.engine.scheduler import Scheduler
from blockstride.models.jamba import JambaModel


@dataclass(frozen=True)
class EngineConfig:
    """How an engine keeps its caches and forms its steps.

    Attributes:
        layout: Stride order of the pools.
        policy: One pool for all groups, or one a group.
        block_size: Tokens per block; inflated under `unified` until a page holds a state.
        kernel_block_size: Tokens per block that kernels see; a whole block when None.
        cache_bytes: Memory for all pools; mapped when first written.
        num_blocks: Blocks of each pool, null block included, instead of `cache_bytes`.
        max_num_seqs: Requests that run at once.
        max_num_batched_tokens: Most tokens of a step.
        prefill_chunk: Most tokens of one request in a step; a whole step when None.
        max_len: Most tokens of a request; what the model and the cache allow when None.
        poison: Debugging mode: fill what no kernel may read with NaN.

    Raises:
        ValueError: A number that is not positive, an unknown layout or policy.
    """

    layout: str = "BLHNC"
    policy: str = "split"
    block_size: int = 16
    kernel_block_size: int | None = None
    cache_bytes: int = 1 << 30
    num_blocks: int | Sequence[int] | None = None
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 2048
    prefill_chunk: int | None = None
    max_len: int | None = None
    poison: bool = False

    def __post_init__(self) -> None:
        KVCacheLayout.parse(self.layout)
        check_policy(self.policy)
        names = ("block_size", "kernel_block_size", "cache_bytes", "max_num_seqs")
        for name in (*names, "max_num_batched_tokens", "prefill_chunk", "max_len"):
            value = getattr(self, name)
            expect(value is None or value > 0, name, "a positive number", value)


@dataclass(frozen=True)
class TokenEvent:
    """A new token of a request; with `request.finish_reason` set, its last."""

    request: Request
    token_id: int


@dataclass
class EngineStats:
    """Counts and seconds since the engine was made.

    Attributes:
        steps: Forward passes.
        prefill_tokens: Tokens computed in steps with a prompt among them.
        prefill_seconds: Time of those steps.
        decode_tokens: Tokens computed in steps in which every request had one.
        decode_seconds: Time of those steps.
    """

    steps: int = 0
    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0

    def count(self, num_tokens: int, seconds: float, is_decode: bool) -> None:
        """Takes one step in."""
        self.steps += 1
        if is_decode:
            self.decode_tokens += num_tokens
            self.decode_seconds += seconds
        else:
            self.prefill_tokens += num_tokens
            self.prefill_seconds += seconds

    @property
    def prefill_rate(self) -> float:
        """Tokens per second of steps with a prompt among them."""
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens per second of steps in which every request had one token."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0


class Engine:
    """Runs requests on one model with continuous batching over paged caches.

    Args:
        model: The model; its mixers are bound to pools made here.
        config: Layout, policy, sizes.

    Raises:
        ValueError: Sizes that can't work together; the message names one.
    """

    def __init__(self, model: JambaModel, config: EngineConfig | None = None) -> None:
        self.config = config = config or EngineConfig()
        self.model = model
        self.stats = EngineStats()
        self.pools = self._make_pools()
        layouts = [pool.layout for pool in self.pools]
        self.groups = [group for layout in layouts for group in layout.groups]
        limit = min(
            config.max_len or model.config.max_position_embeddings, tokens_that_fit(layouts)
        )
        expect(limit >= 2, "num_blocks", "room for two tokens", [p.num_blocks for p in layouts])
        self.max_len = limit
        self.blocks = BlockManager(layouts, config.max_num_seqs, limit)
        self.scheduler = Scheduler(
            self.blocks,
            config.max_num_batched_tokens,
            config.prefill_chunk or config.max_num_batched_tokens,
            self._on_freed,
        )
        self._next_id = 0
        model.bind(self.pools)

    def _make_pools(self) -> tuple[KVCachePool, ...]:
        config, specs = self.config, self.model.cache_specs()
        layout = KVCacheLayout.parse(config.layout)
        block_size = choose_block_size(specs, config.policy, config.block_size)
        num_blocks = config.num_blocks
        if num_blocks is None:
            num_blocks = choose_num_blocks(
                specs,
                layout=layout,
                policy=config.policy,
                block_size=block_size,
                kernel_block_size=config.kernel_block_size,
                memory_bytes=config.cache_bytes,
                num_seqs=config.max_num_seqs,
            )
        plans = plan_pools(
            specs,
            layout=layout,
            policy=config.policy,
            num_blocks=num_blocks,
            block_size=block_size,
            kernel_block_size=config.kernel_block_size,
        )
        pools = tuple(KVCachePool(plan, self.model.device) for plan in plans)
        if config.poison:
            for pool in pools:
                poison_pool(pool)
        return pools

    def add_request(self, prompt_ids: Sequence[int], params: SamplingParams) -> Request:
        """Queues a request.

        Args:
            prompt_ids: Tokens of the prompt, at least one.
            params: How to continue it.

        Raises:
            ValueError: An empty prompt, a token outside the vocabulary, or a prompt that leaves no
                room in the cache for one more token.
        """
        expect(len(prompt_ids) > 0, "prompt", "at least one token", "an empty prompt")
        room = self.max_len - 1
        expect(
            len(prompt_ids) <= room,
            "prompt",
            f"at most {room} tokens, as the cache holds {self.max_len}",
            f"{len(prompt_ids)} tokens",
        )
        vocab = self.model.config.vocab_size
        outside = [token for token in prompt_ids if not 0 <= token < vocab]
        expect(not outside, "prompt", f"tokens from 0 to {vocab - 1}", outside[:1])
        max_len = min(self.max_len, len(prompt_ids) + params.max_tokens)
        request = Request(self._next_id, list(prompt_ids), params, max_len)
        self._next_id += 1
        self.scheduler.add(request)
        return request

    def abort(self, request: Request, reason: FinishReason = "abort") -> None:
        """Ends a request now, for whatever reason, and takes its blocks back."""
        if request.finish_reason is None:
            request.finish_reason = reason
            self.scheduler.remove(request)

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
        """
        begin = time.perf_counter()
        step = self.scheduler.schedule()
        if not step:
            return []
        batch = make_batch(step, self.blocks, self.groups, self.model.device)
        logits = self.model.forward(batch)
        for scheduled in step:
            scheduled.request.num_cached += scheduled.num_new
        done = [s.request for s in step if s.request.num_uncached == 0]
        tokens = sample(logits, [r.params for r in done], [r.generator for r in done])
        events = [self._accept(r, token) for r, token in zip(done, tokens, strict=True)]
        seconds = time.perf_counter() - begin
        self.stats.count(batch.token_ids.shape[0], seconds, batch.is_decode)
        return events

    def _accept(self, request: Request, token: int) -> TokenEvent:
        request.output_ids.append(token)
        params, ends = request.params, self.model.config.eos_token_ids
        is_end = token in ends and not params.ignore_eos
        if is_end or token in params.stop_token_ids:
            self.abort(request, "stop")
        elif request.num_tokens >= request.max_len:
            self.abort(request, "length")
        return TokenEvent(request, token)

    def _on_freed(self, blocks: list[list[int]]) -> None:
        if self.config.poison:
            for pool, ids in zip(self.pools, blocks, strict=True):
                poison_blocks(pool, ids)
