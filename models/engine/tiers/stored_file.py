"""A file of a prefix: what it has, and what it says of that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from blockstride.models.engine.prefix_tree import Tokens


class Tag(msgspec.Struct, frozen=True):
    """What a file says of its tokens: all of the sequence, and a digest of who may use it."""

    salt: str
    tokens: bytes


@dataclass(eq=False)
class StoredFile:
    """A file.

    Attributes:
        path: Where it is.
        salt: Digest of who may use it.
        tokens: Those of its sequence.
        start: How many of them come before what it has.
        has_states: Whether it has the states after them.
        nbytes: Its size.
        used: When it was last of use; in seconds, as the file system has it.
        is_whole: Whether it has been written.
    """

    path: Path
    salt: str
    tokens: Tokens
    start: int
    has_states: bool
    nbytes: int = 0
    used: float = 0.0
    is_whole: bool = False


class Part(NamedTuple):
    """A file, how many tokens of its sequence are wanted, and whether the states after them are."""

    file: StoredFile
    num_tokens: int
    has_states: bool


def tag_of(file: StoredFile) -> bytes:
    """What a file says of its tokens."""
    return msgspec.msgpack.encode(Tag(file.salt, file.tokens.astype(np.int32).tobytes()))
