"""What a server counts, for Prometheus, under the names that dashboards of vLLM ask for.

Where vLLM has a name for something it is taken, with its labels; what only this engine has begins
with `blockstride:`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from blockstride.models.distributed import Deployment
from blockstride.models.distributed.load import Load

MILLISECONDS = (1, 2.5, 5, 10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750)
SHORT = (*(ms / 1000 for ms in MILLISECONDS), 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
LONG = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0)
TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))


def _usage(load: Load) -> float:
    pairs = zip(load.num_free, load.num_blocks, strict=True)
    return max((1 - free / total for free, total in pairs if total), default=0.0)


GAUGES = {
    "vllm:num_requests_running": ("Requests that have blocks.", lambda load: load.num_running),
    "vllm:num_requests_waiting": (
        "Requests that wait for blocks in an engine.",
        lambda load: load.num_waiting,
    ),
    "vllm:kv_cache_usage_perc": (
        "Share of the blocks of the fullest pool that requests need; 1 is all.",
        _usage,
    ),
    "blockstride:queued_tokens": (
        "Tokens to compute until each request has its next one.",
        lambda load: load.queued_tokens,
    ),
}
COUNTERS = {
    "vllm:prefix_cache_queries": (
        "Tokens of prompts that were looked for among earlier ones.",
        lambda load: load.asked_tokens,
    ),
    "vllm:prefix_cache_hits": ("Those that were known.", lambda load: load.hit_tokens),
    "vllm:num_preemptions": (
        "Requests that lost their blocks for a while.",
        lambda load: load.num_preemptions,
    ),
    "blockstride:hand_overs": (
        "Sequences that were taken over from a prefill engine.",
        lambda load: load.num_reads,
    ),
    "blockstride:failed_hand_overs": (
        "Sequences that were computed again, as they didn't arrive.",
        lambda load: load.failed_reads,
    ),
}


# a second sample of each, which nobody looks at
disable_created_metrics()


class Metrics:
    """The metrics of one server.

    Args:
        model_name: Their label.
        deployment: The engines, which say themselves what they do.
    """

    def __init__(self, model_name: str, deployment: Deployment) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(EngineCollector(model_name, deployment))
        self._model_name = model_name
        self.first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "From a request to its first token.", SHORT
        )
        self.next_token = self._histogram(
            "vllm:inter_token_latency_seconds", "From one token to the next.", SHORT
        )
        # the same under the name that it had
        self.per_token = self._histogram(
            "vllm:time_per_output_token_seconds", "From one token to the next.", SHORT
        )
        self.whole = self._histogram(
            "vllm:e2e_request_latency_seconds", "From a request to its last token.", LONG
        )
        self.prompt_sizes = self._histogram(
            "vllm:request_prompt_tokens", "Tokens of a prompt.", TOKENS
        )
        self.answer_sizes = self._histogram(
            "vllm:request_generation_tokens", "Tokens of an answer.", TOKENS
        )
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Tokens of prompts.")
        self.new_tokens = self._counter("vllm:generation_tokens", "Tokens of answers.")
        self.in_flight = self._gauge(
            "blockstride:sequences_in_flight", "Answers that were begun and have not ended."
        )
        labels = ("model_name", "engine", "finished_reason")
        self._ends = Counter(
            "vllm:request_success", "Answers that have ended.", labels, registry=self.registry
        )
        self._responses = Counter(
            "blockstride:responses",
            "Responses by status; 499: the client left.",
            ("model_name", "path", "status"),
            registry=self.registry,
        )

    def ended(self, reason: str) -> None:
        """An answer has ended."""
        self._ends.labels(self._model_name, "0", reason).inc()

    def responded(self, path: str, status: int) -> None:
        """A request has ended."""
        self._responses.labels(self._model_name, path, str(status)).inc()

    def tokens_came(self, count: int, seconds: float) -> None:
        """Some tokens of an answer have come since the one before them.

        Args:
            count: How many.
            seconds: Since when.
        """
        for _ in range(count):
            self.next_token.observe(seconds / count)
            self.per_token.observe(seconds / count)
        self.new_tokens.inc(count)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        labels = ("model_name", "engine")
        made = Histogram(name, text, labels, buckets=buckets, registry=self.registry)
        return made.labels(self._model_name, "0")

    def _counter(self, name: str, text: str) -> Counter:
        made = Counter(name, text, ("model_name", "engine"), registry=self.registry)
        return made.labels(self._model_name, "0")

    def _gauge(self, name: str, text: str) -> Gauge:
        made = Gauge(name, text, ("model_name",), registry=self.registry)
        return made.labels(self._model_name)


class EngineCollector(Collector):
    """What engines last said of their load.

    Args:
        model_name: A label.
        deployment: The engines.
    """

    def __init__(self, model_name: str, deployment: Deployment) -> None:
        self._model_name, self._deployment = model_name, deployment

    def collect(self) -> Iterator[Metric]:
        """One sample an engine."""
        labels = ("model_name", "engine")
        loads = dict(self._deployment.loads)
        for families, kind in ((GAUGES, GaugeMetricFamily), (COUNTERS, CounterMetricFamily)):
            for name, (text, value) in families.items():
                family = kind(name, text, labels=labels)
                for engine_id, load in loads.items():
                    family.add_metric((self._model_name, engine_id), value(load))
                yield family
        alive = GaugeMetricFamily("blockstride:engine_up", "1: the engine is there.", labels=labels)
        for engine in self._deployment.engines:
            is_up = engine.is_alive and not engine.has_ended
            alive.add_metric((self._model_name, engine.engine_id), int(is_up))
        yield alive

    def describe(self) -> Iterator[Metric]:
        """Nothing before engines have said something."""
        yield from ()
