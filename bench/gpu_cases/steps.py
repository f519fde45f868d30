"""Whole decode steps of a hybrid of Mamba-2 and attention: launched one by one, and replayed.

A row's time is that of a replay, as a CUDA graph; what stands for torch is the same step launched
from Python. The two must leave the same bits.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from blockstride import kernels
from blockstride.kernels.recording import recorder
from gpu_cases.case import Call, Case
from gpu_cases.inputs import F32, Inputs, ids, random

HEAD, D_STATE, D_CONV, BLOCK = 64, 128, 4, 16


class HybridStep:
    """One new token of some sequences, through layers of which every fourth attends.

    Args:
        num_seqs: Sequences, each with `context` tokens.
        hidden: Width of the residual stream.
        num_layers: Layers.
        context: Tokens of a sequence, the new one included.
        device: Where it runs.
    """

    def __init__(
        self, num_seqs: int, hidden: int, num_layers: int, context: int, device: str
    ) -> None:
        torch.manual_seed(0)
        self.num_seqs, self.inner, options = num_seqs, 2 * hidden, Inputs(device=device)
        self.heads, self.kv_heads = hidden // HEAD, max(1, hidden // HEAD // 4)
        self.x, self.states = random(num_seqs, hidden, **options), ids(num_seqs, device)
        self.gain = random(hidden, **options)
        per_seq, starts = -(-context // BLOCK), torch.arange(num_seqs + 1, device=device)
        self.table = (torch.randperm(num_seqs * per_seq, device=device) + 1).int()
        self.table = self.table.view(num_seqs, per_seq)
        self.lens = torch.full((num_seqs,), context, dtype=torch.int32, device=device)
        self.starts = starts.int()
        last = context - 1
        self.slots = self.table[:, last // BLOCK].long() * BLOCK + last % BLOCK
        self.layers = [
            self._attention(options) if i % 4 == 2 else self._mamba(options)
            for i in range(num_layers)
        ]

    def _mamba(self, options: Inputs) -> dict[str, Tensor]:
        hidden, heads = self.x.shape[1], self.inner // HEAD
        channels = self.inner + 2 * D_STATE
        return {
            "in": random(self.inner + channels + heads, hidden, **options) / hidden**0.5,
            "out": random(hidden, self.inner, **options) / self.inner**0.5,
            "taps": random(channels, D_CONV, **options),
            "conv": random(self.num_seqs + 1, channels, D_CONV - 1, **options),
            "ssm": random(self.num_seqs + 1, heads, HEAD, D_STATE, dtype=F32, **options),
            "A": -torch.rand(heads, **options) - 0.1,
            "gain": random(self.inner, **options),
        }

    def _attention(self, options: Inputs) -> dict[str, Tensor]:
        hidden, rows = self.x.shape[1], (self.heads + 2 * self.kv_heads) * HEAD
        shape = (self.table.numel() + 1, self.kv_heads, BLOCK, 2 * HEAD)
        return {
            "in": random(rows, hidden, **options) / hidden**0.5,
            "out": random(hidden, self.heads * HEAD, **options) / hidden**0.5,
            "cache": random(*shape, **options),
        }

    def run(self) -> Tensor:
        """The step; states move on, and so do keys and values of its last token."""
        residual, hidden = torch.zeros_like(self.x), self.x
        self.schedule = None
        for layer in self.layers:
            hidden, residual = kernels.rms_norm(hidden, self.gain, 1e-5, residual=residual)
            projected = kernels.linear(hidden, layer["in"])
            mix = self._attend if "cache" in layer else self._recur
            hidden = kernels.linear(mix(layer, projected), layer["out"])
        return hidden

    def _recur(self, layer: dict[str, Tensor], projected: Tensor) -> Tensor:
        heads = self.inner // HEAD
        z, x, dt = projected.split([self.inner, self.inner + 2 * D_STATE, heads], dim=1)
        x = kernels.causal_conv1d_update(
            x[:, None], layer["taps"], None, layer["conv"], self.states, activation="silu"
        )[:, 0]
        x, B, C = x.split([self.inner, D_STATE, D_STATE], dim=1)
        by_head = (x.unflatten(1, (heads, HEAD)), dt, layer["A"], B[:, None], C[:, None])
        y = kernels.ssd_state_update(*by_head, layer["ssm"], self.states)
        return kernels.rms_norm(y.flatten(1), layer["gain"], 1e-5, gate=z)

    def _attend(self, layer: dict[str, Tensor], projected: Tensor) -> Tensor:
        parts = [self.heads, self.kv_heads, self.kv_heads]
        query, key, value = projected.view(self.num_seqs, -1, HEAD).split(parts, dim=1)
        caches = layer["cache"][..., :HEAD], layer["cache"][..., HEAD:]
        kernels.kv_cache_update(key, value, *caches, self.slots)
        call = (query, *caches, self.table, self.lens, self.starts)
        if self.schedule is None:
            self.schedule = kernels.attention_schedule(*call, max_query_len=1)
        out = kernels.paged_attention(*call, scale=HEAD**-0.5, schedule=self.schedule)
        return out.flatten(1)


def step_bytes(num_seqs: int, hidden: int, num_layers: int, context: int) -> int:
    """What a step moves at least: weights, states read and written, keys and values."""
    step = HybridStep(num_seqs, hidden, num_layers, context, "meta")
    weights = sum(layer[name].nbytes for layer in step.layers for name in ("in", "out"))
    states = sum(2 * layer["ssm"].nbytes for layer in step.layers if "ssm" in layer)
    pages = sum(layer["cache"].nbytes for layer in step.layers if "cache" in layer)
    return weights + states + pages


def replayed(step: HybridStep) -> Callable[[], Tensor]:
    """What replays a step; the step itself where nothing records, as in the interpreter."""
    made = recorder(step.x.device)
    if made is None:
        return step.run
    recording, refused = made.record(step.run)
    assert recording is not None, refused
    return recording.replay


def cases(device: str, smoke: bool) -> Iterator[Case]:
    for num_seqs in (1, 16, 64):
        sizes = (min(num_seqs, 2), 128, 4, 40) if smoke else (num_seqs, 4096, 32, 4096)

        def make(sizes=sizes) -> HybridStep:
            return HybridStep(*sizes, device)

        def check(make=make) -> None:
            launched, recorded = make(), make()
            replay = replayed(recorded)
            # recording has run the step, more often on a GPU than elsewhere
            for name in ("conv", "ssm", "cache"):
                for one, other in zip(launched.layers, recorded.layers, strict=True):
                    if name in one:
                        one[name].copy_(other[name])
            for _ in range(2):
                assert torch.equal(replay(), launched.run()), "a replay gives other bits"

        def replay(make=make) -> Call:
            return replayed(make())

        def launch(make=make) -> Call:
            return make().run

        name = f"decode step of 32 layers, {num_seqs} sequences, replayed"
        yield Case(name, check, replay, step_bytes(*sizes), torch=launch)
