"""Hit rates of small traces; `python -m bench.prefix_hit_rate` prints the table of large ones."""

import pytest

from bench.prefix_hit_rate import Case, Replay
from bench.prefix_traces import WORKLOADS, bounds

SMALL = {"scale": 0.25, "share": 0.25}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_without_limits_all_is_found_that_was_seen_to_be_shared(workload):
    case = Case.of("granite-13M", workload, **SMALL)
    hits, _ = case.unlimited()
    assert hits == bounds(case.trace).seen


@pytest.mark.parametrize("workload", [name for name in WORKLOADS if "system" in name])
def test_requests_that_come_together_compute_once_what_all_begin_with(workload):
    case = Case.of("granite-13M", workload, **SMALL)
    replay = Replay(case.pools("split", num_blocks=1 << 20), case.max_len)
    assert replay.run(case.trace, at_once=True) == bounds(case.trace).anywhere


@pytest.mark.parametrize("workload", ["few-shot", "documents"])
def test_where_memory_is_short_more_is_found_than_by_other_policies(workload):
    case = Case.of("granite-13M", workload, share=0.35)
    _, nbytes = case.unlimited()
    rates = case.limited(nbytes // 8)
    ours = min(rates["split"], rates["unified"])
    assert ours > rates["Marconi"] > rates["LRU"] > rates["whole"], rates


@pytest.mark.benchmark(group="prefix")
@pytest.mark.parametrize("workload", ["chats", "agents"])
def test_a_trace_in_an_eighth_of_its_memory(benchmark, workload):
    case = Case.of("granite-13M", workload, **SMALL)
    _, nbytes = case.unlimited()
    rate = benchmark.pedantic(case.ours, ("split", nbytes // 8), rounds=3)
    assert rate > 0
    benchmark.extra_info |= {"hit_rate": rate, "requests": len(case.trace)}
