"""Whatever processes compute a request, it gives the tokens of one engine, and of transformers."""

import pytest

from blockstride.models import LLM, SamplingParams, TokenLogprobs
from tests.models.distributed.deployments import (
    all_blocks_are_free,
    engine,
    greedy,
    tokens_of,
    tokens_of_transformers,
    until,
)

PROMPTS = ["a", "In the beginning", "x" * 47, "the quick brown fox " * 9]


@pytest.mark.parametrize(
    ("tp_size", "config"),
    [
        (2, {}),
        (2, {"family": "granite", "attention_bias": True}),
        (4, {"family": "bamba"}),
        (2, {"family": "recurrent_gemma", "attention_bias": True}),
        # more ranks than KV heads or heads of keys
        (4, {"family": "qwen3_next"}),
        (4, {"family": "olmo_hybrid", "attention_bias": True}),
        (2, {"family": "qwen3_5", "linear_num_value_heads": 6}),
        (2, {"family": "lfm2", "conv_bias": True}),
        (4, {"family": "lfm2_moe"}),
        (4, {"mamba_proj_bias": True, "tie_word_embeddings": True, "num_experts": 1}),
        (3, {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}),
    ],
)
def test_ranks_together_give_the_tokens_of_transformers(deploy, make_reference, tp_size, config):
    reference = make_reference(**config)
    llm = deploy(reference.path, config=engine(tp_size=tp_size, prefill_chunk=32))
    wanted = tokens_of_transformers(reference, llm, PROMPTS, 12)
    assert tokens_of(llm, PROMPTS, greedy(12)) == wanted


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ({}, {"layout": "LBNHC", "block_size": 48, "policy": "unified"}),
        ({"tp_size": 2, "policy": "unified", "prefill_chunk": 24}, {"layout": "LBHNC"}),
        (
            {"block_size": 32, "kernel_block_size": 16, "conv_order": "SD"},
            {"tp_size": 2, "layout": "BHLNC"},
        ),
    ],
)
@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_requests_that_are_handed_over_give_the_tokens_of_one_engine(
    deploy, reference, prefill, decode, transfer
):
    engines = {"prefill": engine(**prefill), "decode": engine(**decode)}
    llm = deploy(reference.path, **engines, transfer=transfer)
    wanted = tokens_of_transformers(reference, llm, PROMPTS, 12)
    assert tokens_of(llm, PROMPTS, greedy(12)) == wanted
    first, second = llm.reports()
    assert first.stats.decode_tokens == 0
    assert second.stats.prefill_tokens == 0
    assert second.transfers.requests == len(PROMPTS)
    # who moves the bytes is who is asked to
    is_pushed = transfer == "push"
    assert (first.transfers.nbytes > 0, second.transfers.nbytes > 0) == (is_pushed, not is_pushed)
    until(lambda: all_blocks_are_free(llm))


@pytest.mark.parametrize(
    "config",
    [{"family": "granite", "mamba_n_groups": 1}, {"family": "recurrent_gemma"}],
    ids=["groups of Mamba-2", "KV heads of RecurrentGemma"],
)
def test_hybrids_are_handed_over_between_ranks_that_share_what_can_not_be_cut(
    deploy, make_reference, config
):
    reference = make_reference(**config)
    llm = deploy(reference.path, prefill=engine(), decode=engine(tp_size=2, layout="BHLNC"))
    wanted = tokens_of_transformers(reference, llm, PROMPTS, 12)
    assert tokens_of(llm, PROMPTS, greedy(12)) == wanted
    assert llm.reports()[1].transfers.requests == len(PROMPTS)


@pytest.mark.parametrize("family", ["qwen3_next", "olmo_hybrid", "kimi_linear", "lfm2_moe"])
def test_hybrids_with_convolved_keys_are_handed_over_to_more_ranks(deploy, make_reference, family):
    reference = make_reference(family=family)
    prefill = engine(tp_size=2, block_size=32, conv_order="SD", prefill_chunk=24)
    decode = engine(tp_size=4, block_size=48, layout="LBNHC")
    llm = deploy(reference.path, prefill=prefill, decode=decode)
    wanted = tokens_of_transformers(reference, llm, PROMPTS, 12)
    assert tokens_of(llm, PROMPTS, greedy(12)) == wanted
    assert llm.reports()[1].transfers.requests == len(PROMPTS)


