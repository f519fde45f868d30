"""Recording what a CPU computes, to compute it again on the same memory without the Python.

While a recording is made everything runs as it always does. Programs note the addresses that they
were called with, other operations of torch note themselves, and what either writes lies in an arena
that outlives them. Played again, programs follow each other in one native loop; operations of torch
stand between such loops, each with the output that it had.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from blockstride.checks import expect, hidden_values
from blockstride.kernels.common.cpu import native
from blockstride.kernels.common.cpu.native import HEADER
from blockstride.kernels.common.cpu.playing import COLUMNS, KERNEL, play

ALIGNMENT = 64
CHUNK_BYTES = 1 << 20
ATEN = torch.ops.aten
# what makes memory and writes nothing there
ALLOCATIONS = {
    ATEN.empty.memory_format,
    ATEN.empty_strided.default,
    ATEN.empty_like.default,
    ATEN.new_empty.default,
    ATEN.new_empty_strided.default,
}
# what makes zeros, and what copies its first argument to another dtype or other strides
ZEROS = {ATEN.zeros.default, ATEN.zeros_like.default, ATEN.new_zeros.default}
COPIES = {
    ATEN.to.dtype,
    ATEN._to_copy.default,
    ATEN.contiguous.default,
    ATEN.clone.default,
}
# indices whose values decide how many they are
MASKS = {torch.bool, torch.uint8}
# what depends on values: a recording has those of one step
READS = {torch.Tag.data_dependent_output, torch.Tag.nondeterministic_seeded}


class Arena:
    """Memory for all that a step computes, which the recordings of one model share.

    Only one of them runs at a time, and none needs what it left there.
    """

    def __init__(self) -> None:
        self._chunks: list[Tensor] = []
        self._chunk, self._used = 0, 0

    def reset(self) -> None:
        """Begin anew, for another recording."""
        self._chunk, self._used = 0, 0

    def like(self, tensor: Tensor) -> Tensor:
        """Uninitialised memory for a tensor of this shape, dtype and strides."""
        extents = zip(tensor.shape, tensor.stride(), strict=True)
        elements = 1 + sum((extent - 1) * stride for extent, stride in extents)
        nbytes = (elements if tensor.numel() else 0) * tensor.itemsize
        memory = self._take(-(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT)[:nbytes]
        return memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())

    def _take(self, nbytes: int) -> Tensor:
        while self._chunk < len(self._chunks):
            chunk = self._chunks[self._chunk]
            if self._used + nbytes <= len(chunk):
                self._used += nbytes
                return chunk[self._used - nbytes : self._used]
            self._chunk, self._used = self._chunk + 1, 0
        memory = torch.empty(max(nbytes, CHUNK_BYTES) + ALIGNMENT, dtype=torch.uint8)
        self._chunks.append(memory[-memory.data_ptr() % ALIGNMENT :])
        return self._take(nbytes)

    @property
    def nbytes(self) -> int:
        """What it has taken of the system."""
        return sum(len(chunk) for chunk in self._chunks)


class _Call(NamedTuple):
    """A program and what it was called with, on one or all threads."""

    address: int
    block: array.array
    is_shared: bool


class _Loop:
    """Programs one after the other, without Python in between.

    Args:
        steps: A row for each, as `play` takes them; the caller keeps them.
    """

    def __init__(self, steps: np.ndarray) -> None:
        self._is_shared = bool(steps[:, 2].any())
        # the counters of arrivals and of sleepers stand behind the arguments
        self._block = np.zeros(HEADER + 6, dtype=np.int64)
        self._address = self._block.ctypes.data
        counter = self._address + 8 * (HEADER + 4)
        self._block[1] = len(steps)
        given = (steps.ctypes.data, counter, native.TEAM_SIZE, KERNEL)
        self._block[HEADER : HEADER + len(given)] = given

    def __call__(self) -> None:
        self._block[0] = self._block[HEADER + 4] = 0
        play.run(self._address, self._is_shared)


class CpuRecording:
    """What was computed once, to be computed again on the same memory.

    Attributes:
        result: What the recorded function returned; each replay writes it anew.
        num_programs: Programs that a replay runs.
        num_operations: Operations of torch between them.
    """

    def __init__(self, result: Any, entries: Sequence[_Call | Callable[[], Any]]) -> None:
        self.result = result
        calls = [entry for entry in entries if isinstance(entry, _Call)]
        self.num_programs, self.num_operations = len(calls), len(entries) - len(calls)
        # all arguments in one array, so that one look finds every fault
        self._memory = np.array([word for call in calls for word in call.block], dtype=np.int64)
        self._starts = np.cumsum([0, *(len(call.block) for call in calls)])[:-1]
        self._faults = self._starts + 2
        places = self._memory.ctypes.data + 8 * self._starts
        self._steps = np.empty((len(calls), COLUMNS), dtype=np.int64)
        for row, call, place in zip(self._steps, calls, places, strict=True):
            row[:] = call.address, place, call.is_shared
        self._runs: list[Callable[[], Any]] = []
        done = 0
        for is_call, group in groupby(entries, lambda entry: isinstance(entry, _Call)):
            if is_call:
                count = len(list(group))
                self._runs.append(_Loop(self._steps[done : done + count]))
                done += count
            else:
                self._runs += group  # pyright: ignore[reportOperatorIssue]

    def replay(self) -> Any:
        """Compute it again, from what now lies where it was read.

        Returns:
            The result, in the same memory as ever.

        Raises:
            ValueError: A program found an id that lies outside of its pool.
        """
        self._memory[self._starts] = self._memory[self._faults] = 0
        for run in self._runs:
            run()
        faults = self._memory[self._faults]
        if faults.any():
            expect(False, "ids of a recorded step", "none outside of their pools", faults.max())
        return self.result


class _Recorder(TorchDispatchMode):
    """Notes what is computed in this thread while it is active, and lets it be computed."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self.entries: list[_Call | Callable[[], Any]] = []
        self.refused: str | None = None
        self._arena = arena

    def add_call(self, address: int, block: array.array, is_shared: bool) -> None:
        """Note a call of a program; one without tasks is none."""
        if block[1] > 0:
            self.entries.append(_Call(address, array.array("q", block), is_shared))

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run an operation of torch, and note it unless it only looks at memory or makes some."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.refused:
            return result
        if func in ALLOCATIONS:
            return self._arena.like(result)
        if not _is_repeatable(func, args, kwargs):
            self.refused = str(func)
        elif func._schema.is_mutable:
            self.entries.append(partial(func, *args, **kwargs))
        elif not _is_view(args, result):
            kept = tree_map(self._kept, result)
            self.entries.append(_repeated(func, args, kwargs, kept))
            return kept
        return result

    def _kept(self, value: Any) -> Any:
        return self._arena.like(value).copy_(value) if isinstance(value, Tensor) else value


