"""What the caches of a model hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class CacheTypes:
    """What the caches of a model hold, and in which order.

    Attributes:
        kv: Dtype of keys and values.
        conv: Dtype of convolution states.
        ssm: Dtype of recurrent states.
        conv_order: Memory order of convolution states, `"DS"` or `"SD"`.
    """

    kv: torch.dtype
    conv: torch.dtype
    ssm: torch.dtype = torch.float32
    conv_order: str = "DS"

    @property
    def state(self) -> dict[str, Any]:
        """What a spec of convolved and recurrent states is told of it, by keyword."""
        return {"conv_dtype": self.conv, "ssm_dtype": self.ssm, "conv_order": self.conv_order}
