"""How a hybrid is trained: the numbers of a run, and the learning rate they imply."""

import dataclasses
import math
from typing import Any

from blockstride.checks import expect

PRECISIONS = ("float32", "bfloat16")
LAST_RATE = 0.01  # of the peak


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How to train; with the text and the sizes of the model this decides the result.

    Attributes:
        steps: Optimiser steps of the whole run.
        batch_size: Windows of a step.
        context_size: Bytes of a window.
        learning_rate: Peak of the learning rate.
        warmup_steps: Steps in which the learning rate rises to its peak.
        weight_decay: AdamW's, on matrices only.
        clip_norm: Largest norm of a step's gradient.
        precision: Of matrix products; "bfloat16" is faster on CPUs that have its instructions and
            very slow on others. Weights, norms, scan and evaluation stay in float32.
        seed: Of the initial weights and the order of the windows.
        save_every: Steps between two states to resume from.
        evaluate_every: Steps between two looks at held-out text.

    Raises:
        ValueError: A number is out of range, or the precision is not one of the two.
    """

    steps: int = 2400
    batch_size: int = 2
    context_size: int = 1024
    learning_rate: float = 3e-3
    warmup_steps: int = 100
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    precision: str = "float32"
    seed: int = 0
    save_every: int = 100
    evaluate_every: int = 200

    def __post_init__(self) -> None:
        numbers = dataclasses.asdict(self)
        precision = numbers.pop("precision")
        expect(precision in PRECISIONS, "precision", f"one of {PRECISIONS}", precision)
        for name, value in numbers.items():
            expect(math.isfinite(value), name, "a finite number", value)
        expect(self.seed < 1 << 63, "seed", "less than 2**63", self.seed)
        for name in ("warmup_steps", "weight_decay", "seed"):
            value = numbers.pop(name)
            expect(value >= 0, name, "no negative number", value)
        for name, value in numbers.items():
            expect(value > 0, name, "a positive number", value)

    def lasting(self) -> dict[str, Any]:
        """The options that a resumed run must keep: all but its length and its pauses."""
        options = dataclasses.asdict(self)
        for name in ("steps", "save_every", "evaluate_every"):
            del options[name]
        return options

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up to the peak, then a cosine down to one hundredth of it."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        fall = 0.5 * (1 + math.cos(math.pi * progress))
        return self.learning_rate * (LAST_RATE + (1 - LAST_RATE) * fall)
