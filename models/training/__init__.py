"""Training of small Jamba-style hybrids on CPUs, in transformers' parameterisation."""

from blockstride.models.training.checkpoint import load_checkpoint, save_checkpoint
from blockstride.models.training.config import CONFIGS, HybridConfig
from blockstride.models.training.evaluate import bits_per_byte
from blockstride.models.training.options import TrainingOptions
from blockstride.models.training.trainer import Progress, train

__all__ = [
    "CONFIGS",
    "HybridConfig",
    "Progress",
    "TrainingOptions",
    "bits_per_byte",
    "load_checkpoint",
    "save_checkpoint",
    "train",
]
