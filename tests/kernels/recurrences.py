"""What the recurrences are tried with: prompts in blocks 2, 3, ... of a pool, and parts of them."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

Arguments = dict[str, Any]
Tolerance = dict[str, float]
NAN, INF = float("nan"), float("inf")
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16

EXACT: Tolerance = {"rtol": 0.0, "atol": 0.0}

# what has an entry for each token, and what only prompts have
BY_TOKEN = (
    *("x", "dt", "B", "C", "z", "q", "k", "v", "g", "beta", "recurrence_gate", "input_gate"),
)
# what a state decays by at a token, and the parameter that it decays by at all
STEPS, RATES = ("g", "dt", "recurrence_gate"), ("g", "A")
OF_PROMPTS = ("query_start_loc", "has_initial_state")

# of a base row with one changed factor a row: lengths of prompts, options of Mamba, dtypes
PROMPT_ROWS: dict[str, Arguments] = {
    "base": {},
    "one-token": {"lengths": (1,)},
    "no-sequence": {"lengths": ()},
    "no-token": {"lengths": (0, 0)},
    "fresh": {"initial": False},
}
OPTION_ROWS: dict[str, Arguments] = {
    "no-D": {"D": False},
    "no-z": {"z": False},
    "no-bias": {"dt_bias": False},
    "no-softplus": {"dt_softplus": False, "dt_bias": False},
}
DTYPE_ROWS: dict[str, Arguments] = {
    "bf16": {"dtype": BF16},
    "fp16": {"dtype": F16},
    "bf16-state": {"state_dtype": BF16},
    "fp16-state": {"state_dtype": F16},
}
STEP_ROWS: dict[str, Arguments] = {
    "base": {},
    **OPTION_ROWS,
    **DTYPE_ROWS,
    "bias-without-softplus": {"dt_softplus": False},
    "d_state-5": {"d_state": 5},
}


class Recurrence(NamedTuple):
    """A function over prompts or over steps, and what its laws need to know of it."""

    function: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    make: Callable[..., Arguments]
    replaceable: tuple[str, ...]  # what the result may replace; the first has its shape
    in_pieces: Tolerance = EXACT  # of tokens given in several calls
    in_company: Tolerance = EXACT  # of other sequences, or strides of inputs, in the call


def each(recurrences: dict[str, Recurrence]) -> Any:
    """A fixture that is each of some recurrences."""

    @pytest.fixture(params=recurrences.values(), ids=list(recurrences), scope="module")
    def one(request: pytest.FixtureRequest) -> Recurrence:
        return request.param

    return one


def selective(
    lengths=(5, 0, 1, 41), dim=20, d_state=16, dtype=F32, state_dtype=F32, initial=True,
    D=True, z=True, dt_bias=True, dt_softplus=True,
) -> Arguments:  # fmt: skip
    """Prompts of these lengths for Mamba-1."""
    num_tokens = sum(lengths)
    wide = torch.randn(num_tokens, 2 * dim + 3).to(dtype)
    return {
        "x": wide[:, :dim],
        "dt": torch.rand(num_tokens, dim).sub(0.3 if dt_softplus else 0).to(dtype),
        "A": -torch.rand(dim, d_state) - 0.1,
        "B": torch.randn(num_tokens, d_state).to(dtype),
        "C": torch.randn(num_tokens, d_state).to(dtype),
        **in_pool(lengths, (dim, d_state), state_dtype, initial),
        "D": torch.randn(dim).to(dtype) if D else None,
        "z": wide[:, dim : 2 * dim] if z else None,
        "dt_bias": torch.randn(dim) if dt_bias else None,
        "dt_softplus": dt_softplus,
    }


def ssd(
    lengths=(5, 0, 1, 37), num_heads=4, head_dim=24, num_groups=2, d_state=16, dtype=F32,
    state_dtype=F32, initial=True, D=True, z=True, dt_bias=True, dt_softplus=True,
) -> Arguments:  # fmt: skip
    """Prompts of these lengths for Mamba-2."""
    num_tokens = sum(lengths)
    wide = torch.randn(num_tokens, 2, num_heads, head_dim + 3).to(dtype)[..., :head_dim]
    return {
        "x": wide[:, 0],
        "dt": torch.rand(num_tokens, num_heads).sub(0.3 if dt_softplus else 0).to(dtype),
        "A": -torch.rand(num_heads) - 0.1,
        "B": torch.randn(num_tokens, num_groups, d_state).to(dtype),
        "C": torch.randn(num_tokens, num_groups, d_state).to(dtype),
        **in_pool(lengths, (num_heads, head_dim, d_state), state_dtype, initial),
        "D": torch.randn(num_heads).to(dtype) if D else None,
        "z": wide[:, 1] if z else None,
        "dt_bias": torch.randn(num_heads) if dt_bias else None,
        "dt_softplus": dt_softplus,
    }


def delta(
    lengths=(5, 0, 1, 70), num_heads=2, num_value_heads=4, key_dim=16, value_dim=24, dtype=F32,
    state_dtype=F32, initial=True, qk_l2norm=True, scale: float | None = 0.3, by_channel=False,
) -> Arguments:  # fmt: skip
    """Prompts of these lengths for the gated delta rule, with gates of heads or of channels."""
    num_tokens = sum(lengths)
    gates = (num_value_heads, key_dim) if by_channel else (num_value_heads,)
    wide = torch.randn(num_tokens, 2, num_heads, key_dim + 3)[..., :key_dim]
    wide = (wide if qk_l2norm else normalize(wide, dim=-1)).to(dtype)
    return {
        "q": wide[:, 0],
        "k": wide[:, 1],
        "v": torch.randn(num_tokens, num_value_heads, value_dim).to(dtype),
        "g": -torch.rand(num_tokens, *gates),
        "beta": torch.rand(num_tokens, num_value_heads).to(dtype),
        **in_pool(lengths, (num_value_heads, key_dim, value_dim), state_dtype, initial),
        "qk_l2norm": qk_l2norm,
        "scale": scale,
    }


def real_gated(
    lengths=(5, 0, 1, 41), dim=24, dtype=F32, state_dtype=F32, initial=True, z=True, bias=True,
) -> Arguments:  # fmt: skip
    """Prompts of these lengths for the real-gated linear recurrent unit."""
    num_tokens = sum(lengths)
    wide = torch.randn(num_tokens, 4 * dim + 3).to(dtype)
    return {
        "x": wide[:, :dim],
        "recurrence_gate": wide[:, dim : 2 * dim],
        "input_gate": wide[:, 2 * dim : 3 * dim],
        # an open gate leaves from 0.3 to 0.999 of a state
        "A": -torch.logspace(-3, 0, dim),
        **in_pool(lengths, (dim,), state_dtype, initial),
        "recurrence_bias": torch.randn(dim) if bias else None,
        "input_bias": torch.randn(dim).to(dtype) if bias else None,
        "z": wide[:, 3 * dim : 4 * dim] if z else None,
    }


def convolution(
    lengths=(5, 0, 1, 9), dim=72, width=4, dtype=F32, state_dtype=F32, initial=True, bias=True,
    activation: str | None = "silu",
) -> Arguments:  # fmt: skip
    """Prompts of these lengths for the causal convolution."""
    num_seqs = len(lengths)
    return {
        "x": torch.randn(sum(lengths), dim + 5)[:, :dim].to(dtype),
        "weight": torch.randn(dim, width).to(dtype),
        "bias": torch.randn(dim).to(dtype) if bias else None,
        "conv_state": torch.randn(num_seqs + 3, dim, width - 1).to(dtype).to(state_dtype),
        **places(lengths, initial),
        "activation": activation,
    }


def in_pool(
    lengths: tuple[int, ...], state: tuple[int, ...], state_dtype: torch.dtype, initial: bool
) -> Arguments:
    """Where sequences of these lengths lie, and a pool with room for the states they pass."""
    pool = torch.randn(len(lengths) + 12, *state).to(state_dtype)
    return {"ssm_state": pool, **places(lengths, initial)}


def places(lengths: tuple[int, ...], initial: bool) -> Arguments:
    """Where sequences of these lengths and their states lie."""
    num_seqs = len(lengths)
    return {
        "state_indices": torch.arange(2, num_seqs + 2, dtype=torch.int32),
        "query_start_loc": torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
        "has_initial_state": torch.full((num_seqs,), initial),
    }


def by_token(inputs: Arguments) -> Arguments:
    """Those of the arguments that have an entry for each token."""
    return {name: inputs[name] for name in BY_TOKEN if inputs.get(name) is not None}


def keep(inputs: Arguments, *pairs: tuple[int, int]) -> None:
    """Ask for the state after each of some tokens, in a block of its own."""
    tokens, blocks = zip(*pairs, strict=True)
    inputs["checkpoint_tokens"] = torch.tensor(tokens, dtype=torch.int32)
    inputs["checkpoint_indices"] = torch.tensor(blocks, dtype=torch.int32)


def piece(inputs: Arguments, i: int, start: int, stop: int, initial: bool) -> Arguments:
    """The tokens from `start` to `stop`, of sequence `i`, as a prompt of its own."""
    own = {name: tensor[start:stop] for name, tensor in by_token(inputs).items()}
    own["state_indices"] = inputs["state_indices"][i : i + 1]
    own["query_start_loc"] = torch.tensor([0, stop - start], dtype=torch.int32)
    own["has_initial_state"] = torch.tensor([initial])
    return inputs | own | {"checkpoint_tokens": None, "checkpoint_indices": None}


def as_step(prompts: Arguments, num_new: int | None = None) -> Arguments:
    """Prompts of `num_new` tokens as a step; without it, of one token that has no axis."""
    num_seqs = len(prompts["state_indices"])
    step = {name: value for name, value in prompts.items() if name not in OF_PROMPTS}
    if num_new is not None:
        tokens = by_token(prompts).items()
        step |= {name: tensor.unflatten(0, (num_seqs, num_new)) for name, tensor in tokens}
    return step


def step_of(
    make: Callable[..., Arguments], num_seqs: int = 3, num_new: int | None = None, **options: Any
) -> Arguments:
    """A step of so many sequences, each going on from its state."""
    length = 1 if num_new is None else num_new
    return as_step(make(lengths=(length,) * num_seqs, **options), num_new)


def at_extremes(inputs: Arguments, step: float, rate: float) -> Arguments:
    """The same with every step this long, and with decay this many times as fast."""
    # softplus makes the steps of these
    length = torch.tensor(step, dtype=torch.float64)
    dt = torch.full_like(inputs["dt"], float(length if step > 20 else length.expm1().log()))
    return inputs | {"dt": dt, "dt_bias": None, "A": inputs["A"] * rate}


def assert_close_by_row(actual: Tensor, exact: Tensor, tolerance: float = 1e-4) -> None:
    """Close to float64, each entry of the first axis by the size of its own numbers."""
    scale = exact.abs().flatten(1).amax(1).clamp(min=1).view(-1, *[1] * (exact.dim() - 1))
    torch.testing.assert_close(actual.double() / scale, exact / scale, rtol=0, atol=tolerance)


def turned(tensor: Tensor) -> Tensor:
    """The same numbers with the last axis outermost in memory, and a gap after each of them."""
    wide = torch.stack([tensor, torch.zeros_like(tensor)], -1).movedim(-2, 0).contiguous()
    return wide.movedim(0, -2)[..., 0]
