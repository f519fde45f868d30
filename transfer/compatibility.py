"""Compatibility: two engines hold caches of the same model, or it is said which field differs."""

from __future__ import annotations

from blockstride.checks import expect
from blockstride.layouts import CacheSpec, Field
from blockstride.transfer.engine_info import EngineTransferInfo


def expect_same_model(local: EngineTransferInfo, remote: EngineTransferInfo) -> None:
    """Compares every field of every layer by name.

    Memory order is free: packing, the order of content axes, block sizes and stride orders may
    differ. What the bytes mean may not: names, axes with their global extents, dtypes, which axis
    is cut and into which units, windows. Where all of that agrees, the fingerprint of the model
    still tells a fine-tune from what it was made of.

    Raises:
        ValueError: Layers or fields that only one engine has, or that differ; the message names the
            layer, the field and both values. Or other weights; it names both fingerprints.
    """
    ours, theirs = list(local.specs), list(remote.specs)
    if ours != theirs:
        only = sorted({*ours} ^ {*theirs}) or "another order"
        expect(False, f"layers of {remote.engine_id}", f"those of {local.engine_id}", only)
    compared: set[tuple[int, int]] = set()
    for name, spec in local.specs.items():
        pair = (id(spec), id(remote.specs[name]))
        if pair not in compared:
            _expect_same_spec(name, spec, remote.specs[name])
            compared.add(pair)
    name = f"model_fingerprint of {remote.engine_id}"
    ours, theirs = (engine.model_fingerprint or "none" for engine in (local, remote))
    expect(ours == theirs, name, f"{ours}, that of {local.engine_id}", theirs)


def expect_fingerprint(engine: EngineTransferInfo) -> None:
    """Raises `ValueError` for an engine that can't show which model its caches come from."""
    name = f"model_fingerprint of {engine.engine_id}"
    expect(bool(engine.model_fingerprint), name, "the fingerprint of its model", "none")


def _expect_same_spec(layer: str, ours: CacheSpec, theirs: CacheSpec) -> None:
    expect(theirs.window == ours.window, f"{layer}.window", ours.window, theirs.window)
    mine, other = (
        {field.name: field for segment in spec.segments for field in segment.fields}
        for spec in (ours, theirs)
    )
    expect(other.keys() == mine.keys(), f"{layer} fields", sorted(mine), sorted(other))
    for name, field in mine.items():
        for what, value in _meaning(field).items():
            got = _meaning(other[name])[what]
            expect(got == value, f"{layer} {name}.{what}", value, got)


def _meaning(field: Field) -> dict[str, object]:
    shard = field.shard
    return {
        "dtype": field.dtype,
        "axes": dict(sorted((axis.name, axis.extent) for axis in field.axes)),
        "token axis": [axis.name for axis in field.axes if axis.logical == "N"],
        "shard": shard and (shard.axis, shard.extent, shard.unit, shard.replicate),
    }
