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

from blockstride.kernels.gpu import (
    attention_schedule,
    block_copy,
    kv_cache_update,
    paged_attention,
)


def calls(num_seqs: int = 64) -> dict[str, Callable[[], object]]:
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
    return {
        "paged_attention": lambda: paged_attention(*arguments, scale=0.1, schedule=schedule),
        "attention_schedule": lambda: attention_schedule(*arguments, max_query_len=1),
        "kv_cache_update": lambda: kv_cache_update(key, key, key_cache, value_cache, slots),
        "block_copy": lambda: block_copy(source, destination, blocks, blocks),
        "block_copy in place": lambda: block_copy(source, source, blocks, blocks),
    }


def least_us(call: Callable[[], object], repeats: int = 50, inner: int = 20) -> float:
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
    times = {name: least_us(call) for name, call in calls().items()}
    if options.json:
        print(json.dumps(times))
        return
    for name, microseconds in times.items():
        print(f"{name:22} {microseconds:8.1f} us")


if __name__ == "__main__":
    main()
