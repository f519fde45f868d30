"""Recordings of what a GPU is told to launch: CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from blockstride.checks import hidden_values


class CudaRecording:
    """A CUDA graph, and the result that it leaves in its own memory.

    Args:
        graph: The graph.
        result: Made while the graph was captured.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Any) -> None:
        self._graph, self._result = graph, result

    def replay(self) -> Any:
        """Launch the graph on the current stream."""
        self._graph.replay()
        return self._result


class CudaRecorder:
    """Captures graphs that share one pool of memory.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], Any]) -> tuple[CudaRecording | None, str]:
        """See `blockstride.kernels.recording.Recorder`."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device), hidden_values():
            # kernels are compiled and libraries make their workspaces at a first call, not here
            run()
            torch.cuda.synchronize()
            try:
                # a thread that reads another engine's blocks may call what a capture forbids
                with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                    result = run()
            except RuntimeError as error:
                return None, str(error).partition("\n")[0]
        return CudaRecording(graph, result), ""
