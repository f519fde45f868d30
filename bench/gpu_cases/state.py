"""Decode steps of both Mambas' recurrences and of RG-LRU, in place in the states."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from support.budget import by_reference
from torch import Tensor

from blockstride.kernels.lru import reference as lru
from blockstride.kernels.lru.gpu import rg_lru_update
from blockstride.kernels.mamba1 import reference as mamba1
from blockstride.kernels.mamba1.gpu import selective_state_update
from blockstride.kernels.mamba2 import reference as mamba2
from blockstride.kernels.mamba2.gpu import ssd_state_update
from gpu_cases.case import Call, Case
from gpu_cases.inputs import BF16, F32, Inputs, hold, ids, random

Step = Callable[..., Tensor]


def cases(device: str, smoke: bool) -> Iterator[Case]:
    yield from update_cases(device, smoke)
    yield from ssd_cases(device, smoke)
    yield from unit_cases(device, smoke)


def update_inputs(num_seqs: int, num_new: int, dim: int, dtype: torch.dtype, device: str) -> Inputs:
    torch.manual_seed(0)
    tokens, options = (num_seqs, num_new), Inputs(device=device)
    wide = random(*tokens, 2 * dim, **options)
    return {
        "x": wide[..., :dim],
        "dt": random(*tokens, dim, **options),
        "A": -torch.rand(dim, 16, **options) - 0.1,
        "B": random(*tokens, 16, **options),
        "C": random(*tokens, 16, **options),
        "ssm_state": random(num_seqs + 1, dim, 16, dtype=dtype, **options),
        "state_indices": ids(num_seqs, device),
        "D": random(dim, dtype=F32, **options),
        "z": wide[..., dim:],
        "dt_bias": random(dim, dtype=F32, **options),
    }


def ssd_inputs(num_seqs: int, num_new: int, heads: int, dtype: torch.dtype, device: str) -> Inputs:
    """Heads of 64 rows and 128 states, in groups of 16."""
    torch.manual_seed(0)
    num_groups = max(1, heads // 16)
    tokens, options = (num_seqs, num_new), Inputs(device=device)
    x, z = random(*tokens, 2, heads, 64, **options).unbind(2)
    B, C = random(*tokens, 2, num_groups, 128, **options).unbind(2)
    return {
        "x": x,
        "dt": random(*tokens, heads, **options),
        "A": -torch.rand(heads, **options) - 0.1,
        "B": B,
        "C": C,
        "ssm_state": random(num_seqs + 1, heads, 64, 128, dtype=dtype, **options),
        "state_indices": ids(num_seqs, device),
        "D": random(heads, dtype=F32, **options),
        "z": z,
        "dt_bias": random(heads, dtype=F32, **options),
    }


def unit_inputs(num_seqs: int, num_new: int, dim: int, dtype: torch.dtype, device: str) -> Inputs:
    torch.manual_seed(0)
    options = Inputs(device=device)
    x, recurrence_gate, input_gate, z = random(num_seqs, num_new, 4, dim, **options).unbind(2)
    return {
        "x": x,
        "recurrence_gate": recurrence_gate,
        "input_gate": input_gate,
        "A": -torch.logspace(-3, 0, dim, **options),
        "ssm_state": random(num_seqs + 1, dim, dtype=dtype, **options),
        "state_indices": ids(num_seqs, device),
        "recurrence_bias": random(dim, dtype=F32, **options),
        "input_bias": random(dim, dtype=F32, **options),
        "z": z,
    }


def check_step(run: Step, reference: Step, inputs: Inputs) -> None:
    """Hold a step to float64."""
    exact, exact_states = by_reference(reference, inputs)
    plain, plain_states = by_reference(reference, inputs, F32)
    hold(run(**inputs), exact, plain)
    hold(inputs["ssm_state"], exact_states, plain_states)


def update_cases(device: str, smoke: bool) -> Iterator[Case]:
    for num_seqs, num_new, dtype in ((1, 1, F32), (64, 1, F32), (64, 1, BF16), (64, 4, F32)):
        dim, count = (70, min(num_seqs, 3)) if smoke else (8_192, num_seqs)

        def check(num_new=num_new, dtype=dtype):
            inputs = update_inputs(3, num_new, 200, dtype, device)
            check_step(selective_state_update, mamba1.selective_state_update, inputs)

        def prepare(count=count, num_new=num_new, dim=dim, dtype=dtype) -> Call:
            inputs = update_inputs(count, num_new, dim, dtype, device)
            return partial(selective_state_update, **inputs)

        moved = count * dim * (2 * 16 * dtype.itemsize + num_new * 4 * 2)
        name = f"state update {count} x {num_new}, {dim} x 16, {str(dtype)[6:]}"
        yield Case(name, check, prepare, moved)


def ssd_cases(device: str, smoke: bool) -> Iterator[Case]:
    for num_seqs, num_new, dtype in ((1, 1, F32), (64, 1, F32), (64, 1, BF16), (64, 4, F32)):
        heads, count = (2, 1) if smoke else (128, num_seqs)

        def check(num_new=num_new, dtype=dtype):
            inputs = ssd_inputs(1, num_new, 2 if smoke else 32, dtype, device)
            check_step(ssd_state_update, mamba2.ssd_state_update, inputs)

        def prepare(count=count, num_new=num_new, heads=heads, dtype=dtype) -> Call:
            return partial(ssd_state_update, **ssd_inputs(count, num_new, heads, dtype, device))

        moved = count * heads * 64 * (2 * 128 * dtype.itemsize + num_new * 3 * 2)
        name = f"ssd update {count} x {num_new}, {heads} x 64 x 128, {str(dtype)[6:]}"
        yield Case(name, check, prepare, moved)


def unit_cases(device: str, smoke: bool) -> Iterator[Case]:
    for num_seqs, num_new, dtype in ((64, 1, F32), (256, 1, F32), (256, 1, BF16), (64, 4, F32)):
        dim, count = (70, min(num_seqs, 3)) if smoke else (4_096, num_seqs)

        def check(num_new=num_new, dtype=dtype):
            inputs = unit_inputs(3, num_new, 200, dtype, device)
            check_step(rg_lru_update, lru.rg_lru_update, inputs)

        def prepare(count=count, num_new=num_new, dim=dim, dtype=dtype) -> Call:
            return partial(rg_lru_update, **unit_inputs(count, num_new, dim, dtype, device))

        moved = count * dim * (2 * dtype.itemsize + num_new * 5 * 2)
        name = f"RG-LRU update {count} x {num_new}, {dim}, {str(dtype)[6:]}"
        yield Case(name, check, prepare, moved)
