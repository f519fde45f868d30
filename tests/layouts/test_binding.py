"""What a layer gets when it binds its raw storage, and the storages that it refuses."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blockstride.kernels import StateField, pack_state, unpack_state
from blockstride.layouts import (
    NAMED_LAYOUTS,
    KVCacheLayout,
    KVCachePool,
    full_attention,
    latent_attention,
    mamba1,
    mamba2,
    plan_pools,
)
from tests.layouts.support import (
    BF16,
    LAW,
    SPECS,
    STATES,
    addresses,
    byte_addresses,
    pool_cases,
)


def views_of(bound) -> dict[str, torch.Tensor]:
    return dict(getattr(bound, "arrays", None) or vars(bound))


def pool_of(spec, layout=KVCacheLayout.LBHNC, num_blocks=5, block_size=4) -> KVCachePool:
    [pool] = plan_pools(
        {"x": spec, "y": spec},
        layout=layout,
        policy="split",
        num_blocks=num_blocks,
        block_size=block_size,
    )
    return KVCachePool(pool)


@LAW
@given(pool_cases())
def test_every_view_of_every_layer_stays_inside_the_layers_own_bytes(case):
    pool = KVCachePool(case.plan())
    for name in pool.layout.slots:
        raw = pool.raw(name)
        own = torch.zeros(pool.layout.nbytes, dtype=torch.bool)
        own[byte_addresses(raw, pool.storage)] = True
        for view in views_of(pool.bind(name, case.layers()[name])).values():
            assert bool(own[byte_addresses(view, pool.storage)].all())


@LAW
@given(pool_cases())
def test_bound_views_show_the_fields_of_the_placement(case):
    pool = KVCachePool(case.plan())
    for name, (placement, slot) in pool.layout.slots.items():
        views = views_of(pool.bind(name, case.layers()[name]))
        for placed in placement.fields:
            field = placement.view(pool.storage, placed, slot)
            role = {"k": "key_cache", "v": "value_cache"}.get(placed.field.name, placed.field.name)
            if role in views:
                wanted = addresses(field, pool.storage)
                if placed.field.axes[0].name == "tap":
                    wanted = wanted.transpose(1, 2)
                assert torch.equal(addresses(views[role], pool.storage), wanted)


@pytest.mark.parametrize("layout", NAMED_LAYOUTS, ids=str)
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "planes"])
def test_attention_sees_the_same_caches_packed_or_in_planes(packed, layout):
    pool = pool_of(full_attention(3, 8, BF16, packed=packed), layout)
    views = pool.bind("y", full_attention(3, 8, BF16, packed=packed))
    assert views.key_cache.shape == views.value_cache.shape == (5, 3, 4, 8)
    content = torch.randn(2, 5, 3, 4, 8, dtype=BF16)
    views.key_cache.copy_(content[0])
    views.value_cache.copy_(content[1])
    again = pool.bind("y", full_attention(3, 8, BF16, packed=packed))
    assert torch.equal(torch.stack([again.key_cache, again.value_cache]), content)
    assert not pool.raw("x").any()


def test_planes_are_the_form_that_engines_used_before():
    blocks, block_size, heads, size = 5, 4, 3, 8
    spec = full_attention(heads, size, BF16, packed=False)
    [plan] = plan_pools(
        {"x": spec},
        layout=KVCacheLayout.LBNHC,
        policy="split",
        num_blocks=blocks,
        block_size=block_size,
    )
    pool = KVCachePool(plan)
    old = pool.storage.view(BF16).view(blocks, 2, block_size, heads, size)
    old.copy_(torch.randn(old.shape))
    views = pool.bind("x", spec)
    assert torch.equal(views.key_cache, old[:, 0].transpose(1, 2))
    assert torch.equal(views.value_cache, old[:, 1].transpose(1, 2))


def test_latent_values_are_a_slice_of_the_keys():
    pool = pool_of(latent_attention(24, 8, BF16))
    views = pool.bind("x", latent_attention(24, 8, BF16))
    assert views.key_cache.shape == (5, 1, 4, 32)
    assert views.value_cache.shape == (5, 1, 4, 24)
    assert views.value_cache.data_ptr() == views.key_cache.data_ptr()
    assert views.value_cache.stride() == views.key_cache.stride()


@pytest.mark.parametrize("order", ["DS", "SD"])
def test_a_convolution_is_channel_by_tap_whatever_its_memory_order(order):
    spec = mamba2(4, 4, 8, 4, n_groups=2, conv_dtype=BF16, conv_order=order)
    views = pool_of(spec).bind("x", spec)
    assert views.conv_state.shape == (5, 16 + 2 * 16, 3)
    assert views.conv_state.stride()[1:] == ((3, 1) if order == "DS" else (1, 48))
    assert views.ssm_state.shape == (5, 4, 4, 8)
    views.conv_state.copy_(torch.arange(5 * 48 * 3).view(5, 48, 3) % 251)
    parts = [views.arrays[name] for name in ("conv.x", "conv.B", "conv.C")]
    assert torch.equal(torch.cat(parts, dim=1), views.conv_state)


@pytest.mark.parametrize("kind", sorted(STATES))
def test_state_kernels_and_bound_views_agree_on_a_page(kind):
    spec = STATES[kind]
    pool = pool_of(spec)
    views = pool.bind("y", spec)
    indices = torch.tensor([3, 1], dtype=torch.int32)
    names = [segment.name for segment in spec.segments]
    states = [torch.randn(2, *views.arrays[name].shape[1:]) for name in names]
    raw = pool.raw("y")
    places = [views.arrays[name] for name in names]
    fields = [
        StateField(v.data_ptr() - raw.data_ptr(), tuple(v.shape[1:]), v.stride()[1:], v.dtype)
        for v in places
    ]
    pack_state(states, raw, indices, fields)
    for name, state in zip(names, states, strict=True):
        view = views.arrays[name]
        assert torch.equal(view[indices], state.to(view.dtype))
    unpacked = unpack_state(raw, indices, fields)
    for name, state in zip(names, unpacked, strict=True):
        assert torch.equal(state, views.arrays[name][indices])


GQA = full_attention(2, 8, BF16)
STATE = mamba1(16, 4, 4, conv_dtype=BF16)
PAGE = STATE.page(1).nbytes


@pytest.mark.parametrize(
    ("shape", "got"),
    [
        ((5, 2, 4, 15), r"\[5, 2, 4, 15\]"),
        ((5, 3, 4, 16), r"\[5, 3, 4, 16\]"),
        ((5, 2, 2, 4, 8), r"\[5, 2, 2, 4, 8\]"),
        ((2, 16), r"\[2, 16\]"),
        ((), r"\[\]"),
    ],
)
def test_attention_refuses_another_shape(shape, got):
    wanted = r"raw.shape: expected \['num_blocks', 2, 'block_size', 16\], got "
    with pytest.raises(ValueError, match=wanted + got):
        GQA.bind_kv_cache(torch.zeros(shape, dtype=BF16))


def test_attention_in_planes_refuses_a_packed_page():
    planes = full_attention(2, 8, BF16, packed=False)
    wanted = r"raw.shape: expected \['num_blocks', 2, 2, 'block_size', 8\], got \[5, 2, 4, 16\]"
    with pytest.raises(ValueError, match=wanted):
        planes.bind_kv_cache(torch.zeros((5, 2, 4, 16), dtype=BF16))


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8, torch.float32])
def test_attention_refuses_another_dtype(dtype):
    with pytest.raises(TypeError, match=f"raw.dtype: expected torch.bfloat16, got {dtype}"):
        GQA.bind_kv_cache(torch.zeros((5, 2, 4, 16), dtype=dtype))


@pytest.mark.parametrize("nbytes", [0, PAGE - 16, PAGE - 1, PAGE + 16])
def test_a_state_refuses_a_page_of_another_size(nbytes):
    with pytest.raises(ValueError, match=rf"raw.shape: expected \['num_blocks', 1, 1, {PAGE}\]"):
        STATE.bind_kv_cache(torch.zeros((5, 1, 1, nbytes), dtype=torch.int8))


def test_a_state_refuses_typed_pages():
    with pytest.raises(TypeError, match=r"raw.dtype: expected torch.int8, got torch.bfloat16"):
        STATE.bind_kv_cache(torch.zeros((5, 1, 1, PAGE), dtype=BF16))


def test_a_state_refuses_bytes_that_are_not_side_by_side():
    raw = torch.zeros((5, 1, 1, 2 * PAGE), dtype=torch.int8)[..., ::2]
    with pytest.raises(ValueError, match=r"raw.stride\(3\): expected 1, a page that is one run"):
        STATE.bind_kv_cache(raw)


def test_a_state_refuses_pages_that_are_not_aligned():
    memory = torch.zeros(6 * (PAGE + 16), dtype=torch.int8)
    shape = (5, 1, 1, PAGE)
    with pytest.raises(ValueError, match=r"raw.stride\(0\): expected a multiple of 16 bytes"):
        STATE.bind_kv_cache(memory.as_strided(shape, (PAGE + 8, PAGE, PAGE, 1)))
    with pytest.raises(ValueError, match=r"raw.address: expected a multiple of 16 bytes"):
        STATE.bind_kv_cache(memory.as_strided(shape, (PAGE, PAGE, PAGE, 1), 8))
    STATE.bind_kv_cache(memory.as_strided(shape, (PAGE + 16, PAGE, PAGE, 1), 16))


@LAW
@given(st.sampled_from(sorted(SPECS)), st.sampled_from(sorted(SPECS)))
def test_a_pool_binds_a_layer_only_to_the_spec_it_was_laid_out_for(owner, other):
    pool = pool_of(SPECS[owner])
    if SPECS[owner] == SPECS[other]:
        pool.bind("x", SPECS[other])
    else:
        with pytest.raises(ValueError, match="x: expected the spec it was laid out with"):
            pool.bind("x", SPECS[other])


def test_the_part_of_another_rank_is_refused():
    pool = pool_of(SPECS["gqa-bf16"].tp_shard(0, 2))
    with pytest.raises(ValueError, match="x: expected the spec it was laid out with"):
        pool.bind("x", SPECS["gqa-bf16"].tp_shard(1, 2))
