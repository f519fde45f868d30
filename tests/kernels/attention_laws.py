"""What holds of attention where its arguments are at their limits, on CPUs and in Triton.

`test_attention_limits.py` of a folder collects the laws.
"""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from blockstride import kernels
from blockstride.kernels.attention import reference
from tests.kernels.calls import attention, ids
from tests.kernels.gpu.support.budget import cast
from tests.kernels.recurrences import NAN, Arguments

# what a table of arguments is given to
paged_attention: Any = kernels.paged_attention

# steps alone, and steps beside prompts: different programs walk the two
BATCHES = pytest.mark.parametrize("lengths", [(1, 1), (2, 0, 20)], ids=str)


def follows(inputs: Arguments, **options: Any) -> None:
    """Hold outputs and denominators to the definition, NaN included."""
    close = {"rtol": 1e-4, "atol": 1e-5, "equal_nan": True}
    exact, exact_lse = reference.paged_attention(**cast(inputs | options, torch.float64))
    out, lse = paged_attention(**inputs, **options, return_lse=True)
    assert_close(out.double(), exact, **close)
    assert_close(lse.double(), exact_lse, **close)


def quantised(inputs: Arguments) -> Arguments:
    caches = ("key_cache", "value_cache")
    return inputs | {name: (inputs[name] * 40).to(torch.int8) for name in caches}


@BATCHES
@pytest.mark.parametrize("scale", [0.0, -0.4])
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"soft_cap": 2.0}], ids=str)
def test_scales_of_any_sign_follow_the_definition(lengths, scale, options):
    # a running maximum of unscaled products is the smallest of the scaled ones
    follows(attention(lengths), scale=scale, **options)


@BATCHES
@pytest.mark.parametrize("k_scale", [0.0, -0.03])
@pytest.mark.parametrize("v_scale", [0.0, -0.03])
def test_scales_of_quantised_caches_may_have_any_sign(lengths, k_scale, v_scale):
    scales = {"k_scale": torch.tensor(k_scale), "v_scale": torch.tensor(v_scale)}
    follows(quantised(attention(lengths)), scale=0.3, **scales)


def test_keys_of_zeros_under_a_scale_of_zero_are_all_seen_alike():
    inputs = quantised(attention((1, 7)))
    inputs["key_cache"].zero_()
    scales = {"k_scale": torch.tensor(0.0), "v_scale": torch.tensor(0.03)}
    follows(inputs, scale=0.3, **scales)


@pytest.mark.parametrize("scale", [0.0, -0.4])
def test_latent_caches_may_have_scales_of_any_sign(scale):
    inputs = attention((1, 20), head_size=48)
    follows(inputs | {"value_cache": inputs["key_cache"][..., :32]}, scale=scale)


@BATCHES
def test_a_query_of_nan_gives_nan_and_not_zeros(lengths):
    inputs = attention(lengths)
    inputs["query"][-1] = NAN
    out, lse = paged_attention(**inputs, scale=0.3, return_lse=True)
    assert out[-1].isnan().all()
    assert lse[-1].isnan().all()
    assert out[:-1].isfinite().all()


@BATCHES
@pytest.mark.parametrize("head_size", [1, 4, 8, 24])
def test_heads_of_any_size_are_taken(lengths, head_size):
    follows(attention(lengths, head_size=head_size), scale=0.3)


@BATCHES
@pytest.mark.parametrize("has_sinks", [False, True])
def test_rows_of_no_sequence_see_nothing(lengths, has_sinks):
    inputs, slack = attention(lengths), 3
    sinks = torch.randn(6) if has_sinks else None
    options: Arguments = {"scale": 0.3, "sinks": sinks, "return_lse": True}
    expected, expected_lse = paged_attention(**inputs, **options)
    more = inputs | {"query": torch.cat([inputs["query"], torch.full((slack, 6, 16), NAN)])}
    results = [torch.full((len(more["query"]), 6, 16), NAN), None]
    for out in results:
        actual, lse = paged_attention(**more, **options, out=out)
        assert_close(actual[:-slack], expected, rtol=0, atol=0)
        assert torch.equal(actual[-slack:], torch.zeros(slack, 6, 16))
        assert_close(lse[:-slack], expected_lse, rtol=0, atol=0)
        unseen = torch.full((6,), -torch.inf) if sinks is None else sinks
        assert_close(lse[-slack:], unseen.expand(slack, 6))


def test_a_step_of_rows_without_sequences_is_all_zeros():
    inputs = attention(())
    out = paged_attention(**(inputs | {"query": torch.randn(5, 6, 16)}), scale=0.3)
    assert torch.equal(out, torch.zeros(5, 6, 16))


REFUSED: dict[str, tuple[str, Any]] = {
    "negative": ("seq_lens", ids(-1, 23)),
    "past the table": ("seq_lens", ids(4, 25)),
    "scale": ("scale", NAN),
    "id past the pool": ("block_table", ids(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13).view(2, 6)),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("name", "value"), REFUSED.values(), ids=REFUSED)
def test_values_out_of_range_are_refused_on_the_host(name, value):
    inputs = attention((1, 20))
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        paged_attention(**({"scale": 0.3} | inputs | {name: value}))


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_scales_of_nan_are_refused_on_the_host(name):
    with pytest.raises(ValueError, match=f"^{name}: expected a number, got nan"):
        paged_attention(**quantised(attention((1,))), scale=0.3, **{name: torch.tensor(NAN)})


def test_ids_that_no_query_asks_for_may_be_any():
    # past the last block, before the window, and of a sequence without new tokens
    inputs = attention((1, 0), context=11)
    expected = paged_attention(**inputs, scale=0.3, window=5)
    inputs["block_table"][:1, 0], inputs["block_table"][1:] = 99, 99
    wide = torch.cat([inputs["block_table"], torch.full((2, 3), 99, dtype=torch.int32)], 1)
    out = paged_attention(**(inputs | {"block_table": wide}), scale=0.3, window=5)
    assert torch.equal(out, expected)
