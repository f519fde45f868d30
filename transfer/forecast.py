"""Forecast: what each strategy would cost a rank, as plain data for tables and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, get_args

from blockstride.transfer.cost_model import CostModel
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.peer_plan import StrategyChoice
from blockstride.transfer.plan import EngineTransferPlan, plan_transfer


@dataclass(frozen=True)
class Forecast:
    """One strategy for one rank and one sequence.

    Attributes:
        strategy: `direct`, `pages`, `pack`, or `auto`, which mixes them by group.
        seconds: Predicted time, all remote ranks one after the other.
        descriptors: Descriptors on the wire.
        nbytes: Bytes on the wire.
        lower_bound: The fewest descriptors that these memories allow.
        shortest_run: Bytes.
        longest_run: Bytes.
    """

    strategy: str
    seconds: float
    descriptors: int
    nbytes: int
    lower_bound: int
    shortest_run: int
    longest_run: int


def forecasts(
    reader: EngineTransferInfo,
    rank: int,
    producer: EngineTransferInfo,
    cost_model: CostModel,
    num_tokens: int,
) -> dict[str, Forecast | str]:
    """A forecast for every strategy, or the reason why it can't be used."""
    found: dict[str, Forecast | str] = {}
    for strategy in get_args(StrategyChoice):
        try:
            plan = plan_transfer(
                reader,
                rank,
                producer,
                strategy=strategy,
                cost_model=cost_model,
                num_tokens=num_tokens,
            )
        except ValueError as error:
            found[strategy] = str(error)
            continue
        found[strategy] = forecast(plan, strategy, cost_model, num_tokens)
    return found


def forecast(
    plan: EngineTransferPlan, strategy: str, cost_model: CostModel, num_tokens: int
) -> Forecast:
    """What a plan would cost for a sequence of `num_tokens`."""
    cost = plan.report(num_tokens)
    lengths = cost.run_lengths or {0: 0}
    return Forecast(
        strategy,
        sum(cost_model.seconds(peer, num_tokens) for peer in plan.peers),
        cost.descriptors,
        cost.nbytes,
        cost.lower_bound,
        min(lengths),
        max(lengths),
    )


def mapping_table(plan: EngineTransferPlan) -> list[dict[str, Any]]:
    """The mapping of a plan, one row for each field and remote rank."""
    rows = []
    for read in plan.mapping.reads:
        kind = plan.local.groups[read.local_group].spec.kind
        for field, interval in read.fields:
            rows.append(
                {
                    "group": read.local_group,
                    "kind": kind,
                    "layers": len(read.layer_names),
                    "field": field,
                    "interval": list(interval) if _is_cut(plan, read.local_group, field) else None,
                    "remote_rank": read.remote_rank,
                    "remote_group": read.remote_group,
                }
            )
    return rows


def _is_cut(plan: EngineTransferPlan, group: int, field: str) -> bool:
    fields = plan.local.groups[group].spec.page(1).fields
    return any(f.name == field and f.shard is not None for f in fields)


def rank_summary(
    reader: EngineTransferInfo,
    rank: int,
    producer: EngineTransferInfo,
    cost_model: CostModel,
    num_tokens: int,
) -> dict[str, Any]:
    """All about one reading rank: mapping, strategies, and the proof of the direct plan."""
    found = forecasts(reader, rank, producer, cost_model, num_tokens)
    plan = plan_transfer(reader, rank, producer)
    return {
        "rank": rank,
        "source_ranks": list(plan.mapping.all_source_ranks),
        "mapping": mapping_table(plan),
        "strategies": {
            name: asdict(entry) if isinstance(entry, Forecast) else {"error": entry}
            for name, entry in found.items()
        },
        "proof": asdict(plan.prove()),
    }
