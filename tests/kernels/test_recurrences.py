"""The laws of recurrences, on CPUs."""

from functools import partial

from blockstride import kernels
from tests.kernels.prompt_laws import *  # noqa: F403
from tests.kernels.recurrences import CLOSE, Recurrence, delta, each, selective, ssd, step_of
from tests.kernels.step_laws import *  # noqa: F403

SCANS = {
    # the channels fill a part of a vector's lanes, all, one part more, and all twice
    f"selective_scan-dim-{dim}": Recurrence(
        kernels.selective_scan, partial(selective, dim=dim), ("x", "z", "dt")
    )
    for dim in (24, 64, 72, 128)
} | {
    "ssd_scan": Recurrence(
        partial(kernels.ssd_scan, chunk_size=16), ssd, ("z",), {"rtol": 1e-4, "atol": 1e-4}, CLOSE
    ),
    "gated_delta_rule": Recurrence(
        kernels.gated_delta_rule, delta, ("v",), {"rtol": 1e-4, "atol": 1e-5}, CLOSE
    ),
}
SEVERAL = {
    "selective_state_update": Recurrence(
        kernels.selective_state_update,
        partial(step_of, selective, num_new=4, dim=72),
        ("x", "z", "dt"),
    ),
    "ssd_state_update": Recurrence(
        kernels.ssd_state_update, partial(step_of, ssd, num_new=2), ("x", "z"), CLOSE, CLOSE
    ),
}
STEPS = SEVERAL | {
    "selective_state_update-one-token": SEVERAL["selective_state_update"]._replace(
        make=partial(step_of, selective, dim=72)
    ),
    "ssd_state_update-one-token": SEVERAL["ssd_state_update"]._replace(make=partial(step_of, ssd)),
    "gated_delta_rule_update": Recurrence(
        kernels.gated_delta_rule_update, partial(step_of, delta), ("v",), in_company=CLOSE
    ),
}

scan, step, several = each(SCANS), each(STEPS), each(SEVERAL)
