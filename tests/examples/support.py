"""A checkpoint of `train_jamba` read back, which the example itself never does."""

import dataclasses
import json
from pathlib import Path

import safetensors.torch

from train_jamba.checkpoint import parts_on_disk
from train_jamba.config import HybridConfig
from train_jamba.model import Hybrid


def load_checkpoint(folder: Path) -> Hybrid:
    stored = json.loads((folder / "config.json").read_text())
    names = [field.name for field in dataclasses.fields(HybridConfig)]
    model = Hybrid(HybridConfig(**{name: stored[name] for name in names if name in stored}))
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    for name, part in parts_on_disk(model):
        part.copy_(weights.pop(name))
    assert not weights
    return model
