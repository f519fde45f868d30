"""NIXL knows no streams: nothing is posted while a kernel may still write what it moves."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from blockstride.transfer import StrategyChoice
from blockstride.transfer.connector import (
    Connector,
    ConnectorSettings,
    ReadHandle,
    ReadRequest,
    reader_session,
    reading,
)
from tests.transfer.connector.bulk import bulk
from tests.transfer.fake_gpu import FakeGpus, gpus, on_gpu
from tests.transfer.support import storages

__all__ = ["gpus"]

CASE = bulk(4)
PRODUCER, READER = 0, 1
"""Their GPUs."""


@contextmanager
def both(
    strategy: StrategyChoice = "direct", push: bool = False
) -> Iterator[tuple[Connector, Connector]]:
    """A producer and a reader on GPUs of their own."""
    settings = ConnectorSettings(strategy=strategy, push=push, max_tokens=CASE.num_tokens)
    with (
        Connector(CASE.remote, 0, settings) as producer,
        Connector(CASE.local, 0, settings) as reader,
    ):
        address = producer.register_kv_caches(on_gpu(CASE.source(0), PRODUCER))
        reader.register_kv_caches(on_gpu(storages(CASE.local, 0), READER))
        reader.add_peer("producer", [address])
        yield producer, reader


def hand_over(gpus: FakeGpus, producer: Connector, reader: Connector) -> ReadHandle:
    request = CASE.request()
    gpus.events.clear()
    gpus.launch(PRODUCER)  # computes what is offered
    producer.offer("r", CASE.num_tokens, request.remote)
    gpus.launch(READER)  # still writes blocks that were freed in the middle of its step
    asked = ReadRequest("r", CASE.num_tokens, request.local, ("producer",), 20.0)
    handle = reader.start_read(asked)
    handle.wait()
    return handle


@pytest.mark.parametrize(("push", "operation"), [(False, "READ"), (True, "WRITE")])
def test_both_devices_are_waited_for_before_anything_moves(gpus, push, operation):
    with both(push=push) as (producer, reader):
        hand_over(gpus, producer, reader)
        assert gpus.events[:4] == ["launch cuda:0", "wait cuda:0", "launch cuda:1", "wait cuda:1"]
        assert {*gpus.events[4:]} == {f"post {operation}"}


@pytest.mark.parametrize(
    ("strategy", "push", "converts"),
    [("pack", False, False), ("pack", True, False), ("pages", False, True)],
)
def test_what_is_packed_or_converted_is_waited_for(gpus, monkeypatch, strategy, push, converts):
    module, device = (reading, READER) if converts else (reader_session, PRODUCER)
    monkeypatch.setattr(module, "copy_here", lambda *_: gpus.launch(device))
    with both(strategy, push) as (producer, reader):
        hand_over(gpus, producer, reader)
    events = gpus.events
    copied = [i for i, event in enumerate(events) if event == f"launch cuda:{device}"][-1]
    assert events[copied + 1] == f"wait cuda:{device}"
    posts = [i for i, event in enumerate(events) if event.startswith("post")]
    assert posts[-1] < copied if converts else posts[0] > copied
    # a staging area is zeroed, and that is over before NIXL hears of it
    made = events.index(f"launch cuda:{device}", 4)
    zeroed = [f"launch cuda:{device}"] * len(CASE.local.num_blocks)
    assert events[made:][: len(zeroed) + 1] == [*zeroed, f"wait cuda:{device}"]


def test_the_threads_of_a_connector_use_the_device_of_its_pools(gpus, monkeypatch):
    monkeypatch.setattr(reader_session, "copy_here", lambda *_: None)
    with both("pack") as (producer, reader):
        assert gpus.events.count("agent on cuda:0") == gpus.events.count("agent on cuda:1") == 1
        hand_over(gpus, producer, reader)
        assert gpus.threads["blockstride-producer"] == torch.device("cuda:0")
        assert gpus.threads["blockstride-reader"] == torch.device("cuda:1")
        assert gpus.threads["blockstride-copy_0"] == torch.device("cuda:0")
        # threads of others keep theirs
        assert "MainThread" not in gpus.threads


def test_what_was_offered_before_registration_is_waited_for_then(gpus):
    with Connector(CASE.remote) as producer:
        producer.offer("r", CASE.num_tokens, CASE.request().remote)
        gpus.launch(PRODUCER)
        producer.register_kv_caches(on_gpu(CASE.source(0), PRODUCER))
        assert gpus.events[:2] == ["launch cuda:0", "wait cuda:0"]


def test_memory_that_no_other_process_can_reach_is_refused_by_name(gpus, monkeypatch):
    pools = on_gpu(CASE.source(0), PRODUCER)
    segment = {"address": pools[1].data_ptr() - 64, "total_size": 4096, "is_expandable": True}
    whole = {"address": pools[0].data_ptr(), "total_size": 4096, "is_expandable": False}
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: [whole, segment])
    with (
        Connector(CASE.remote) as producer,
        pytest.raises(
            ValueError, match=r"pool 1: .* expandable_segments:True\), got expandable segments"
        ),
    ):
        producer.register_kv_caches(pools)
