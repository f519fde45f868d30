"""Whether engines can be, as far as a checkpoint and the machine tell, before a process starts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from blockstride.checks import expect
from blockstride.models.distributed.messages import Setup
from blockstride.models.engine.pools import memory_argument, plan_model_pools
from blockstride.models.hf_config import read_config
from blockstride.models.loading import find_device, model_class, outline_model
from blockstride.models.memory import expect_room
from blockstride.models.parallel import TensorParallel


def check_engines(setups: Sequence[Setup]) -> None:
    """Raise unless the model can be cut into these engines, and their caches fit the machine.

    The weights are looked at, and not read: what else ranks find wrong with them is left to them.

    Args:
        setups: Rank 0 of every engine.

    Raises:
        ValueError: Ranks that can't share the heads, channels or inner widths, weights that are
            missing, misshapen or quantised, sizes that can't work together,
            more ranks than GPUs, or more memory than there is; the message names the engine.
    """
    needed: dict[str, int] = {}
    for setup in setups:
        try:
            device = find_device(setup.device)
            nbytes = setup.config.tp_size * _rank_bytes(setup, device)
            if device.type == "cpu":
                # a GPU has its caches to itself, and is asked by its rank
                needed[setup.engine_id] = nbytes
                expect_room(memory_argument(setup.config), sum(needed.values()), device)
        except ValueError as error:
            raise type(error)(f"{setup.engine_id}: {error}") from error


def _rank_bytes(setup: Setup, device: torch.device) -> int:
    """What a rank caches, in bytes."""
    config, values = setup.config, read_config(setup.path)
    model = model_class(values).read_config(values)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        most = f"at most {count}, one for each GPU"
        expect(config.tp_size <= count, "tp_size", most, config.tp_size)
    first = TensorParallel(0, config.tp_size)
    # there are fewer of them than of anything else that ranks share
    if any(map(model.has_attention, range(model.num_hidden_layers))):
        first.share("num_attention_heads", model.num_attention_heads)
    outline = outline_model(setup.path, config, dtype=setup.dtype, device=device, parallel=first)
    return sum(plan.nbytes for plan in plan_model_pools(outline.cache_specs(), config, first))
