"""The laws of recurrences, on CPUs."""

from functools import partial

from blockstride import kernels
from tests.kernels.prompt_laws import *  # noqa: F403
from tests.kernels.recurrences import CLOSE, Recurrence, delta, each, selective, ssd, step_of
from tests.kernels.step_laws import *  # noqa: F403

SCANS = (
    {
        # the channels fill a part of a vector's lanes, all, one part more, and all twice
        f"selective_scan-dim-{dim}": Recurrence(
            kernels.selective_scan, partial(selective, dim=dim), ("x", "z", "dt")
        )
        for dim in (24, 64, 72, 128)
    }
    | {
        # the same, with squares of 16 channels: no whole one, all, and all of two blocks
        f"ssd_scan-head_dim-{head_dim}": Recurrence(
            partial(kernels.ssd_scan, chunk_size=16), partial(ssd, head_dim=head_dim), ("z",)
        )
        for head_dim in (10, 64, 80)
    }
    | {
        "gated_delta_rule": Recurrence(
            kernels.gated_delta_rule, delta, ("v",), {"rtol": 1e-4, "atol": 1e-5}, CLOSE
        ),
    }
)
SEVERAL = {
    "selective_state_update": Recurrence(
        kernels.selective_state_update,
        partial(step_of, selective, num_new=4, dim=72),
        ("x", "z", "dt"),
    ),
    "ssd_state_update": Recurrence(
        kernels.ssd_state_update, partial(step_of, ssd, num_new=2, head_dim=80), ("x", "z")
    ),
}
STEPS = (
    SEVERAL
    | {
        "selective_state_update-one-token": SEVERAL["selective_state_update"]._replace(
            make=partial(step_of, selective, dim=72)
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
        "gated_delta_rule_update": Recurrence(
            kernels.gated_delta_rule_update, partial(step_of, delta), ("v",), in_company=CLOSE
        ),
    }
)

scan, step, several = each(SCANS), each(STEPS), each(SEVERAL)
