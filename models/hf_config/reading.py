"""Reads a config.json and makes the cache spec of every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from blockstride.checks import CACHE_DTYPES, FLOATS, expect
from blockstride.dtypes import parse_dtype
from blockstride.layouts import CacheSpec
from blockstride.models.checkpoint_files import read_json
from blockstride.models.hf_config.defaults import DEFAULTS
from blockstride.models.hf_config.families import FAMILIES
from blockstride.models.hf_config.keys import Keys
from blockstride.models.hf_config.mixers import MIXERS, CacheTypes


def read_config(path: str | Path) -> dict[str, Any]:
    """The parsed config.json of a model.

    Args:
        path: The file, or the folder that it is in.

    Raises:
        ValueError: No such file, or it is not a JSON object.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    expect(file.is_file(), "config", "a config.json or a folder with one", f"nothing at {file}")
    return read_json(file)


def cache_specs(
    config: Mapping[str, Any],
    *,
    kv_cache_dtype: str = "auto",
    conv_dtype: str = "auto",
    ssm_dtype: str = "auto",
    conv_order: str = "DS",
) -> dict[str, CacheSpec]:
    """The caches of a whole model, in layer order.

    Layer `i` is called `layers.i`; one with two caches, as where attention and Mamba stand side by
    side, `layers.i.attention` and `layers.i.mamba2`. Layers without a cache are left out.

    Args:
        config: A parsed config.json, of which a `text_config` is looked into where there is one.
        kv_cache_dtype: A word of `blockstride.dtypes.WORDS`, or `"auto"` for the dtype that the
            config names, which is bfloat16 where it names none.
        conv_dtype: The same for convolution states, of 16 or 32 bits.
        ssm_dtype: One of them for recurrent states; `"auto"` for float32.
        conv_order: Memory order of convolution states, `"DS"` or `"SD"`.

    Raises:
        ValueError: Another family than those of `FAMILIES`, a key that is missing or that
            contradicts another, or an unknown dtype.
    """
    config = _text_config(config)
    model_type = repr(config.get("model_type"))
    expect(_is_known(config), "model_type", f"one of {', '.join(FAMILIES)}", model_type)
    family = FAMILIES[config["model_type"]]
    keys = Keys(config, family.names, DEFAULTS[config["model_type"]])
    types = CacheTypes(
        kv=_dtype(config, "kv_cache_dtype", kv_cache_dtype, CACHE_DTYPES),
        conv=_dtype(config, "conv_dtype", conv_dtype, FLOATS),
        # the recurrence is computed in float32
        ssm=parse_dtype(ssm_dtype, "ssm_dtype", allowed=FLOATS, auto=torch.float32),
        conv_order=conv_order,
    )
    layer_types, mixers = family.layer_types(keys), family.mixers()
    count = keys.value("num_hidden_layers") or len(layer_types)
    keys.expect(count == len(layer_types), "num_hidden_layers", f"{len(layer_types)}, as typed")
    specs: dict[str, CacheSpec] = {}
    made: dict[str, CacheSpec] = {}
    for i, layer_type in enumerate(layer_types):
        expected = f"one of {', '.join(mixers)}"
        known = isinstance(layer_type, str) and layer_type in mixers
        expect(known, f"type of layer {i}", expected, repr(layer_type))
        kinds = mixers[layer_type]
        for kind in kinds:
            if kind not in made:
                made[kind] = MIXERS[kind](keys, types)
            specs[f"layers.{i}" if len(kinds) == 1 else f"layers.{i}.{kind}"] = made[kind]
    expect(bool(specs), "config", "at least one layer with a cache", layer_types)
    return specs


def _is_known(config: Mapping[str, Any]) -> bool:
    model_type = config.get("model_type")
    return isinstance(model_type, str) and model_type in FAMILIES


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part about the language model, where a config is about several."""
    inner = config.get("text_config")
    if _is_known(config) or not isinstance(inner, Mapping):
        return config
    outer = {key: config[key] for key in ("dtype", "torch_dtype") if key in config}
    return {**outer, **inner}


def _dtype(
    config: Mapping[str, Any], argument: str, word: str, allowed: Sequence[torch.dtype]
) -> torch.dtype:
    if word == "auto":
        argument = "dtype" if config.get("dtype") else "torch_dtype"
        word = str(config.get(argument) or "bfloat16")
    return parse_dtype(word, argument, allowed=allowed)
