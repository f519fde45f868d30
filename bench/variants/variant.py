"""A form of a kernel that the tests compile, and what the lists of forms are made with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from aot import meta

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
FP8, INT8 = torch.float8_e4m3fn, torch.int8


@dataclass(frozen=True)
class Variant:
    """A call, and the cache bytes that its hot loop reads for a token (0: count what it moves).

    Where rare paths stand beside what a program does, `moved` says what it must move instead, given
    its meta-parameters.
    """

    name: str
    call: Callable[[], object]
    token_bytes: int = 0
    needs_fp8: bool = False
    moved: Callable[[dict[str, Any]], int] | None = None


def ids(count: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return meta(count, dtype=dtype)
