"""Cost model: seconds of a transfer from its descriptors and bytes, fitted to measurements."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from blockstride.checks import expect
from blockstride.transfer.atomic_file import write_json
from blockstride.transfer.copy_plan import CopyPlan
from blockstride.transfer.peer_plan import PeerPlan
from blockstride.transfer.report import report

PROBES = ((1, 1 << 20), (16, 1 << 20), (2048, 256), (8192, 256), (2048, 4096), (512, 1 << 16))
"""(descriptors, bytes of each) that a calibration measures: few long ones, and many short ones."""


@dataclass(frozen=True)
class CostModel:
    """`seconds = descriptors * descriptor_seconds + bytes / wire_rate + converted / convert_rate`.

    The defaults were measured with NIXL 1.5.1 between two processes of a two-core CPU machine (UCX,
    process memory); the rate of conversions is an estimate. Calibrate where it matters.

    Attributes:
        descriptor_seconds: Seconds per descriptor.
        wire_rate: Bytes per second of long runs.
        convert_rate: Bytes per second that a staging area is converted at.
        source: What was measured, for people.
    """

    descriptor_seconds: float = 1.8e-6
    wire_rate: float = 5.6e9
    convert_rate: float = 1.0e9
    source: str = "NIXL 1.5.1, UCX over process memory, 2-core CPU"

    def __post_init__(self) -> None:
        for name in ("descriptor_seconds", "wire_rate", "convert_rate"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and value > 0 and math.isfinite(value)
            expect(number, name, "a positive number", repr(value))

    def wire_seconds(self, copies: Sequence[CopyPlan], num_tokens: int) -> float:
        """Time on the wire of a sequence of `num_tokens`."""
        cost = report(copies, num_tokens)
        return cost.descriptors * self.descriptor_seconds + cost.nbytes / self.wire_rate

    def seconds(self, peer: PeerPlan, num_tokens: int) -> float:
        """Time of all steps of a peer, one after the other."""
        converts = [step for step in peer.steps if step is not peer.wire]
        converted = report(converts, num_tokens).nbytes
        return self.wire_seconds([peer.wire], num_tokens) + converted / self.convert_rate

    def save(self, path: Path) -> None:
        """Writes the model as JSON, so that a reader sees all of it or what was there before."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> CostModel:
        """Reads a model that `save` wrote.

        Raises:
            ValueError: A file that is not there, or holds anything else.
        """
        expect(path.is_file(), "cost model", "a file", str(path))
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: expected JSON, got {error}") from error
        names = {field.name for field in fields(cls)}
        right = isinstance(found, dict) and found.keys() == names
        expect(right, str(path), f"an object with {sorted(names)}", found)
        return cls(**found)


def calibrate(measure: Callable[[int, int], float], convert_rate: float, source: str) -> CostModel:
    """Fits the model to a transport.

    Args:
        measure: `(descriptors, bytes of each) -> seconds` of one transfer of scattered ranges.
        convert_rate: Bytes per second of conversions, measured by the caller.
        source: What is measured.

    Raises:
        ValueError: Measurements that no positive rates explain.
    """
    seconds = np.array([measure(count, nbytes) for count, nbytes in PROBES])
    terms = np.array([[count, count * nbytes] for count, nbytes in PROBES], dtype=float)
    # relative errors count: a small transfer matters as much as a large one
    weighted = terms / seconds[:, None]
    (alpha, per_byte), *_ = np.linalg.lstsq(weighted, np.ones(len(PROBES)), rcond=None)
    positive = bool(alpha > 0 and per_byte > 0)
    expect(positive, "measurements", "times that grow with both", seconds.tolist())
    return CostModel(float(alpha), float(1 / per_byte), convert_rate, source)
