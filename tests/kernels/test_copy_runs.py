"""Copying runs of bytes: what is in a run is copied, and nothing else."""

import pytest
import torch

from blockstride.kernels import copy_runs
from blockstride.kernels.cache import reference


def columns(*rows: tuple[int, int, int]) -> list[torch.Tensor]:
    return list(torch.tensor(rows, dtype=torch.int64).reshape(-1, 3).T.contiguous())


@pytest.mark.parametrize("count", [0, 1, 3, 500])
@pytest.mark.parametrize("longest", [1, 7, 300, 20_000])
def test_runs_are_copied_and_gaps_stay_as_they_are(count: int, longest: int):
    torch.manual_seed(count + longest)
    lengths = torch.randint(0, longest + 1, (count,))
    starts = torch.cumsum(lengths + torch.randint(0, 9, (count,)), 0) - lengths
    order = torch.randperm(count)
    ends = int((starts + lengths).max()) if count else 0
    source = torch.randint(-128, 128, (ends + 5,), dtype=torch.int8)
    destination = torch.full((ends + 5,), 99, dtype=torch.int8)
    # run i of the source goes to where a run that is as long lies
    wanted = destination.clone()
    for copy, into in ((copy_runs, destination), (reference.copy_runs, wanted)):
        copy(source, into, starts[order], starts[order], lengths[order])
    assert torch.equal(destination, wanted)


def test_runs_may_be_read_twice_and_land_anywhere():
    source = torch.arange(16, dtype=torch.int8)
    destination = torch.zeros(10, dtype=torch.int8)
    copy_runs(source, destination, *columns((12, 0, 3), (12, 5, 3), (0, 9, 1)))
    assert destination.tolist() == [12, 13, 14, 0, 0, 12, 13, 14, 0, 0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((14, 0, 3), "source_starts: expected runs within 16 bytes, got 14 to 17"),
        ((0, 8, 3), "destination_starts: expected runs within 10 bytes, got 8 to 11"),
        ((-1, 0, 3), "source_starts: expected runs within 16 bytes, got -1 to 2"),
        ((0, 0, -1), "lengths: expected at least 0, got -1"),
    ],
)
def test_runs_that_leave_their_memory_are_refused(row, message):
    memories = torch.zeros(16, dtype=torch.int8), torch.zeros(10, dtype=torch.int8)
    with pytest.raises(ValueError, match=message):
        copy_runs(*memories, *columns(row))


def test_memory_with_gaps_is_refused():
    gaps, dense = torch.zeros(32, dtype=torch.int8)[::2], torch.zeros(16, dtype=torch.int8)
    with pytest.raises(ValueError, match="source: expected one dense run"):
        copy_runs(gaps, dense, *columns((0, 0, 1)))


@pytest.mark.parametrize("at", range(1, 5))
def test_arguments_on_two_devices_are_refused(at):
    arguments = [*torch.zeros(2, 16, dtype=torch.int8), *columns((0, 0, 1))]
    arguments[at] = arguments[at].to("meta")
    with pytest.raises(ValueError, match="expected a tensor on cpu, got one on meta"):
        copy_runs(*arguments)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("at", range(5))
def test_arguments_of_another_dtype_are_refused(at):
    arguments = [*torch.zeros(2, 16, dtype=torch.int8), *columns((0, 0, 1))]
    arguments[at] = arguments[at].int()
    with pytest.raises(TypeError, match=r"expected torch.int\d+, got torch.int32"):
        copy_runs(*arguments)


@pytest.mark.usefixtures("unchecked")
def test_columns_of_different_lengths_are_refused():
    source, destination = torch.zeros(2, 16, dtype=torch.int8)
    reads, writes, lengths = columns((0, 0, 1), (2, 2, 1))
    with pytest.raises(ValueError, match="destination_starts: expected shape"):
        copy_runs(source, destination, reads, writes[:1], lengths)
