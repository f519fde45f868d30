"""A Hugging Face checkpoint folder: config.json, safetensors shards, tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor

from blockstride.kernels.checks import expect
from blockstride.layouts import Interval

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


class Part(NamedTuple):
    """Some rows, columns, ... of a tensor."""

    dim: int
    interval: Interval


class Checkpoint:
    """The files of one model, opened lazily and read tensor by tensor.

    Args:
        path: Folder with config.json and either model.safetensors or its index and shards.

    Raises:
        ValueError: The folder, config.json, or the weights are missing or are not what they should
            be. Nothing is read of the weights but their headers.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        expect(self.path.is_dir(), "model", "a checkpoint folder", str(path))
        self.config = read_json(self.path / "config.json")
        self._shard_of = self._index()
        self._open: dict[str, Any] = {}
        self.unread = set(self._shard_of)

    def _index(self) -> dict[str, str]:
        index, single = self.path / INDEX, self.path / SINGLE
        if index.is_file():
            shards = read_json(index).get("weight_map")
            expect(isinstance(shards, dict), INDEX, "a weight_map", shards)
            return dict(shards)  # type: ignore[arg-type]
        expect(single.is_file(), "model", f"{SINGLE} or {INDEX} in the folder", str(self.path))
        return dict.fromkeys(_open_shard(single).keys(), SINGLE)

    def __contains__(self, name: str) -> bool:
        return name in self._shard_of

    def tensor(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part | None = None
    ) -> Tensor:
        """The tensor called `name`, or a part of it, as `dtype`.

        Args:
            name: Its name.
            shape: The shape that the whole tensor must have.
            dtype: What it is converted to.
            part: What to read; nothing else of the file is.

        Raises:
            ValueError: It is missing, has another shape, or its shard is missing or damaged.
        """
        expect(name in self._shard_of, "weights", name, f"a checkpoint without it in {self.path}")
        file = self._shard_of[name]
        if file not in self._open:
            self._open[file] = _open_shard(self.path / file)
        try:
            stored = self._open[file].get_slice(name)
            got = tuple(stored.get_shape())
            expect(got == shape, name, f"shape {shape}", got)
            tensor = stored[_index(part)] if part else self._open[file].get_tensor(name)
        except SafetensorError as error:
            raise ValueError(f"{file}: expected a tensor {name}, got {error}") from error
        self.unread.discard(name)
        return tensor.to(dtype)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer in tokenizer.json.

        Raises:
            ValueError: The file is missing or is not a tokenizer.
        """
        file = self.path / "tokenizer.json"
        expect(file.is_file(), "model", "tokenizer.json in the folder", str(self.path))
        try:
            return Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"tokenizer.json: expected a tokenizer, got {error}") from error

    def close(self) -> None:
        """Lets go of the shards."""
        self._open.clear()


def _index(part: Part) -> tuple[slice, ...]:
    return (*[slice(None)] * part.dim, slice(*part.interval))


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ValueError: No such file, or it is not a JSON object.
    """
    expect(file.is_file(), "model", f"{file.name} in the folder", str(file.parent))
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file.name}: expected JSON, got {error}") from error
    expect(isinstance(values, dict), file.name, "a JSON object", type(values).__name__)
    return values


def _open_shard(file: Path) -> Any:
    expect(file.is_file(), "weights", f"the shard {file.name}", "no such file")
    try:
        return safe_open(file, framework="pt").__enter__()
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file.name}: expected a safetensors file, got {error}") from error
