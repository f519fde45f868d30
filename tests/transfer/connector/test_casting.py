"""Reading from an engine whose dtypes differ: refused, unless the reader says that it casts."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.transfer.connector import roles
from tests.transfer.connector.processes import Crew
from tests.transfer.connector.scenes import QUICK, Scene
from tests.transfer.connector.typed import typed

BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
DTYPES = {
    "states fp32 to bf16": ((BF16, BF16), (BF16, F32)),
    "states bf16 to fp32": ((BF16, BF16), (F32, BF16)),
    "cache bf16 to fp8": ((FP8, BF16), (F32, F32)),
    "cache fp8 to bf16, states fp32 to bf16": ((BF16, FP8), (BF16, F32)),
}


def play(
    crew: Crew, dtypes: str, block_size: int, *, cast: bool, strategy="direct", push=False
) -> Scene:
    case = partial(typed, *DTYPES[dtypes], block_size)
    here, there = crew.hire(2)
    settings = replace(QUICK, cast=cast, max_tokens=64, strategy=strategy, push=push)
    address = here.call(roles.produce, case, [0], QUICK, "")[0]
    there.call(roles.prepare_reader, case, 0, settings, [address])
    here.call(roles.offer, "r")
    return Scene(here, there, address, case)


@pytest.mark.parametrize(
    ("dtypes", "strategy", "block_size"),
    [
        *((dtypes, "direct", 4) for dtypes in DTYPES),
        ("states fp32 to bf16", "direct", 8),
        ("states fp32 to bf16", "pages", 8),
        ("cache bf16 to fp8", "pack", 8),
    ],
)
def test_every_value_arrives_rounded_once(dtypes: str, strategy: str, block_size: int, crew: Crew):
    scene = play(crew, dtypes, block_size, cast=True, strategy=strategy)
    found = scene.read()
    assert found["kind"] == "", found["error"]
    scene.reader.call(roles.check_values)


def test_a_pushed_request_is_cast_by_its_reader(crew: Crew):
    scene = play(crew, "states fp32 to bf16", 8, cast=True, push=True)
    found = scene.read()
    assert found["kind"] == "", found["error"]
    scene.reader.call(roles.check_values)


def test_without_leave_to_cast_dtypes_that_differ_are_named(crew: Crew):
    found = play(crew, "states fp32 to bf16", 4, cast=False).read()
    assert found["kind"] == "refused"
    assert "request 'r', producer rank 0" in found["error"]
    assert "ssm.dtype: expected torch.bfloat16, got torch.float32" in found["error"]
