"""Tiers wait for the device, use it, and keep pinned memory for it."""

import torch

from blockstride.transfer.tiers import HostCache, Offloader
from tests.transfer.connector.bulk import bulk
from tests.transfer.fake_gpu import gpus, on_gpu

__all__ = ["gpus"]

CASE = bulk(4)
GPU = torch.device("cuda:1")


def test_what_is_saved_and_loaded_is_waited_for_first(gpus, monkeypatch):
    host = HostCache(CASE.remote, CASE.num_tokens, device=GPU)
    assert gpus.events == ["pin"]
    with Offloader(CASE.remote, 0, on_gpu(CASE.source(0), 1)) as offloader:
        assert gpus.events[-1] == "agent on cuda:1"
        # the caller's thread keeps its own device
        assert gpus.threads == {}
        nixl = offloader._agent.nixl.agent
        transfer = nixl.transfer

        def post(handle):
            gpus.post(f"with {gpus.threads['MainThread']}")
            return transfer(handle)

        monkeypatch.setattr(nixl, "transfer", post)
        for call, operation, blocks in (
            (offloader.write, "WRITE", CASE.request().remote),
            (offloader.read, "READ", CASE.request().local),
        ):
            gpus.events.clear()
            gpus.launch(GPU)
            call(host, blocks)
            assert gpus.events[:2] == ["launch cuda:1", "wait cuda:1"]
            assert {*gpus.events[2:]} == {f"post {operation}", "post with cuda:1"}
        assert gpus.threads == {}


def test_host_memory_is_pinned_for_pools_of_a_gpu_only(gpus):
    HostCache(CASE.remote, CASE.num_tokens)
    assert gpus.events == []