class CpuRecorder:
    """Makes recordings that share one arena.

    Attributes:
        arena: What they compute lies there.
    """

    def __init__(self) -> None:
        self.arena = Arena()

    def record(self, run: Callable[[], Any]) -> tuple[CpuRecording | None, str]:
        """See `blockstride.kernels.recording.Recorder`."""
        self.arena.reset()
        recorder = _Recorder(self.arena)
        native.HERE.recorder = recorder
        try:
            with hidden_values(), recorder:
                result = run()
        finally:
            native.HERE.recorder = None
        if recorder.refused:
            return None, recorder.refused
        return CpuRecording(result, recorder.entries), ""


def _is_view(args: tuple, result: Any) -> bool:
    """Whether what an operation returns is memory that it was given; many do so now and then."""
    given = {_memory(leaf) for leaf in tree_leaves(args) if isinstance(leaf, Tensor)}
    returned = {_memory(leaf) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
    return returned <= given


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_repeatable(func: Any, args: tuple, kwargs: dict) -> bool:
    """Whether an operation does the same for all values, in sizes that don't depend on them."""
    if func.namespace not in {"aten", "prims"} or READS & set(func.tags):
        return False
    if torch.Tag.dynamic_output_shape not in func.tags:
        return True
    if func is ATEN.index.Tensor:
        return all(index is None or index.dtype not in MASKS for index in args[1])
    return kwargs.get("output_size") is not None


def _repeated(func: Any, args: tuple, kwargs: dict, kept: Any) -> Callable[[], Any]:
    """The operation with the outputs that it had, by its form that writes there if it has one."""
    if func in ZEROS:
        return kept.zero_
    if func in COPIES:
        return partial(kept.copy_, args[0])
    outputs = [leaf for leaf in tree_leaves(kept) if isinstance(leaf, Tensor)]
    form, names = _writing_form(func)
    if form is not None and len(names) == len(outputs):
        return partial(form, *args, **kwargs, **dict(zip(names, outputs, strict=True)))

    def run() -> None:
        again = (leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor))
        for output, value in zip(outputs, again, strict=True):
            output.copy_(value)

    return run


@cache
def _writing_form(func: Any) -> tuple[Any, list[str]]:
    """An operation's form with outputs for arguments, and how it calls them."""
    wanted = [(each.name, str(each.type)) for each in func._schema.arguments]
    packet = func.overloadpacket
    for name in packet.overloads():
        form = getattr(packet, name)
        outputs = [each.name for each in form._schema.arguments if each.is_out]
        others = [(e.name, str(e.type)) for e in form._schema.arguments if not e.is_out]
        if outputs and others == wanted:
            return form, outputs
    return None, []
