"""What bad input gets: an error object with the right status, and never one of 500."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.models.conftest import byte_tokenizer
from tests.models.serving.servers import MODEL, SECONDS, request_bytes, until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("more", "status", "param"),
    [
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [[]]}, 400, "prompt"),
        ({"prompt": [["a"]]}, 400, "prompt"),
        ({"prompt": [1, "a"]}, 400, "prompt"),
        ({"prompt": None}, 400, "prompt"),
        ({"prompt": {"a": 1}}, 400, "prompt"),
        ({"prompt": [10**6]}, 400, "prompt"),
        ({"prompt": [-1]}, 400, "prompt"),
        ({"prompt": [10**40]}, 400, "prompt"),
        ({"prompt": [True]}, 400, "prompt"),
        ({"prompt": "a" * 600}, 400, "prompt"),
        ({"prompt": ["a"] * 1025}, 400, "prompt"),
        ({"model": "other"}, 404, "model"),
        ({"model": 7}, 400, "model"),
        ({"max_tokens": -1}, 400, "max_tokens"),
        ({"max_tokens": 0}, 400, None),
        ({"max_tokens": 10**30}, 400, "max_tokens"),
        ({"max_tokens": 600}, 400, "max_tokens"),
        ({"max_tokens": "5"}, 400, "max_tokens"),
        ({"max_tokens": 1.5}, 400, "max_tokens"),
        ({"temperature": -0.1}, 400, "temperature"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"top_p": 1.1}, 400, "top_p"),
        ({"top_k": -2}, 400, "top_k"),
        ({"min_p": 2}, 400, "min_p"),
        ({"presence_penalty": 2.5}, 400, "presence_penalty"),
        ({"n": 0}, 400, "n"),
        ({"n": 129}, 400, "n"),
        ({"n": 128, "prompt": ["a"] * 100}, 400, "n"),
        ({"best_of": 3}, 400, None),
        ({"seed": 2**64}, 400, "seed"),
        ({"stop": ["x"] * 17}, 400, "stop"),
        ({"stop": ["x", ""]}, 400, "stop"),
        ({"stop": "x" * 257}, 400, "stop"),
        ({"stop": 5}, 400, "stop"),
        ({"logprobs": 21}, 400, "logprobs"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"logit_bias": {"a": 1}}, 400, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, 400, "logit_bias"),
        ({"logit_bias": {"5": 101}}, 400, "logit_bias"),
        ({"logit_bias": []}, 400, "logit_bias"),
        ({"stream": "yes"}, 400, "stream"),
        ({"stream_options": {"include_usage": True}}, 400, None),
        ({"suffix": "end"}, 400, "suffix"),
        ({"guided_json": {}}, 400, "guided_json"),
        ({"temperature": float("nan")}, 400, "temperature"),
        ({"temperature": float("inf")}, 400, "temperature"),
    ],
)
def test_a_field_that_cannot_be_is_named(server, more, status, param):
    got, error = server.refusal(COMPLETIONS, {"prompt": "a", "max_tokens": 1, **more})
    assert (got, error["param"]) == (status, param), error
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 500


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"content": "a"}]}, "messages"),
        ({"messages": [{"role": "king", "content": "a"}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": "a" * 600}]}, "messages"),
        ({"max_completion_tokens": 600}, "max_completion_tokens"),
        ({"top_logprobs": 2}, None),
        ({"tools": [{"type": "function"}]}, None),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ],
)
def test_a_field_of_a_chat_that_cannot_be_is_named(server, more, param):
    status, error = server.refusal(CHAT, {"messages": MESSAGES, "max_tokens": 1, **more})
    assert (status, error["param"]) == (400, param), error


def test_what_is_no_json_object_is_refused(server):
    bodies = [b"", b"{", b"[]", b"5", b'"a"', b"null", b"\xff\xfe", b'{"prompt": "\xff"}']
    bodies += [b"[" * 50_000, b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}", b"{} {}"]
    bodies += [b'{"prompt": "\\ud800"}', b'{"prompt": "a", "user": "\\ud800", "x\\ud800": 1}']
    for body in bodies:
        for path in (COMPLETIONS, CHAT):
            status, _ = server.refusal(path, body)
            assert status == 400, body


def test_requests_that_are_not_for_this_server_are_told_so(server):
    body = {"prompt": "a", "max_tokens": 1}
    assert server.refusal(COMPLETIONS, body, {"content-type": "text/plain"})[0] == 415
    assert server.refusal("/v1/nothing", body)[0] == 404
    assert server.refusal("/v1/models", body)[0] == 405
    for wrong in ("", "Bearer", "Bearer another", "a-secret", "Bearer a-secret-"):
        status, error = server.refusal(COMPLETIONS, body, {"authorization": wrong})
        assert (status, error["code"]) == (401, "invalid_api_key")
    # whoever looks after the server has no key
    assert server.ask("GET", "/health/live", headers={"authorization": ""})[0] == 200
    assert server.ask("GET", "/metrics", headers={"authorization": ""})[0] == 200
    assert server.ask("GET", "/v1/models", headers={"authorization": ""})[0] == 401


def test_a_body_over_the_limit_is_refused_however_it_comes(server):
    large = json.dumps({"prompt": "a" * 100_000}).encode()
    assert server.refusal(COMPLETIONS, large)[0] == 413
    chunks = (large[i : i + 9000] for i in range(0, len(large), 9000))
    with server.connect() as client:
        head = request_bytes({}).partition(b"content-length")[0]
        client.sendall(head + b"transfer-encoding: chunked\r\n\r\n")
        for chunk in chunks:
            client.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        client.sendall(b"0\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("size", [0, 1, 40, 200])
def test_a_client_that_never_finishes_its_request_is_sent_away(server, size):
    whole = request_bytes({"prompt": "a" * 100})
    with server.connect() as client:
        client.sendall(whole[:size])
        answer = client.recv(10_000)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"timeout_error"' in answer
        assert client.recv(1) == b""


def test_what_is_not_http_gets_an_error_too(server):
    with server.connect() as client:
        client.sendall(b"HELO there\r\n\r\n")
        answer = client.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"]


def test_a_client_that_reads_nothing_is_cut_off_and_its_request_ended(server):
    # more than sockets hold
    body = {"prompt": "x" * 400, "stream": True, "max_tokens": 100, "logprobs": 20, "echo": True}
    body["n"] = 100
    with server.connect() as client:
        client.setsockopt(1, 8, 4096)
        client.sendall(request_bytes({**body, "ignore_eos": True}))
        until(lambda: server.metric("blockstride:sequences_in_flight") == 100)
        until(server.is_idle)
        until(lambda: "the client reads nothing" in server.log())


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 30)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([MODEL, "a", "user", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["role", "content"]), inner)
    ),
    max_leaves=5,
)
NAMES = (
    *("model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p"),
    *("top_k", "min_p", "n", "best_of", "stop", "seed", "logprobs", "top_logprobs", "logit_bias"),
    *("echo", "stream", "stream_options", "presence_penalty", "frequency_penalty", "suffix"),
    *("repetition_penalty", "stop_token_ids", "allowed_token_ids", "bad_token_ids", "cache_salt"),
    *("ignore_eos", "min_tokens", "tools", "documents", "chat_template_kwargs", "user"),
    *("return_token_ids", "include_stop_str_in_output", "response_format", "modalities"),
)
GOOD = {"prompt": "a", "messages": MESSAGES, "max_tokens": 2}


@given(
    st.sampled_from([(COMPLETIONS, "messages"), (CHAT, "prompt")]),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3),
)
@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_body_whatever_makes_the_server_fail(server, where, odd):
    path, other = where
    body = {key: value for key, value in {**GOOD, **odd}.items() if key != other or key in odd}
    status, _, answer = server.ask("POST", path, json.dumps(body).encode("utf-8", "replace"))
    assert status in {200, 400, 404}, (body, answer)
    if status != 200:
        assert json.loads(answer)["error"]["message"]


def test_after_all_that_nothing_is_left_and_answers_are_right(server, reference):
    until(server.is_idle, SECONDS)
    asked = {"prompt": "a", "max_tokens": 9, "temperature": 0, "ignore_eos": True}
    asked["return_token_ids"] = True
    status, _, answer = server.ask("POST", COMPLETIONS, asked)
    ids = byte_tokenizer().encode("a").ids
    (choice,) = json.loads(answer)["choices"]
    assert (status, choice["token_ids"]) == (200, reference.greedy(ids, 9))
    assert "Traceback" not in server.log()
    assert server.metric("blockstride:responses_total", status="500") == 0
