"""Attention, cache writes and block copies at the sizes of real steps."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from support.budget import assert_within_budget
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from blockstride.kernels.attention import reference
from blockstride.kernels.attention.gpu import attention_schedule, paged_attention
from blockstride.kernels.cache.gpu import block_copy, kv_cache_update
from gpu_cases.case import Call, Case

HEAD_SIZE, NUM_HEADS, NUM_KV_HEADS = 128, 32, 4
SCALE = HEAD_SIZE**-0.5


@dataclass(frozen=True)
class Step:
    """Equal sequences of a step: `query_len` new tokens after `context` old ones."""

    num_seqs: int
    query_len: int
    context: int
    block_size: int = 16
    cache_dtype: torch.dtype = torch.bfloat16
    device: str = "cuda"
    window: int | None = None

    @property
    def length(self) -> int:
        return self.query_len + self.context

    def arguments(self, seed: int = 0) -> tuple[Tensor, ...]:
        """Query, caches, block table, lengths and starts, with blocks in random places."""
        torch.manual_seed(seed)
        per_seq = -(-self.length // self.block_size)
        num_blocks = self.num_seqs * per_seq + 1
        shape = (num_blocks, NUM_KV_HEADS, self.block_size, 2 * HEAD_SIZE)
        cache = torch.empty(shape, dtype=self.cache_dtype, device=self.device)
        for part in cache.split(1024):
            noise = torch.randn(part.shape, device=self.device)
            part.copy_((noise * 40).clamp(-127, 127) if self.cache_dtype == torch.int8 else noise)
        blocks = torch.randperm(num_blocks - 1, device=self.device)[: self.num_seqs * per_seq] + 1
        query = torch.randn(
            self.num_seqs * self.query_len, NUM_HEADS, HEAD_SIZE, device=self.device
        )
        starts = torch.arange(self.num_seqs + 1, dtype=torch.int32, device=self.device)
        return (
            query.bfloat16(),
            cache[..., :HEAD_SIZE],
            cache[..., HEAD_SIZE:],
            blocks.int().reshape(self.num_seqs, per_seq),
            torch.full((self.num_seqs,), self.length, dtype=torch.int32, device=self.device),
            starts * self.query_len,
        )

    def options(self) -> dict:
        options: dict = {"scale": SCALE, "window": self.window}
        if self.cache_dtype.itemsize == 1:
            unit = 0.025 if self.cache_dtype == torch.int8 else 1.0
            options["k_scale"] = torch.tensor(0.7 * unit, device=self.device)
            options["v_scale"] = torch.tensor(1.3 * unit, device=self.device)
        return options

    def call(self) -> Call:
        arguments = self.arguments()
        schedule = attention_schedule(*arguments, window=self.window, max_query_len=self.query_len)
        return partial(paged_attention, *arguments, schedule=schedule, **self.options())

    def check(self, seeds: int = 1) -> None:
        """Hold the kernel to float64 on a step of this kind that a dense oracle can still hold."""
        small = Step(
            min(self.num_seqs, 3), min(self.query_len, 300), min(self.context, 1500) + 3,
            self.block_size, self.cache_dtype, self.device, self.window,
        )  # fmt: skip
        for seed in range(seeds):
            arguments, options = small.arguments(seed), small.options()
            schedule = attention_schedule(
                *arguments, window=self.window, max_query_len=small.query_len
            )
            actual = paged_attention(*arguments, schedule=schedule, **options)
            assert isinstance(actual, Tensor)
            query, *others = arguments
            exact, _ = reference.paged_attention(query.double(), *others, **options)
            plain, _ = reference.paged_attention(query, *others, **options)
            assert_within_budget(actual, exact, plain)

    def dense(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same step for torch: [sequences, heads, tokens, size], keys and values contiguous."""
        shapes = (
            (NUM_HEADS, self.query_len),
            (NUM_KV_HEADS, self.length),
            (NUM_KV_HEADS, self.length),
        )
        query, key, value = (
            torch.randn(self.num_seqs, *shape, HEAD_SIZE, device=self.device, dtype=torch.bfloat16)
            for shape in shapes
        )
        return query, key, value

    def sdpa(self) -> Call:
        query, key, value = self.dense()
        causal = self.query_len > 1
        return lambda: scaled_dot_product_attention(
            query, key, value, is_causal=causal, enable_gqa=True
        )

    def flex(self) -> Call:
        query, key, value = self.dense()
        mask = None
        if self.query_len > 1:
            mask = create_block_mask(
                lambda b, h, q, k: q >= k,
                None,
                None,
                self.query_len,
                self.length,
                device=self.device,
            )
        compiled = torch.compile(flex_attention, dynamic=False)
        return lambda: compiled(query, key, value, block_mask=mask, enable_gqa=True)

    @property
    def cache_bytes(self) -> int:
        seen = min(self.length, self.window or self.length)
        return self.num_seqs * seen * NUM_KV_HEADS * 2 * HEAD_SIZE * self.cache_dtype.itemsize

    @property
    def flop(self) -> float:
        pairs = self.num_seqs * self.query_len * (self.context + (self.query_len + 1) / 2)
        return 4.0 * NUM_HEADS * HEAD_SIZE * pairs


