"""Convolutions of prompts and of decode steps, in both memory orders of their states."""

from collections.abc import Iterator
from functools import partial
from itertools import product

import torch
from support.budget import by_reference
from torch.nn.functional import conv1d, silu

from blockstride.kernels.conv import reference
from blockstride.kernels.conv.gpu import causal_conv1d, causal_conv1d_update
from gpu_cases.case import Call, Case
from gpu_cases.inputs import F32, Inputs, hold, ids, random


def conv_inputs(lengths: list[int], dim: int, order: str, device: str) -> Inputs:
    """Prompts that go on from states with channels outer (DS) or taps outer (SD)."""
    torch.manual_seed(0)
    num_seqs, shape = len(lengths), (dim, 3) if order == "DS" else (3, dim)
    state = random(num_seqs + 1, *shape, device=device)
    return {
        "x": random(sum(lengths), 2 * dim, device=device)[:, :dim],
        "weight": random(dim, 4, device=device),
        "bias": random(dim, device=device),
        "conv_state": state if order == "DS" else state.transpose(1, 2),
        "state_indices": ids(num_seqs, device),
        "query_start_loc": torch.tensor([0, *lengths], device=device).cumsum(0).int(),
        "has_initial_state": torch.ones(num_seqs, dtype=torch.bool, device=device),
    }


def new_tokens(inputs: Inputs) -> Inputs:
    """A decode step of one token a sequence, of prompts of one token each."""
    shared = ("weight", "bias", "conv_state", "state_indices")
    return {"x": inputs["x"][:, None]} | {name: inputs[name] for name in shared}


def cases(device: str, smoke: bool) -> Iterator[Case]:
    dim, prompts, steps = (300, [9] * 3, [1] * 3) if smoke else (8_192, [4_096] * 4, [1] * 256)
    for order, lengths in product(("SD", "DS"), (prompts, steps)):
        is_step = lengths is steps

        def check(order=order, is_step=is_step):
            inputs = conv_inputs([1, 1, 1] if is_step else [70, 0, 2], 300, order, device)
            run, definition = causal_conv1d, reference.causal_conv1d
            if is_step:
                inputs = new_tokens(inputs)
                run, definition = causal_conv1d_update, reference.causal_conv1d_update
            exact, states = by_reference(definition, inputs)
            plain, _ = by_reference(definition, inputs, F32)
            hold(run(**inputs), exact, plain)
            assert torch.equal(inputs["conv_state"].double(), states)

        def prepare(order=order, is_step=is_step, lengths=lengths) -> Call:
            inputs = conv_inputs(lengths, dim, order, device)
            if is_step:
                return partial(causal_conv1d_update, **new_tokens(inputs))
            return partial(causal_conv1d, **inputs)

        def baseline(lengths=lengths) -> Call:
            x = random(len(lengths), dim, lengths[0], device=device)
            weight, bias = random(dim, 1, 4, device=device), random(dim, device=device)
            return lambda: silu(conv1d(x, weight, bias, padding=3, groups=dim))

        moved = 2 * 2 * sum(lengths) * dim + 2 * 2 * 3 * len(lengths) * dim
        name = f"conv of {len(lengths)} x {lengths[0]} tokens, {dim} channels, {order}"
        yield Case(name, check, prepare, moved, torch=None if is_step else baseline)
