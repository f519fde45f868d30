"""The laws of recurrences, in Triton."""

from functools import partial

import pytest

from blockstride.kernels.delta import reference as by_rule
from blockstride.kernels.delta.gpu import gated_delta_rule, gated_delta_rule_update
from blockstride.kernels.lru import reference as lru
from blockstride.kernels.lru.gpu import rg_lru, rg_lru_update
from blockstride.kernels.mamba1 import reference as mamba1
from blockstride.kernels.mamba1.gpu import selective_scan, selective_state_update
from blockstride.kernels.mamba2 import reference as mamba2
from blockstride.kernels.mamba2.gpu import ssd_scan, ssd_state_update
from tests.kernels.prompt_laws import *  # noqa: F403
from tests.kernels.recurrences import (
    Recurrence,
    delta,
    each,
    real_gated,
    selective,
    ssd,
    step_of,
)
from tests.kernels.step_laws import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("on_device")

SCANS = (
    {
        f"selective_scan-chunk-{chunk_size}": Recurrence(
            partial(selective_scan, chunk_size=chunk_size),
            mamba1.selective_scan,
            selective,
            ("x", "z", "dt"),
            {"rtol": 1.3e-6, "atol": 1e-5},
        )
        for chunk_size in (0, 8, 32)
    }
    | {
        f"rg_lru-chunk-{chunk_size}": Recurrence(
            partial(rg_lru, chunk_size=chunk_size),
            lru.rg_lru,
            real_gated,
            ("x", "z", "recurrence_gate", "input_gate"),
            {"rtol": 1.3e-6, "atol": 1e-5},
        )
        for chunk_size in (0, 16)
    }
    | {
        "ssd_scan": Recurrence(
            partial(ssd_scan, chunk_size=16),
            mamba2.ssd_scan,
            ssd,
            ("z",),
            {"rtol": 1e-4, "atol": 1e-4},
        ),
    }
    | {
        f"gated_delta_rule-{gates}": Recurrence(
            gated_delta_rule,
            by_rule.gated_delta_rule,
            partial(delta, by_channel=gates == "by-channel"),
            ("v",),
            {"rtol": 1e-4, "atol": 1e-5},
        )
        for gates in ("by-head", "by-channel")
    }
)
SEVERAL = {
    "selective_state_update": Recurrence(
        selective_state_update,
        mamba1.selective_state_update,
        partial(step_of, selective, num_new=2, dim=40),
        ("x", "z", "dt"),
    ),
    "ssd_state_update": Recurrence(
        ssd_state_update,
        mamba2.ssd_state_update,
        partial(step_of, ssd, num_new=2, head_dim=32),
        ("x", "z"),
    ),
    "rg_lru_update": Recurrence(
        rg_lru_update,
        lru.rg_lru_update,
        partial(step_of, real_gated, num_new=3, dim=300),
        ("x", "z", "recurrence_gate", "input_gate"),
    ),
    "gated_delta_rule_update": Recurrence(
        gated_delta_rule_update,
        by_rule.gated_delta_rule_update,
        partial(step_of, delta, num_new=2, by_channel=True),
        ("v",),
    ),
}
STEPS = SEVERAL | {
    "selective_state_update-one-token": SEVERAL["selective_state_update"]._replace(
        make=partial(step_of, selective, dim=40)
    ),
    "rg_lru_update-one-token": SEVERAL["rg_lru_update"]._replace(
        make=partial(step_of, real_gated, dim=40)
    ),
    "ssd_state_update-one-token": SEVERAL["ssd_state_update"]._replace(
        make=partial(step_of, ssd, head_dim=32)
    ),
    "gated_delta_rule_update-one-token": SEVERAL["gated_delta_rule_update"]._replace(
        make=partial(step_of, delta)
    ),
}

DRAFTS = {name: SEVERAL[name] for name in ("rg_lru_update", "gated_delta_rule_update")}

scan, step, several, draft = each(SCANS), each(STEPS), each(SEVERAL), each(DRAFTS)
