"""Drawing: which bytes of a page come from where, as lines of letters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from string import ascii_lowercase, digits

import numpy as np

from blockstride.checks import expect
from blockstride.transfer.group_plan import plan_group
from blockstride.transfer.plan import EngineTransferPlan

LETTERS = digits + ascii_lowercase


def draw_page(plan: EngineTransferPlan, group: int, width: int = 64) -> str:
    """One page of a local group, in memory order, and where on the remote ranks it comes from.

    The first line shows, for equal shares of the page's bytes, the remote rank that each comes
    from, modulo 36. A line for every remote rank shows the bytes that it gives, in *its* memory
    order, and where in the local page they go, `a` first and `z` last: rising letters are long
    runs.

    Args:
        plan: A plan; the page is drawn as the direct strategy copies it.
        group: Group number of the local engine.
        width: Letters of a whole page.

    Raises:
        ValueError: A group that has no layers on this rank.
    """
    parts = list(_first_page(plan, group))
    expect(bool(parts), "group", f"one that rank {plan.local_rank} holds", group)
    local = np.concatenate([starts for _, starts, _, _ in parts])
    lengths = np.concatenate([length for *_, length in parts])
    order = np.argsort(local)
    begins = np.empty_like(local)
    begins[order] = np.cumsum(lengths[order]) - lengths[order]
    owners = np.repeat([rank for rank, *_ in parts], [len(length) for *_, length in parts])
    total = int(lengths.sum())
    cells = (np.arange(width) * total + total // 2) // width
    at = np.searchsorted(begins[order], cells, side="right") - 1
    spec = plan.local.groups[group].spec
    lines = [
        f"{spec.kind}: {total} bytes of a page, in {len(local)} runs",
        "local    " + "".join(LETTERS[owner % len(LETTERS)] for owner in owners[order][at]),
    ]
    first = 0
    for rank, _, remote, length in parts:
        own = begins[first : first + len(length)]
        lines.append(f"rank {rank:<3} " + _letters(remote, length, own, total, width))
        first += len(length)
    return "\n".join(lines)


def _first_page(
    plan: EngineTransferPlan, group: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Remote rank, and local offset, remote offset and length of its runs, for the first layer."""
    cache = plan.local.rank_cache(plan.local_rank).groups.get(group)
    for read in plan.mapping.reads:
        layer = read.layer_names[:1]
        if cache is None or read.local_group != group or layer != tuple(cache.slots)[:1]:
            continue
        remote = plan.remote.rank_cache(read.remote_rank).groups[read.remote_group]
        page = plan_group(replace(read, layer_names=layer), cache, remote)
        columns: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        # the (split) blocks of the plan that are block 0 of the engine
        turns = max(1, page.local.split // page.local.blocks_per_period)
        for turn, track in product(range(turns), page.tracks):
            block = track.local_block + turn * page.local.blocks_per_period
            source = track.remote_block + turn * page.remote.blocks_per_period
            if block < page.local.split:
                ours = page.local.offsets[track.rows] + block * page.local.stride
                theirs = page.remote.offsets[track.rows] + source * page.remote.stride
                columns.append((ours, theirs, page.lengths[track.rows]))
        local, source, lengths = (np.concatenate(column) for column in zip(*columns, strict=True))
        yield read.remote_rank, local, source, lengths


def _letters(
    remote: np.ndarray, length: np.ndarray, begins: np.ndarray, total: int, width: int
) -> str:
    order = np.argsort(remote)
    ends = np.cumsum(length[order])
    share = max(1, width * int(ends[-1]) // total)
    cells = (np.arange(share) * int(ends[-1]) + int(ends[-1]) // 2) // share
    run = np.searchsorted(ends, cells, side="right")
    goes = begins[order][run] + cells - (ends - length[order])[run]
    return "".join(ascii_lowercase[int(place) * 26 // total] for place in goes)
