"""Weights are plain floating-point numbers; what says that they are not is refused by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from blockstride.checks import expect

EXPECTED = "plain float32, bfloat16 or float16 weights"
KEYS = ("quantization_config", "compression_config", "quantization")
FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")


def expect_plain_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise `ValueError` if the files beside the weights say that they are quantised or adapted.

    Args:
        folder: The checkpoint.
        config: Its parsed config.json.
    """
    for key in KEYS:
        value = config.get(key)
        names = ("quant_method", "quant_algo", "format", "bits")
        if isinstance(value, Mapping):
            said = [value[name] for name in names if value.get(name)]
        else:
            said = [value]
        got = f"weights quantised by {' '.join(map(str, said)) or 'a method without a name'}"
        expect(not value, key, EXPECTED, got)
    for name in FILES:
        expect(not (folder / name).is_file(), name, EXPECTED, "quantised ones")
    adapter = "adapter_config.json"
    got = "an adapter beside the weights, which is to be merged into them"
    expect(not (folder / adapter).is_file(), adapter, EXPECTED, got)


def expect_plain_tensors(used: Collection[str], unread: Collection[str]) -> None:
    """Raise `ValueError` if a tensor that nobody has asked for changes one that somebody has.

    `x.weight_scale`, `x.g_idx` and `x.lora_A.weight` change `x.weight`. A bias that the config says
    is not there does not, as in transformers.

    Args:
        used: Names of tensors that make up the model.
        unread: Names of all others.
    """
    by_module = {name.removesuffix(".weight"): name for name in used}
    by_name = dict(zip(used, used, strict=True))
    for name in sorted(unread):
        # scales of experts that are stored as one tensor have no module of their own
        owners = {".": by_module, "_": by_name}
        ends = (i for i, letter in enumerate(name) if letter in owners)
        owner = next(filter(None, (owners[name[end]].get(name[:end]) for end in ends)), None)
        is_harmless = owner is None or name.endswith(".bias")
        expect(is_harmless, name, f"{EXPECTED} in {owner}", "a tensor that changes them")
