"""Norms and gates of a decode step and of a prompt."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from support.budget import exact_and_plain
from torch import Tensor
from torch.nn.functional import rms_norm as torch_rms_norm
from torch.nn.functional import silu

from blockstride.kernels.mlp import reference as mlp
from blockstride.kernels.mlp.gpu import gate_and_mul
from blockstride.kernels.norm import reference as norms
from blockstride.kernels.norm.gpu import rms_norm
from gpu_cases.case import Call, Case
from gpu_cases.inputs import hold, random


def cases(device: str, smoke: bool) -> Iterator[Case]:
    for num_rows in (64, 8_192):
        shape = (3, 300) if smoke else (num_rows, 8_192)

        def tensors(shape=shape) -> tuple[Tensor, ...]:
            torch.manual_seed(0)
            x, other = random(2, *shape, device=device)
            return x, other, random(shape[1], device=device)

        def check_norm(tensors=tensors):
            x, gate, weight = tensors()
            inputs = {"x": x, "weight": weight, "eps": 1e-5, "gate": gate}
            exact, plain = exact_and_plain(norms.rms_norm, inputs)
            out: Any = rms_norm(**inputs)
            hold(out, exact, plain)

        def norm(tensors=tensors) -> Call:
            x, residual, weight = tensors()
            return partial(rms_norm, x, weight, 1e-5, residual=residual)

        def norm_by_torch(tensors=tensors) -> Call:
            x, residual, weight = tensors()
            return lambda: torch_rms_norm(residual.add_(x), weight.shape, weight, 1e-5)

        def check_gate(tensors=tensors):
            wide = torch.cat(tensors()[:2], 1)
            exact, plain = exact_and_plain(mlp.gate_and_mul, {"gate_up": wide})
            hold(gate_and_mul(wide), exact, plain)

        def gate(tensors=tensors) -> Call:
            return partial(gate_and_mul, torch.cat(tensors()[:2], 1))

        def gate_by_torch(tensors=tensors) -> Call:
            x, other, _ = tensors()
            return lambda: silu(x) * other

        size = 2 * shape[0] * shape[1]
        name = f"{shape[0]} x {shape[1]}"
        yield Case(f"rms norm {name}, residual", check_norm, norm, 4 * size, torch=norm_by_torch)
        yield Case(f"gate and mul {name}", check_gate, gate, 3 * size, torch=gate_by_torch)
