"""Which model, and in which types: what every process that loads it must agree on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from blockstride.kernels.checks import expect
from blockstride.models.checkpoint import Checkpoint
from blockstride.models.jamba import CacheDtypes, JambaModel
from blockstride.models.parallel import TensorParallel

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
}


@dataclass(frozen=True)
class ModelOptions:
    """A checkpoint, and how to load it.

    Attributes:
        path: Hugging Face checkpoint folder of a Jamba model.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`, or `"auto"`: the checkpoint's on a GPU,
            float32 on a CPU, where narrower types are slower.
        kv_cache_dtype: What keys and values are cached as, also `"float8_e4m3fn"`; `"auto"` as
            `dtype`.
        conv_order: Memory order of convolution states, `"DS"` or `"SD"`.
    """

    path: str | Path
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    conv_order: str = "DS"

    def load(
        self, device: torch.device | str | None = None, parallel: TensorParallel | None = None
    ) -> JambaModel:
        """The model, or one rank's part of it.

        Args:
            device: Where to run; a GPU when there is one and this is None.
            parallel: The rank.

        Raises:
            ValueError: An unknown type, or a checkpoint that is missing, damaged or not supported.
        """
        checkpoint = Checkpoint(self.path)
        where = torch.device(device or default_device())
        compute = self._compute_dtype(checkpoint.config, where)
        cached = compute
        if self.kv_cache_dtype != "auto":
            cached = _dtype(self.kv_cache_dtype, "kv_cache_dtype")
        return JambaModel(
            checkpoint,
            dtype=compute,
            device=where,
            dtypes=CacheDtypes(kv=cached, conv=compute),
            conv_order=self.conv_order,
            parallel=parallel,
        )

    def _compute_dtype(self, config: dict[str, Any], device: torch.device) -> torch.dtype:
        if self.dtype != "auto":
            dtype = _dtype(self.dtype, "dtype")
            expect(dtype.itemsize > 1, "dtype", "float32, bfloat16 or float16", self.dtype)
            return dtype
        if device.type == "cpu":
            return torch.float32
        return DTYPES.get(str(config.get("dtype") or config.get("torch_dtype")), torch.bfloat16)


def default_device() -> str:
    """A GPU when there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _dtype(name: str, argument: str) -> torch.dtype:
    expect(name in DTYPES, argument, f"'auto' or one of {', '.join(DTYPES)}", repr(name))
    return DTYPES[name]
