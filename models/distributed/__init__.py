"""Engines in processes of their own: tensor parallel, or prefill and decode joined by NIXL.

Names are looked up when they are asked for: the processes of ranks are in this package, and have no
use for what starts them.
"""

from typing import TYPE_CHECKING

from blockstride.lazy import lazy

if TYPE_CHECKING:
    from blockstride.models.distributed.deployment import Deployment
    from blockstride.models.distributed.engine_processes import EngineDiedError

__all__ = ["Deployment", "EngineDiedError"]

__getattr__ = lazy(
    __name__, {"deployment": ("Deployment",), "engine_processes": ("EngineDiedError",)}
)
