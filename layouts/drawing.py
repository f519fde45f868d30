"""Draws how the blocks of a group lie in memory, in plain characters that fit 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from blockstride.layouts.memory_order import (
    Level,
    StridedPiece,
    levels,
    one_block,
    one_half,
    one_unit,
    runs,
)
from blockstride.layouts.placement import GroupPlacement
from blockstride.layouts.pool import NULL_BLOCK

MAP_BLOCKS, MAP_LAYERS, MAP_COLUMNS = 4, 4, 64
MAX_ITEMS = 4
HALF = "one half"


def draw(placement: GroupPlacement) -> RenderableType:
    """A picture of one group of a pool, in three parts.

    A map of a few blocks and layers, with the bytes of one block marked; what the pool is made of,
    level by level, from the outermost axis down to runs of content; and the runs that a peer reads
    who wants the block, one head of it, or what one of twice as many ranks holds.

    Args:
        placement: The group, anywhere in its pool.

    Returns:
        Something that a `rich` console prints; nothing in it depends on colour.
    """
    return Group(_map(placement), Text(), _zoom(placement), Text(), _reads(placement))


def _wanted(placement: GroupPlacement) -> dict[str, list[StridedPiece]]:
    """What a peer may want of block 1."""
    wanted = {"block": one_block(placement)}
    shards = [field.axis(field.shard.axis) for field in placement.page.fields if field.shard]
    if shards and all(axis.logical == "H" for axis in shards):
        wanted[f"one {shards[0].name}"] = one_unit(placement)
    half = one_half(placement)
    if half is not None:
        wanted[HALF] = half
    return wanted


def _map(placement: GroupPlacement) -> RenderableType:
    names = placement.group.layer_names[:MAP_LAYERS]
    small = replace(
        placement,
        group=replace(placement.group, layer_names=names),
        num_slots=min(placement.num_slots, MAP_LAYERS),
        num_blocks=MAP_BLOCKS,
    )
    table = Table.grid(padding=(0, 1))
    for label, pieces in _wanted(small).items():
        table.add_row(Text(label), Text(f"|{_marks(small, pieces)}|"))
    title = f"memory of {MAP_BLOCKS} blocks and {small.num_slots} layers: # all, + some, . none"
    return Group(Text(title), table)


def _marks(placement: GroupPlacement, pieces: Sequence[StridedPiece]) -> str:
    """One character for each of the columns into which the memory of a pool is cut."""
    starts, lengths = runs(pieces)
    nbytes = placement.num_slots * placement.num_blocks * placement.page_bytes
    borders = np.arange(MAP_COLUMNS + 1) * nbytes / MAP_COLUMNS
    # bytes of the runs before a border: of those that begin there, less what lies beyond it
    last = np.searchsorted(starts, borders) - 1
    before = np.concatenate([[0], np.cumsum(lengths)])[last + 1]
    beyond = np.where(last >= 0, starts[last] + lengths[last] - borders, 0)
    covered = np.diff(before - np.maximum(beyond, 0)) * MAP_COLUMNS / nbytes
    return "".join("#" if c > 1 - 1e-9 else "+" if c > 1e-9 else "." for c in covered)


def _zoom(placement: GroupPlacement) -> RenderableType:
    table = _table("inside", "bytes")
    table.add_column(f"in memory order ({placement.layout})", overflow="fold")
    for level in levels(placement):
        label = " " * level.depth + level.whole.label
        table.add_row(Text(label), f"{level.whole.nbytes:,}", Text(_strip(level, placement)))
    return table


def _strip(level: Level, placement: GroupPlacement) -> str:
    """`| k 256 | v 256 |` of fields, `| head 0 | 1 | ... | 7 |  8 x 4,096` of an axis."""
    parts = [f"{part.label} {part.nbytes:,}" for part in level.parts]
    if level.axis is None:
        return f"| {' | '.join(parts)} |"
    name, extent, stride, _ = level.axis
    shown = range(extent) if extent <= MAX_ITEMS else (0, 1, extent - 1)
    items = [f"{name} 0", *(f"{i:,}" for i in shown[1:])]
    if name == "block":
        items[NULL_BLOCK] += " (null)"
    used = len(placement.group.layer_names)
    items = [
        f"{item} (none)" if name == "layer" and i >= used else item
        for i, item in zip(shown, items, strict=True)
    ]
    if len(shown) < extent:
        items.insert(2, "...")
    return f"| {' | '.join(items + parts)} |  {extent:,} x {stride:,}"


def _reads(placement: GroupPlacement) -> RenderableType:
    table = _table("a peer reads", "bytes", "in runs", "of bytes each")
    for label, pieces in _wanted(placement).items():
        _, lengths = runs(pieces)
        each = " to ".join(f"{size:,}" for size in sorted({lengths.min(), lengths.max()}))
        name = f"{label}, at twice the TP" if label == HALF else label
        table.add_row(name, f"{lengths.sum():,}", f"{len(lengths):,}", each)
    return table


def _table(name: str, *numbers: str) -> Table:
    """A table without lines: one column of names, the others of numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="")
    table.add_column(name, no_wrap=True)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table
