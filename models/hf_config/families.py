"""The families of models: how each names its numbers, and which mixer stands in which layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blockstride.models.hf_config.keys import Keys

NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""What `hybrid_override_pattern` writes for a layer."""


@dataclass(frozen=True)
class Family:
    """How the configs of a model type are read.

    Attributes:
        layer_types: What each layer is, in the words of `mixers`.
        recurrent: The kind of mixer behind the words `mamba`, `linear_attention` and `hybrid`.
        names: Role -> the keys that hold it, where they are not called as the role is.
    """

    layer_types: Callable[[Keys], list[Any]]
    recurrent: str = ""
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def mixers(self) -> dict[str, tuple[str, ...]]:
        """Type of a layer -> the kinds of mixers in it that have a cache."""
        mixers: dict[str, tuple[str, ...]] = {
            "attention": ("attention",),
            "full_attention": ("attention",),
            "sliding_attention": ("window",),
            "latent_attention": ("latent",),
            "conv": ("conv",),
            "mlp": (),
            "moe": (),
        }
        if self.recurrent:
            mixers["mamba"] = mixers["linear_attention"] = (self.recurrent,)
            mixers["hybrid"] = ("attention", self.recurrent)
        return mixers


def _every(layer_type: str) -> Callable[[Keys], list[Any]]:
    """All layers alike."""
    return lambda keys: [layer_type] * keys.count("num_hidden_layers")


def _listed(keys: Keys) -> list[Any]:
    """A list with a word for every layer."""
    types = keys.value("layer_types")
    keys.expect(isinstance(types, list), "layer_types", "a list with a type for every layer")
    return types


def _listed_or_every(layer_type: str) -> Callable[[Keys], list[Any]]:
    """The list where there is one, else all layers alike."""
    return _listed_or(_every(layer_type))


def _listed_or(other: Callable[[Keys], list[Any]]) -> Callable[[Keys], list[Any]]:
    """The list where there is one, else what older files say instead."""
    return lambda keys: other(keys) if keys.value("layer_types") is None else _listed(keys)


def _periodic(keys: Keys) -> list[Any]:
    """Jamba: attention in one layer of each period."""
    period, offset = keys.count("attn_layer_period"), keys.value("attn_layer_offset")
    inside = isinstance(offset, int) and 0 <= offset < period
    keys.expect(inside, "attn_layer_offset", f"0 to {period - 1}")
    layers = range(keys.count("num_hidden_layers"))
    return ["attention" if i % period == offset else "mamba" for i in layers]


def _interval(keys: Keys) -> list[Any]:
    """Qwen3-Next: attention in the last layer of each interval."""
    interval = keys.count("full_attention_interval")
    layers = range(keys.count("num_hidden_layers"))
    return ["linear_attention" if (i + 1) % interval else "full_attention" for i in layers]


def _indexed(role: str, other: str) -> Callable[[Keys], list[Any]]:
    """Attention in the layers that a list names, `other` in the rest."""

    def types(keys: Keys) -> list[Any]:
        count, indices = keys.count("num_hidden_layers"), keys.value(role)
        indices = [] if indices is None else indices
        known = isinstance(indices, list) and all(i in range(count) for i in indices)
        keys.expect(known, role, f"a list of layers from 0 to {count - 1}")
        return ["attention" if i in indices else other for i in range(count)]

    return types


def _windowed(keys: Keys) -> list[Any]:
    """Mistral: a window in all layers, or in none."""
    has_window = keys.value("sliding_window") is not None
    return _every("sliding_attention" if has_window else "full_attention")(keys)


def _windowed_from(keys: Keys) -> list[Any]:
    """Qwen 2 and 3: a window from one layer on, if it is switched on at all."""
    if not keys.value("use_sliding_window") or keys.value("sliding_window") is None:
        return _every("full_attention")(keys)
    first = keys.value("max_window_layers")
    keys.expect(isinstance(first, int), "max_window_layers", "a layer")
    layers = range(keys.count("num_hidden_layers"))
    return ["sliding_attention" if i >= first else "full_attention" for i in layers]


