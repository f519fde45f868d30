"""Copying runs of bytes of any lengths, from one memory to another."""

import torch
from jaxtyping import Int8, Int64
from torch import Tensor

from blockstride.checks import INT64, expect, expect_tensor, shape_of
from blockstride.kernels.common.dispatch import implementation, runs_on_triton

INT8 = (torch.int8,)


def copy_runs(
    source: Int8[Tensor, " source_bytes"],
    destination: Int8[Tensor, " destination_bytes"],
    source_starts: Int64[Tensor, " num_runs"],
    destination_starts: Int64[Tensor, " num_runs"],
    lengths: Int64[Tensor, " num_runs"],
) -> None:
    """Copy run after run; what lies between the runs stays as it is.

    Starts and lengths are read to be checked, so a call waits once for a GPU. A run moves there in
    the widest words, of at most 16 bytes, to which it is aligned in both memories.

    Args:
        source: Memory to read, one dense run of bytes.
        destination: Memory to write, of which no byte may be in two runs. It doesn't share memory
            with `source`.
        source_starts: First byte of each run to read.
        destination_starts: First byte of each run to write.
        lengths: Bytes of each run.

    Raises:
        ValueError: A run that is not within its memory, arguments of different lengths, or on
            different devices.
        TypeError: Memories that are not int8, or starts or lengths that are not int64.
    """
    given = {**locals()}
    runs = shape_of(lengths, "lengths", 1)
    for name, memory, starts in (
        ("source", source, source_starts),
        ("destination", destination, destination_starts),
    ):
        expect_tensor(memory, name, shape_of(memory, name, 1), INT8, source.device)
        expect(memory.is_contiguous(), name, "one dense run of bytes", memory.stride())
        expect_tensor(starts, f"{name}_starts", runs, INT64, source.device)
    expect_tensor(lengths, "lengths", runs, INT64, source.device)
    if len(lengths) == 0:
        return
    _expect_inside(len(source), len(destination), source_starts, destination_starts, lengths)
    implementation(copy_runs, runs_on_triton(source))(**given)


def _expect_inside(
    source_bytes: int,
    destination_bytes: int,
    source_starts: Tensor,
    destination_starts: Tensor,
    lengths: Tensor,
) -> None:
    """Raise if a run leaves its memory."""
    columns = lengths, source_starts, destination_starts
    ends = source_starts + lengths, destination_starts + lengths
    # as one tensor, since each that is read would be waited for
    extremes = torch.stack([*(c.min() for c in columns), *(e.max() for e in ends)])
    shortest, *bounds = extremes.tolist()
    expect(shortest >= 0, "lengths", "at least 0", shortest)
    for name, size, first, stop in (
        ("source_starts", source_bytes, *bounds[::2]),
        ("destination_starts", destination_bytes, *bounds[1::2]),
    ):
        expect(first >= 0 and stop <= size, name, f"runs within {size} bytes", f"{first} to {stop}")
