"""The files of a checkpoint folder, and what is wrong with those that can't be read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from blockstride.checks import expect

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
OTHER_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.safetensors.index.json")
LFS_POINTER = b"version https://git-lfs"
FLOATS = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file, in which numbers that JSON doesn't have may be spelled out.

    Raises:
        ValueError: No such file, or it is not a JSON object.
    """
    expect(file.is_file(), "model", f"{file.name} in the folder", str(file.parent))
    expect_content(file)
    try:
        values = json.loads(file.read_text(encoding="utf-8-sig"), object_hook=_number)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{file.name}: expected JSON, got {error}") from error
    expect(isinstance(values, dict), file.name, "a JSON object", type(values).__name__)
    return values


def _number(values: dict[str, Any]) -> Any:
    """What an object stands for: `{"__float__": "Infinity"}` is how transformers writes one."""
    spelled = values.get("__float__")
    is_number = len(values) == 1 and isinstance(spelled, str) and spelled in FLOATS
    return FLOATS[str(spelled)] if is_number else values


def find_weights(folder: Path) -> dict[str, Any]:
    """Name of each tensor -> the open shard that has it.

    Raises:
        ValueError: There are no weights, or a shard is missing, damaged, or another than the index
            says.
    """
    single, index = folder / SINGLE, folder / INDEX
    if single.is_file():
        shard = _open_shard(single)
        return dict.fromkeys(shard.keys(), shard)
    there = sorted({file.name for kind in OTHER_WEIGHTS for file in folder.glob(kind)})
    got = f"{', '.join(there[:3])} in {folder}" if there else str(folder)
    expect(index.is_file(), "model", f"{SINGLE} or {INDEX} in the folder", got)
    shard_of = read_json(index).get("weight_map")
    fits = isinstance(shard_of, Mapping) and all(isinstance(f, str) for f in shard_of.values())
    expect(fits, INDEX, "a weight_map", repr(shard_of))
    assert isinstance(shard_of, Mapping)
    shards = {file: _open_shard(folder / file) for file in sorted(set(shard_of.values()))}
    names = {file: set(shard.keys()) for file, shard in shards.items()}
    for name, file in shard_of.items():
        expect(name in names[file], file, f"the tensor {name}, as {INDEX} says", "none")
    return {name: shards[file] for name, file in shard_of.items()}


def _open_shard(file: Path) -> Any:
    expect(file.is_file(), "weights", f"the shard {file.name}", "no such file")
    expect_content(file)
    try:
        return safe_open(file, framework="pt").__enter__()
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file.name}: expected a safetensors file, got {error}") from error


def expect_content(file: Path) -> None:
    """Raise `ValueError` if a file is what Git leaves in place of a large one."""
    with file.open("rb") as opened:
        is_pointer = opened.read(len(LFS_POINTER)) == LFS_POINTER
    expect(
        not is_pointer, file.name, "its content", "a Git LFS pointer ('git lfs pull' gets the file)"
    )
