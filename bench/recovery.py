"""How long requests stand still when their engine dies, on this machine and on a Ray cluster.

python bench/recovery.py [--trials N]

One prefill and two decode engines of the shipped model continue eight prompts. When all have some
tokens, a process of a decode engine is killed, or its whole node, and what is taken is the longest
time between two tokens of a request that was there, whichever engine they are from, beside the
median time between two tokens; and the time until a new engine takes requests in its place. All
tokens must be those of an engine that nobody kills. Without Ray, this machine alone is measured.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from blockstride.models import LLM, EngineConfig, SamplingParams

MODEL = Path(__file__).resolve().parents[1] / "models" / "checkpoints" / "jamba-kjv"
PROMPTS = [f"{i}. In the beginning" for i in range(8)]
PARAMS = SamplingParams(max_tokens=800, temperature=0.0, ignore_eos=True)
SECONDS = 120.0
STORE_BYTES = 80 << 20
SMALL = EngineConfig(cache_bytes=1 << 26, max_num_seqs=8)


class Stall(NamedTuple):
    """What a fault has cost, in seconds: requests, usually, and until a new engine is there."""

    longest: float
    usual: float
    replaced: float


def trial(llm: LLM, kill: Callable[[Any], object], wanted: list[Any]) -> Stall:
    """Kills a decode engine in the middle of requests."""
    failing, names = llm.engine.decode[0], set(llm.engines.names("decode"))
    batch = llm.submit(PROMPTS, PARAMS)
    begin = killed = monotonic()
    times: list[list[float]] = [[] for _ in PROMPTS]
    struck: set[int] = set()
    while not all(generation.done.is_set() for generation in batch.generations):
        assert monotonic() - begin < SECONDS, "it never ends"
        sleep(0.0005)
        for known, generation in zip(times, batch.generations, strict=True):
            request = generation.request
            if request is not None and len(request.output_ids) > len(known):
                known.extend([monotonic()] * (len(request.output_ids) - len(known)))
        if not struck and all(len(known) > 20 for known in times):
            running = [generation.request for generation in batch.generations]
            struck = {
                i for i, each in enumerate(running) if each and each.request_id in failing.requests
            }
            killed = monotonic()
            kill(failing)
    assert [each.result().token_ids for each in batch.generations] == wanted, "other tokens"
    gaps = [[after - before for before, after in pairwise(times[i])] for i in struck]
    while set(llm.engines.names("decode")) <= names:
        assert monotonic() - killed < SECONDS, "no new engine"
        llm.generate(PROMPTS[0], SamplingParams(max_tokens=1))
        sleep(0.05)
    replaced = monotonic() - killed
    return Stall(max(map(max, gaps)), median(gap for each in gaps for gap in each), replaced)


def kill_process(engine: Any) -> None:
    """As the kernel kills one when there is no memory left."""
    os.kill(engine.pids[0], signal.SIGKILL)


def on_this_machine(trials: int, wanted: list[Any]) -> list[Stall]:
    """Ranks are processes."""
    options: dict[str, Any] = {"prefill": SMALL, "decode": [SMALL] * 2, "restarts": trials}
    with LLM(MODEL, device="cpu", **options) as llm:
        llm.generate(PROMPTS, PARAMS)
        return [trial(llm, kill_process, wanted) for _ in range(trials)]


def on_ray(trials: int, wanted: list[Any]) -> dict[str, list[Stall]]:
    """Ranks are actors, on nodes of a cluster that are processes of this machine."""
    import ray  # noqa: PLC0415
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    sizes = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **sizes})
    try:
        nodes = [cluster.add_node(num_cpus=1, **sizes) for _ in range(2 + trials)]
        ray.init(cluster.address, logging_level=logging.ERROR, log_to_driver=False)
        options: dict[str, Any] = {"prefill": SMALL, "decode": [SMALL] * 2, "restarts": 2 * trials}

        def kill_node(engine: Any) -> None:
            (node_id,) = engine._team._nodes
            cluster.remove_node(
                next(node for node in nodes if node.node_id == node_id), allow_graceful=False
            )

        with LLM(MODEL, device="cpu", on="ray", **options) as llm:
            llm.generate(PROMPTS, PARAMS)
            return {
                f"{article} {name} of Ray": [trial(llm, kill, wanted) for _ in range(trials)]
                for article, name, kill in (("an", "actor", kill_process), ("a", "node", kill_node))
            }
    finally:
        ray.shutdown()
        cluster.shutdown()


def main() -> int:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=3)
    trials = parser.parse_args().trials
    logging.getLogger("blockstride").setLevel(logging.CRITICAL)
    wanted = [each.token_ids for each in LLM(MODEL, device="cpu").generate(PROMPTS, PARAMS)]
    stalls = {"a process here": on_this_machine(trials, wanted)}
    if find_spec("ray") is not None:
        stalls |= on_ray(trials, wanted)
    table = Table("killed", "longest gap, ms", "usual", "new engine, s", title="medians")
    for name, each in stalls.items():
        longest, usual, replaced = (median(values) for values in zip(*each, strict=True))
        table.add_row(name, f"{1e3 * longest:.0f}", f"{1e3 * usual:.1f}", f"{replaced:.1f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
