"""The recurrences of `bench_cpu_kernels.py`, prompts and decode steps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from blockstride import kernels

D_STATE = 16


class Case(NamedTuple):
    """One operation at one shape: ours, torch's, and the least it must do."""

    ours: Callable[[], Any]
    plain: Callable[[], Any]
    bytes: int
    flops: int


def ids(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def recurrence(num_tokens: int, dim: int) -> dict[str, Any]:
    x, dt, z = torch.randn(3, num_tokens, dim)
    B, C = torch.randn(2, num_tokens, D_STATE)
    A = -torch.arange(1.0, D_STATE + 1).expand(dim, D_STATE).contiguous()
    vectors = {"D": torch.ones(dim), "dt_bias": torch.full((dim,), -4.0)}
    return {"x": x, "dt": dt, "z": z, "A": A, "B": B, "C": C} | vectors


def scan(num_tokens: int, dim: int) -> Case:
    inputs = recurrence(num_tokens, dim)
    state, fresh = torch.zeros(2, dim, D_STATE), torch.tensor([False])
    bounds: dict[str, Any] = {"query_start_loc": ids(0, num_tokens), "has_initial_state": fresh}

    def ours() -> Tensor:
        return kernels.selective_scan(**inputs, **bounds, ssm_state=state, state_indices=ids(1))

    def plain() -> Tensor:
        state, outs = torch.zeros(dim, D_STATE), []
        step = functional.softplus(inputs["dt"] + inputs["dt_bias"])
        drive = step * inputs["x"]
        for t in range(num_tokens):
            state = (step[t, :, None] * inputs["A"]).exp() * state
            state += drive[t, :, None] * inputs["B"][t]
            outs.append(state @ inputs["C"][t])
        out = torch.stack(outs) + inputs["D"] * inputs["x"]
        return out * functional.silu(inputs["z"])

    return Case(ours, plain, 16 * num_tokens * dim, 8 * num_tokens * dim * D_STATE)


def state_update(num_seqs: int, dim: int) -> Case:
    inputs = recurrence(num_seqs, dim)
    pool, again = torch.randn(2, num_seqs + 1, dim, D_STATE)
    again.copy_(pool)
    indices = torch.arange(1, num_seqs + 1, dtype=torch.int32)

    def ours() -> Tensor:
        return kernels.selective_state_update(**inputs, ssm_state=pool, state_indices=indices)

    def plain() -> Tensor:
        step = functional.softplus(inputs["dt"] + inputs["dt_bias"])
        state = again[1:]
        state *= (step[:, :, None] * inputs["A"]).exp()
        state += (step * inputs["x"])[:, :, None] * inputs["B"][:, None]
        out = (state @ inputs["C"][:, :, None])[..., 0] + inputs["D"] * inputs["x"]
        return out * functional.silu(inputs["z"])

    return Case(ours, plain, 8 * num_seqs * dim * D_STATE, 8 * num_seqs * dim * D_STATE)


def head_recurrence(num_tokens: int, num_heads: int, d_state: int) -> dict[str, Any]:
    x = torch.randn(num_tokens, num_heads, 64)
    B, C = torch.randn(2, num_tokens, 1, d_state)
    A, dt = -torch.arange(1.0, num_heads + 1), torch.randn(num_tokens, num_heads)
    vectors = {"D": torch.ones(num_heads), "dt_bias": torch.full((num_heads,), -4.0)}
    return {"x": x, "dt": dt, "A": A, "B": B, "C": C} | vectors


def head_scan(num_tokens: int, num_heads: int, d_state: int) -> Case:
    inputs = head_recurrence(num_tokens, num_heads, d_state)
    state, fresh = torch.zeros(2, num_heads, 64, d_state), torch.tensor([False])
    bounds: dict[str, Any] = {"query_start_loc": ids(0, num_tokens), "has_initial_state": fresh}

    def ours() -> Tensor:
        return kernels.ssd_scan(**inputs, **bounds, ssm_state=state, state_indices=ids(1))

    def plain() -> Tensor:
        state, outs = torch.zeros(num_heads, 64, d_state), []
        step = functional.softplus(inputs["dt"] + inputs["dt_bias"])
        decay, added = (step * inputs["A"]).exp(), step[..., None] * inputs["x"]
        for t in range(num_tokens):
            state = decay[t, :, None, None] * state + added[t, :, :, None] * inputs["B"][t]
            outs.append(state @ inputs["C"][t, 0])
        return torch.stack(outs) + inputs["D"][:, None] * inputs["x"]

    numbers = num_tokens * num_heads * 64
    return Case(ours, plain, 8 * numbers, 5 * numbers * d_state)


def head_state_update(num_seqs: int, num_heads: int, d_state: int) -> Case:
    inputs = head_recurrence(num_seqs, num_heads, d_state)
    pool, again = torch.randn(2, num_seqs + 1, num_heads, 64, d_state)
    again.copy_(pool)
    indices = torch.arange(1, num_seqs + 1, dtype=torch.int32)

    def ours() -> Tensor:
        return kernels.ssd_state_update(**inputs, ssm_state=pool, state_indices=indices)

    def plain() -> Tensor:
        step = functional.softplus(inputs["dt"] + inputs["dt_bias"])
        state = again[1:]
        state *= (step * inputs["A"]).exp()[..., None, None]
        state += (step[..., None] * inputs["x"])[..., None] * inputs["B"][:, :, None]
        out = (state @ inputs["C"][..., None])[..., 0]
        return out + inputs["D"][:, None] * inputs["x"]

    numbers = num_seqs * num_heads * 64 * d_state
    return Case(ours, plain, 8 * numbers, 5 * numbers)


def delta_inputs(num_tokens: int, num_heads: int, by_channel: bool) -> dict[str, Any]:
    """Heads of 128 keys and 128 values; keys of unit length."""
    q, k, v = torch.randn(3, num_tokens, num_heads, 128)
    gates = (num_heads, 128) if by_channel else (num_heads,)
    return {
        "q": functional.normalize(q, dim=-1),
        "k": functional.normalize(k, dim=-1),
        "v": v,
        "g": -torch.rand(num_tokens, *gates),
        "beta": torch.rand(num_tokens, num_heads),
    }


def delta_step(inputs: dict[str, Any], state: Tensor) -> Tensor:
    """A token of each sequence by torch, in place in the states."""
    g = inputs["g"]
    state *= g.exp().view(*g.shape[:2], -1, 1)
    error = inputs["v"] - (inputs["k"][:, :, None] @ state)[:, :, 0]
    state += inputs["k"][..., None] * (inputs["beta"][..., None] * error)[:, :, None]
    return 128**-0.5 * (inputs["q"][:, :, None] @ state)[:, :, 0]


def delta_rule(num_tokens: int, num_heads: int, by_channel: bool) -> Case:
    inputs = delta_inputs(num_tokens, num_heads, by_channel)
    pool, fresh = torch.zeros(2, num_heads, 128, 128), torch.tensor([False])
    bounds: dict[str, Any] = {"query_start_loc": ids(0, num_tokens), "has_initial_state": fresh}

    def ours() -> Tensor:
        return kernels.gated_delta_rule(**inputs, **bounds, ssm_state=pool, state_indices=ids(1))

    def plain() -> Tensor:
        state = torch.zeros(1, num_heads, 128, 128)
        tokens = ({name: x[t : t + 1] for name, x in inputs.items()} for t in range(num_tokens))
        return torch.cat([delta_step(token, state) for token in tokens])

    numbers = num_tokens * num_heads * 128
    return Case(ours, plain, 16 * numbers, 8 * numbers * 128)


def delta_update(num_seqs: int, num_heads: int, by_channel: bool) -> Case:
    inputs = delta_inputs(num_seqs, num_heads, by_channel)
    pool, again = torch.randn(2, num_seqs + 1, num_heads, 128, 128)
    again.copy_(pool)
    indices = torch.arange(1, num_seqs + 1, dtype=torch.int32)

    def ours() -> Tensor:
        return kernels.gated_delta_rule_update(**inputs, ssm_state=pool, state_indices=indices)

    numbers = num_seqs * num_heads * 128 * 128
    return Case(ours, lambda: delta_step(inputs, again[1:]), 8 * numbers, 8 * numbers)


def unit(num_tokens: int, dim: int) -> dict[str, Any]:
    x, recurrence_gate, input_gate, z = torch.randn(4, num_tokens, dim)
    gates = {"recurrence_gate": recurrence_gate, "input_gate": input_gate, "z": z}
    return {"x": x, "A": -torch.logspace(-3, 0, dim)} | gates


def decay_and_input(inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    log_decay = inputs["A"] * inputs["recurrence_gate"].sigmoid()
    taken = inputs["input_gate"].sigmoid() * inputs["x"]
    return log_decay.exp(), taken * (1 - (2 * log_decay).exp()).sqrt()


def real_gated(num_tokens: int, dim: int) -> Case:
    inputs, state = unit(num_tokens, dim), torch.zeros(2, dim)
    bounds = {"query_start_loc": ids(0, num_tokens), "has_initial_state": torch.tensor([True])}

    def ours() -> Tensor:
        state.zero_()
        return kernels.rg_lru(**inputs, **bounds, ssm_state=state, state_indices=ids(1))

    def plain() -> Tensor:
        state, outs = torch.zeros(dim), []
        decay, added = decay_and_input(inputs)
        for t in range(num_tokens):
            state = decay[t] * state + added[t]
            outs.append(state)
        return torch.stack(outs) * functional.gelu(inputs["z"], approximate="tanh")

    return Case(ours, plain, 20 * num_tokens * dim, 40 * num_tokens * dim)


def real_gated_update(num_seqs: int, dim: int) -> Case:
    inputs, pool = unit(num_seqs, dim), torch.randn(num_seqs + 1, dim)
    again, indices = pool.clone(), torch.arange(1, num_seqs + 1, dtype=torch.int32)

    def ours() -> Tensor:
        return kernels.rg_lru_update(**inputs, ssm_state=pool, state_indices=indices)

    def plain() -> Tensor:
        decay, added = decay_and_input(inputs)
        state = again[1:]
        state.mul_(decay).add_(added)
        return state * functional.gelu(inputs["z"], approximate="tanh")

    return Case(ours, plain, 28 * num_seqs * dim, 40 * num_seqs * dim)
