"""Loading a model in the types that its engine computes and caches in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from blockstride.kernels.checks import expect
from blockstride.models.bamba import BambaModel
from blockstride.models.checkpoint import Checkpoint
from blockstride.models.engine import EngineConfig
from blockstride.models.granite import GraniteHybridModel
from blockstride.models.hybrid_model import HybridModel
from blockstride.models.jamba import JambaModel
from blockstride.models.modules import CacheDtypes
from blockstride.models.parallel import TensorParallel

MODELS: dict[str, type[HybridModel]] = {
    "bamba": BambaModel,
    "granitemoehybrid": GraniteHybridModel,
    "jamba": JambaModel,
}
"""`model_type` of a config.json -> what runs it."""

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
}


def load_model(
    path: str | Path,
    config: EngineConfig,
    *,
    dtype: str = "auto",
    device: torch.device | str | None = None,
    parallel: TensorParallel | None = None,
) -> HybridModel:
    """A model, or one rank's part of it.

    Args:
        path: Hugging Face checkpoint folder of a model in `MODELS`.
        config: The engine that will run it, whose caches it writes.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`, or `"auto"`: the checkpoint's on a GPU,
            float32 on a CPU, where narrower types are slower.
        device: Where to run; a GPU when there is one and this is None.
        parallel: The rank; None for the whole model.

    Raises:
        ValueError: An unknown type, or a checkpoint that is missing, damaged or not supported.
    """
    checkpoint = Checkpoint(path)
    where = torch.device(device or default_device())
    compute = _compute_dtype(dtype, checkpoint.config, where)
    caches = CacheDtypes(
        kv=_dtype(config.kv_cache_dtype, "kv_cache_dtype", compute),
        conv=compute,
        # the recurrence is computed in float32
        ssm=_wide_dtype(config.ssm_dtype, "ssm_dtype", torch.float32),
    )
    return model_class(checkpoint.config)(
        checkpoint,
        dtype=compute,
        device=where,
        dtypes=caches,
        conv_order=config.conv_order,
        parallel=parallel,
    )


def model_class(config: Mapping[str, Any]) -> type[HybridModel]:
    """What runs the model of a parsed config.json.

    Raises:
        ValueError: Nothing does.
    """
    kind = config.get("model_type")
    parts = (name for name in ("text_config", "llm_config") if isinstance(config.get(name), dict))
    part = next(parts, None)
    got = repr(kind)
    if part is not None:
        got += f", a model of several parts, whose {part} is {config[part].get('model_type')!r}"
    is_known = isinstance(kind, str) and kind in MODELS
    expect(is_known, "model_type", f"one of {', '.join(MODELS)}", got)
    return MODELS[str(kind)]


def default_device() -> str:
    """A GPU when there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _compute_dtype(name: str, config: dict[str, Any], device: torch.device) -> torch.dtype:
    stored = DTYPES.get(str(config.get("dtype") or config.get("torch_dtype")), torch.bfloat16)
    return _wide_dtype(name, "dtype", torch.float32 if device.type == "cpu" else stored)


def _wide_dtype(name: str, argument: str, auto: torch.dtype) -> torch.dtype:
    dtype = _dtype(name, argument, auto)
    expect(dtype.itemsize > 1, argument, "float32, bfloat16 or float16", name)
    return dtype


def _dtype(name: str, argument: str, auto: torch.dtype) -> torch.dtype:
    known = {"auto": auto, **DTYPES}
    expect(name in known, argument, f"'auto' or one of {', '.join(DTYPES)}", repr(name))
    return known[name]
