"""`blockstride plan`: what moves between a prefill and a decode engine, and how."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from blockstride.checks import expect
from blockstride.layouts import (
    CacheSpec,
    KVCacheLayout,
    PoolPolicy,
    choose_block_size,
    group_layers,
)
from blockstride.models.commands.cache_dtypes import add_cache_dtypes, describe_dtypes, held_dtypes
from blockstride.models.commands.calibration import measure_cost_model
from blockstride.models.commands.engine_keys import EngineKeys
from blockstride.models.commands.option_names import with_options
from blockstride.models.commands.output import Output
from blockstride.models.commands.values import whole
from blockstride.models.engine import EngineConfig
from blockstride.models.families import cache_specs
from blockstride.transfer import (
    CostModel,
    EngineTransferInfo,
    EngineTransferPlan,
    even_stages,
    expected_readers,
    plan_transfer,
)
from blockstride.transfer.drawing import draw_page
from blockstride.transfer.forecast import rank_summary

ENGINE_KEYS = ("tp", "pp", "cp", "interleave", "layout", "policy", "block", "kernel", "blocks")
ARGUMENTS = {
    "tp_size": "tp",
    "cp_size": "cp",
    "cp_interleave": "interleave",
    "stages": "pp",
    "num_stages": "pp",
    "layout": "layout",
    "block_size": "block",
    "kernel_block_size": "kernel",
    "num_blocks": "blocks",
}
"""Argument of an engine -> key."""

POLICIES: dict[str, PoolPolicy] = {policy: policy for policy in get_args(PoolPolicy)}
ENGINE_HELP = (
    "an engine, as in tp=4,layout=BHLNC,block=16; more keys: policy (unified or split), kernel "
    "(tokens per kernel block), pp, cp, interleave, blocks (of each pool)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--config", help="Hugging Face config.json, or the folder it is in")
    parser.add_argument("--prefill", default="", metavar="ENGINE", help=ENGINE_HELP)
    parser.add_argument("--decode", default="", metavar="ENGINE", help="the same, for the reader")
    parser.add_argument("--tokens", type=whole, default=8192, help="length of the sequence")
    parser.add_argument("--rank", type=whole, help="one decode rank; all when absent")
    add_cache_dtypes(parser.add_argument_group("caches"))
    costs = parser.add_argument_group("costs")
    costs.add_argument("--cost-model", type=Path, help="a file that --calibrate wrote")
    costs.add_argument(
        "--calibrate", action="store_true", help="measure this machine's NIXL and store the result"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def option_names(args: argparse.Namespace) -> dict[str, str]:
    """What the user types, for arguments of other names."""
    return {"num_tokens": "--tokens", "cost model": "--cost-model"}


def run(args: argparse.Namespace) -> int:
    """Plans every decode rank, or calibrates the cost model."""
    if args.calibrate:
        path = args.cost_model or default_cost_model()
        model = measure_cost_model()
        model.save(path)
        sys.stdout.write(f"{path}: {model}\n")
        return 0
    expect(args.config is not None, "--config", "a config.json", "none")
    expect(args.tokens > 0, "--tokens", "at least 1", args.tokens)
    specs = cache_specs(
        args.config,
        kv_cache_dtype=args.kv_cache_dtype,
        conv_dtype=args.conv_dtype,
        ssm_dtype=args.ssm_dtype,
    )
    prefill = parse_engine("prefill", args.prefill, specs, args.tokens)
    decode = parse_engine("decode", args.decode, specs, args.tokens)
    path = args.cost_model or default_cost_model()
    model = CostModel.load(path) if args.cost_model or path.is_file() else CostModel()
    ranks = range(decode.world_size) if args.rank is None else [args.rank]
    summaries = [rank_summary(decode, rank, prefill, model, args.tokens) for rank in ranks]
    if args.json:
        document = {
            "prefill": str(prefill),
            "decode": str(decode),
            "dtypes": held_dtypes(specs.values()),
            "tokens": args.tokens,
            "cost_model": vars(model),
            "expected_readers": expected_readers(decode, prefill),
            "ranks": summaries,
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return 0
    console = Output()
    console.print(f"{prefill}\n{decode}", highlight=False)
    console.print(describe_dtypes(specs.values()), highlight=False)
    console.print(f"{args.tokens} tokens; costs of {model.source}\n", highlight=False)
    for summary in summaries:
        _print_mapping(console, summary)
        _print_strategies(console, summary)
    _print_pages(console, plan_transfer(decode, ranks[0], prefill))
    return 0


def default_cost_model() -> Path:
    """Where a calibration is stored when no file is named."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "blockstride" / "cost_model.json"


