"""Decode steps that are recorded once for their size, and replayed with other values.

A model's forward pass of one token for each of a few sequences launches hundreds of small things,
always the same. Here they are recorded, and replayed without the Python between them. The plain
forward pass stays for everything else, and gives the same bits.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass, replace

from torch import Tensor

from blockstride.checks import checks_are_full
from blockstride.kernels.recording import Recording, recorder
from blockstride.models.batch import StepBatch
from blockstride.models.engine.step_inputs import StepInputs
from blockstride.models.hybrid_model import HybridModel

logger = logging.getLogger(__name__)

# sizes whose recordings are kept
MAX_RECORDINGS = 64
# sequences that a GPU's steps are filled up to: 1, 2, 4, 8, and multiples of this
SIZE_STEP = 8

# sequences, and columns of the block table of each group
Size = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class _Step:
    """A recording and the inputs that it reads."""

    inputs: StepInputs
    recording: Recording


class RecordedSteps:
    """The forward passes of a model, decode steps among them recorded when their size comes again.

    Args:
        model: The model, all of it, bound to its pools.
        fills_up: Whether steps are filled up to a few sizes by padding; on a GPU alone where None.
        is_off: Whether no step is recorded.

    Attributes:
        num_replayed: Steps that were replayed.
    """

    def __init__(
        self, model: HybridModel, fills_up: bool | None = None, *, is_off: bool = False
    ) -> None:
        self._model = model
        # what ranks say to each other is no launch
        records = model.parallel.size == 1 and not is_off
        self._recorder = recorder(model.device) if records else None
        self._fills_up = model.device.type == "cuda" if fills_up is None else fills_up
        self._steps: OrderedDict[Size, _Step] = OrderedDict()
        self._seen: set[Size] = set()
        self.num_replayed = 0

    def forward(self, batch: StepBatch) -> Tensor:
        """As `HybridModel.forward`, of a step on the CPU.

        What a replay returns is overwritten by the next one.
        """
        step = self._step(batch) if self._is_recordable(batch) else None
        if step is None:
            return self._model.forward(batch.to(self._model.device))
        self._model.copy_blocks(batch.before)
        step.inputs.fill(batch)
        logits = step.recording.replay()
        self._model.copy_blocks(batch.after)
        self.num_replayed += 1
        return logits[: len(batch.seq_lens)]

    def _is_recordable(self, batch: StepBatch) -> bool:
        """Whether a step has one token of each sequence, each followed by a new one."""
        is_whole = len(batch.logits_rows) == len(batch.seq_lens)
        return self._recorder is not None and batch.is_decode and is_whole and not checks_are_full()

    def _step(self, batch: StepBatch) -> _Step | None:
        """The recording for a step's size; None if it has not come before, or can't be recorded."""
        size = self._size(batch)
        if step := self._steps.get(size):
            self._steps.move_to_end(size)
            return step
        if size not in self._seen:
            self._seen.add(size)
            return None
        return self._record(size, batch)

    def _size(self, batch: StepBatch) -> Size:
        count = len(batch.seq_lens)
        if self._fills_up:
            count = _power(count) if count < SIZE_STEP else -(-count // SIZE_STEP) * SIZE_STEP
        widths = (table.block_table.shape[1] for table in batch.tables)
        return count, tuple(map(_power, widths))

    def _record(self, size: Size, batch: StepBatch) -> _Step | None:
        """Records a step of padding, which leaves the caches as they are."""
        assert self._recorder is not None, "steps are recordable"
        inputs = StepInputs(batch, *size, self._model.device)

        def run() -> Tensor:
            # plans and angles are made anew in each step
            return self._model.compute(replace(inputs.batch, schedules={}, angles={}))

        recording, refused = self._recorder.record(run)
        if recording is None:
            logger.info("steps are not recorded, because of %s", refused)
            self._recorder = None
            return None
        step = self._steps[size] = _Step(inputs, recording)
        if len(self._steps) > MAX_RECORDINGS:
            self._steps.popitem(last=False)
        return step


def _power(count: int) -> int:
    """The next power of two."""
    return 1 << max(count - 1, 0).bit_length()
