"""A small valid call of every public function, for laws that hold of all of them.

`Call.arguments(device)` makes the tensors of a call anew, always the same on one device; `meta` is
one. `lengths` are the new tokens of the sequences; they alone decide how large a call is. Axes that
do not follow from them have three entries at least: an offset of 32 bits takes that to overflow.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from blockstride import kernels
from blockstride.kernels import StateField
from tests.kernels import recurrences
from tests.kernels.recurrences import BF16, F32, Arguments, keep

LENGTHS = (5, 0, 1, 9)
BLOCK_SIZE = 4


@dataclass(frozen=True)
class Call:
    """A public function, and arguments that it takes.

    Attributes:
        function: What is called with the arguments, by name; it returns what is to be compared.
        make: Makes the arguments for the lengths of some sequences.
        dense: Arguments, by path, that must be dense from one element (or byte) to the next.
        tolerance: How far results may differ for other strides; none if not given, bit for bit.
    """

    function: Callable[..., Any]
    make: Callable[[Sequence[int]], Arguments]
    dense: tuple[str, ...] = ()
    tolerance: float = 0.0

    def arguments(
        self, device: torch.device | str = "cpu", lengths: Sequence[int] = LENGTHS
    ) -> Arguments:
        """Arguments of a call, made anew."""
        torch.manual_seed(0)
        with torch.device(device):
            return self.make(lengths)


def ids(*blocks: int) -> Tensor:
    """Blocks of a pool."""
    return torch.tensor(blocks, dtype=torch.int32)


def starts_of(lengths: Sequence[int]) -> Tensor:
    """Prefix sum of some lengths."""
    return ids(0, *accumulate(lengths))


def attention(lengths: Sequence[int], context: int = 3, head_size: int = 16) -> Arguments:
    """Sequences of new tokens and a little context, with a missing block."""
    num_seqs, longest = len(lengths), max(lengths, default=0) + context
    entries = -(-longest // BLOCK_SIZE)
    table = torch.arange(1, num_seqs * entries + 1, dtype=torch.int32).view(num_seqs, entries)
    table[:1, :1] = 0
    pool = (num_seqs * entries + 1, 3, BLOCK_SIZE)
    return {
        "query": torch.randn(sum(lengths), 6, head_size),
        "key_cache": torch.randn(*pool, head_size),
        "value_cache": torch.randn(*pool, head_size),
        "block_table": table,
        "seq_lens": ids(*(length + context for length in lengths)),
        "query_start_loc": starts_of(lengths),
    }


def paged_attention(lengths: Sequence[int]) -> Arguments:
    """With what a call may have beside."""
    return attention(lengths) | {
        "scale": 0.25,
        "window": 9,
        "sinks": torch.randn(6),
        "out": torch.zeros(sum(lengths), 6, 16),
        "return_lse": True,
    }


def quantised_attention(lengths: Sequence[int]) -> Arguments:
    """Over caches with scales."""
    inputs = attention(lengths)
    for name in ("key_cache", "value_cache"):
        inputs[name] = (inputs[name] * 40).to(torch.int8)
    return inputs | {"scale": 0.25, "k_scale": torch.tensor(0.02), "v_scale": torch.tensor(0.03)}


def planned_attention(
    scale: float, window: int | None = None, max_query_len: int | None = None, **inputs: Any
) -> Any:
    """Attention by the plan that `attention_schedule` makes: only a device sees into that."""
    plan = kernels.attention_schedule(**inputs, window=window, max_query_len=max_query_len)
    return kernels.paged_attention(**inputs, scale=scale, window=window, schedule=plan)


def kv_cache_update(lengths: Sequence[int]) -> Arguments:
    """Rotated and quantised, with padding and tails to be zeroed."""
    num_tokens = sum(lengths)
    num_blocks = num_tokens // BLOCK_SIZE + 3
    slots = torch.arange(num_tokens) + BLOCK_SIZE + 1
    slots[1:2] = kernels.PAD_SLOT_ID
    caches = {
        name: torch.randn(num_blocks, 3, BLOCK_SIZE, 8).mul(40).to(torch.int8)
        for name in ("key_cache", "value_cache")
    }
    return caches | {
        "key": torch.randn(num_tokens, 3, 8),
        "value": torch.randn(num_tokens, 3, 8),
        "slot_mapping": slots,
        "k_scale": torch.tensor(0.02),
        "v_scale": torch.tensor(0.03),
        "rotary": (torch.randn(num_tokens, 3), torch.randn(num_tokens, 3)),
        "query": torch.randn(num_tokens, 6, 8),
        "zero_tail": True,
    }


def block_copy(lengths: Sequence[int], same_size: bool = False) -> Arguments:
    """As many blocks as there are sequences, some missing, into blocks of another size."""
    count = len(lengths)
    writes = count if same_size else 2 * count
    write_size = 4 if same_size else 2
    reads = torch.arange(count, 0, -1, dtype=torch.int32)
    reads[1:2] = 0
    return {
        "source": torch.randn(1, count + 1, 2, 4, 5),
        "destination": torch.randn(1, writes + 1, 2, write_size, 5).to(BF16),
        "source_blocks": reads,
        "destination_blocks": torch.arange(1, writes + 1, dtype=torch.int32),
    }


def copy_runs(lengths: Sequence[int]) -> Arguments:
    """A run a sequence, as many bytes long as it has tokens, with a gap of three bytes after it."""
    num_bytes = 8 * (sum(lengths) + 3 * len(lengths)) + 16
    starts = [0, *accumulate(length + 3 for length in lengths)][: len(lengths)]
    return {
        "source": torch.randint(-128, 127, (num_bytes,), dtype=torch.int8),
        "destination": torch.zeros(num_bytes, dtype=torch.int8),
        "source_starts": torch.tensor(starts, dtype=torch.int64) * 2 + 1,
        "destination_starts": torch.tensor(starts, dtype=torch.int64) + 2,
        "lengths": torch.tensor(lengths, dtype=torch.int64),
    }


FIELDS = (StateField(0, (6, 3), (3, 1), BF16), StateField(64, (6, 4), (4, 1), F32))


def pages(lengths: Sequence[int]) -> Arguments:
    """A state block a sequence, some missing, and pages of numbers that every dtype holds."""
    page = torch.randint(32, 64, (2 * len(lengths) + 2, 1, 1, 160), dtype=torch.int8)
    return {"pages": page, "state_indices": _some_missing(len(lengths)), "fields": FIELDS}


def pack_state(lengths: Sequence[int]) -> Arguments:
    """States of dtypes that are cast."""
    states = [torch.randn(len(lengths), *field.shape) for field in FIELDS]
    return pages(lengths) | {"states": states}


def copy_state(lengths: Sequence[int]) -> Arguments:
    """From the first blocks of a pool to its last."""
    into = torch.arange(1, len(lengths) + 1, dtype=torch.int32) + len(lengths)
    sources = _some_missing(len(lengths))
    return {
        "pages": pages(lengths)["pages"],
        "source_indices": sources,
        "destination_indices": into,
    }


def _some_missing(num_seqs: int) -> Tensor:
    blocks = torch.arange(num_seqs, 0, -1, dtype=torch.int32)
    blocks[2:3] = 0
    return blocks


def causal_conv1d(lengths: Sequence[int]) -> Arguments:
    """Prompts, the last of which is padding."""
    num_tokens, dim = sum(lengths), 24
    return {
        "x": torch.randn(num_tokens, dim),
        "weight": torch.randn(dim, 4),
        "bias": torch.randn(dim),
        **_fresh_and_missing(
            recurrences.in_pool(tuple(lengths), (dim, 3), F32, True), "conv_state"
        ),
        "out": torch.zeros(num_tokens, dim),
    }


def causal_conv1d_update(lengths: Sequence[int]) -> Arguments:
    """Three new tokens a sequence, whatever its length is."""
    num_seqs, dim = len(lengths), 24
    prompts = recurrences.in_pool(tuple(lengths), (dim, 3), F32, True)
    return {
        "x": torch.randn(num_seqs, 3, dim),
        "weight": torch.randn(dim, 4),
        "bias": torch.randn(dim),
        "conv_state": prompts["ssm_state"],
        "state_indices": prompts["state_indices"],
        "out": torch.zeros(num_seqs, 3, dim),
    }


def scan(make: Callable[..., Arguments], lengths: Sequence[int], **options: Any) -> Arguments:
    """Prompts with checkpoints and a result, some fresh and one of them padding."""
    prompts = make(lengths=tuple(lengths), **options)
    prompts = _fresh_and_missing(prompts, "ssm_state")
    keep(prompts, (1, len(lengths) + 5), (3, len(lengths) + 6))
    return prompts | {"out": torch.zeros_like(prompts["x" if "x" in prompts else "v"])}


def step(
    make: Callable[..., Arguments], lengths: Sequence[int], num_new: int | None, **options: Any
) -> Arguments:
    """A step of so many tokens of each sequence, whatever its length is."""
    inputs = recurrences.step_of(make, len(lengths), num_new, **options)
    return inputs | {"out": torch.zeros_like(inputs["x" if "x" in inputs else "v"])}


def draft(make: Callable[..., Arguments], lengths: Sequence[int], **options: Any) -> Arguments:
    """Three new tokens a sequence, each of whose states is kept, the first one's in place."""
    inputs = step(make, lengths, num_new=3, **options)
    num_seqs = len(lengths)
    kept = torch.arange(3 * num_seqs, dtype=torch.int32).view(num_seqs, 3) + num_seqs + 2
    kept[:, 0] = inputs["state_indices"]
    kept[:1, 1:2] = 0
    pool = torch.randn(4 * num_seqs + 2, *inputs["ssm_state"].shape[1:])
    return inputs | {"checkpoint_indices": kept, "ssm_state": pool}


