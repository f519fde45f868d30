"""A GPU that isn't there: memory that says it is its, and a record of who waited for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from blockstride.transfer.nixl import PreparedCopy, TransferAgent


class OnGpu(Tensor):
    """Host memory, which NIXL can reach, that says it is on a GPU."""

    pretended: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[reportIncompatibleVariableOverride]
        return self.pretended


def on_gpu(memory: Mapping[int, np.ndarray], index: int) -> dict[int, Tensor]:
    """Pools that say they are on a GPU."""
    return {p: _pretend(torch.from_numpy(m.view(np.int8)), index) for p, m in memory.items()}


def _pretend(tensor: Tensor, index: int) -> Tensor:
    made = tensor.as_subclass(OnGpu)
    made.pretended = torch.device("cuda", index)
    return made


class FakeGpus:
    """What kernels, waits and posts there were, in their order.

    Attributes:
        events: `launch`, `wait`, `agent` and `post`, each with what it was about.
        threads: Name of a thread -> the device that it has made its current one.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.threads: dict[str, torch.device] = {}
        self._busy: set[torch.device] = set()

    def launch(self, device: torch.device | int) -> None:
        """A kernel begins, which may write anything until the device is waited for."""
        device = torch.device("cuda", device) if isinstance(device, int) else device
        self._busy.add(device)
        self.events.append(f"launch {device}")

    def wait(self, device: torch.device) -> None:
        self._busy.discard(device)
        self.events.append(f"wait {device}")

    def post(self, what: str) -> None:
        assert not self._busy, f"{what} while {self._busy} may still write"
        self.events.append(f"post {what}")

    def use(self, device: torch.device) -> None:
        self.threads[threading.current_thread().name] = device

    @contextmanager
    def using(self, device: torch.device) -> Iterator[None]:
        name = threading.current_thread().name
        before = self.threads.get(name)
        self.threads[name] = device
        yield
        self.threads.pop(name)
        if before is not None:
            self.threads[name] = before


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    """Two GPUs, as far as transfers can tell."""
    fake = FakeGpus()
    monkeypatch.setattr(torch.cuda, "synchronize", fake.wait)
    monkeypatch.setattr(torch.cuda, "set_device", fake.use)
    monkeypatch.setattr(torch.cuda, "device", fake.using)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", list)
    zeros, post, init = torch.zeros, PreparedCopy.post, TransferAgent.__init__

    def made(*sizes: Any, device: Any = None, pin_memory: bool = False, **options: Any) -> Tensor:
        if device is None or torch.device(device).type == "cpu":
            fake.events.append("pin") if pin_memory else None
            return zeros(*sizes, **options)
        fake.launch(device)
        return _pretend(zeros(*sizes, **options), device.index)

    def posted(self: PreparedCopy, operation: Any, chunk: Any) -> Any:
        fake.post(operation)
        return post(self, operation, chunk)

    def begin(self: TransferAgent, *arguments: Any, **options: Any) -> None:
        current = fake.threads.get(threading.current_thread().name)
        fake.events.append(f"agent on {current}")
        init(self, *arguments, **options)

    monkeypatch.setattr(torch, "zeros", made)
    monkeypatch.setattr(PreparedCopy, "post", posted)
    monkeypatch.setattr(TransferAgent, "__init__", begin)
    return fake
