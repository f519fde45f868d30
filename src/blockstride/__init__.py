"""Caches of hybrid attention + Mamba models: layouts, Triton kernels, transfers, models.

`blockstride.layouts`, `.kernels`, `.transfer` and `.models` are imported when they are first used.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockstride import kernels, layouts, models, transfer

__version__ = "0.1.0"
__all__ = ["__version__", "kernels", "layouts", "models", "transfer"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"blockstride.{name}")
    raise AttributeError(f"module 'blockstride' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
