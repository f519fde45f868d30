"""`blockstride layouts`: how the caches of a model lie in memory, and what they cost."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from blockstride.checks import expect
from blockstride.dtypes import DTYPES, SHORT, dtype_name
from blockstride.layouts import (
    CacheSpec,
    Field,
    PoolLayout,
    PoolPolicy,
    choose_block_size,
    plan_pools,
    tokens_that_fit,
)
from blockstride.layouts.accounting import MAX_TOKENS, GroupAccount, account
from blockstride.layouts.drawing import draw
from blockstride.models.commands.cache_dtypes import (
    add_cache_dtypes,
    add_prefix_caching,
    describe_dtypes,
)
from blockstride.models.commands.output import Output
from blockstride.models.commands.values import whole
from blockstride.models.engine import EngineConfig
from blockstride.models.engine.pools import states_to_keep
from blockstride.models.families import cache_specs

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--config", required=True, help="config.json, or the folder of a model")
    parser.add_argument("--tp", type=whole, default=1, help="tensor-parallel ranks; one is shown")
    defaults = EngineConfig()
    parser.add_argument("--layout", default=defaults.layout, help="stride order, as LBHNC or NHD")
    parser.add_argument("--policy", default=defaults.policy, help="unified or split pools")
    parser.add_argument(
        "--block-size", type=whole, default=defaults.block_size, help="tokens that kernels want"
    )
    parser.add_argument("--kernel-block-size", type=whole, help="tokens per block that kernels see")
    add_cache_dtypes(parser)
    parser.add_argument("--conv-order", default="DS", help="DS or SD convolution states")
    parser.add_argument("--memory", default="8GiB", help="memory of a rank for its caches")
    parser.add_argument("--num-seqs", type=whole, default=8, help="sequences at a time")
    add_prefix_caching(parser)
    parser.add_argument("--json", action="store_true", help="print numbers for a program")


def option_names(args: argparse.Namespace) -> dict[str, str]:
    """What the user types, for arguments of other names."""
    return {"memory_bytes": "--memory", "tp_size": "--tp"}


def run(args: argparse.Namespace) -> int:
    """Prints the groups, pools, costs and drawings of one choice, and a line on both policies."""
    model = cache_specs(
        args.config,
        kv_cache_dtype=args.kv_cache_dtype,
        conv_dtype=args.conv_dtype,
        ssm_dtype=args.ssm_dtype,
        conv_order=args.conv_order,
    )
    pools = _plan(args, model, args.policy)
    report = {
        "layout": str(pools[0].layout),
        "policy": args.policy,
        "tp": args.tp,
        "memory_bytes": _nbytes(args.memory),
        "groups": [_group(accounts) for pool in pools for accounts in _alike(pool)],
        "pools": [_pool(pool) for pool in pools],
        "costs": _costs(pools, args.num_seqs),
        "policies": {policy: _headline(args, model, policy) for policy in get_args(PoolPolicy)},
    }
    if args.json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        console = Output()
        console.print(Text(f"{describe_dtypes(model.values())}\n"))
        _print(console, report, pools)
    return 0


def _plan(
    args: argparse.Namespace, model: Mapping[str, CacheSpec], policy: str
) -> tuple[PoolLayout, ...]:
    """The pools of rank 0 in the memory that was given."""
    return plan_pools(
        model,
        layout=args.layout,
        policy=policy,
        block_size=choose_block_size(model, policy, args.block_size),
        memory_bytes=_nbytes(args.memory),
        kernel_block_size=args.kernel_block_size,
        num_seqs=args.num_seqs,
        kept_states=states_to_keep(args.num_seqs, args.prefix_caching),
        tp_size=args.tp,
    )


def _nbytes(text: str) -> int:
    """Bytes in `8GiB`, `512 MB`, `1e9`."""
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:e\d{1,2})?)\s*([a-z]*)\s*", text, re.IGNORECASE)
    unit = match[2].upper() if match else None
    expect(unit in UNITS, "--memory", "a number of bytes such as 8GiB or 500MB", repr(text))
    return int(float(match[1]) * UNITS[match[2].upper()]) if match else 0


def _alike(pool: PoolLayout) -> list[list[GroupAccount]]:
    """The accounts of a pool's groups, those of one spec together."""
    by_spec: dict[CacheSpec, list[GroupAccount]] = {}
    for part in account(pool):
        by_spec.setdefault(part.placement.group.spec, []).append(part)
    return list(by_spec.values())


def _group(accounts: Sequence[GroupAccount]) -> dict[str, Any]:
    placement = accounts[0].placement
    blocks = sum(part.block_bytes for part in accounts)
    return {
        "kind": placement.group.spec.kind,
        "layers": [name for part in accounts for name in part.placement.group.layer_names],
        "groups": len(accounts),
        "page_bytes": placement.page_bytes,
        "kernel_blocks": placement.kernel_blocks,
        "waste": 1 - sum(part.used_bytes for part in accounts) / blocks,
        "fields": [_field(field) for field in placement.page.fields],
    }


def _field(field: Field) -> dict[str, Any]:
    shard = field.shard
    return {
        "name": field.name,
        "axes": {axis.name: axis.extent for axis in field.axes},
        "dtype": dtype_name(field.dtype),
        "bytes": field.nbytes,
        "cut": f"{shard.interval.size:,} of {shard.extent:,}" if shard else "all",
    }


