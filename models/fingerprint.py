"""What tells models apart whose caches must not be mixed, though they look alike.

A cache is worth something to the model alone that has made it: a fine-tune of equal shapes reads it
without complaint and goes on with other text. So a model has a fingerprint: a digest of the numbers
of its config and of every byte of its weights.

Every byte, since parts of them would not tell a fine-tune that trained one token's row, one
expert, or one bias. It is SHA-256 in pieces on all cores: the files are read once, as they are by
the load that follows. Ask once a machine, not once a rank, and hand it on.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from blockstride.models.checkpoint import Checkpoint
from blockstride.models.families import model_family

PIECE = 32 << 20
"""Bytes that one thread digests at a time."""

NO_BEARING = {
    "max_position_embeddings",
    # what the names and shapes of the tensors say, and configs in several ways
    *("attn_layer_indices", "head_dim", "block_types", "ssm_head_dim", "mamba_dt_rank"),
    *("num_key_value_heads", "tie_word_embeddings"),
    # what families with windows say as the type of each layer
    *("listed_types", "use_sliding_window", "max_window_layers"),
}
"""Numbers of a config that change no token and no cache, or that tensors tell as well."""


def model_fingerprint(path: str | Path) -> str:
    """A digest of a model: equal where one can go on with the caches of the other.

    Copies of a model have one fingerprint, whatever their folders and shards are called, in
    whatever order tensors lie in them, and however the config spells or leaves out what it means.
    The same numbers stored in another type are another model, as their rounding may differ. Types
    that caches are kept in are no part of it, nor is what ends or draws a text.

    A process remembers the answer for as long as the files keep size and time.

    Args:
        path: Hugging Face checkpoint folder of a model that runs.

    Returns:
        64 hexadecimal digits.

    Raises:
        ValueError: The checkpoint is missing, damaged or not supported.
    """
    folder = Path(path).resolve()
    files = [file for file in sorted(folder.glob("*")) if file.suffix in (".json", ".safetensors")]
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    marks = tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
    return _fingerprint(folder, marks)


@lru_cache(maxsize=64)
def _fingerprint(folder: Path, marks: tuple[tuple[str, int, int, int], ...]) -> str:
    del marks  # in the key only
    checkpoint = Checkpoint(folder)
    numbers = model_family(checkpoint.config).numbers()
    digest = hashlib.sha256(str(checkpoint.config["model_type"]).encode())
    for name in sorted(numbers.keys() - NO_BEARING):
        digest.update(f"{name}={numbers[name]!r}\n".encode())
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
        for name in sorted(checkpoint):
            tensor = checkpoint.stored(name)
            digest.update(f"{name}:{tensor.dtype}{list(tensor.shape)}\n".encode())
            for piece in threads.map(_digest, _pieces(tensor)):
                digest.update(piece)
    checkpoint.close()
    return digest.hexdigest()


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    return (raw[start : start + PIECE] for start in range(0, len(raw), PIECE))


def _digest(piece: memoryview) -> bytes:
    # releases the lock of the interpreter
    return hashlib.sha256(piece).digest()