def parse_engine(
    name: str, text: str, specs: Mapping[str, CacheSpec], num_tokens: int
) -> EngineTransferInfo:
    """An engine from `key=value,key=value`.

    Args:
        name: `prefill` or `decode`; its engine id, and what messages begin with.
        text: Keys of `ENGINE_KEYS`; what is left out is as in `EngineConfig`.
        specs: The caches of the model.
        num_tokens: Tokens for which pools have blocks, twice over, unless `blocks` says otherwise.

    Raises:
        ValueError: An unknown key, a value that is not a number where one is needed, or sizes that
            the model can't have.
    """
    keys = EngineKeys(f"--{name}", text, ENGINE_KEYS)
    try:
        return _engine(name, keys, specs, num_tokens)
    except ValueError as error:
        options = {argument: f"--{name} {key}" for argument, key in ARGUMENTS.items()}
        raise ValueError(with_options(str(error), options)) from error


def _engine(
    name: str, keys: EngineKeys, specs: Mapping[str, CacheSpec], num_tokens: int
) -> EngineTransferInfo:
    defaults = EngineConfig()
    named = keys.text("policy", defaults.policy)
    expect(named in POLICIES, f"--{name} policy", " or ".join(POLICIES), repr(named))
    policy = POLICIES[named]
    block_size = choose_block_size(specs, policy, keys.number("block", defaults.block_size))
    groups = group_layers(specs, policy)
    blocks = [2 * -(-num_tokens // block_size) if group.spec.has_tokens else 4 for group in groups]
    counts = [sum(blocks)] if policy == "unified" else blocks
    stages = keys.number("pp", 1)
    return EngineTransferInfo(
        name,
        specs,
        KVCacheLayout.parse(keys.text("layout", defaults.layout)),
        policy,
        block_size,
        tuple(keys.number("blocks", count) + 1 for count in counts),
        kernel_block_size=keys.optional("kernel"),
        tp_size=keys.number("tp", 1),
        cp_size=keys.number("cp", 1),
        cp_interleave=keys.number("interleave", 1),
        stages=even_stages(len(specs), stages) if stages > 1 else (),
    )


def _print_mapping(console: Console, summary: Mapping[str, Any]) -> None:
    table = Table("group", "kind", "layers", "field", "interval", "from rank", box=None)
    for row in summary["mapping"]:
        interval = row["interval"]
        table.add_row(
            str(row["group"]),
            row["kind"],
            str(row["layers"]),
            row["field"],
            "[{}, {})".format(*interval).replace("[", r"\[") if interval else "whole",
            str(row["remote_rank"]),
        )
    console.print(f"decode rank {summary['rank']}", style="bold", highlight=False)
    console.print(table)


def _print_strategies(console: Console, summary: Mapping[str, Any]) -> None:
    columns = ("descriptors", "at least", "MiB", "run bytes", "ms")
    table = Table("strategy", *columns, box=None)
    for name, entry in summary["strategies"].items():
        if "error" in entry:
            table.add_row(name, entry["error"])
            continue
        shortest, longest = entry["shortest_run"], entry["longest_run"]
        table.add_row(
            name,
            f"{entry['descriptors']:,}",
            f"{entry['lower_bound']:,}",
            f"{entry['nbytes'] / 2**20:.1f}",
            f"{shortest:,}" if shortest == longest else f"{shortest:,} to {longest:,}",
            f"{entry['seconds'] * 1e3:.2f}",
        )
    console.print(table)
    proof = summary["proof"]
    console.print(
        f"proved on {proof['num_tokens']} tokens: {proof['nbytes']:,} bytes, each written once\n",
        highlight=False,
    )


def _print_pages(console: Console, plan: EngineTransferPlan) -> None:
    drawn = set()
    for index, group in enumerate(plan.local.groups):
        held = index in plan.local.rank_cache(plan.local_rank).groups
        if held and group.spec not in drawn:
            drawn.add(group.spec)
            console.print(draw_page(plan, index), highlight=False)
