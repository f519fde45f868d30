"""What ranks are told about tiers, and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32


class Table(NamedTuple):
    """Blocks of one group at consecutive positions.

    Attributes:
        first: Position of the first.
        ids: The blocks.
        present: Tokens at the beginning of the first that are there already.
    """

    first: int
    ids: Int32[np.ndarray, " blocks"]
    present: int = 0


Copies = Sequence[tuple[int, int, int]]
"""Group, block that is read, block that is written."""


class Demote(NamedTuple):
    """Copy blocks of the pools to host memory, before anything else is done to them."""

    copies: Copies


class Save(NamedTuple):
    """Write a part of a sequence from host memory to a file.

    Attributes:
        job: What is answered to.
        path: The file.
        save_id: What ranks that write it have in common.
        num_tokens: Tokens of the sequence.
        start: Those before the part.
        num_states: Its states: 1, or 0.
        tables: Blocks of host memory, of each group.
        tag: What the file says of its tokens.
    """

    job: int
    path: str
    save_id: str
    num_tokens: int
    start: int
    num_states: int
    tables: Sequence[Table]
    tag: bytes


class FilePart(NamedTuple):
    """Read the first tokens of a file into host memory.

    Attributes:
        path: The file.
        num_tokens: Tokens of the sequence up to its end, or before.
        tables: Blocks of host memory to fill, of each group; none of states that aren't wanted.
    """

    path: str
    num_tokens: int
    tables: Sequence[Table]


class Promote(NamedTuple):
    """Bring a sequence from files to host memory, and from there to the pools.

    Attributes:
        job: What is answered to.
        parts: What is read from files.
        copies: What is copied from host memory to the pools.
    """

    job: int
    parts: Sequence[FilePart]
    copies: Copies


TierCommand = Demote | Save | Promote


class TierDone(NamedTuple):
    """A job is done on one rank.

    Attributes:
        job: Which.
        error: What went wrong, in words; "" when nothing did.
        path: The file that is to blame, if one is.
    """

    job: int
    error: str = ""
    path: str = ""