def cases(device: str, smoke: bool) -> Iterator[Case]:
    yield from decode_cases(device, smoke)
    yield from prefill_cases(device, smoke)
    yield from write_cases(device, smoke)
    yield from copy_cases(device, smoke)


def decode_cases(device: str, smoke: bool) -> Iterator[Case]:
    fp8, int8 = torch.float8_e4m3fn, torch.int8
    for num_seqs, context, block_size, cache_dtype, window in (
        (1, 32_767, 16, torch.bfloat16, None),
        (1, 131_071, 64, torch.bfloat16, None),
        (16, 8_191, 16, torch.bfloat16, None),
        (64, 8_191, 16, torch.bfloat16, None),
        (64, 8_191, 64, torch.bfloat16, None),
        (64, 8_191, 16, fp8, None),
        (64, 8_191, 64, fp8, None),
        (64, 8_191, 16, int8, None),
        (64, 8_191, 16, torch.bfloat16, 1024),
        (256, 2_047, 16, torch.bfloat16, None),
    ):
        step = Step(num_seqs, 1, context, block_size, cache_dtype, device, window)
        if smoke:
            step = Step(2, 1, 90, block_size, cache_dtype, device, window and 30)
        name = f"decode {num_seqs} x {context + 1}, page {block_size}, {str(cache_dtype)[6:]}"
        plain = cache_dtype == torch.bfloat16 and window is None
        yield Case(
            name + (f", window {window}" if window else ""),
            step.check,
            step.call,
            bytes=step.cache_bytes,
            torch=step.sdpa if plain else None,
            flex=step.flex if plain and (num_seqs, block_size) == (64, 16) and not smoke else None,
        )
    for query_len in (2, 4, 8):
        step = Step(16, query_len, 8_192, device=device)
        step = Step(1, query_len, 50, device=device) if smoke else step
        yield Case(f"{query_len} new tokens, 16 x 8192", step.check, step.call, step.cache_bytes)


def prefill_cases(device: str, smoke: bool) -> Iterator[Case]:
    for num_seqs, query_len, context, block_size in (
        (4, 4_096, 0, 16),
        (4, 4_096, 0, 64),
        (4, 4_096, 0, 128),
        (1, 16_384, 0, 64),
        (2, 2_048, 14_336, 16),
        (2, 2_048, 14_336, 64),
    ):
        step = Step(num_seqs, query_len, context, block_size, device=device)
        if smoke:
            step = Step(1, 70, 20 if context else 0, block_size, device=device)
        yield Case(
            f"prefill {num_seqs} x {query_len} after {context}, page {block_size}",
            partial(step.check, 10 if block_size == 128 and not smoke else 1),
            step.call,
            flop=step.flop,
            torch=None if context else step.sdpa,
            flex=None if context or block_size != 16 or smoke else step.flex,
        )


