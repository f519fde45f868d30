from types import SimpleNamespace
from typing import Any

import pytest
import torch

from blockstride.checks import (
    checks_are_full,
    expect,
    expect_own_memory,
    expect_query_start_loc,
    expect_tensor,
    full_checks,
    values_are_readable,
)

CPU = torch.device("cpu")


def test_a_refusal_names_the_argument_and_says_what_was_expected_and_what_came():
    with pytest.raises(ValueError, match=r"^size: expected 3, got 4$"):
        expect(False, "size", 3, 4)
    with pytest.raises(TypeError, match=r"^kind: expected a, got b$"):
        expect(False, "kind", "a", "b", TypeError)
    expect(True, "size", 3, 3)


def test_a_tensor_is_held_to_shape_dtype_and_device():
    x = torch.zeros(2, 3)
    expect_tensor(x, "x", (2, 3), (torch.float32, torch.int8), CPU)
    with pytest.raises(ValueError, match=r"^x: expected shape \(3, 2\), got shape \(2, 3\)$"):
        expect_tensor(x, "x", (3, 2), (torch.float32,), CPU)
    with pytest.raises(
        TypeError, match=r"^x: expected torch.int8 or torch.bool, got torch.float32"
    ):
        expect_tensor(x, "x", (2, 3), (torch.int8, torch.bool), CPU)
    with pytest.raises(ValueError, match=r"^x: expected a tensor on meta, got one on cpu$"):
        expect_tensor(x, "x", (2, 3), (torch.float32,), torch.device("meta"))


def test_what_is_written_has_memory_of_its_own_for_every_element():
    row = torch.zeros(1, 3)
    for fine in (row, row.T, row.expand(1, 3), row[:, ::2], torch.zeros(()), row.expand(0, 3)):
        expect_own_memory(fine, "out")
    # as many columns as one likes of no row are no element
    expect_own_memory(torch.zeros(0, 1).expand(0, 3), "out")
    with pytest.raises(
        ValueError, match=r"^out: expected memory of its own .*, got strides \(0, 1"
    ):
        expect_own_memory(row.expand(2, 3), "out")


@pytest.mark.parametrize("starts", [[0], [0, 0], [0, 3, 3, 7], [0, 6]])
def test_runs_within_the_rows_of_a_step_pass(starts):
    expect_query_start_loc(torch.tensor(starts), 7)


@pytest.mark.parametrize("starts", [[1, 7], [0, 4, 3, 7], [0, 8], [-1, 7]])
def test_runs_that_do_not_fit_the_rows_of_a_step_are_refused(starts):
    with pytest.raises(ValueError, match=r"^query_start_loc: expected a sum that starts at 0"):
        expect_query_start_loc(torch.tensor(starts), 7)


@pytest.mark.usefixtures("unchecked")
def test_full_checks_look_at_values_wherever_there_are_any():
    on_device: Any = SimpleNamespace(is_cpu=False, is_meta=False)
    assert values_are_readable(torch.zeros(1))
    assert not values_are_readable(on_device)
    with full_checks():
        assert checks_are_full()
        assert values_are_readable(on_device)
        assert not values_are_readable(torch.zeros(1, device="meta"))
    assert not checks_are_full()
