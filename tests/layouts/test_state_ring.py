"""A ring of inputs is a field of the page like any other: bound, laid out and written in place."""

import pytest
import torch

from blockstride.kernels import StateRing, fold_state_ring, ssd_ring_update, ssd_state_update
from blockstride.layouts import (
    NAMED_LAYOUTS,
    Axis,
    Field,
    KVCachePool,
    Segment,
    Shard,
    StateSpec,
    mamba2,
    plan_pools,
)

HEADS, ROWS, STATES, GROUPS, LENGTH = 4, 8, 16, 2, 3
BLOCKS = torch.tensor([3, 1], dtype=torch.int32)


def mamba2_with_ring() -> StateSpec:
    """Mamba-2 whose page holds the inputs of the last tokens too, cut by heads and groups."""
    heads, groups = Shard("head", HEADS), Shard("group", GROUPS, replicate=True)
    slot, head, group = Axis("slot", LENGTH), Axis("head", HEADS), Axis("group", GROUPS)
    fields = (
        Field("ring.x", (slot, head, Axis("head_dim", ROWS)), torch.float32, heads),
        Field("ring.B", (slot, group, Axis("state", STATES)), torch.float32, groups),
        Field("ring.log_decay", (slot, head), torch.float32, heads),
        Field("ring.held", (head,), torch.float32, heads),
    )
    plain = mamba2(HEADS, ROWS, STATES, 4, n_groups=GROUPS, conv_dtype=torch.bfloat16)
    rings = tuple(Segment(field.name, (field,)) for field in fields)
    return StateSpec("mamba-2 with a ring", (*plain.segments, *rings))


@pytest.mark.parametrize("layout", NAMED_LAYOUTS, ids=str)
def test_a_layer_steps_over_the_ring_in_its_pages(layout):
    torch.manual_seed(0)
    spec = mamba2_with_ring()
    [plan] = plan_pools(
        {"x": spec, "y": spec}, layout=layout, policy="split", num_blocks=5, block_size=1
    )
    pool = KVCachePool(plan)
    views = pool.bind("y", spec)
    views.ssm_state.normal_()
    plain = views.ssm_state.clone()
    ring = StateRing(*(views.arrays[f"ring.{name}"] for name in StateRing._fields))
    A = -torch.rand(HEADS)
    for _ in range(6):
        x, dt = torch.randn(2, HEADS, ROWS), torch.rand(2, HEADS)
        B, C = torch.randn(2, 2, GROUPS, STATES)
        out = ssd_ring_update(x, dt, A, B, C, views.ssm_state, ring, BLOCKS)
        torch.testing.assert_close(out, ssd_state_update(x, dt, A, B, C, plain, BLOCKS))
    fold_state_ring(views.ssm_state, ring, BLOCKS)
    torch.testing.assert_close(views.ssm_state, plain)
    assert (pool.raw("x") == 0).all()
