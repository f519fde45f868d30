"""Compile every kernel for GPUs that are not here and print what the machine code says.

    python bench/static.py [--target sm_90 ...] [--json] [--record] [NAME ...]

B/cycle and FLOP/cycle are ceilings per SM: four times the bytes of cache, or tensor-core
operations, per warp instruction of the hot loop. `--record` writes the budgets that the tests hold.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from aot import TARGETS, recorded_launches, versions
from pipelines import products_left_running
from rich.console import Console
from rich.table import Table
from sass import read
from triton.compiler import CompilationError
from variants import Variant, variants

from blockstride.transfer.atomic_file import write_json

BUDGETS = Path(__file__).with_name("budgets.json")
COLUMNS = (
    "target", "variant", "kernel", "registers", "spill_bytes", "shared_bytes", "warps",
    "blocks_per_sm", "instructions", "integer", "bytes_per_cycle", "flop_per_cycle",
)  # fmt: skip


def measure(variant: Variant, target: str) -> list[dict[str, Any]]:
    """One row for each kernel that the call launches, or one for a target without fp8."""
    try:
        with recorded_launches(target) as launches:
            variant.call()
    except CompilationError as error:
        if variant.needs_fp8 and "fp8e4nv not supported" in str(error):
            return [{"target": target, "variant": variant.name, "kernel": "no fp8 on this target"}]
        raise
    return [_row(variant, target, launch) for launch in launches]


def _row(variant: Variant, target: str, launch) -> dict[str, Any]:
    reading = read(launch)
    row = {
        "target": target,
        "variant": variant.name,
        "kernel": launch.name,
        "registers": reading.registers,
        "spill_bytes": reading.spill_bytes,
        "shared_bytes": reading.shared_bytes,
        "warps": reading.num_warps,
        "blocks_per_sm": reading.blocks_per_sm,
        "left_running": products_left_running(launch.kernel.asm["ttgir"]),
    }
    loop = reading.loop
    if loop is not None:
        moved = loop.global_bytes
        if variant.token_bytes and launch.name == "attention_kernel":
            moved = variant.token_bytes * launch.options["BLOCK_N"] / reading.num_warps
        if variant.moved:
            moved = variant.moved(launch.options) / reading.num_warps
        row |= {
            "instructions": loop.instructions,
            "integer": loop.integer,
            "narrow": loop.narrow,
            "bytes_per_cycle": loop.ceiling(moved),
            "flop_per_cycle": loop.ceiling(loop.flop),
            "wgmma": loop.wgmma,
        }
    return row


def budgets_of(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """What a regression would raise, by target, variant and kernel."""
    kept = ("registers", "spill_bytes", "shared_bytes", "instructions")
    return {key_of(row): {k: row[k] for k in kept if k in row} for row in rows}


def record(rows: list[dict[str, Any]], keeps_others: bool) -> None:
    """Write the budgets of these rows, beside those recorded for others or instead of all."""
    budgets = json.loads(BUDGETS.read_text())["budgets"] if keeps_others else {}
    recorded = {"versions": versions(), "budgets": budgets | budgets_of(rows)}
    write_json(BUDGETS, recorded, indent=1)


def key_of(row: dict[str, Any]) -> str:
    return f"{row['target']}: {row['variant']}: {row['kernel']}"


def print_table(rows: list[dict[str, Any]]) -> None:
    table = Table(*(column.replace("_", " ") for column in COLUMNS), title="static, no GPU")
    for row in rows:
        table.add_row(*(str(row.get(column, "")) for column in COLUMNS))
    Console(width=200).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="variants; all if none is named")
    parser.add_argument("--target", action="append", choices=list(TARGETS))
    parser.add_argument("--json", action="store_true", help="print rows and versions as JSON")
    parser.add_argument("--record", action="store_true", help=f"write their {BUDGETS.name}")
    options = parser.parse_args()
    chosen = [v for v in variants() if not options.names or v.name in options.names]
    rows = [
        row for target in options.target or TARGETS for v in chosen for row in measure(v, target)
    ]
    if options.record:
        record(rows, keeps_others=bool(options.names or options.target))
    if options.json:
        print(json.dumps({"versions": versions(), "rows": rows}))
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