@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_types_are_converted_between_engines(deploy, reference, transfer):
    """What one engine has narrowed stays narrow in the other, whatever that could hold."""
    narrow = {"kv_cache_dtype": "bfloat16", "ssm_dtype": "bfloat16"}
    llm = deploy(
        reference.path, prefill=engine(**narrow, tp_size=2), decode=engine(), transfer=transfer
    )
    one = LLM(reference.path, config=engine(**narrow))
    # the second token sees nothing but what was handed over, and itself
    assert tokens_of(llm, PROMPTS, greedy(2)) == tokens_of(one, PROMPTS, greedy(2))
    report = llm.reports()[1]
    assert report.transfers.requests == len(PROMPTS)
    assert report.transfers.convert_seconds > 0


def test_sampled_tokens_are_those_of_one_engine(deploy, reference):
    params = [SamplingParams(max_tokens=15, temperature=1.0, seed=i) for i in range(4)]
    wanted = tokens_of(LLM(reference.path), PROMPTS, params)
    assert tokens_of(LLM(reference.path), PROMPTS, params[::-1]) != wanted
    llm = deploy(reference.path, prefill=engine(), decode=engine())
    assert tokens_of(llm, PROMPTS, params) == wanted


def test_penalties_and_log_probabilities_are_those_of_one_engine(deploy, reference):
    """An engine that takes over a request knows the tokens it has had, in prompt and answer."""
    told = {"ignore_eos": True, "logprobs": 2, "prompt_logprobs": 1}
    params = [
        SamplingParams(15, repetition_penalty=1.5, **told),
        SamplingParams(15, presence_penalty=0.9, frequency_penalty=0.4, **told),
        SamplingParams(15, 0.9, seed=3, min_p=0.1, repetition_penalty=1.3, n=2, **told),
        SamplingParams(15, logit_bias={9: 4.0}, min_tokens=15, stop_token_ids={9}, **told),
    ]
    wanted = LLM(reference.path, config=engine()).generate(PROMPTS, params)
    llm = deploy(reference.path, prefill=engine(tp_size=2), decode=engine(block_size=48))
    for mine, one in zip(llm.generate(PROMPTS, params), wanted, strict=True):
        assert (mine.token_ids, mine.index) == (one.token_ids, one.index)
        for got, expected in zip(told_of(mine), told_of(one), strict=True):
            assert got.token_id == expected.token_id
            assert got.logprob == pytest.approx(expected.logprob, abs=1e-4)
            assert len(got.top) == len(expected.top)
    assert llm.reports()[1].transfers.requests == len(wanted)


def told_of(completion) -> list[TokenLogprobs]:
    """How likely its tokens were, those of the prompt first."""
    return [*completion.prompt_logprobs[1:], *completion.logprobs]


def test_more_requests_than_either_engine_holds_are_all_answered(deploy, reference):
    # the longest request takes all blocks with tokens of the decode engine
    prompts = [f"{i} " * (1 + 7 * (i % 4)) for i in range(12)]
    llm = deploy(
        reference.path,
        prefill=engine(num_blocks=(3, 6), max_num_seqs=2),
        decode=engine(num_blocks=(4, 7), max_num_seqs=3),
    )
    wanted = tokens_of_transformers(reference, llm, prompts, 9)
    assert tokens_of(llm, prompts, greedy(9)) == wanted
    until(lambda: all_blocks_are_free(llm))


def test_several_engines_of_a_kind_share_the_work(deploy, reference):
    llm = deploy(reference.path, prefill=[engine(), engine()], decode=[engine(), engine()])
    wanted = tokens_of_transformers(reference, llm, PROMPTS, 8)
    assert tokens_of(llm, PROMPTS, greedy(8)) == wanted
    assert all(report.stats.steps > 0 for report in llm.reports())


def test_a_request_may_end_with_its_first_token(deploy, reference):
    llm = deploy(reference.path, prefill=engine(), decode=engine())
    (whole,) = llm.generate("abc", greedy(6))
    (first,) = llm.generate("abc", greedy(1))
    assert first.token_ids == whole.token_ids[:1]
    assert first.finish_reason == "length"
    stop = SamplingParams(max_tokens=6, stop=(whole.text[0],), ignore_eos=True)
    (none,) = llm.generate("abc", stop)
    assert (none.text, none.finish_reason) == ("", "stop")
    assert "".join(llm.stream("abc", greedy(6))) == whole.text
    stream = llm.stream("abc", greedy(200))
    next(stream)
    stream.close()
    assert not llm.engine.has_work
    until(lambda: all_blocks_are_free(llm))
