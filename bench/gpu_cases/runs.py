"""Runs of bytes from one memory to another."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from blockstride.kernels.cache.gpu import copy_runs
from gpu_cases.case import Call, Case


def memories(num_bytes: int, device: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    source = torch.randint(-128, 128, (num_bytes,), dtype=torch.int8, device=device)
    return source, torch.zeros_like(source)


def places(count: int, length: int, step: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Runs one every `step` bytes of both memories, in random orders."""
    reads, writes = (step * torch.randperm(count, device=device) for _ in range(2))
    return reads, writes, torch.full_like(reads, length)


def check(device: str) -> None:
    """Runs of all lengths and alignments, whole memories against a loop."""
    torch.manual_seed(0)
    lengths = 2 ** torch.arange(17).repeat(8)
    lengths += torch.randint(0, 2, lengths.shape) * torch.randint(0, 16, lengths.shape)
    shifts = torch.tensor([0, 0, 1, 2, 4, 8])[torch.randint(0, 6, lengths.shape)]
    rooms = (lengths + shifts + 15) // 16 * 16
    starts = rooms.cumsum(0) - rooms + shifts
    source, destination = memories(int(rooms.sum()), device)
    expected = destination.clone()
    columns = starts.flip(0), starts, torch.minimum(lengths, lengths.flip(0))
    for start, into, length in zip(*(column.tolist() for column in columns), strict=True):
        expected[into : into + length] = source[start : start + length]
    copy_runs(source, destination, *(column.to(device) for column in columns))
    assert torch.equal(destination, expected)


def cases(device: str, smoke: bool) -> Iterator[Case]:
    total = 2**15 if smoke else 2**29
    for length, step in ((2**23, 2**23), (2**15, 2**15), (256, 256), (64, 64), (2**15 - 1, 2**15)):
        count = max(1, total // step)

        def prepare(count=count, length=length, step=step) -> Call:
            runs = places(count, length, step, device)
            return partial(copy_runs, *memories(count * step, device), *runs)

        def baseline(count=count, length=length, step=step) -> Call:
            # numbers of 8 bytes where the runs allow
            kind, size = (torch.int8, length) if length % 8 else (torch.int64, length // 8)
            pair = memories(count * step, device)
            source, destination = (side.view(kind).view(count, -1)[:, :size] for side in pair)
            reads, writes, _ = (column // step for column in places(count, length, step, device))

            def run():
                destination[writes] = source[reads]

            return run

        yield Case(
            f"copy {count} runs of {length} bytes",
            partial(check, device),
            prepare,
            bytes=2 * count * length,
            torch=baseline,
        )
