"""Time the Python of every launcher, beyond Triton's own launch."""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, cast

import torch
from aot import OfflineDriver
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from blockstride.kernels import StateField
from blockstride.kernels.attention.gpu import attention_schedule, paged_attention
from blockstride.kernels.cache.gpu import (
    block_copy,
    copy_runs,
    copy_state,
    kv_cache_update,
    pack_state,
    unpack_state,
)
from blockstride.kernels.conv.gpu import causal_conv1d, causal_conv1d_update
from blockstride.kernels.lru.gpu import rg_lru_update
from blockstride.kernels.mamba1.gpu import selective_state_update
from blockstride.kernels.mamba2.gpu import ssd_state_update
from blockstride.kernels.mlp.gpu import gate_and_mul
from blockstride.kernels.norm.gpu import rms_norm

ROUNDS = 20


def attention_calls(num_seqs: int = 64) -> dict[str, Callable[[], object]]:
    """One decode step's calls, on tensors with real strides and no GPU."""
    cache = torch.empty((8, 4, 16, 256), dtype=torch.bfloat16)
    key_cache, value_cache = cache[..., :128], cache[..., 128:]
    query = torch.empty((num_seqs, 32, 128), dtype=torch.bfloat16)
    key = torch.empty((num_seqs, 4, 128), dtype=torch.bfloat16)
    slots = torch.zeros(num_seqs, dtype=torch.int64)
    table = torch.ones((num_seqs, 8), dtype=torch.int32)
    lens = torch.full((num_seqs,), 100, dtype=torch.int32)
    starts = torch.arange(num_seqs + 1, dtype=torch.int32)
    arguments = (query, key_cache, value_cache, table, lens, starts)
    schedule = attention_schedule(*arguments, max_query_len=1)
    source, destination = torch.empty((2, 4, 8, 8, 16, 128), dtype=torch.bfloat16)
    blocks = torch.arange(8, dtype=torch.int32)
    memories = source.view(torch.int8).flatten(), destination.view(torch.int8).flatten()
    places = torch.arange(3 * num_seqs).view(3, num_seqs)
    return {
        "paged_attention": lambda: paged_attention(*arguments, scale=0.1, schedule=schedule),
        "attention_schedule": lambda: attention_schedule(*arguments, max_query_len=1),
        "kv_cache_update": lambda: kv_cache_update(key, key, key_cache, value_cache, slots),
        "block_copy": lambda: block_copy(source, destination, blocks, blocks),
        "block_copy in place": lambda: block_copy(source, source, blocks, blocks),
        "copy_runs": lambda: copy_runs(*memories, *places),
    }


def state_calls(num_seqs: int = 64, dim: int = 512) -> dict[str, Callable[[], object]]:
    """The same for the state side of a hybrid step."""
    wide = torch.empty((num_seqs, 2 * dim), dtype=torch.bfloat16)
    x, z = wide.split(dim, dim=1)
    A, D = torch.empty((dim, 16)), torch.empty(dim)
    B = torch.empty((num_seqs, 16), dtype=torch.bfloat16)
    conv_state, weight = torch.empty((9, dim, 3)), torch.empty((dim, 4), dtype=torch.bfloat16)
    ids = torch.ones(num_seqs, dtype=torch.int32)
    starts, fresh = torch.arange(num_seqs + 1, dtype=torch.int32), torch.zeros(num_seqs).bool()
    conv = (weight, weight[:, 0], conv_state, ids)
    heads = (x.view(num_seqs, 8, -1), x[:, :8], D[:8], B[:, None], B[:, None])
    states = torch.empty((9, dim, 16))
    pages = torch.empty((9, 1, 1, 64 * dim), dtype=torch.int8)
    field = StateField(0, (dim, 16), (16, 1), torch.float32)
    gates = {"D": D, "z": z, "dt_bias": D}
    return {
        "causal_conv1d": lambda: causal_conv1d(x, *conv, starts, fresh),
        "causal_conv1d_update": lambda: causal_conv1d_update(x[:, None], *conv),
        "selective_state_update": lambda: selective_state_update(
            x, x, A, B, B, states, ids, **gates
        ),
        "rg_lru_update": lambda: rg_lru_update(x, x, x, D, states[..., 0], ids, z=z),
        "ssd_state_update": lambda: ssd_state_update(*heads, states.view(9, 8, -1, 16), ids),
        "unpack_state": lambda: unpack_state(pages, ids, [field], [torch.float32]),
        "pack_state": lambda: pack_state([states], pages, ids[:9], [field]),
        "copy_state": lambda: copy_state(pages, ids, ids),
        "rms_norm": lambda: rms_norm(x, D, 1e-6, residual=z),
        "gate_and_mul": lambda: gate_and_mul(wide),
    }


def least_us(call: Callable[[], object], repeats: int = 5, inner: int = 10) -> float:
    """The least of many short measurements: what the call costs when nothing disturbs it."""
    call()
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(inner):
            call()
        best = min(best, (time.perf_counter() - begin) / inner)
    return round(best * 1e6, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    driver.set_active(cast(Any, OfflineDriver("sm_90")))
    setattr(JITFunction, "run", lambda *_, **__: None)  # noqa: B010
    allocation = {"allocation": lambda: torch.empty((64, 512), dtype=torch.bfloat16)}
    calls = attention_calls() | state_calls() | allocation
    # each has its turn now and then, so that what disturbs the machine for a while disturbs none
    rounds = [{name: least_us(call) for name, call in calls.items()} for _ in range(ROUNDS)]
    times = {name: min(of[name] for of in rounds) for name in calls}
    if options.json:
        print(json.dumps(times))
        return
    for name, microseconds in times.items():
        print(f"{name:22} {microseconds:8.1f} us")


if __name__ == "__main__":
    main()
