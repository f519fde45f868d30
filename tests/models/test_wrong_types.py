"""Values of the wrong type are refused by name; those that mean the same are taken for it."""

import inspect

import numpy as np
import pytest
import torch

from blockstride.layouts import KVCacheLayout
from blockstride.models import LLM, AsyncLLM, EngineConfig, SamplingParams
from blockstride.models.checkpoint import Checkpoint
from blockstride.models.engine_arguments import _configs
from blockstride.models.prompts import encode, list_params, list_prompts
from tests.models.tokenizer_kinds import all_kinds


def make(cls, **fields):
    """As users do: the annotations, which tests enforce, would refuse first."""
    made = object.__new__(cls)
    inspect.unwrap(cls.__init__)(made, **fields)
    return made


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 2.5),
        ("max_tokens", True),
        ("max_tokens", "10"),
        ("temperature", "hot"),
        ("temperature", None),
        ("temperature", True),
        ("top_k", 1.0),
        ("top_p", "1"),
        ("seed", "a"),
        ("seed", 1.5),
        ("seed", False),
        ("stop", None),
        ("stop", [1]),
        ("stop", b"end"),
        ("stop", {"end": 1}),
        ("stop_token_ids", "a"),
        ("stop_token_ids", [1.5]),
        ("stop_token_ids", {3: "a"}),
        ("stop_token_ids", None),
        ("ignore_eos", 1),
        ("ignore_eos", "no"),
        ("include_stop", 1),
        ("min_tokens", None),
        ("min_p", "0.1"),
        ("repetition_penalty", None),
        ("logit_bias", [(3, 1.0)]),
        ("logit_bias", {"3": 1.0}),
        ("logit_bias", {3: "1"}),
        ("bad_token_ids", None),
        ("allowed_token_ids", "a"),
        ("logprobs", True),
        ("prompt_logprobs", 1.5),
        ("n", None),
    ],
)
def test_a_sampling_parameter_of_another_type_is_named(field, value):
    with pytest.raises(TypeError, match=f"^{field}: expected .*, got "):
        make(SamplingParams, **{field: value})


def test_a_path_is_no_llm_for_tasks():
    with pytest.raises(TypeError, match=r"^llm: expected an LLM, got 'here'"):
        make(AsyncLLM, llm="here")


def test_a_stop_given_as_one_string_is_one_stop():
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["end", "\n"]).stop == ("end", "\n")
    assert make(SamplingParams, stop_token_ids=7).stop_token_ids == {7}


def test_numbers_of_numpy_are_numbers():
    params = make(
        SamplingParams,
        max_tokens=np.int64(5),
        temperature=np.float32(0.5),
        top_k=np.int32(3),
        top_p=1,
        seed=np.uint8(9),
        stop_token_ids=np.array([4, 5]),
        ignore_eos=np.True_,
    )
    assert params == SamplingParams(5, 0.5, 3, 1.0, 9, (), frozenset([4, 5]), ignore_eos=True)
    assert type(params.max_tokens) is int


def test_more_tokens_than_tensors_can_count_are_all_of_them():
    assert SamplingParams(top_k=10**30).top_k < 2**31


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layout", 5),
        ("policy", None),
        ("block_size", 16.0),
        ("block_size", None),
        ("kernel_block_size", "16"),
        ("kv_cache_dtype", np.float32),
        ("cache_bytes", True),
        ("num_blocks", "33"),
        ("num_blocks", (3, 3.5)),
        ("max_num_seqs", 1.5),
        ("max_len", "long"),
        ("tp_size", None),
        ("poison", 1),
    ],
)
def test_an_engine_option_of_another_type_is_named(field, value):
    with pytest.raises(TypeError, match=f"^{field}: expected .*, got "):
        make(EngineConfig, **{field: value})


def test_an_engine_takes_layouts_and_counts_in_other_forms():
    config = make(
        EngineConfig,
        layout=KVCacheLayout("BHLNC"),
        num_blocks=np.array([3, 4]),
        block_size=np.int64(32),
    )
    assert config == EngineConfig(layout="BHLNC", num_blocks=(3, 4), block_size=32)


@pytest.mark.parametrize(
    "prompts",
    [
        None,
        5,
        b"text",
        {"a": 1},
        {"a"},
        [1.5],
        [True],
        [None],
        [["a"]],
        [[1, 2.5]],
        [b"text"],
        ["a", 5],
    ],
    ids=repr,
)
def test_prompts_of_another_type_are_refused(prompts):
    with pytest.raises(TypeError, match=r"^prompts?: expected .*, got "):
        list_prompts(prompts)


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("abc", ["abc"]),
        ([], []),
        (("a", "b"), ["a", "b"]),
        ([5, np.int64(6)], [(5, 6)]),
        ([[5, 6], "a", (7,)], [(5, 6), "a", (7,)]),
        (np.array([5, 6]), [(5, 6)]),
        (torch.tensor([[5, 6], [7, 8]]), [(5, 6), (7, 8)]),
        (range(3), [(0, 1, 2)]),
    ],
    ids=str,
)
def test_a_list_of_tokens_is_one_prompt_and_others_are_several(prompts, expected):
    assert list_prompts(prompts) == expected
    assert list_prompts(each for each in prompts) == expected or isinstance(prompts, str)


@pytest.mark.parametrize("params", ["hot", 5, {"temperature": 1}, [None], [{"temperature": 1}]])
def test_parameters_of_another_type_are_refused(params):
    with pytest.raises(TypeError, match=r"^params: expected SamplingParams"):
        list_params(params, 1)


@pytest.mark.parametrize("prompt", ["half of \ud83d", "\udcff"])
def test_text_that_is_not_unicode_is_refused(prompt):
    with pytest.raises(ValueError, match=r"^prompt: expected Unicode text, got '\\ud"):
        encode(all_kinds()["byte-level"], prompt)


def test_tokens_are_prompts_without_a_tokenizer_and_texts_are_not():
    assert encode(None, (5, 6)) == (5, 6)
    with pytest.raises(ValueError, match=r"prompt: expected tokens, as .* no tokenizer.json, got"):
        encode(None, "text")


def test_llms_of_other_types_are_refused():
    with pytest.raises(TypeError, match=r"^model: expected the path of a checkpoint"):
        inspect.unwrap(Checkpoint.__init__)(object.__new__(Checkpoint), 5)
    with pytest.raises(TypeError, match=r"^config: expected an EngineConfig, got \{"):
        inspect.unwrap(LLM.__init__)(object.__new__(LLM), "/nowhere", config={"tp_size": 1})
    for configs in ("tp=2", [1], None, EngineConfig):
        with pytest.raises(TypeError, match=r"^decode: expected an EngineConfig or several"):
            _configs(configs, "decode")
