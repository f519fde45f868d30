"""OpenAI's own client against a server: what it gets is what `LLM` says in this process."""

import json

import openai
import pytest

import serve_client
from blockstride.models import SamplingParams
from tests.models.serving.conftest import client_of
from tests.models.serving.servers import KEY, MODEL, until

PROMPT = "In the beginning"
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 12}
MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Who?"}]


@pytest.fixture(scope="module")
def client(server):
    with client_of(server) as made:
        yield made


def params(**given) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 12, **given})


def test_a_completion_has_the_tokens_of_generate(client, llm):
    (wanted,) = llm.generate(PROMPT, params())
    got = client.completions.create(prompt=PROMPT, extra_body={"return_token_ids": True}, **GREEDY)
    (choice,) = got.choices
    assert (got.object, got.model) == ("text_completion", MODEL)
    assert got.id.startswith("cmpl-")
    assert (choice.text, choice.finish_reason) == (wanted.text, wanted.finish_reason)
    assert tuple(choice.token_ids) == wanted.token_ids
    assert tuple(choice.prompt_token_ids) == tuple(llm.tokenizer.encode(PROMPT).ids)
    size = wanted.num_prompt_tokens
    usage = got.usage.prompt_tokens, got.usage.completion_tokens, got.usage.total_tokens
    assert usage == (size, 12, size + 12)


def test_a_stream_is_the_whole_answer_in_pieces(client, llm):
    (wanted,) = llm.generate(PROMPT, params(max_tokens=40))
    options = {"include_usage": True}
    stream = client.completions.create(
        prompt=PROMPT, stream=True, stream_options=options, **{**GREEDY, "max_tokens": 40}
    )
    chunks = list(stream)
    *pieces, usage = chunks
    assert len(pieces) > 3
    assert {chunk.id for chunk in chunks} == {usage.id}
    assert all(chunk.usage is None for chunk in pieces)
    assert "".join(chunk.choices[0].text for chunk in pieces) == wanted.text
    reasons = [chunk.choices[0].finish_reason for chunk in pieces]
    assert reasons == [None] * (len(pieces) - 1) + ["length"]
    assert (usage.choices, usage.usage.completion_tokens) == ([], 40)


def test_prompts_may_be_several_and_tokens_and_have_several_answers(client, llm):
    prompts = [[5, 6, 7], [9, 10, 11, 12]]
    drawn = {"temperature": 0.9, "seed": 3, "n": 2}
    wanted = llm.generate(prompts, params(**drawn))
    given = {"model": MODEL, "max_tokens": 12, "prompt": prompts, **drawn}
    got = client.completions.create(**given)
    assert [choice.index for choice in got.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in got.choices] == [each.text for each in wanted]
    # a prompt counts once
    assert got.usage.prompt_tokens == 7
    texts = [""] * 4
    for chunk in client.completions.create(stream=True, **given):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [each.text for each in wanted]


def test_a_chat_has_the_tokens_of_chat(client, llm):
    (wanted,) = llm.chat(MESSAGES, params())
    got = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    (choice,) = got.choices
    assert (got.object, choice.message.role) == ("chat.completion", "assistant")
    assert (choice.message.content, choice.finish_reason) == (wanted.text, "length")
    assert got.usage.prompt_tokens == wanted.num_prompt_tokens
    parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in MESSAGES]
    chunks = list(client.chat.completions.create(messages=parts, stream=True, **GREEDY))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta.content or "" for delta in deltas) == wanted.text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_stops_penalties_and_biases_do_what_they_do_in_generate(client, llm):
    bias = {65: 4.5, 66: -3.0}
    changed = {"presence_penalty": 1.5, "frequency_penalty": 0.5}
    whole = llm.generate(PROMPT, params(logit_bias=bias, **changed, max_tokens=30))[0].text
    stop = [whole[5:7], "\x00\x01"]
    (wanted,) = llm.generate(PROMPT, params(logit_bias=bias, **changed, max_tokens=30, stop=stop))
    assert wanted.finish_reason == "stop"
    as_text = {str(token): value for token, value in bias.items()}
    given = {**GREEDY, "max_tokens": 30, "logit_bias": as_text, "stop": stop, **changed}
    (choice,) = client.completions.create(prompt=PROMPT, **given).choices
    assert (choice.text, choice.finish_reason) == (wanted.text, "stop")
    pieces = list(client.completions.create(prompt=PROMPT, stream=True, **given))
    assert "".join(chunk.choices[0].text for chunk in pieces) == wanted.text


