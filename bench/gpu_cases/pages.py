"""States out of their pages, into them, and from page to page."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from blockstride.kernels import StateField
from blockstride.kernels.cache.gpu import copy_state, pack_state, unpack_state
from gpu_cases.case import Call, Case
from gpu_cases.inputs import BF16, F32, ids


def cases(device: str, smoke: bool) -> Iterator[Case]:
    dim, count = (64, 4) if smoke else (8_192, 64)
    page_bytes = dim * 70
    ssm = StateField(dim * 6, (dim, 16), (16, 1), F32)
    conv = StateField(0, (dim, 3), (1, dim), BF16)

    def pages() -> Tensor:
        torch.manual_seed(0)
        raw = torch.randn(count * 2 + 1, page_bytes // 4, device=device).view(torch.int8)
        return raw[:, None, None]

    def typed(raw: Tensor, field: StateField, chosen: Tensor) -> Tensor:
        rows = raw[chosen.long(), 0, 0, field.offset_bytes : field.end_bytes].view(field.dtype)
        return rows.as_strided((len(chosen), *field.shape), (rows.stride(0), *field.stride))

    def check(field: StateField):
        raw, chosen, others = pages(), *ids(2 * count, device).chunk(2)
        expected = typed(raw, field, chosen)
        (state,) = unpack_state(raw, chosen, [field], [field.dtype])
        assert torch.equal(state.nan_to_num(), expected.nan_to_num())
        pack_state([state], raw, others, [field])
        assert torch.equal(typed(raw, field, others).nan_to_num(), expected.nan_to_num())

    for name, field in (("ssm", ssm), ("conv from SD", conv)):
        moved = 2 * count * (field.end_bytes - field.offset_bytes)

        def unpack(field=field) -> Call:
            return partial(unpack_state, pages(), ids(count, device), [field], [field.dtype])

        def pack(field=field) -> Call:
            states = [torch.zeros(count, *field.shape, dtype=field.dtype, device=device)]
            return partial(pack_state, states, pages(), ids(count, device), [field])

        def baseline(field=field) -> Call:
            return partial(typed, pages(), field, ids(count, device))

        yield Case(
            f"unpack {name} of {count}", partial(check, field), unpack, moved, torch=baseline
        )
        yield Case(f"pack {name} of {count}", partial(check, field), pack, moved)

    def check_copy():
        raw, (reads, writes) = pages(), ids(2 * count, device).chunk(2)
        expected = raw[reads.long()]
        copy_state(raw, reads, writes)
        assert torch.equal(raw[writes.long()], expected)

    def copy() -> Call:
        return partial(copy_state, pages(), *ids(2 * count, device).chunk(2))

    yield Case(f"copy {count} states", check_copy, copy, 2 * count * page_bytes)
