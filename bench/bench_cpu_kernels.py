"""CPU kernels against the torch operations they replace, at the shapes of Jamba and Granite models.

A group is one operation at one shape, so its two rows are measured side by side. The results are
compared before anything is timed. Bytes are those that must cross memory at least once.
"""

import os
import platform
from collections.abc import Callable

import numba
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bench.cpu_recurrences import (
    Case,
    delta_rule,
    delta_update,
    head_scan,
    head_state_update,
    ids,
    real_gated,
    real_gated_update,
    scan,
    state_update,
)
from blockstride import kernels
from blockstride.kernels.common.dispatch import INTERPRET

pytestmark = pytest.mark.skipif(INTERPRET, reason="these are the kernels for CPUs")

BLOCK_SIZE = 16


def first(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


def convolution(num_tokens: int, dim: int) -> Case:
    x = torch.randn(num_tokens, 2 * dim)[:, :dim]
    weight, bias = torch.randn(dim, 4), torch.randn(dim)
    state, fresh = torch.zeros(2, dim, 3), torch.tensor([False])

    def ours() -> Tensor:
        return kernels.causal_conv1d(x, weight, bias, state, ids(1), ids(0, num_tokens), fresh)

    def plain() -> Tensor:
        out = functional.conv1d(x.T[None], weight[:, None], bias, padding=3, groups=dim)
        return functional.silu(out)[0, :, :num_tokens].T

    return Case(ours, plain, 8 * num_tokens * dim, 8 * num_tokens * dim)


def convolution_update(num_seqs: int, dim: int) -> Case:
    x = torch.randn(num_seqs, 1, dim)
    weight, bias = torch.randn(dim, 4), torch.randn(dim)
    pool = torch.zeros(num_seqs + 1, dim, 3)
    again = pool[1:].clone()
    indices = torch.arange(1, num_seqs + 1, dtype=torch.int32)

    def ours() -> Tensor:
        return kernels.causal_conv1d_update(x, weight, bias, pool, indices)

    def plain() -> Tensor:
        seen = torch.cat([again, x.transpose(1, 2)], -1)
        again.copy_(seen[..., 1:])
        return functional.silu((seen * weight).sum(-1) + bias)[:, None]

    return Case(ours, plain, 32 * num_seqs * dim, 8 * num_seqs * dim)


def attention(num_seqs: int, new: int, total: int, num_heads: int, num_kv_heads: int) -> Case:
    size, blocks = 64, total // BLOCK_SIZE
    keys, values = torch.randn(2, num_seqs * blocks + 1, num_kv_heads, BLOCK_SIZE, size)
    table = (torch.randperm(num_seqs * blocks) + 1).int().view(num_seqs, blocks)
    query = torch.randn(num_seqs * new, num_heads, size)
    starts = torch.arange(0, num_seqs * new + 1, new, dtype=torch.int32)
    lens = torch.full((num_seqs,), total, dtype=torch.int32)

    def ours() -> Tensor:
        return kernels.paged_attention(query, keys, values, table, lens, starts, scale=0.125)

    def plain() -> Tensor:
        k, v = (
            cache[table.long()].transpose(1, 2).reshape(num_seqs, num_kv_heads, total, size)
            for cache in (keys, values)
        )
        q = query.view(num_seqs, new, num_heads, size).transpose(1, 2)
        out = functional.scaled_dot_product_attention(
            q, k, v, is_causal=new > 1, scale=0.125, enable_gqa=True
        )
        return out.transpose(1, 2).reshape(query.shape)

    pairs = num_seqs * num_heads * (total if new == 1 else total * (total + 1) // 2)
    return Case(ours, plain, 8 * num_seqs * total * num_kv_heads * size, 4 * pairs * size)


def cache_update(num_tokens: int, num_kv_heads: int) -> Case:
    key, value = torch.randn(2, num_tokens, num_kv_heads, 64)
    pools = torch.zeros(4, num_tokens // BLOCK_SIZE + 2, num_kv_heads, BLOCK_SIZE, 64)
    slots = torch.randperm(num_tokens) + BLOCK_SIZE

    def ours() -> Tensor:
        kernels.kv_cache_update(key, value, pools[0], pools[1], slots)
        return pools[:2]

    def plain() -> Tensor:
        block, offset = slots // BLOCK_SIZE, slots % BLOCK_SIZE
        pools[2][block, :, offset], pools[3][block, :, offset] = key, value
        return pools[2:]

    return Case(ours, plain, 16 * num_tokens * num_kv_heads * 64, 0)


def layout_change(num_blocks: int) -> Case:
    source = torch.randn(4, num_blocks + 1, 2, BLOCK_SIZE, 128)
    ours_pool = torch.zeros(num_blocks + 1, 2, 4, BLOCK_SIZE, 128).permute(2, 0, 1, 3, 4)
    plain_pool = torch.zeros_like(ours_pool)
    reads = torch.randperm(num_blocks).int() + 1
    writes = torch.arange(1, num_blocks + 1, dtype=torch.int32)

    def ours() -> Tensor:
        kernels.block_copy(source, ours_pool, reads, writes)
        return ours_pool

    def plain() -> Tensor:
        plain_pool[:, writes.long()] = source[:, reads.long()]
        return plain_pool

    return Case(ours, plain, 8 * num_blocks * 4 * 2 * BLOCK_SIZE * 128, 0)


def runs(count: int, length: int) -> Case:
    source, ours_pool, plain_pool = torch.zeros(3, count, length, dtype=torch.int8)
    source.random_(-128, 127)
    reads, writes = torch.randperm(count), torch.randperm(count)
    columns = reads * length, writes * length, torch.full((count,), length)
    # torch is fastest with the widest numbers
    words, plain_words = source.view(torch.int64), plain_pool.view(torch.int64)

    def ours() -> Tensor:
        kernels.copy_runs(source.flatten(), ours_pool.flatten(), *columns)
        return ours_pool

    def plain() -> Tensor:
        plain_words[writes] = words[reads]
        return plain_pool

    return Case(ours, plain, 2 * count * length, 0)


def norm(num_tokens: int, dim: int) -> Case:
    x, residual = torch.randn(2, num_tokens, dim)
    weight, again = torch.randn(dim), residual.clone()

    def ours() -> Tensor:
        return kernels.rms_norm(x, weight, 1e-6, residual=residual)[0]

    def plain() -> Tensor:
        return functional.rms_norm(again.add_(x), (dim,), weight, 1e-6)

    return Case(ours, plain, 16 * num_tokens * dim, 5 * num_tokens * dim)


def product(num_rows: int, dim: int, dim_out: int) -> Case:
    x, weight = torch.randn(num_rows, dim), torch.randn(dim_out, dim) / dim**0.5
    packed = kernels.pack_weight(weight)

    def ours() -> Tensor:
        return kernels.linear(x, packed)

    def plain() -> Tensor:
        return functional.linear(x, weight)

    moved = 4 * (num_rows * (dim + dim_out) + dim * dim_out)
    return Case(ours, plain, moved, 2 * num_rows * dim * dim_out)


def gate(num_tokens: int, inner: int) -> Case:
    gate_up = torch.randn(num_tokens, 2 * inner)

    def plain() -> Tensor:
        return functional.silu(gate_up[:, :inner]) * gate_up[:, inner:]

    def ours() -> Tensor:
        return kernels.gate_and_mul(gate_up)

    return Case(ours, plain, 12 * num_tokens * inner, 5 * num_tokens * inner)


def experts(num_tokens: int) -> Case:
    hidden, inner, num_experts, top_k = 256, 512, 4, 2
    gate_up = torch.randn(num_experts, 2 * inner, hidden) / 16
    down = torch.randn(num_experts, hidden, inner) / 22
    x = torch.randn(num_tokens, hidden)
    weights, chosen = torch.randn(num_tokens, num_experts).softmax(-1).topk(top_k)

    packed = kernels.pack_experts(list(gate_up)), kernels.pack_experts(list(down))

    def ours() -> Tensor:
        return kernels.expert_mlp(x, *packed, chosen, weights)

    def plain() -> Tensor:
        out = torch.zeros_like(x)
        for expert in range(num_experts):
            tokens, slots = torch.where(chosen == expert)
            gates, ups = functional.linear(x[tokens], gate_up[expert]).chunk(2, -1)
            outputs = functional.linear(functional.silu(gates) * ups, down[expert])
            out.index_add_(0, tokens, outputs * weights[tokens, slots, None])
        return out

    read = min(num_experts, num_tokens * top_k) * 12 * inner * hidden
    return Case(ours, plain, read, 6 * num_tokens * top_k * inner * hidden)


# hidden 256 is the model of 6.4 M parameters, 768 the one of 108 M; d_inner is twice that;
# ssd: heads of 64 channels, then states of each
CASES: dict[str, Callable[[], Case]] = {
    "selective_scan-512x512": lambda: scan(512, 512),
    "selective_scan-512x1536": lambda: scan(512, 1536),
    "selective_scan-2048x1536": lambda: scan(2048, 1536),
    "selective_state_update-1x512": lambda: state_update(1, 512),
    "selective_state_update-8x512": lambda: state_update(8, 512),
    "selective_state_update-8x1536": lambda: state_update(8, 1536),
    "ssd_scan-2048x8x64": lambda: head_scan(2048, 8, 64),
    "ssd_scan-512x64x128": lambda: head_scan(512, 64, 128),
    "ssd_state_update-1x8x64": lambda: head_state_update(1, 8, 64),
    "ssd_state_update-8x64x128": lambda: head_state_update(8, 64, 128),
    "rg_lru-512x512": lambda: real_gated(512, 512),
    "rg_lru-2048x1536": lambda: real_gated(2048, 1536),
    "rg_lru_update-1x512": lambda: real_gated_update(1, 512),
    "rg_lru_update-8x1536": lambda: real_gated_update(8, 1536),
    "gated_delta_rule-512x4": lambda: delta_rule(512, 4, by_channel=False),
    "gated_delta_rule-by-channel-512x4": lambda: delta_rule(512, 4, by_channel=True),
    "gated_delta_rule_update-1x4": lambda: delta_update(1, 4, by_channel=False),
    "gated_delta_rule_update-by-channel-8x16": lambda: delta_update(8, 16, by_channel=True),
    "causal_conv1d-512x512": lambda: convolution(512, 512),
    "causal_conv1d-2048x1536": lambda: convolution(2048, 1536),
    "causal_conv1d_update-1x512": lambda: convolution_update(1, 512),
    "causal_conv1d_update-8x1536": lambda: convolution_update(8, 1536),
    "paged_attention-prefill-512": lambda: attention(1, 512, 512, 4, 2),
    "paged_attention-prefill-2048": lambda: attention(1, 2048, 2048, 12, 4),
    "paged_attention-decode-1x512": lambda: attention(1, 1, 512, 4, 2),
    "paged_attention-decode-8x2048": lambda: attention(8, 1, 2048, 4, 2),
    "kv_cache_update-8": lambda: cache_update(8, 2),
    "kv_cache_update-2048": lambda: cache_update(2048, 2),
    "block_copy-LBHNC-to-BHLNC": lambda: layout_change(256),
    "copy_runs-65536x64": lambda: runs(65_536, 64),
    "copy_runs-1024x16384": lambda: runs(1024, 16_384),
    "rms_norm-8x256": lambda: norm(8, 256),
    "rms_norm-2048x768": lambda: norm(2048, 768),
    "gate_and_mul-8x512": lambda: gate(8, 512),
    "gate_and_mul-2048x2048": lambda: gate(2048, 2048),
    "linear-1x768x4096": lambda: product(1, 768, 4096),
    "linear-8x256x1024": lambda: product(8, 256, 1024),
    "linear-512x768x4096": lambda: product(512, 768, 4096),
    "expert_mlp-1": lambda: experts(1),
    "expert_mlp-8": lambda: experts(8),
    "expert_mlp-512": lambda: experts(512),
}


@pytest.mark.parametrize("implementation", ["blockstride", "torch"])
@pytest.mark.parametrize("name", CASES)
def test_speed(benchmark, name, implementation):
    torch.manual_seed(0)
    case = CASES[name]()
    torch.testing.assert_close(first(case.ours()), first(case.plain()), rtol=1e-4, atol=1e-4)
    benchmark.group = name
    benchmark.extra_info.update(
        bytes=case.bytes,
        flops=case.flops,
        torch=torch.__version__,
        numba=numba.__version__,
        threads=torch.get_num_threads(),
        machine=f"{platform.machine()}, {os.cpu_count()} cores",
    )
    benchmark(case.ours if implementation == "blockstride" else case.plain)