def _lettered(keys: Keys) -> list[Any]:
    """Nemotron-H: a letter for every layer."""
    pattern = keys.value("hybrid_override_pattern")
    known = isinstance(pattern, str) and set(pattern) <= set(NEMOTRON_LETTERS)
    letters = ", ".join(NEMOTRON_LETTERS)
    keys.expect(known, "hybrid_override_pattern", f"a string of {letters} without layer_types")
    return [NEMOTRON_LETTERS[letter] for letter in pattern]


# what hybrids call the numbers of their Mamba mixers, and what pure Mamba models call them
_HYBRID = {
    "d_state": ("mamba_d_state",),
    "d_conv": ("mamba_d_conv",),
    "expand": ("mamba_expand",),
    "d_inner": (),
}
_MAMBA2 = {
    **_HYBRID,
    "ssm_heads": ("mamba_n_heads",),
    "ssm_head_dim": ("mamba_d_head",),
    "groups": ("mamba_n_groups",),
    "layer_types": ("layers_block_type", "layer_types"),
}
_PURE = {"d_state": ("state_size",), "d_conv": ("conv_kernel",), "d_inner": ()}
_MAMBA = Family(_every("mamba"), "mamba1", _PURE)
_QWEN = Family(_listed_or(_windowed_from))
_MISTRAL = Family(_listed_or(_windowed))
_LFM2 = Family(_listed_or(_indexed("full_attn_idxs", "conv")))
_DEEPSEEK = Family(_every("latent_attention"))
_DELTA = Family(_listed_or(_interval), "delta")

FAMILIES: Mapping[str, Family] = {
    "bamba": Family(_indexed("attn_layer_indices", "mamba"), "mamba2", _MAMBA2),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "falcon_h1": Family(_every("hybrid"), "mamba2", {**_MAMBA2, "d_inner": ("mamba_d_ssm",)}),
    "falcon_mamba": _MAMBA,
    "granitemoehybrid": Family(_listed_or_every("mamba"), "mamba2", _MAMBA2),
    "jamba": Family(_periodic, "mamba1", _HYBRID),
    "lfm2": _LFM2,
    "lfm2_moe": _LFM2,
    "llama": Family(_every("full_attention")),
    "mamba": _MAMBA,
    "mamba2": Family(
        _every("mamba"),
        "mamba2",
        {
            **_PURE,
            "ssm_heads": ("num_heads",),
            "ssm_head_dim": ("head_dim",),
            "groups": ("n_groups",),
        },
    ),
    "mistral": _MISTRAL,
    "mixtral": _MISTRAL,
    "nemotron_h": Family(
        _listed_or(_lettered),
        "mamba2",
        {
            "head_dim": ("head_dim", "attention_head_dim"),
            "ssm_heads": ("mamba_num_heads",),
            "ssm_head_dim": ("mamba_head_dim",),
            "groups": ("mamba_n_groups", "n_groups"),
            "d_state": ("ssm_state_size",),
            "d_conv": ("mamba_d_conv", "conv_kernel"),
            "d_inner": (),
            # the list of its layers tells their number
            "num_hidden_layers": (),
            # its own "expand" does not tell the width of its mixers
            "expand": (),
            "layer_types": ("layers_block_type", "layer_types"),
        },
    ),
    "qwen2": _QWEN,
    "qwen2_moe": _QWEN,
    "qwen3": _QWEN,
    "qwen3_moe": _QWEN,
    "qwen3_5_moe_text": _DELTA,
    "qwen3_5_text": _DELTA,
    "qwen3_next": _DELTA,
    "zamba2": Family(
        _listed,
        "mamba2",
        {
            **_MAMBA2,
            "head_dim": ("head_dim", "attention_head_dim"),
            "attention_width": ("attention_hidden_size",),
            "ssm_heads": ("n_mamba_heads",),
            "ssm_head_dim": ("mamba_headdim",),
            "groups": ("mamba_ngroups",),
        },
    ),
}
"""The `model_type`s that are known."""
