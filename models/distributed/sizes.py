"""Whether engines can be, as far as a config.json and the machine tell, before a process starts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from blockstride.kernels.checks import expect
from blockstride.models.distributed.messages import Setup
from blockstride.models.engine.pools import memory_argument, plan_model_pools
from blockstride.models.hf_config import cache_specs, read_config
from blockstride.models.loading import cache_dtypes, compute_dtype, find_device, model_class
from blockstride.models.memory import expect_room
from blockstride.models.parallel import TensorParallel


def check_engines(setups: Sequence[Setup]) -> None:
    """Raise unless the model can be cut into these engines, and their caches fit the machine.

    Args:
        setups: Rank 0 of every engine.

    Raises:
        ValueError: Ranks that can't share the heads or channels, sizes that can't work together,
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
    model_class(values)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        most = f"at most {count}, one for each GPU"
        expect(config.tp_size <= count, "tp_size", most, config.tp_size)
    first = TensorParallel(0, config.tp_size)
    heads = values.get("num_attention_heads")
    if isinstance(heads, int) and heads > 0:
        first.share("num_attention_heads", heads)
    dtypes = cache_dtypes(config, compute_dtype(setup.dtype, values, device))
    specs = cache_specs(
        values,
        kv_cache_dtype=str(dtypes.kv),
        conv_dtype=str(dtypes.conv),
        ssm_dtype=str(dtypes.ssm),
        conv_order=config.conv_order,
    )
    return sum(plan.nbytes for plan in plan_model_pools(specs, config, first))
