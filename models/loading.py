"""Loading a model in the types that its engine computes and caches in."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from blockstride.checks import FLOATS, expect
from blockstride.dtypes import WORDS, parse_dtype
from blockstride.models.cache_types import CacheTypes
from blockstride.models.checkpoint import Checkpoint, CheckpointOutline
from blockstride.models.engine import EngineConfig
from blockstride.models.families.reading import stated_dtype
from blockstride.models.hybrid_model import HybridModel
from blockstride.models.parallel import TensorParallel

logger = logging.getLogger(__name__)

KV_DTYPES = (*FLOATS, torch.float8_e4m3fn)
"""What keys and values may be cached as."""


def load_model(
    checkpoint: Checkpoint | str | Path,
    config: EngineConfig,
    *,
    dtype: str = "auto",
    device: torch.device | str | None = None,
    parallel: TensorParallel | None = None,
) -> HybridModel:
    """A model, or one rank's part of it.

    Args:
        checkpoint: Hugging Face checkpoint, or its folder, of a family in `FAMILIES` whose models
            run. It is closed when its weights are read.
        config: The engine that will run it, whose caches it writes.
        dtype: `"float32"`, `"bfloat16"`, `"float16"` or their short forms, or `"auto"`: the
            checkpoint's on a GPU, float32 on a CPU, where narrower types are slower. Weights are
            kept in that type: 16-bit ones take twice their size in memory as float32, and their
            own as `"bfloat16"`.
        device: Where to run; a GPU when there is one and this is None.
        parallel: The rank; None for the whole model.

    Raises:
        ValueError: An unknown type, or a checkpoint that is missing, damaged or not supported.
    """
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    where = find_device(device)
    compute = compute_dtype(dtype, checkpoint.config, where)
    logger.info("%s: computes in %s on %s", checkpoint.path, compute, where)
    return _make_model(checkpoint, config, compute, where, parallel)


def outline_model(
    outline: CheckpointOutline,
    config: EngineConfig,
    *,
    dtype: str,
    device: torch.device,
    parallel: TensorParallel,
) -> HybridModel:
    """What `load_model` would give, on the meta device: shapes and types, and no values.

    Args:
        outline: Hugging Face checkpoint, of which no weights are read.
        config: The engine that would run it.
        dtype: As in `load_model`.
        device: Where it would run.
        parallel: The rank.

    Raises:
        ValueError: As `load_model`, for all but weights that are not finite.
    """
    compute = compute_dtype(dtype, outline.config, device)
    return _make_model(outline, config, compute, torch.device("meta"), parallel)


def _make_model(
    checkpoint: Checkpoint,
    config: EngineConfig,
    compute: torch.dtype,
    device: torch.device,
    parallel: TensorParallel | None,
) -> HybridModel:
    types = cache_types(config, compute)
    return HybridModel(checkpoint, dtype=compute, device=device, types=types, parallel=parallel)


def cache_types(config: EngineConfig, compute: torch.dtype) -> CacheTypes:
    """What an engine caches in.

    Args:
        config: The engine.
        compute: What its model computes in.

    Raises:
        ValueError: An unknown type.
    """
    return CacheTypes(
        kv=parse_dtype(config.kv_cache_dtype, "kv_cache_dtype", allowed=KV_DTYPES, auto=compute),
        conv=compute,
        # the recurrence is computed in float32
        ssm=parse_dtype(config.ssm_dtype, "ssm_dtype", allowed=FLOATS, auto=torch.float32),
        conv_order=config.conv_order,
    )


def find_device(device: torch.device | str | None = None) -> torch.device:
    """A device that is there; the current one of all GPUs where none of them is named.

    Args:
        device: `"cpu"`, `"cuda"`, `"cuda:1"`; None: a GPU when there is one.

    Raises:
        ValueError: No such device, or none that models run on.
    """
    found = default_device() if device is None else str(device)
    kind, _, index = found.partition(":")
    expect(kind in ("cpu", "cuda"), "device", "cpu or cuda", repr(found))
    count = torch.cuda.device_count() if kind == "cuda" else 1
    expect(count > 0, "device", "a GPU that torch can use", "none")
    known = not index or (index.isdecimal() and int(index) < count)
    expect(known, "device", f"{kind}:0 to {kind}:{count - 1}", repr(found))
    if kind == "cuda" and not index:
        # tensors say which one they are on, so what is compared with them has to
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(found)


def default_device() -> str:
    """A GPU when there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def compute_dtype(name: str, config: Mapping[str, Any], device: torch.device) -> torch.dtype:
    """What a model computes in; see `load_model`.

    Raises:
        ValueError: An unknown type.
    """
    _, said = stated_dtype(config)
    stored = WORDS.get((said or "").removeprefix("torch."))
    # nothing computes in what quantised weights are stored in
    stored = stored if stored in FLOATS else torch.bfloat16
    return parse_dtype(
        name, "dtype", allowed=FLOATS, auto=torch.float32 if device.type == "cpu" else stored
    )
