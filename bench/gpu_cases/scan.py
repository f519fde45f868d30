"""Scans over prompts and mixtures of experts at the sizes of real steps."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from support.budget import assert_within_budget, by_reference, cast, exact_and_plain
from torch import Tensor

from blockstride.kernels.delta import reference as delta_rule
from blockstride.kernels.delta.gpu import gated_delta_rule, gated_delta_rule_update
from blockstride.kernels.lru import reference as lru
from blockstride.kernels.lru.gpu import rg_lru
from blockstride.kernels.mamba1 import reference as mamba1_recurrence
from blockstride.kernels.mamba1.gpu import selective_scan
from blockstride.kernels.mamba2 import reference as mamba2_recurrence
from blockstride.kernels.mamba2.gpu import ssd_scan
from blockstride.kernels.mlp import reference as mlp
from blockstride.kernels.mlp.gpu import expert_mlp
from gpu_cases.case import Call, Case

BF16, F32 = torch.bfloat16, torch.float32
Inputs = dict[str, Any]


def cases(device: str, smoke: bool) -> Iterator[Case]:
    with torch.device(device):
        for make in (mamba1_cases, mamba2_cases, delta_cases, unit_cases, expert_cases):
            yield from make(smoke)


def prompts(lengths: list[int]) -> Inputs:
    """Sequences that go on from states in blocks 1, 2, ... of a pool."""
    num_seqs = len(lengths)
    return {
        "state_indices": torch.arange(1, num_seqs + 1, dtype=torch.int32),
        "query_start_loc": torch.tensor([0, *lengths]).cumsum(0).int(),
        "has_initial_state": torch.ones(num_seqs, dtype=torch.bool),
    }


def random(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape).to(dtype)


def hold(run: Callable[..., Tensor], inputs: Inputs, reference: Callable[..., Tensor]) -> None:
    """Hold outputs and states to float64, at twice the error of bfloat16."""
    exact, exact_states = by_reference(reference, inputs)
    plain, plain_states = by_reference(reference, inputs, BF16)
    assert_within_budget(run(**inputs), exact, plain)
    assert_within_budget(inputs["ssm_state"].to(BF16), exact_states, plain_states)


def on(device: torch.device, build: Callable[[], Call]) -> Callable[[], Call]:
    """Build inputs on a device, whenever that is asked for."""

    def prepare() -> Call:
        with device:
            return build()

    return prepare


def scan_cases(
    name: str,
    run: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    inputs: Callable[[list[int]], Inputs],
    lengths: list[int],
    moved: int,
    flop: float = 0.0,
) -> Case:
    """A case of a scan: held to its reference on short prompts, timed on long ones."""
    device = torch.get_default_device()

    def check():
        with device:
            hold(run, inputs([300, 0, 70]), reference)

    prepare = on(device, lambda: partial(run, **inputs(lengths)))
    label = f"{name}, {len(lengths)} x {lengths[0]} tokens"
    return Case(label, check, prepare, moved, flop)


def mamba1(dim: int, lengths: list[int]) -> Inputs:
    torch.manual_seed(0)
    wide = random(sum(lengths), 2 * dim)
    return prompts(lengths) | {
        "x": wide[:, :dim],
        "dt": random(sum(lengths), dim),
        "A": -torch.rand(dim, 16) - 0.1,
        "B": random(sum(lengths), 16),
        "C": random(sum(lengths), 16),
        "ssm_state": random(len(lengths) + 1, dim, 16, dtype=F32),
        "D": random(dim, dtype=F32),
        "z": wide[:, dim:],
        "dt_bias": random(dim, dtype=F32),
    }


def mamba1_cases(smoke: bool) -> Iterator[Case]:
    for dim, lengths in ((8_192, [4_096] * 4), (8_192, [8_192]), (1_024, [8_192])):
        size, batch = (40, [20, 20]) if smoke else (dim, lengths)
        moved = sum(batch) * size * 4 * 2
        inputs = partial(mamba1, size)
        name = f"Mamba-1 scan, {dim} channels"
        reference = mamba1_recurrence.selective_scan
        yield scan_cases(name, selective_scan, reference, inputs, batch, moved)


def mamba2(heads: int, lengths: list[int]) -> Inputs:
    """Heads of 64 rows and 128 states, sharing one group."""
    torch.manual_seed(0)
    x, z = random(sum(lengths), 2, heads, 64).unbind(1)
    B, C = random(sum(lengths), 2, 1, 128).unbind(1)
    return prompts(lengths) | {
        "x": x,
        "dt": random(sum(lengths), heads),
        "A": -torch.rand(heads) - 0.1,
        "B": B,
        "C": C,
        "ssm_state": random(len(lengths) + 1, heads, 64, 128, dtype=F32),
        "D": random(heads, dtype=F32),
        "z": z,
        "dt_bias": random(heads, dtype=F32),
    }


def mamba2_cases(smoke: bool) -> Iterator[Case]:
    for lengths in ([4_096] * 4, [16_384]):
        heads, batch = (2, [20, 20]) if smoke else (128, lengths)
        # scores and their outputs over half a chunk, states in and out
        flop = sum(batch) * heads * 2.0 * (128 * (128 + 64) + 2 * 64 * 128)
        moved = sum(batch) * heads * 64 * 3 * 2
        inputs = partial(mamba2, heads)
        reference = mamba2_recurrence.ssd_scan
        yield scan_cases("Mamba-2 scan", ssd_scan, reference, inputs, batch, moved, flop)


def delta(heads: int, lengths: list[int], by_channel: bool = False) -> Inputs:
    """Heads of 128 keys and 128 values, two value heads sharing a key head, or with gates of
    channels each with its own.
    """
    torch.manual_seed(0)
    num_tokens = sum(lengths)
    gates, key_heads = (2 * heads, 128) if by_channel else (2 * heads,), heads * (1 + by_channel)
    return prompts(lengths) | {
        "q": random(num_tokens, key_heads, 128),
        "k": random(num_tokens, key_heads, 128),
        "v": random(num_tokens, 2 * heads, 128),
        "g": -torch.rand(num_tokens, *gates),
        "beta": torch.rand(num_tokens, 2 * heads),
        "ssm_state": random(len(lengths) + 1, 2 * heads, 128, 128, dtype=F32),
        "scale": 128**-0.5,
        "qk_l2norm": True,
    }


def delta_cases(smoke: bool) -> Iterator[Case]:
    for by_channel, lengths in product((False, True), ([4_096] * 4, [8_192])):
        heads, batch = (1, [70]) if smoke else (16, lengths)
        # q, k, v and the output; with gates of channels these, and three rows written and read
        numbers = 2 * (4 + 2 + 3 * 2) if by_channel else 6
        moved = sum(batch) * heads * 128 * numbers * 2
        flop = sum(batch) * 2 * heads * 2.0 * (3 * 128 * 128 + 2 * 64 * 128)
        inputs = partial(delta, heads, by_channel=by_channel)
        name = "gated delta rule by channel" if by_channel else "gated delta rule"
        reference = delta_rule.gated_delta_rule
        yield scan_cases(name, gated_delta_rule, reference, inputs, batch, moved, flop)
    yield from (delta_step(smoke, by_channel) for by_channel in (False, True))


def delta_step(smoke: bool, by_channel: bool) -> Case:
    heads, num_seqs = (1, 2) if smoke else (16, 256)
    device = torch.get_default_device()

    def step(num_seqs: int = num_seqs) -> Inputs:
        inputs = delta(heads, [1] * num_seqs, by_channel)
        del inputs["query_start_loc"], inputs["has_initial_state"]
        return inputs

    def check():
        with device:
            hold(gated_delta_rule_update, step(3), delta_rule.gated_delta_rule_update)

    prepare = on(device, lambda: partial(gated_delta_rule_update, **step()))
    moved = num_seqs * 2 * heads * 128 * 128 * 4 * 2
    name = f"gated delta rule{' by channel' * by_channel}, {num_seqs} x 1 token"
    return Case(name, check, prepare, moved)


def unit(dim: int, lengths: list[int]) -> Inputs:
    torch.manual_seed(0)
    x, recurrence_gate, input_gate, z = random(sum(lengths), 4, dim).unbind(1)
    return prompts(lengths) | {
        "x": x,
        "recurrence_gate": recurrence_gate,
        "input_gate": input_gate,
        "A": -torch.logspace(-3, 0, dim),
        "ssm_state": random(len(lengths) + 1, dim, dtype=F32),
        "recurrence_bias": random(dim, dtype=F32),
        "input_bias": random(dim, dtype=F32),
        "z": z,
    }


def unit_cases(smoke: bool) -> Iterator[Case]:
    for dim, lengths in ((4_096, [4_096] * 4), (2_560, [8_192])):
        size, batch = (40, [20, 20]) if smoke else (dim, lengths)
        moved = sum(batch) * size * 5 * 2
        name = f"RG-LRU, {dim} channels"
        yield scan_cases(name, rg_lru, lru.rg_lru, partial(unit, size), batch, moved)


def experts(num_tokens: int, hidden: int, inner: int) -> Inputs:
    """16 experts, two of which a token chooses."""
    torch.manual_seed(0)
    weights, chosen = torch.randn(num_tokens, 16).softmax(-1).topk(2)
    return {
        "x": random(num_tokens, hidden),
        "gate_up": random(16, 2 * inner, hidden) / hidden**0.5,
        "down": random(16, hidden, inner) / inner**0.5,
        "expert_ids": chosen,
        "expert_weights": weights,
    }


def expert_cases(smoke: bool) -> Iterator[Case]:
    device = torch.get_default_device()
    for num_tokens in (1, 8, 64, 512, 4_096):
        size = (min(num_tokens, 40), 64, 96) if smoke else (num_tokens, 4_096, 14_336)

        def check(num_tokens=num_tokens):
            with device:
                inputs = experts(min(num_tokens, 600), 256, 384)
                exact, plain = exact_and_plain(mlp.expert_mlp, inputs, BF16)
                assert_within_budget(expert_mlp(**inputs), exact, plain)

        def build(size=size) -> Call:
            return partial(expert_mlp, **experts(*size))

        def by_torch(size=size) -> Call:
            return partial(mlp.expert_mlp, **cast(experts(*size), BF16))

        rows, hidden, inner = size
        read = min(16, 2 * rows)
        yield Case(
            f"16 experts of {hidden} x {inner}, {num_tokens} tokens",
            check,
            on(device, build),
            bytes=read * 3 * hidden * inner * 2,
            flop=2.0 * 2 * rows * 3 * hidden * inner,
            torch=on(device, by_torch),
        )
