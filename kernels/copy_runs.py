"""Copying runs of bytes of any lengths, from one memory to another."""

from jaxtyping import Int8, Int64
from torch import Tensor

from blockstride.kernels.checks import INT64, expect, expect_tensor
from blockstride.kernels.dispatch import expect_cpu, implementation


def copy_runs(
    source: Int8[Tensor, " source_bytes"],
    destination: Int8[Tensor, " destination_bytes"],
    source_starts: Int64[Tensor, " num_runs"],
    destination_starts: Int64[Tensor, " num_runs"],
    lengths: Int64[Tensor, " num_runs"],
) -> None:
    """Copy run after run; what lies between the runs stays as it is.

    Args:
        source: Memory to read, one dense run of bytes.
        destination: Memory to write, of which no byte may be in two runs. It doesn't share memory
            with `source`.
        source_starts: First byte of each run to read.
        destination_starts: First byte of each run to write.
        lengths: Bytes of each run.

    Raises:
        ValueError: A run that is not within its memory, or arguments of different lengths.
        TypeError: Starts or lengths that are not int64.
    """
    expect_cpu(source, "source")
    for name, memory, starts in (
        ("source", source, source_starts),
        ("destination", destination, destination_starts),
    ):
        expect(memory.is_contiguous(), name, "one dense run of bytes", memory.stride())
        expect_tensor(starts, f"{name}_starts", lengths.shape, INT64, source.device)
    expect_tensor(lengths, "lengths", lengths.shape, INT64, source.device)
    if len(lengths) == 0:
        return
    expect(int(lengths.min()) >= 0, "lengths", "at least 0", int(lengths.min()))
    for name, memory, starts in (
        ("source_starts", source, source_starts),
        ("destination_starts", destination, destination_starts),
    ):
        first, stop = int(starts.min()), int((starts + lengths).max())
        inside = first >= 0 and stop <= len(memory)
        expect(inside, name, f"runs within {len(memory)} bytes", f"{first} to {stop}")
    run = implementation("copy_runs", "copy_runs", False)
    run(source, destination, source_starts, destination_starts, lengths)