def _fresh_and_missing(prompts: Arguments, state: str) -> Arguments:
    """Every other sequence starts from zero; the one before the last is padding."""
    prompts["has_initial_state"][::2] = False
    prompts["state_indices"][-2:-1] = 0
    prompts[state] = prompts.pop("ssm_state")
    return prompts


def rms_norm(lengths: Sequence[int], norm_before_gate: bool = False) -> Arguments:
    """With everything that may join."""
    shape = (sum(lengths), 24)
    names = ("x", "residual", "gate", "out")
    rows = {name: torch.randn(shape) for name in names}
    how = {"eps": 1e-6, "group_size": 8, "norm_before_gate": norm_before_gate}
    return rows | {"weight": torch.randn(24), **how}


def expert_mlp(lengths: Sequence[int]) -> Arguments:
    """Three of four experts a token, with everything that may join."""
    num_tokens, hidden, inner = sum(lengths), 32, 16
    chosen = torch.arange(3 * num_tokens).view(num_tokens, 3) * 3 % 4
    return {
        "x": torch.randn(num_tokens, hidden),
        "up": torch.randn(4, 2 * inner, hidden) / 8,
        "down": torch.randn(4, hidden, inner) / 8,
        "expert_ids": chosen,
        "expert_weights": torch.rand(num_tokens, 3),
        "up_bias": torch.randn(4, 2 * inner),
        "down_bias": torch.randn(4, hidden),
    }


