"""The state of a run on disk, from which a killed run goes on as if nothing had happened."""

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from blockstride.checks import expect
from blockstride.transfer.atomic_file import write_atomically
from train_jamba.model import Hybrid


def save_state(
    path: Path,
    identity: Mapping[str, Any],
    model: Hybrid,
    optimiser: torch.optim.Optimizer,
    *,
    step: int,
    seconds: float,
) -> None:
    """Write the state after `step` steps that took `seconds`, atomically."""
    buffer = io.BytesIO()
    state = {
        "identity": dict(identity),
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "step": step,
        "seconds": seconds,
    }
    torch.save(state, buffer)
    write_atomically(path, buffer.getvalue())


def load_state(
    path: Path, identity: Mapping[str, Any], model: Hybrid, optimiser: torch.optim.Optimizer
) -> tuple[int, float]:
    """Load the state of the same run into its model and optimiser, if there is one.

    Args:
        path: Where `save_state` wrote it; need not exist.
        identity: Everything that determines the run; it must equal that of the state.
        model: Gets the weights.
        optimiser: Gets its moments and step counts.

    Returns:
        Steps done and seconds spent, both 0 when there is no state.

    Raises:
        ValueError: The file is no state of a run, or of a run with another identity.
    """
    if not path.exists():
        return 0, 0.0
    try:
        state = torch.load(path, weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path}: expected the state of a run, got another file") from error
    is_state = isinstance(state, dict) and "identity" in state
    expect(is_state, str(path), "the state of a run", type(state).__name__)
    stored = state["identity"]
    for name, value in identity.items():
        expect(stored.get(name) == value, name, f"{stored.get(name)}, as {path} has it", value)
    model.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    return state["step"], state["seconds"]
