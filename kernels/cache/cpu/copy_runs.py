"""Copying runs of bytes, for CPUs. A task is a few neighbouring runs, or one long run."""

from torch import Tensor

from blockstride.kernels.cache.cpu.moves import move_row
from blockstride.kernels.common.cpu.native import Program, arguments, claim, i64_at, num_tasks

# bytes that are worth a thread
GRAIN_BYTES = 1 << 16
# bytes that a claim should move at least, so that claiming costs little
TASK_BYTES = 1 << 12


@Program
def _copy(address):
    source, target, source_starts, target_starts, lengths, num_runs, runs = arguments(address, 7)
    task = claim(address)
    while task < num_tasks(address):
        first = task * runs
        task = claim(address)
        for run in range(first, min(first + runs, num_runs)):
            move_row(
                target + i64_at(target_starts)[run], source + i64_at(source_starts)[run],
                i64_at(lengths)[run], 1, 1, 1,
            )  # fmt: skip


def copy_runs(
    source: Tensor,
    destination: Tensor,
    source_starts: Tensor,
    destination_starts: Tensor,
    lengths: Tensor,
) -> None:
    """See `blockstride.kernels.copy_runs`."""
    starts = source_starts.contiguous(), destination_starts.contiguous(), lengths.contiguous()
    num_runs, nbytes = len(lengths), int(lengths.sum())
    mean = max(1, nbytes // num_runs)
    runs = max(1, TASK_BYTES // mean)
    tasks = -(-num_runs // runs)
    grain = max(1, GRAIN_BYTES // (mean * runs))
    _copy(
        tasks, grain, source.data_ptr(), destination.data_ptr(),
        *(column.data_ptr() for column in starts), num_runs, runs,
    )  # fmt: skip
