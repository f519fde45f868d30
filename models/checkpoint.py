"""A Hugging Face checkpoint folder: config.json, safetensors shards, tokenizer.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import Tensor

from blockstride.checks import expect
from blockstride.dtypes import dtype_name
from blockstride.layouts import Interval
from blockstride.models.checkpoint_files import expect_content, find_weights, read_json
from blockstride.models.language_part import language_part
from blockstride.models.mapped_file import MappedPages
from blockstride.models.plain_weights import expect_plain_config, expect_plain_tensors

PLAIN = {"F64", "F32", "F16", "BF16"}
"""Types of weights that are what they say."""


class Part(NamedTuple):
    """Some rows, columns, ... of a tensor."""

    dim: int
    interval: Interval


class Checkpoint:
    """The files of one model, opened at once and read tensor by tensor.

    Args:
        path: Folder with config.json and either model.safetensors or its index and shards.

    Attributes:
        path: The folder.
        config: The parsed config.json, of a model of several parts that of its language model.
        generation: The parsed generation_config.json; None where there is none.
        unread: Names of the tensors that nobody has asked for.

    Raises:
        ValueError: The folder, config.json, or the weights are missing, are not what they should
            be, or are quantised. Nothing is read of the weights but their headers.
    """

    def __init__(self, path: str | Path) -> None:
        is_path = isinstance(path, str | Path)
        expect(is_path, "model", "the path of a checkpoint folder", repr(path), TypeError)
        self.path = Path(path)
        expect(self.path.is_dir(), "model", "a checkpoint folder", str(path))
        whole = read_json(self.path / "config.json")
        self.config = language_part(whole)
        generation = self.path / "generation_config.json"
        self.generation = read_json(generation) if generation.is_file() else None
        for config in (whole, self.config):
            expect_plain_config(self.path, config)
        self._shards = find_weights(self.path)
        self._pages = MappedPages(set(self.path.glob("*.safetensors")))
        self.unread = set(self._shards)

    def end_tokens(self) -> frozenset[int]:
        """The tokens that end a text: those of generation_config.json, or else of config.json.

        Raises:
            ValueError: Something else than a token or several.
        """
        said = (self.generation or {}).get("eos_token_id")
        said = self.config.get("eos_token_id") if said is None else said
        tokens = [] if said is None else said if isinstance(said, list) else [said]
        fits = all(isinstance(token, int) and not isinstance(token, bool) for token in tokens)
        expect(fits, "eos_token_id", "a token or a list of tokens", repr(said))
        return frozenset(tokens)

    def __contains__(self, name: str) -> bool:
        return name in self._shards

    def __iter__(self) -> Iterator[str]:
        """Names of all tensors."""
        return iter(self._shards)

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
            ValueError: It is missing, has another shape, holds something else than floating-point
                numbers, or numbers that are not finite, as stored or as `dtype`.
        """
        got = self.shape(name)
        expect(got == shape, name, f"shape {shape}", got)
        try:
            kind = self._shards[name].get_slice(name).get_dtype()
            expect(kind in PLAIN, name, "float32, bfloat16 or float16 weights", f"{kind} ones")
            tensor = self._read(name, shape, dtype, part)
        except SafetensorError as error:
            raise ValueError(f"weights: expected a tensor {name}, got {error}") from error
        self.unread.discard(name)
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the tensor called `name`, as it is stored.

        Raises:
            ValueError: It is missing.
        """
        if name not in self._shards:
            expect(False, "weights", name, self._instead_of(name))
        return tuple(self._shards[name].get_slice(name).get_shape())

    def _read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part | None
    ) -> Tensor:
        """See `tensor`, for one that is there and as it should be."""
        shard = self._shards[name]
        tensor = shard.get_slice(name)[_index(part)] if part else shard.get_tensor(name)
        read = _finite(name, tensor.to(dtype))
        self._pages.add(tensor)
        return read

    def _instead_of(self, name: str) -> str:
        """What there is where a tensor is not, for a message."""
        near = [other for other in self._shards if other.endswith(f".{name}")]
        return min(near) if near else f"a checkpoint without it in {self.path}"

    def stored(self, name: str) -> Tensor:
        """A tensor as it lies in its file."""
        return self._shards[name].get_tensor(name)

    def is_copy(self, prefix: str, of: str) -> bool:
        """Whether all tensors with a prefix are those of another; so nobody needs to ask for them.

        Args:
            prefix: What their names begin with.
            of: What those of the others begin with, which go on alike.
        """
        names = {name: of + name.removeprefix(prefix) for name in self if name.startswith(prefix)}
        is_copy = all(of in self and self._equal(name, of) for name, of in names.items())
        if is_copy:
            self.unread -= names.keys()
        return is_copy

    def _equal(self, name: str, other: str) -> bool:
        return torch.equal(self.stored(name), self.stored(other))

    def expect_all_known(self) -> set[str]:
        """Tensors that nobody has asked for, none of which changes one that somebody has.

        Raises:
            ValueError: One does, as scales of quantised weights and adapters do.
        """
        expect_plain_tensors(set(self._shards) - self.unread, self.unread)
        return self.unread

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer in tokenizer.json; it neither cuts nor pads what it is given.

        Returns:
            None where there is no such file: prompts are tokens then.

        Raises:
            ValueError: The file is not a tokenizer.
        """
        file = self.path / "tokenizer.json"
        if not file.is_file():
            return None
        expect_content(file)
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"tokenizer.json: expected a tokenizer, got {error}") from error
        # files keep what the last batch of a training was prepared with
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def close(self) -> None:
        """Lets go of the shards, and of what memory they take."""
        self._pages.close()
        self._shards = {}


class CheckpointOutline(Checkpoint):
    """A checkpoint whose tensors have shapes and types, and no values: nothing is read of them.

    A model that is made of it raises what one of the checkpoint does, values that are not finite
    apart.
    """

    def _read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part | None
    ) -> Tensor:
        whole = torch.empty(shape, dtype=dtype, device="meta")
        return whole[_index(part)] if part else whole

    def _equal(self, name: str, other: str) -> bool:
        # there are no values that could differ
        return True

    def expect_all_known(self) -> set[str]:
        """As of a checkpoint, whose reader it is who speaks of tensors that nobody wants."""
        super().expect_all_known()
        return set()


def _index(part: Part) -> tuple[slice, ...]:
    return (*[slice(None)] * part.dim, slice(*part.interval))


def _finite(name: str, tensor: Tensor) -> Tensor:
    """The tensor, if all of it is finite."""
    # one pass without a mask in memory: a sum is finite only if every addend is
    if not tensor.sum(dtype=torch.float32).isfinite():
        bad = tensor[~tensor.isfinite()]
        kind = dtype_name(tensor.dtype)
        expect(not len(bad), name, f"numbers that are finite in {kind}", f"{len(bad)} that are not")
    return tensor
