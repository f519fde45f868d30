"""Under full checks kernels hold ids to their pools by themselves, as their callers do before."""

from typing import Any

import pytest

from blockstride import kernels
from blockstride.checks import full_checks
from blockstride.kernels.common.dispatch import INTERPRET, implementation
from blockstride.kernels.mamba1.gpu import selective_scan
from tests.kernels.calls import CALLS

pytestmark = [
    # the interpreter looks at assertions where it looks for overflow
    pytest.mark.usefixtures("on_device", "overflow_is_an_error"),
    pytest.mark.skipif(not INTERPRET, reason="an assertion ends the context of a GPU"),
]

# ids -> pools that they may be of, and the axis of blocks
POOLS = {
    "block_table": (("key_cache",), 0),
    "slot_mapping": (("key_cache",), 0),
    "source_blocks": (("source",), 1),
    "destination_blocks": (("destination",), 1),
    "source_indices": (("pages",), 0),
    "destination_indices": (("pages",), 0),
    "state_indices": (("ssm_state", "conv_state", "pages"), 0),
    "checkpoint_indices": (("ssm_state",), 0),
}
IDS = [
    (function, case, name)
    for function, cases in CALLS.items()
    # plans read no caches; states are unpacked by a function with one argument more
    if function not in {"attention_schedule", "unpack_state"}
    for case, call in cases.items()
    for name in POOLS.keys() & call.arguments("meta").keys()
]


@pytest.mark.parametrize(("function", "case", "name"), sorted(IDS))
def test_an_id_past_the_pool_ends_a_kernel(function, case, name):
    inputs: dict[str, Any] = CALLS[function][case].arguments(lengths=(9, 1, 1))
    pools, axis = POOLS[name]
    num_blocks = next(inputs[pool].shape[axis] for pool in pools if pool in inputs)
    past = num_blocks * inputs["key_cache"].shape[2] if name == "slot_mapping" else num_blocks
    launch = implementation(getattr(kernels, function), True)
    with full_checks():
        launch(**inputs)
        inputs[name].view(-1)[:1] = past
        with pytest.raises(Exception, match="past the pool"):
            launch(**inputs)


@pytest.mark.parametrize("chunk_size", [0, 8])
def test_an_id_past_the_pool_ends_a_scan_in_chunks_or_whole(chunk_size):
    inputs = CALLS["selective_scan"][""].arguments(lengths=(20, 1))
    inputs["state_indices"][0] = len(inputs["ssm_state"])
    with full_checks(), pytest.raises(Exception, match="state_indices: a block past the pool"):
        selective_scan(**inputs, chunk_size=chunk_size)
