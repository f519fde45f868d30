"""Training of a small hybrid on a text, exactly resumable after a kill."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from blockstride.checks import expect
from blockstride.transfer.atomic_file import write_atomically, write_json
from train_jamba.checkpoint import CHECKPOINT_FILES, save_checkpoint
from train_jamba.config import HybridConfig
from train_jamba.evaluate import bits_per_byte
from train_jamba.experts import balancing_loss
from train_jamba.model import Hybrid, initialise
from train_jamba.options import TrainingOptions
from train_jamba.resume import load_state, save_state
from train_jamba.text import as_tokens, split_text, windows, with_bos

STATE_FILE = "training_state.pt"
SAMPLE_FILE, RECORD_FILE = "held_out_sample.txt", "training.json"
SAMPLE_BYTES = 4096
EXTRAPOLATION = 8  # windows in the longest sequence; jamba-kjv is measured that far
SMOOTHING = 0.95  # of the reported training loss, from step to step


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a run reports after every step.

    Attributes:
        step: Steps done.
        train_bits_per_byte: Cost of the training windows, smoothed over some twenty steps.
        held_out_bits_per_byte: Cost of the first two held-out blocks, when they were looked at.
        tokens_per_second: Speed of this step.
    """

    step: int
    train_bits_per_byte: float
    held_out_bits_per_byte: float | None
    tokens_per_second: float


def train(
    text: Path,
    out: Path,
    *,
    config: HybridConfig | None = None,
    options: TrainingOptions | None = None,
    report: Callable[[Progress], None] | None = None,
    on_resume: Callable[[int, float], None] | None = None,
) -> float:
    """Train a hybrid on a text and write it as a checkpoint that transformers loads.

    A run that was killed goes on from its last state when it is started again with the same
    arguments. On the same machine with the same number of threads it ends with the same bits as an
    undisturbed run. With another number of steps the learning rate falls to its end there.

    Args:
        text: The file to learn from; one block in 20 of it is held out.
        out: Folder for the checkpoint, `training.json` and a sample of the held-out text.
        config: Sizes of the model; 2.9 M parameters when not given.
        options: How to train it.
        report: Called after every step.
        on_resume: Called with the steps done and the seconds spent, where a run goes on.

    Returns:
        Bits per byte on all held-out text.

    Raises:
        ValueError: The text is missing or too short, `out` holds the state of another run or files
            that this one would replace, or the loss is not finite.
    """
    run = _Run(text, out, config or HybridConfig(), options or TrainingOptions())
    if run.done and on_resume:
        on_resume(run.done, run.seconds)
    for progress in run.steps():
        if report:
            report(progress)
    return run.finish()


class _Run:
    """One run: what it needs, and where it stands."""

    def __init__(
        self, text: Path, out: Path, config: HybridConfig, options: TrainingOptions
    ) -> None:
        self.options, self.out = options, out
        _expect_room(out)
        self.split = split_text(text, options.context_size)
        self.identity = {
            "text_sha256": self.split.sha256,
            **dataclasses.asdict(config),
            **options.lasting(),
        }
        self.model = Hybrid(config)
        initialise(self.model, options.seed)
        self.optimiser = _optimiser(self.model, options)
        out.mkdir(parents=True, exist_ok=True)
        self.done, self.seconds = load_state(
            out / STATE_FILE, self.identity, self.model, self.optimiser
        )
        least = f"at least {self.done}, as many as {out / STATE_FILE} has done"
        expect(options.steps >= self.done, "steps", least, options.steps)

    def steps(self) -> Iterator[Progress]:
        """Take the steps that are left, saving the state now and then."""
        options, tokens, smoothed = self.options, as_tokens(self.split.train), math.nan
        while self.done < options.steps:
            began = time.perf_counter()
            batch = windows(
                tokens, options.context_size, options.batch_size, options.seed, self.done
            )
            loss = self._step(batch)
            smoothed = loss if math.isnan(smoothed) else loss + SMOOTHING * (smoothed - loss)
            duration = time.perf_counter() - began
            self.done, self.seconds = self.done + 1, self.seconds + duration
            # the last one, too: what follows writes files, for which there may be no room
            if self.done % options.save_every == 0 or self.done == options.steps:
                self._save_state()
            held_out = None
            if self.done % options.evaluate_every == 0:
                held_out = bits_per_byte(self.model, self.split.held_out[:2], options.context_size)
            yield Progress(self.done, smoothed, held_out, batch.numel() / duration)

    def _step(self, batch: Int[Tensor, "batch_size context_size"]) -> float:
        """One step of the optimiser; the bits per byte of its windows before the step."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.options.precision == "bfloat16"):
            logits = self.model(with_bos(batch))
        loss = functional.cross_entropy(logits.float().flatten(0, 1), batch.flatten())
        coefficient = self.model.config.router_aux_loss_coef
        self.optimiser.zero_grad()
        (loss + coefficient * balancing_loss(self.model)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip_norm)
        rate = self.options.learning_rate_at(self.done)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        got = f"{self.options.learning_rate}: the loss of step {self.done + 1} is {loss.item()}"
        expect(math.isfinite(loss.item()), "learning_rate", "one that does not diverge", got)
        return loss.item() / math.log(2)

    def _save_state(self) -> None:
        save_state(
            self.out / STATE_FILE,
            self.identity,
            self.model,
            self.optimiser,
            step=self.done,
            seconds=self.seconds,
        )

    def finish(self) -> float:
        """Judge the model on all held-out text, write everything, and drop the state."""
        options, held_out = self.options, self.split.held_out
        sample = held_out[0][:SAMPLE_BYTES]
        num_tokens = options.steps * options.batch_size * options.context_size
        bits = bits_per_byte(self.model, held_out, options.context_size)
        record = {
            "held_out_bits_per_byte": bits,
            "held_out_bytes": sum(map(len, held_out)),
            "sample_bits_per_byte": bits_per_byte(self.model, [sample], options.context_size),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "training_bytes": len(self.split.train),
            "text_sha256": self.split.sha256,
            "minutes": round(self.seconds / 60, 1),
            "tokens_per_second": round(num_tokens / self.seconds),
            "options": dataclasses.asdict(options),
        }
        write_atomically(self.out / SAMPLE_FILE, sample)
        save_checkpoint(self.model, self.out, max_tokens=EXTRAPOLATION * options.context_size)
        write_json(self.out / RECORD_FILE, record)
        (self.out / STATE_FILE).unlink(missing_ok=True)
        return bits


def _expect_room(out: Path) -> None:
    """Raise `ValueError` if something is in a folder that a run would replace and hasn't made."""
    expect(out.is_dir() or not out.exists(), "out", "a folder, or none yet", f"the file {out}")
    # whoever has left its state there writes its files at the end
    if not (out / STATE_FILE).exists():
        names = (*CHECKPOINT_FILES, SAMPLE_FILE, RECORD_FILE)
        found = [name for name in names if (out / name).exists()]
        free = "a folder with nothing to replace, or with a run to go on with"
        expect(not found, "out", free, f"{', '.join(found)} in {out}")


def _optimiser(model: Hybrid, options: TrainingOptions) -> torch.optim.AdamW:
    """AdamW that decays the matrices: not the norms, biases, skips, decay rates and filters."""
    groups: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        is_matrix = parameter.dim() >= 2 and not name.endswith(("A_log", "conv1d.weight"))
        groups[is_matrix].append(parameter)
    return torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": options.weight_decay},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.99),
        fused=True,
    )
