"""The laws of recurrences, on CPUs."""

from functools import partial
from typing import Any

import pytest
import torch

from blockstride import kernels
from blockstride.checks import full_checks
from blockstride.kernels.delta import reference as by_rule
from blockstride.kernels.lru import reference as lru
from blockstride.kernels.mamba1 import reference as mamba1
from blockstride.kernels.mamba2 import reference as mamba2
from tests.kernels.prompt_laws import *  # noqa: F403
from tests.kernels.recurrences import (
    BF16,
    F32,
    Recurrence,
    delta,
    each,
    keep,
    real_gated,
    selective,
    ssd,
    step_of,
)
from tests.kernels.step_laws import *  # noqa: F403

GATES: dict[str, dict[str, Any]] = {
    "by-head": {},
    "by-channel": {"by_channel": True, "value_dim": 80},
}
SCANS = (
    {
        # the channels fill a part of a vector's lanes, all, one part more, and all twice
        f"selective_scan-dim-{dim}": Recurrence(
            kernels.selective_scan,
            mamba1.selective_scan,
            partial(selective, dim=dim),
            ("x", "z", "dt"),
        )
        for dim in (24, 64, 72, 128)
    }
    | {
        # the same, with squares of 16 channels: no whole one, all, and all of two blocks
        f"ssd_scan-head_dim-{head_dim}": Recurrence(
            partial(kernels.ssd_scan, chunk_size=16),
            mamba2.ssd_scan,
            partial(ssd, head_dim=head_dim),
            ("z",),
        )
        for head_dim in (10, 64, 80)
    }
    | {
        f"rg_lru-dim-{dim}": Recurrence(
            kernels.rg_lru,
            lru.rg_lru,
            partial(real_gated, dim=dim),
            ("x", "z", "recurrence_gate", "input_gate"),
        )
        for dim in (24, 128)
    }
    | {
        # gates of heads and of channels, the columns of values a part of a vector's lanes and more
        f"gated_delta_rule-{gates}": Recurrence(
            kernels.gated_delta_rule,
            by_rule.gated_delta_rule,
            partial(delta, **options),
            ("v",),
        )
        for gates, options in GATES.items()
    }
)
SEVERAL = {
    "selective_state_update": Recurrence(
        kernels.selective_state_update,
        mamba1.selective_state_update,
        partial(step_of, selective, num_new=4, dim=72),
        ("x", "z", "dt"),
    ),
    "ssd_state_update": Recurrence(
        kernels.ssd_state_update,
        mamba2.ssd_state_update,
        partial(step_of, ssd, num_new=2, head_dim=80),
        ("x", "z"),
    ),
    "rg_lru_update": Recurrence(
        kernels.rg_lru_update,
        lru.rg_lru_update,
        partial(step_of, real_gated, num_new=3, dim=72),
        ("x", "z", "recurrence_gate", "input_gate"),
    ),
    "gated_delta_rule_update": Recurrence(
        kernels.gated_delta_rule_update,
        by_rule.gated_delta_rule_update,
        partial(step_of, delta, num_new=3),
        ("v",),
    ),
}
STEPS = (
    SEVERAL
    | {
        "selective_state_update-one-token": SEVERAL["selective_state_update"]._replace(
            make=partial(step_of, selective, dim=72)
        ),
        "rg_lru_update-one-token": SEVERAL["rg_lru_update"]._replace(
            make=partial(step_of, real_gated, dim=72)
        ),
    }
    | {
        # where states lie by squares, and where they do not
        f"ssd_state_update-one-token-{head_dim}": SEVERAL["ssd_state_update"]._replace(
            make=partial(step_of, ssd, head_dim=head_dim)
        )
        for head_dim in (80, 24)
    }
    | {
        f"gated_delta_rule_update-one-token-{gates}": SEVERAL["gated_delta_rule_update"]._replace(
            make=partial(step_of, delta, **options)
        )
        for gates, options in GATES.items()
    }
)

DRAFTS = {name: SEVERAL[name] for name in ("rg_lru_update", "gated_delta_rule_update")}

scan, step, several, draft = each(SCANS), each(STEPS), each(SEVERAL), each(DRAFTS)

# blocks 2 to 5 of 16 are those of the sequences, 7 and 8 those of the checkpoints
WRONG_BLOCKS: dict[str, tuple[str, list[int], str]] = {
    "a sequence's past the pool": ("state_indices", [2, 3, 4, 16], "ids below 16, got 16"),
    "two sequences' alike": ("state_indices", [2, 3, 4, 2], "no block twice"),
    "a checkpoint's past the pool": ("checkpoint_indices", [7, 99], "ids below 16, got 99"),
    "two checkpoints' alike": ("checkpoint_indices", [7, 7], "no block twice"),
    "a checkpoint's and a sequence's": ("checkpoint_indices", [7, 5], "blocks apart from"),
}


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("wrong", WRONG_BLOCKS)
def test_a_block_past_the_pool_or_with_two_owners_is_refused(scan, wrong, state_dtype):
    inputs, (name, blocks, message) = scan.make(state_dtype=state_dtype), WRONG_BLOCKS[wrong]
    keep(inputs, (2, 7), (3, 8))
    inputs[name] = torch.tensor(blocks, dtype=torch.int32)
    before = inputs["ssm_state"].clone()
    with pytest.raises(ValueError, match=f"^{name}: expected {message}"):
        scan.function(**inputs)
    assert torch.equal(inputs["ssm_state"], before)


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_a_step_refuses_a_block_past_the_pool_and_under_full_checks_one_with_two_owners(
    step, state_dtype
):
    inputs: dict[str, Any] = step.make(state_dtype=state_dtype)
    past = inputs | {"state_indices": torch.tensor([2, 15, 3], dtype=torch.int32)}
    with pytest.raises(ValueError, match=r"^state_indices: expected ids below 15, got 15"):
        step.function(**past)
    inputs["state_indices"] = torch.tensor([2, 3, 2], dtype=torch.int32)
    step.function(**inputs)
    with full_checks(), pytest.raises(ValueError, match=r"^state_indices: expected no block twice"):
        step.function(**inputs)