def choose_experts(lengths: Sequence[int]) -> Arguments:
    """Two of three groups of experts, with everything that may join."""
    return {
        "logits": torch.randn(sum(lengths), 12),
        "top_k": 3,
        "correction": torch.rand(12),
        "num_groups": 3,
        "num_chosen_groups": 2,
        "is_renormalised": True,
    }


def pack_weight(weight: Tensor) -> Tensor:
    """The matrix that a packed one stands for."""
    packed = kernels.pack_weight(weight)
    return packed.to_dense() if isinstance(packed, kernels.PackedWeight) else packed


def pack_experts(matrices: Sequence[Tensor]) -> Tensor:
    """The matrices that packed ones stand for."""
    packed = kernels.pack_experts(matrices)
    return packed.to_dense() if isinstance(packed, kernels.PackedWeight) else packed


MAMBA_1 = partial(recurrences.selective, dim=24)
MAMBA_2 = partial(recurrences.ssd, num_heads=6, num_groups=3, head_dim=20)
RULE = partial(recurrences.delta, num_heads=3, num_value_heads=6)
UNIT = partial(recurrences.real_gated, dim=24)
BY_CHANNEL = partial(RULE, by_channel=True)

# public function -> its calls; the first is the plain one
CALLS: dict[str, dict[str, Call]] = {
    "attention_schedule": {
        "": Call(
            planned_attention,
            lambda lengths: attention(lengths) | {"scale": 0.25, "max_query_len": max(lengths)},
        )
    },
    "block_copy": {
        "": Call(kernels.block_copy, block_copy),
        "same size": Call(kernels.block_copy, partial(block_copy, same_size=True)),
    },
    "causal_conv1d": {"": Call(kernels.causal_conv1d, causal_conv1d)},
    "causal_conv1d_update": {"": Call(kernels.causal_conv1d_update, causal_conv1d_update)},
    "copy_runs": {"": Call(kernels.copy_runs, copy_runs, dense=("source", "destination"))},
    "copy_state": {"": Call(kernels.copy_state, copy_state, dense=("pages",))},
    "expert_mlp": {"": Call(kernels.expert_mlp, expert_mlp, tolerance=1e-6)},
    "gated_delta_rule": {
        "": Call(kernels.gated_delta_rule, partial(scan, RULE), tolerance=1e-5),
        "by channel": Call(kernels.gated_delta_rule, partial(scan, BY_CHANNEL), tolerance=1e-5),
    },
    "gated_delta_rule_update": {
        "": Call(
            kernels.gated_delta_rule_update, partial(step, RULE, num_new=None), tolerance=1e-6
        ),
        "by channel": Call(
            kernels.gated_delta_rule_update, partial(draft, BY_CHANNEL), tolerance=1e-6
        ),
    },
    "kv_cache_update": {"": Call(kernels.kv_cache_update, kv_cache_update)},
    "linear": {
        "": Call(
            kernels.linear,
            lambda lengths: {
                "x": torch.randn(sum(lengths), 24),
                "weight": torch.randn(8, 24),
                "bias": torch.randn(8),
            },
            tolerance=1e-6,
        )
    },
    "pack_experts": {
        "": Call(
            pack_experts,
            lambda lengths: {"matrices": [torch.randn(256, 256) for _ in lengths]},
        )
    },
    "pack_state": {"": Call(kernels.pack_state, pack_state, dense=("pages",))},
    "choose_experts": {"": Call(kernels.choose_experts, choose_experts)},
    "pack_weight": {"": Call(pack_weight, lambda lengths: {"weight": torch.randn(256, 256)})},
    "paged_attention": {
        "": Call(kernels.paged_attention, paged_attention),
        "quantised": Call(kernels.paged_attention, quantised_attention),
    },
    "rg_lru": {"": Call(kernels.rg_lru, partial(scan, UNIT))},
    "rg_lru_update": {
        "": Call(kernels.rg_lru_update, partial(step, UNIT, num_new=3)),
        "of a draft": Call(kernels.rg_lru_update, partial(draft, UNIT)),
    },
    "rms_norm": {
        "": Call(kernels.rms_norm, rms_norm),
        "gate_last": Call(kernels.rms_norm, partial(rms_norm, norm_before_gate=True)),
    },
    "selective_scan": {"": Call(kernels.selective_scan, partial(scan, MAMBA_1))},
    "selective_state_update": {
        "": Call(kernels.selective_state_update, partial(step, MAMBA_1, num_new=3)),
    },
    "gate_and_mul": {
        "": Call(
            kernels.gate_and_mul,
            lambda lengths: {
                "gate_up": torch.randn(sum(lengths), 48),
                "out": torch.zeros(sum(lengths), 24),
            },
        )
    },
    "ssd_scan": {
        "": Call(
            partial(kernels.ssd_scan, chunk_size=16),
            partial(scan, MAMBA_2),
            tolerance=1e-5,
        )
    },
    "ssd_state_update": {"": Call(kernels.ssd_state_update, partial(step, MAMBA_2, num_new=3))},
    "unpack_state": {"": Call(kernels.unpack_state, pages, dense=("pages",))},
}