def _pool(pool: PoolLayout) -> dict[str, Any]:
    has_tokens = [group for group in pool.groups if group.group.spec.has_tokens]
    return {
        "kinds": list(dict.fromkeys(group.group.spec.kind for group in pool.groups)),
        "block_size": has_tokens[0].block_size if has_tokens else None,
        "slots": pool.num_slots,
        "block_bytes": pool.block_bytes,
        "num_blocks": pool.num_blocks,
        "bytes": pool.nbytes,
    }


def _costs(pools: Iterable[PoolLayout], num_seqs: int) -> dict[str, Any]:
    """What a token and a sequence cost, padding included, and how far the memory goes."""
    pools = tuple(pools)
    parts = [part for pool in pools for part in account(pool)]
    specs = [part.placement.group.spec for part in parts]
    windows = [
        spec.peak_blocks(MAX_TOKENS, part.placement.block_size) * part.block_bytes
        for spec, part in zip(specs, parts, strict=True)
        if spec.window is not None
    ]
    full = [part.token_bytes for part in parts if part.placement.group.spec.window is None]
    lengths = {n: tokens_that_fit(pools, n) for n in sorted({1, num_seqs})}
    return {
        "bytes_per_token": sum(full),
        "state_bytes_per_sequence": sum(part.state_bytes for part in parts),
        "window_bytes_per_sequence": sum(windows),
        "tokens_that_fit": {n: _length(length) for n, length in lengths.items()},
    }


def _length(num_tokens: int) -> int | str:
    return "any" if num_tokens == MAX_TOKENS else num_tokens


def _headline(args: argparse.Namespace, model: Mapping[str, CacheSpec], policy: str) -> str:
    """One policy in a few words, or why it can't be."""
    try:
        pools = _plan(args, model, policy)
    except ValueError as error:
        return str(error)
    sizes = [_pool(pool)["block_size"] for pool in pools]
    size = next((f"{size:,} tokens a block, " for size in sizes if size), "")
    fits = [
        f"{n} x {length if isinstance(length, str) else f'{length:,}'}"
        for n, length in _costs(pools, args.num_seqs)["tokens_that_fit"].items()
    ]
    return f"{size}{' or '.join(fits)} tokens fit"


def _print(console: Console, report: Mapping[str, Any], pools: Sequence[PoolLayout]) -> None:
    groups = _table("cache", "layers", "groups", "page bytes", "waste", last="layers of the model")
    fields = _table("field", "bytes", "of the whole", last="axes in a page, outer to inner")
    for group in report["groups"]:
        counts = [f"{n:,}" for n in (len(group["layers"]), group["groups"], group["page_bytes"])]
        groups.add_row(group["kind"], *counts, f"{group['waste']:.1%}", _ranges(group["layers"]))
        fields.add_row(group["kind"])
        for field in group["fields"]:
            axes = [f"{name} {extent:,}" for name, extent in field["axes"].items()]
            row = (
                f"{field['bytes']:,}",
                field["cut"],
                ", ".join([*axes, SHORT[DTYPES[field["dtype"]]]]),
            )
            fields.add_row(f"  {field['name']}", *row)
    table = _table("pool", "tokens a block", "slots", "block bytes", "blocks", "bytes")
    for pool in report["pools"]:
        counts = (pool["slots"], pool["block_bytes"], pool["num_blocks"], pool["bytes"])
        size = f"{pool['block_size']:,}" if pool["block_size"] else "-"
        table.add_row(", ".join(pool["kinds"]), size, *(f"{n:,}" for n in counts))
    for part in (groups, fields, table, _cost_table(report["costs"])):
        console.print(part, Text())
    for pool in pools:
        for accounts in _alike(pool):
            placement = accounts[0].placement
            console.print(Text(f"{placement.group.spec.kind} in {pool.layout}", style="bold"))
            console.print(draw(placement), Text())
    for policy, headline in report["policies"].items():
        console.print(Text(f"{policy}: {headline}"))


def _ranges(names: Sequence[str]) -> str:
    """`0-3, 5` for the layers of these names."""
    layers = [int(name.split(".")[1]) for name in names]
    starts = [layer for layer in layers if layer - 1 not in layers]
    stops = [layer for layer in layers if layer + 1 not in layers]
    pairs = zip(starts, stops, strict=True)
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in pairs)


def _cost_table(costs: Mapping[str, Any]) -> Table:
    table = _table("costs, padding included", "")
    table.add_row("a token, bytes", f"{costs['bytes_per_token']:,.0f}")
    table.add_row("the states of a sequence, bytes", f"{costs['state_bytes_per_sequence']:,}")
    if costs["window_bytes_per_sequence"]:
        window = costs["window_bytes_per_sequence"]
        table.add_row("the windows of a sequence, bytes", f"{window:,}")
    for n, length in costs["tokens_that_fit"].items():
        name = "tokens of one sequence that fit" if n == 1 else f"tokens that each of {n} may have"
        table.add_row(name, length if isinstance(length, str) else f"{length:,}")
    return table


def _table(name: str, *numbers: str, last: str = "") -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(name, overflow="fold")
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    if last:
        table.add_column(last)
    return table
