"""Weights are read without a second copy of them, and what is given back is only the file's."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockstride.layouts import Interval
from blockstride.models import mapped_file
from blockstride.models.checkpoint import Checkpoint, Part
from blockstride.models.mapped_file import MappedPages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what is in memory")

MEASURE = """
import sys, threading, torch
from pathlib import Path
from blockstride import kernels
from blockstride.models.checkpoint import Checkpoint
from blockstride.models.modules import LayerWeights
from blockstride.models.parallel import TensorParallel

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) << 10

kernels.pack_weight(torch.randn(512, 512))
checkpoint = Checkpoint(sys.argv[1])
weights = LayerWeights(checkpoint, "", torch.float32, torch.device("cpu"), TensorParallel())
before, kept, peak = resident(), [], 0
for name in checkpoint:
    kept.append(weights.matrix(name, 1024, 1024))
    peak = max(peak, resident())
checkpoint.close()
print(peak - before, resident() - before)
"""


@pytest.fixture
def folder(reference, tmp_path):
    """A checkpoint of 32 matrices, 128 MiB as float32."""
    (tmp_path / "config.json").write_text((reference.path / "config.json").read_text())

    def make(dtype):
        matrices = {f"m{i:02}": torch.randn(1024, 1024).to(dtype) for i in range(32)}
        save_file(matrices, tmp_path / "model.safetensors")
        return tmp_path

    return make


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_loading_takes_little_more_memory_than_the_weights(folder, dtype):
    line = [sys.executable, "-c", MEASURE, str(folder(dtype))]
    said = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    peak, after = (int(word) / (128 << 20) for word in said.split())
    assert (peak < 1.2, after < 1.1) == (True, True), (peak, after)


def test_what_is_held_reads_the_same_after_its_pages_are_given_back(folder, monkeypatch):
    monkeypatch.setattr(mapped_file, "HELD_BYTES", 1)
    path = folder(torch.float32)
    expected = load_file(path / "model.safetensors")
    checkpoint = Checkpoint(path)
    whole = {name: checkpoint.tensor(name, (1024, 1024), torch.float32) for name in checkpoint}
    part = checkpoint.tensor("m03", (1024, 1024), torch.float32, Part(1, Interval(5, 9)))
    checkpoint.close()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in whole.items())
    assert torch.equal(part, expected["m03"][:, 5:9])


def test_memory_that_is_no_files_is_never_given_back(folder, monkeypatch):
    given = []
    monkeypatch.setattr(mapped_file, "_give_back", lambda *each: given.append(each))
    path = folder(torch.float32)
    pages = MappedPages({path / "model.safetensors"})
    pages.add(torch.ones(1 << 20))
    pages.close()
    assert given == []
    checkpoint = Checkpoint(path)
    pages.add(checkpoint.stored("m00"))
    pages.add(torch.ones(1 << 20))
    pages.release()
    # once as it was read, once as it was closed
    assert len({*given}) == 1
