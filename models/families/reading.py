"""From a config.json to the family that reads it, and to the caches of its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from blockstride.checks import CACHE_DTYPES, FLOATS, expect
from blockstride.dtypes import parse_dtype
from blockstride.layouts import CacheSpec
from blockstride.models.cache_types import CacheTypes
from blockstride.models.checkpoint_files import read_json
from blockstride.models.families.family import Family, ModelFamily
from blockstride.models.families.table import FAMILIES
from blockstride.models.language_part import language_part, model_type

Kind = TypeVar("Kind", bound=Family)


def read_config(path: str | Path) -> dict[str, Any]:
    """The parsed config.json of a model.

    Args:
        path: The file, or the folder that it is in.

    Raises:
        TypeError: It is no path.
        ValueError: No such file, or it is not a JSON object.
    """
    is_path = isinstance(path, str | Path)
    expect(is_path, "config", "a parsed config.json, or its path", repr(path), TypeError)
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    expect(file.is_file(), "config", "a config.json or a folder with one", f"nothing at {file}")
    return read_json(file)


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a parsed config.json, which reads it.

    Args:
        config: The file, of which the language part is looked into where there are several.

    Raises:
        ValueError: It is none of `FAMILIES`.
    """
    config = language_part(config)
    return _known(config, FAMILIES)(config)


def model_family(config: Mapping[str, Any]) -> ModelFamily:
    """As `family_of`, of those whose models run, with keys such that this one does.

    Raises:
        ValueError: Nothing runs it, or a key can't be.
    """
    config = language_part(config)
    runs = {name: family for name, family in FAMILIES.items() if issubclass(family, ModelFamily)}
    family = _known(config, runs)(config)
    family.check()
    return family


def cache_specs(
    config: Mapping[str, Any] | str | Path,
    *,
    kv_cache_dtype: str = "auto",
    conv_dtype: str = "auto",
    ssm_dtype: str = "auto",
    conv_order: str = "DS",
) -> dict[str, CacheSpec]:
    """The caches of a whole model, in layer order, from its config.json alone.

    Layer `i` is called `layers.i`; one with two caches, as where attention and Mamba stand side by
    side, `layers.i.attention` and `layers.i.mamba2`. Layers without a cache are left out.

    Args:
        config: A parsed config.json, of which the language part is looked into where there are
            several; or its path, or that of the folder that it is in.
        kv_cache_dtype: A word of `blockstride.dtypes.WORDS`, or `"auto"` for the dtype that the
            config names, which is bfloat16 where it names none.
        conv_dtype: The same for convolution states, of 16 or 32 bits.
        ssm_dtype: One of them for recurrent states; `"auto"` for float32.
        conv_order: Memory order of convolution states, `"DS"` or `"SD"`.

    Raises:
        ValueError: No such file, another family than those of `FAMILIES`, a key that is missing or
            that contradicts another, or an unknown dtype.
    """
    family = family_of(config if isinstance(config, Mapping) else read_config(config))
    types = CacheTypes(
        kv=_dtype(family.values, "kv_cache_dtype", kv_cache_dtype, CACHE_DTYPES),
        conv=_dtype(family.values, "conv_dtype", conv_dtype, FLOATS),
        # the recurrence is computed in float32
        ssm=parse_dtype(ssm_dtype, "ssm_dtype", allowed=FLOATS, auto=torch.float32),
        conv_order=conv_order,
    )
    specs = family.cache_specs(types)
    expect(bool(specs), "config", "at least one layer with a cache", family.layer_types())
    return specs


def stated_dtype(config: Mapping[str, Any]) -> tuple[str, str | None]:
    """The key with which a config.json says what its weights are, and what it says."""
    key = "dtype" if config.get("dtype") else "torch_dtype"
    value = config.get(key)
    return key, str(value) if value else None


def _known(config: Mapping[str, Any], families: Mapping[str, type[Kind]]) -> type[Kind]:
    """The family that a config names, of some."""
    kind = config.get("model_type")
    known = isinstance(kind, str) and kind in families
    expect(known, "model_type", f"one of {', '.join(families)}", model_type(config))
    return families[str(kind)]


def _dtype(
    config: Mapping[str, Any], argument: str, word: str, allowed: Sequence[torch.dtype]
) -> torch.dtype:
    if word == "auto":
        argument, said = stated_dtype(config)
        word = said or "bfloat16"
    return parse_dtype(word, argument, allowed=allowed)
