"""Caches of hybrid attention + Mamba models: layouts, Triton kernels, transfers, models."""

__version__ = "0.1.0"
