"""Text in, text out: streaming, stop texts, seeds, files of prompts, and the command line."""

from typing import Any

import pytest

from blockstride import kernels
from blockstride.models import LLM, EngineConfig, SamplingParams
from blockstride.models.cli import main


@pytest.fixture(scope="module")
def llm(reference):
    return LLM(reference.path)


def test_attention_is_planned_once_a_step_for_all_layers(make_reference, monkeypatch):
    plan, attend = kernels.attention_schedule, kernels.paged_attention
    plans, calls = [], []

    def count_plan(*arguments, max_query_len, **options):
        plan(*arguments, max_query_len=max_query_len, **options)
        plans.append((max_query_len, object()))
        return plans[-1]

    def count_call(*arguments, schedule, **options):
        calls.append(schedule)
        return attend(*arguments, **options)

    llm = LLM(make_reference(attn_layer_period=2).path, config=EngineConfig(record_steps=False))
    monkeypatch.setattr(kernels, "attention_schedule", count_plan)
    monkeypatch.setattr(kernels, "paged_attention", count_call)
    llm.generate("abcdefg", SamplingParams(max_tokens=4, ignore_eos=True))
    assert [length for length, _ in plans] == [7, 1, 1, 1]
    assert calls == [each for each in plans for _ in range(len(calls) // len(plans))]
    assert len(calls) > len(plans)


def test_streamed_pieces_join_to_the_generated_text(llm):
    params = SamplingParams(max_tokens=40, temperature=0.8, seed=3)
    (completion,) = llm.generate("In the beginning", params)
    assert "".join(llm.stream("In the beginning", params)) == completion.text


def test_closing_a_stream_frees_its_blocks(llm):
    stream = llm.stream("abc", SamplingParams(max_tokens=40, ignore_eos=True))
    next(stream)
    assert llm.engine.has_work
    stream.close()
    assert not llm.engine.has_work
    llm.engine.blocks.check()


def test_a_stop_text_ends_the_request_and_is_no_part_of_it(llm):
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    (whole,) = llm.generate("xyz", params)
    stop = whole.text[7:10]
    at = whole.text.find(stop)
    (cut,) = llm.generate("xyz", SamplingParams(max_tokens=60, ignore_eos=True, stop=(stop,)))
    assert cut.text == whole.text[:at]
    assert cut.finish_reason == "stop"
    assert "".join(llm.stream("xyz", SamplingParams(60, ignore_eos=True, stop=(stop,)))) == cut.text


def test_a_stop_text_that_the_last_allowed_token_completes_is_the_reason(llm):
    whole = llm.generate("xyz", SamplingParams(4, ignore_eos=True))[0]
    for count in range(5, 40):
        (whole,) = llm.generate("xyz", SamplingParams(count, ignore_eos=True))
        if whole.text[-1:].isascii() and whole.text[-1:] not in whole.text[:-1]:
            break
    params = {"max_tokens": len(whole.token_ids), "ignore_eos": True}
    (cut,) = llm.generate("xyz", SamplingParams(**params, stop=whole.text[-1]))
    assert (cut.text, cut.finish_reason) == (whole.text[:-1], "stop")
    assert whole.finish_reason == "length"
    (ended,) = llm.generate("xyz", SamplingParams(**params, stop_token_ids=whole.token_ids[-1:]))
    assert ended.finish_reason == "stop"


def test_what_ends_a_text_is_in_it_where_that_is_asked_for(llm):
    params = {"max_tokens": 60, "ignore_eos": True}
    (whole,) = llm.generate("xyz", SamplingParams(**params))
    stop = whole.text[7:10]
    with_stop = SamplingParams(**params, stop=stop, include_stop=True)
    at = whole.text.find(stop) + len(stop)
    assert llm.generate("xyz", with_stop)[0].text == whole.text[:at]
    assert "".join(llm.stream("xyz", with_stop)) == whole.text[:at]
    # a token of one letter
    end = next(i for i, t in enumerate(whole.token_ids) if llm.tokenizer.decode([t]).isascii())
    ended = {**params, "stop_token_ids": whole.token_ids[end]}
    count = whole.token_ids.index(whole.token_ids[end]) + 1
    cut, kept = llm.generate(
        ["xyz"] * 2, [SamplingParams(**ended), SamplingParams(**ended, include_stop=True)]
    )
    assert cut.token_ids == kept.token_ids == whole.token_ids[:count]
    assert kept.text == cut.text + llm.tokenizer.decode([whole.token_ids[end]])


def test_answers_to_a_prompt_are_independent_and_those_of_their_seeds(llm):
    params = {"max_tokens": 12, "temperature": 1.0, "ignore_eos": True}
    asked = [SamplingParams(**params, seed=seed, n=3) for seed in (4, 5)]
    answers = llm.generate(["abc", [5, 6]], asked)
    assert [(c.prompt, c.index) for c in answers] == [
        *(("abc", i) for i in range(3)),
        *(((5, 6), i) for i in range(3)),
    ]
    assert answers == llm.generate(["abc", [5, 6]], asked)
    (alone,) = llm.generate("abc", SamplingParams(**params, seed=4))
    assert answers[0].token_ids == alone.token_ids
    # no answer of this seed is one of the next
    all_tokens = {c.token_ids for c in answers + llm.generate("abc", asked[1])}
    assert len(all_tokens) == 9
    free = llm.generate("abc", SamplingParams(**params, n=4))
    assert len({c.token_ids for c in free}) == 4
    for ask in (llm.stream, llm.engine.add_request):
        prompt: Any = "abc" if ask == llm.stream else [5]
        with pytest.raises(ValueError, match=r"^n: expected 1 of a "):
            ask(prompt, asked[0])


def test_as_many_tokens_as_fit_is_a_number_of_tokens(reference):
    llm = LLM(reference.path, config=EngineConfig(max_len=50, cache_bytes=1 << 24))
    (all_that_fit,) = llm.generate("abcde", SamplingParams(None, ignore_eos=True), progress=True)
    assert (len(all_that_fit.token_ids), all_that_fit.finish_reason) == (45, "length")


def test_text_held_back_for_a_stop_text_is_released_at_the_end(llm):
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    (whole,) = llm.generate("xyz", params)
    never = whole.text[-2:] + "\x00\x00"
    (same,) = llm.generate("xyz", SamplingParams(12, ignore_eos=True, stop=(never,)))
    assert same.text == whole.text


def test_an_end_token_ends_the_request_unless_ignored(llm):
    (free,) = llm.generate("xyz", SamplingParams(max_tokens=30, ignore_eos=True))
    end = free.token_ids[10]
    first = free.token_ids.index(end)
    stopped = SamplingParams(max_tokens=30, ignore_eos=True, stop_token_ids=frozenset([end]))
    (completion,) = llm.generate("xyz", stopped)
    assert completion.token_ids == free.token_ids[: first + 1]
    assert completion.finish_reason == "stop"
    assert free.finish_reason == "length"


def test_a_seeded_request_gives_the_same_text_in_any_company(llm):
    params = [SamplingParams(max_tokens=20, temperature=1.0, seed=i) for i in range(5)]
    prompts = ["one", "two two", "three three three", "4", "five"]
    together = llm.generate(prompts, params)
    alone = [llm.generate(p, q)[0] for p, q in zip(prompts, params, strict=True)]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    other = llm.generate("one", SamplingParams(max_tokens=20, temperature=1.0, seed=99))[0]
    assert other.token_ids != alone[0].token_ids


def test_a_request_ends_where_the_cache_does(reference):
    llm = LLM(reference.path, config=EngineConfig(num_blocks=(3, 3)))
    (completion,) = llm.generate("x" * 20, SamplingParams(max_tokens=500, ignore_eos=True))
    assert completion.finish_reason == "length"
    assert completion.num_prompt_tokens + len(completion.token_ids) == 32


def test_more_prompts_than_rows_are_all_answered_in_order(reference):
    llm = LLM(reference.path, config=EngineConfig(max_num_seqs=2))
    prompts = [f"prompt number {i}" for i in range(7)]
    completions = llm.generate(prompts, SamplingParams(max_tokens=5), progress=True)
    assert [c.prompt for c in completions] == prompts
    llm.engine.blocks.check()


def test_a_completion_comes_when_it_and_those_before_it_are_done(reference):
    llm: Any = LLM(reference.path, config=EngineConfig(max_num_seqs=1))
    completions = llm.completions(["one", "two", "three"], SamplingParams(3, ignore_eos=True))
    assert next(completions).prompt == "one"
    assert llm.engine.has_work
    assert next(completions).prompt == "two"
    completions.close()
    assert not llm.engine.has_work
    llm.engine.blocks.check()


def test_low_precision_models_and_fp8_caches_generate(reference):
    models = [LLM(reference.path, dtype=dtype) for dtype in ("bfloat16", "float16")]
    narrow = EngineConfig(kv_cache_dtype="float8_e4m3fn", ssm_dtype="bfloat16")
    models.append(LLM(reference.path, config=narrow))
    for llm in models:
        (completion,) = llm.generate("hello", SamplingParams(max_tokens=8, ignore_eos=True))
        assert len(completion.token_ids) == 8


def test_generate_streams_a_prompt_with_its_continuation(reference, capsys):
    assert main(["generate", "--model", str(reference.path), "--prompt", "hello", "--stats"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("hello")
    assert "tokens/s" in err
    assert "pool of mamba-1" in err


def test_generate_answers_a_file_of_prompts_in_order(reference, capsys, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("first\n\nsecond\n")
    arguments = ["--model", str(reference.path), "--prompt-file", str(file), "--max-tokens", "4"]
    assert main(["generate", *arguments, "--layout", "nhd", "--policy", "unified"]) == 0
    out = capsys.readouterr().out
    assert out.index("first") < out.index("second")