def write_cases(device: str, smoke: bool) -> Iterator[Case]:
    for num_tokens, cache_dtype in (
        (8_192, torch.bfloat16),
        (8_192, torch.float8_e4m3fn),
        (64, torch.bfloat16),
    ):

        def build(num_tokens=num_tokens, cache_dtype=cache_dtype):
            torch.manual_seed(0)
            shape = (num_tokens // 16 + 1, NUM_KV_HEADS, 16, 2 * HEAD_SIZE)
            cache = torch.zeros(shape, device=device).to(cache_dtype)
            key, value = torch.randn(
                2, num_tokens, NUM_KV_HEADS, HEAD_SIZE, device=device
            ).bfloat16()
            slots = torch.randperm(num_tokens, device=device) + 16
            return key, value, cache[..., :HEAD_SIZE], cache[..., HEAD_SIZE:], slots

        def check(build=build):
            key, value, key_cache, value_cache, slots = build()
            kv_cache_update(key, value, key_cache, value_cache, slots)
            for new, cache in ((key, key_cache), (value, value_cache)):
                stored = cache[slots // 16, :, slots % 16]
                assert torch.equal(stored.float(), new.to(cache.dtype).float())

        def baseline(build=build):
            key, value, key_cache, value_cache, slots = build()
            block, offset = slots // 16, slots % 16

            def call():
                key_cache[block, :, offset] = key.to(key_cache.dtype)
                value_cache[block, :, offset] = value.to(value_cache.dtype)

            return call

        moved = num_tokens * NUM_KV_HEADS * 2 * HEAD_SIZE * (2 + cache_dtype.itemsize)
        yield Case(
            f"cache write {num_tokens} tokens, {str(cache_dtype)[6:]}",
            check,
            lambda build=build: partial(kv_cache_update, *build()),
            bytes=moved,
            torch=baseline,
        )


def copy_cases(device: str, smoke: bool) -> Iterator[Case]:
    layers, blocks = (2, 6) if smoke else (16, 2_048)
    shape = (layers, blocks, 8, 16, HEAD_SIZE)
    count = (blocks - 2) // 4 * 4

    def pools(size: int):
        torch.manual_seed(0)
        source = torch.randn(shape, device=device).bfloat16()
        other = (layers, blocks * 16 // size + 1, size, 8, HEAD_SIZE)
        return source, torch.zeros(other, device=device, dtype=source.dtype).transpose(2, 3)

    def ids(number: int) -> Tensor:
        return (torch.randperm(number, device=device) + 1).int()

    def check(size: int):
        source, destination = pools(size)
        reads, writes = ids(count), ids(count * 16 // size)
        block_copy(source, destination, reads, writes)
        stream = source[:, reads.long()].transpose(2, 3).flatten(1, 2)
        assert torch.equal(destination[:, writes.long()].transpose(2, 3).flatten(1, 2), stream)

    def call(size: int):
        source, destination = pools(size)
        return partial(block_copy, source, destination, ids(count), ids(count * 16 // size))

    def by_torch(size: int):
        source, destination = pools(size)
        reads, writes = ids(count).long(), ids(count).long()

        def run():
            destination[:, writes] = source[:, reads]

        return run

    moved = 2 * layers * count * 8 * 16 * HEAD_SIZE * 2
    for size in (16, 64):
        yield Case(
            f"copy {count} blocks of 16 to {size}, permuted",
            partial(check, size),
            partial(call, size),
            bytes=moved,
            torch=partial(by_torch, size) if size == 16 else None,
        )

    def in_place():
        source, _ = pools(16)
        destination = source.as_strided(shape, (*source.stride()[:2], HEAD_SIZE, 8 * HEAD_SIZE, 1))
        return source, destination, ids(count)

    def check_in_place():
        source, destination, chosen = in_place()
        before = source.clone()
        block_copy(source, destination, chosen, chosen)
        assert torch.equal(destination[:, chosen.long()], before[:, chosen.long()])

    def call_in_place():
        source, destination, chosen = in_place()
        return partial(block_copy, source, destination, chosen, chosen)

    yield Case(f"permute {count} blocks in place", check_in_place, call_in_place, bytes=moved)