def test_log_probabilities_are_those_of_generate_in_both_shapes(client, llm):
    (wanted,) = llm.generate(PROMPT, params(logprobs=2))
    assert wanted.logprobs is not None
    told = [each.logprob for each in wanted.logprobs]
    (choice,) = client.completions.create(prompt=PROMPT, logprobs=2, **GREEDY).choices
    assert choice.logprobs.token_logprobs == pytest.approx(told, abs=1e-4)
    assert choice.logprobs.text_offset[0] == 0
    assert [max(each.values()) for each in choice.logprobs.top_logprobs] == pytest.approx(
        told, abs=1e-4
    )
    (wanted,) = llm.chat(MESSAGES, params(logprobs=2))
    assert wanted.logprobs is not None
    asked = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, **GREEDY}
    content = client.chat.completions.create(**asked).choices[0].logprobs.content
    assert [each.logprob for each in content] == pytest.approx(
        [each.logprob for each in wanted.logprobs], abs=1e-4
    )
    data = b"".join(bytes(each.bytes) for each in content)
    # a character that the answer ends in the middle of is no text
    assert data.decode("utf-8", "replace") == wanted.text
    assert all(each.top_logprobs[0].token == each.token for each in content)
    streamed = [
        each
        for chunk in client.chat.completions.create(stream=True, **asked)
        if chunk.choices[0].logprobs is not None
        for each in chunk.choices[0].logprobs.content
    ]
    assert [each.bytes for each in streamed] == [each.bytes for each in content]


def test_echo_tells_the_prompt_and_how_likely_it_was(client, llm):
    (wanted,) = llm.generate(PROMPT, params(max_tokens=1, prompt_logprobs=0))
    assert wanted.prompt_logprobs is not None
    told = [None if each is None else each.logprob for each in wanted.prompt_logprobs]
    asked = {**GREEDY, "echo": True, "logprobs": 0, "prompt": PROMPT}
    (scored,) = client.completions.create(**{**asked, "max_tokens": 0}).choices
    assert scored.text == PROMPT
    assert scored.logprobs.token_logprobs[0] is None
    assert scored.logprobs.token_logprobs[1:] == pytest.approx(told[1:], abs=1e-4)
    assert "".join(scored.logprobs.tokens) == PROMPT
    (continued,) = client.completions.create(**asked).choices
    (answer,) = llm.generate(PROMPT, params())
    assert continued.text == PROMPT + answer.text
    assert len(continued.logprobs.tokens) == len(told) + 12


def test_the_model_is_listed_and_others_are_not_found(client):
    (card,) = client.models.list().data
    assert (card.id, card.max_model_len) == (MODEL, 512)
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.completions.create(**{**GREEDY, "model": "another"}, prompt="a")


def test_a_request_has_one_name_in_its_answer_and_in_the_log(server):
    body = {"prompt": PROMPT, "max_tokens": 3}
    named = server.ask("POST", "/v1/completions", body, {"x-request-id": "my-own.7"})
    assert named[1]["x-request-id"] == "my-own.7"
    assert json.loads(named[2])["id"] == "cmpl-my-own.7"
    until(lambda: server.lines("my-own.7"))
    line = server.lines("my-own.7")[-1]
    wanted = {"path": "/v1/completions", "status": 200, "prompt_tokens": 16, "new_tokens": 3}
    assert wanted.items() <= line.items()
    # engines, too, write nothing but JSON
    assert any(json.loads(each).get("engine") == "decode-0" for each in server.log().splitlines())
    odd = server.ask("POST", "/v1/completions", body, {"x-request-id": "a b"})
    assert " " not in odd[1]["x-request-id"]


def test_dashboards_find_what_they_ask_for(server, client):
    system = "The same beginning of every prompt, which is computed once. " * 3
    names = {
        "vllm:generation_tokens_total": 36,
        "vllm:time_to_first_token_seconds_count": 3,
        "vllm:inter_token_latency_seconds_count": 33,
        "vllm:request_success_total": 3,
        "vllm:prompt_tokens_total": 3 * (len(system) + 1),
    }
    before = {name: server.metric(name) for name in names}
    hits = server.metric("vllm:prefix_cache_hits_total")
    for end in ("a", "b", "c"):
        client.completions.create(prompt=system + end, **GREEDY)
    assert {name: server.metric(name) - before[name] for name in names} == names
    until(lambda: server.metric("vllm:prefix_cache_hits_total") >= hits + len(system))
    assert server.metric("vllm:prefix_cache_queries_total") > len(system)
    until(server.is_idle)


def test_what_load_generators_ask_for_is_there(server):
    # the fields that `vllm bench serve` and guidellm send
    options = {"include_usage": True, "continuous_usage_stats": True}
    common = {"model": MODEL, "stream": True, "stream_options": options, "ignore_eos": True}
    completion = {"prompt": "x", "max_tokens": 5, "repetition_penalty": 1.0, "logprobs": None}
    message = {"role": "user", "content": [{"type": "text", "text": "x"}]}
    chat = {"messages": [message], "max_completion_tokens": 5, "stop": None}
    asked = (("/v1/completions", completion), ("/v1/chat/completions", chat))
    for path, body in asked:
        status, headers, answer = server.ask("POST", path, {**common, **body})
        assert (status, headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
        *events, done, rest = answer.decode().split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        chunks = [json.loads(event.removeprefix("data: ")) for event in events]
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == 5
        assert [bool(chunk["choices"]) for chunk in chunks] == [True] * (len(chunks) - 1) + [False]


def test_the_example_runs(server, capsys):
    serve_client.main(["--url", server.url, "--model", MODEL, "--api-key", KEY, "--count", "12"])
    out = capsys.readouterr().out
    assert out.startswith(serve_client.PROMPTS[0])
    assert "60 tokens in " in out
    assert "12 answers, 4 different, in " in out
