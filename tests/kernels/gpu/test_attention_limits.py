"""The laws of attention at its limits, in Triton; and what only a plan, or a GPU, has to do with.

On a GPU values are not looked at: calls of `gpu` stand for those, since they check nothing.
"""

from typing import Any

import pytest
import torch
from support.budget import cast
from support.pools import Batch, batch

from blockstride import kernels
from blockstride.kernels.attention import gpu, reference
from blockstride.kernels.attention.gpu import tile as attention_tile
from blockstride.kernels.attention.gpu.work_item import WorkItem
from blockstride.kernels.common.dispatch import INTERPRET
from tests.kernels.attention_laws import *  # noqa: F403
from tests.kernels.attention_laws import quantised
from tests.kernels.calls import attention

unchecked_attention: Any = gpu.paged_attention

pytestmark = pytest.mark.usefixtures("on_device")


@pytest.mark.parametrize("width", [0, 3])
@pytest.mark.parametrize(("block_size", "window"), [(16, None), (64, None), (5, 20)])
def test_nothing_beyond_a_block_table_is_read(block_size, window, width, device):
    b = batch([(1, 70), (40, 25), (1, 300)], block_size=block_size).to(device)
    known = b.block_table.clone()
    known[:, width:] = 0
    expected = unchecked_attention(*_with_table(b, known), scale=0.3, window=window)
    # the entries that a reader would find behind a row are ids too
    narrow = unchecked_attention(
        *_with_table(b, b.block_table[:, :width]), scale=0.3, window=window
    )
    torch.testing.assert_close(narrow, expected, rtol=0, atol=0)


def _with_table(b: Batch, table: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return b.query, b.key_cache, b.value_cache, table, b.seq_lens, b.query_start_loc


def test_lengths_below_zero_see_nothing(device):
    inputs = attention((1, 20))
    inputs["seq_lens"][0] = -5
    out = unchecked_attention(**inputs, scale=0.3)
    assert (out[0] == 0).all()
    assert (out[1:] != 0).any()


@pytest.mark.parametrize("processors", [1, 8])
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_bound_of_query_lengths_that_is_too_small_costs_time_alone(bound, processors):
    inputs = attention((1, 0, 40, 9))
    exact, _ = reference.paged_attention(**cast(inputs, torch.float64), scale=0.3)
    plan = gpu.attention_schedule(**inputs, max_query_len=bound, num_processors=processors)
    out = unchecked_attention(**inputs, scale=0.3, schedule=plan)
    torch.testing.assert_close(out.double(), exact, rtol=1e-4, atol=1e-5)


def test_splits_may_have_a_scale_below_zero():
    inputs = attention((1, 2), context=600)
    exact, _ = reference.paged_attention(**cast(inputs, torch.float64), scale=-0.3)
    plan = gpu.attention_schedule(**inputs, num_processors=8)
    assert WorkItem(*plan[0].items.unbind(1)).num_splits.max() > 1
    out = unchecked_attention(**inputs, scale=-0.3, schedule=plan)
    torch.testing.assert_close(out.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [0.2, 0.0, -0.2])
def test_prompts_of_the_specialised_kernel_keep_to_their_limits_too(scale, monkeypatch):
    """Scales, rows of no sequence, and a table that ends inside a prompt."""
    if not INTERPRET:
        pytest.skip("a GPU has the target that it has")
    monkeypatch.setattr(attention_tile, "_target", lambda device: ("cuda", 90))
    b = batch([(520, 140), (3, 40)], block_size=128, num_heads=2, num_kv_heads=1)
    query = torch.cat([b.query, torch.full((130, 2, 32), torch.nan, dtype=b.query.dtype)])
    table = b.block_table.clone()
    table[:, 3:] = 0
    exact, _ = reference.paged_attention(b.query.double(), *_with_table(b, table)[1:], scale=scale)
    narrow = (query, *_with_table(b, b.block_table[:, :3])[1:])
    plan = gpu.attention_schedule(*narrow, max_query_len=520)
    out = torch.full_like(query, torch.nan)
    unchecked_attention(*narrow, scale=scale, schedule=plan, out=out)
    torch.testing.assert_close(out[:523].double(), exact, rtol=2e-2, atol=2e-2)
    assert (out[523:] == 0).all()


MISUSES = {
    "window": {"window": 4},
    "query": {"query": torch.zeros(21, 6, 16, dtype=torch.float16)},
    "key_cache": {"key_cache": torch.zeros(13, 3, 16, 4).transpose(2, 3)},
    "value_cache": {"value_cache": torch.zeros(13, 3, 4, 16, dtype=torch.float16)},
    "block_table": {"block_table": torch.ones(2, 7, dtype=torch.int32)},
}


@pytest.mark.parametrize(("name", "change"), MISUSES.items(), ids=MISUSES)
def test_a_plan_is_refused_where_it_was_made_for_another_call(name, change, device):
    inputs = attention((1, 20))
    plan = kernels.attention_schedule(**inputs)
    assert plan is not None
    kernels.paged_attention(**inputs, scale=0.3, schedule=plan)
    moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in change.items()}
    with pytest.raises(ValueError, match=f"^{name}: expected what was planned for, "):
        kernels.paged_attention(**(inputs | moved), scale=0.3, schedule=plan)


def test_a_bound_of_query_lengths_is_checked_on_the_host():
    if not INTERPRET:
        pytest.skip("a GPU's lengths are not looked at")
    with pytest.raises(ValueError, match=r"^max_query_len: expected at least the 20 tokens"):
        kernels.attention_schedule(**attention((1, 20)), max_query_len=19)


def test_a_scale_of_nan_that_a_device_alone_knows_reaches_what_is_seen_and_no_more(device):
    inputs = quantised(attention((1, 20)))
    # the one token of the first sequence, and of the second the first 1 of 20, see missing blocks
    inputs["block_table"][:, 0] = 0
    nan = torch.tensor(float("nan"), device=device)
    out, lse = unchecked_attention(**inputs, scale=0.3, k_scale=nan, return_lse=True)
    assert torch.equal(out[:2], torch.zeros_like(out[:2]))
    assert (lse[:2] == -torch.inf).all()
    assert out[2:].isnan().all()
    assert lse[2:].isnan().all()
