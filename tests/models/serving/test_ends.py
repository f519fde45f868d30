"""How requests and servers end: clients leave, engines die, signals come, and nothing is left."""

import asyncio
import json
import os
import random
import re
import signal
import socket
from pathlib import Path
from time import monotonic

import openai
import pytest

from tests.models.conftest import byte_tokenizer
from tests.models.distributed.deployments import is_running
from tests.models.serving.conftest import client_of
from tests.models.serving.servers import KEY, MODEL, SECONDS, request_bytes, until

ENDLESS = {"max_tokens": 4000, "temperature": 0, "ignore_eos": True}
NUM_STREAMS, LENGTH = 60, 24


@pytest.fixture(scope="module")
def server(start):
    return start("--max-num-seqs", "2", "--max-waiting", "2", "--drain-seconds", "1")


def test_a_client_that_leaves_ends_its_request(server):
    with server.streaming(**ENDLESS, n=2):
        until(lambda: server.metric("vllm:num_requests_running") == 2)
        assert server.metric("vllm:kv_cache_usage_perc") > 0
    until(server.is_idle)
    # so does one that waits for a whole answer, and one that will send no more
    for leave in (socket.socket.close, lambda client: client.shutdown(socket.SHUT_WR)):
        client = server.connect()
        client.sendall(request_bytes({"prompt": "x", **ENDLESS}))
        until(lambda: server.metric("vllm:num_requests_running") == 1)
        leave(client)
        until(server.is_idle)
        client.close()
    left = server.metric("blockstride:responses_total", status="499")
    assert left == 3


def test_more_than_may_wait_are_told_to_come_again(server):
    with server.streaming(**ENDLESS, n=2), server.connect() as second:
        second.sendall(request_bytes({"prompt": "x", "n": 2, **ENDLESS}))
        until(lambda: server.metric("vllm:num_requests_waiting") == 2)
        status, headers, answer = server.ask("POST", "/v1/completions", {"prompt": "x"})
        assert (status, json.loads(answer)["error"]["type"]) == (429, "rate_limit_error")
        assert 1 <= int(headers["retry-after"]) <= 60
    until(server.is_idle)
    assert server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200


def test_an_engine_that_dies_while_nobody_asks_is_started_anew(server):
    os.kill(server.engines()["decode-0"], signal.SIGKILL)
    until(lambda: server.ask("GET", "/health/ready")[0] == 503)
    status, headers, _ = server.ask("POST", "/v1/completions", {"prompt": "x"})
    assert (status, headers["retry-after"]) == (503, "5")
    # it isn't the server that has to be started
    assert server.ask("GET", "/health/live")[0] == 200
    until(lambda: server.ask("GET", "/health/ready")[0] == 200)
    assert server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200


def test_a_signal_lets_answers_end_that_were_begun_and_cuts_off_the_rest(server):
    short = {**ENDLESS, "max_tokens": 50}
    with server.streaming(**ENDLESS) as endless, server.streaming(**short) as client:
        server.process.send_signal(signal.SIGTERM)
        began = monotonic()
        assert all_of(client).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        last = all_of(endless)
    assert b'"shutting_down"' in last
    assert b"[DONE]" not in last
    assert server.process.wait(SECONDS) == 0
    assert 0.8 < monotonic() - began < 30
    until(lambda: not any(map(is_running, server.engines().values())))
    assert "Traceback" not in server.log()


def all_of(client) -> bytes:
    """What comes until the other side closes."""
    parts = []
    while part := client.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


@pytest.fixture(scope="module")
def pair(start):
    """Two engines that continue prompts of a third."""
    seqs = ("--max-num-seqs", "8", "--max-waiting", "100")
    decode = ("--decode", "layout=LBHNC", "--decode", "block=32")
    return start(*seqs, "--prefill", "tp=1", *decode, "--restarts", "0")


async def read_stream(client, prompt, leaves_after):
    """The tokens of an answer, all or some."""
    got, reason = [], None
    async with await client.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=LENGTH,
        temperature=0,
        stream=True,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    ) as stream:
        async for chunk in stream:
            (choice,) = chunk.choices
            got += choice.token_ids
            reason = choice.finish_reason
            if len(got) >= leaves_after:
                return got
    assert (reason, len(got)) == ("length", LENGTH)
    return got


def test_all_of_many_streams_are_right_whoever_leaves_and_whatever_engine_dies(pair, reference):
    tokenizer, seeded = byte_tokenizer(), random.Random(5)
    prompts = ["In the beginning", "x" * 50, "And the king said unto him"]
    wanted = {text: reference.greedy(tokenizer.encode(text).ids, LENGTH) for text in prompts}
    files = len(list(Path(f"/proc/{pair.process.pid}/fd").iterdir()))
    began = monotonic()

    async def everything():
        async with openai.AsyncOpenAI(
            base_url=pair.url, api_key=KEY, max_retries=0, timeout=SECONDS
        ) as client:

            async def one(at):
                text = prompts[at % 3]
                leaves_after = seeded.randrange(1, LENGTH) if at % 4 == 0 else LENGTH
                got = await read_stream(client, text, leaves_after)
                assert got == wanted[text][: len(got)]

            streams = [asyncio.create_task(one(at)) for at in range(NUM_STREAMS)]
            while not sum(stream.done() for stream in streams) > NUM_STREAMS // 6:
                await asyncio.sleep(0.01)
            os.kill(pair.engines()["decode-1"], signal.SIGKILL)
            await asyncio.gather(*streams)

    asyncio.run(everything())
    assert monotonic() - began < SECONDS
    until(pair.is_idle_but_for_the_dead)
    assert pair.metric("blockstride:engine_up") == 2
    # those of the engine that was killed are not known any more
    assert pair.metric("blockstride:hand_overs_total") > NUM_STREAMS // 4
    # connections that are kept are closed when their time is over
    until(lambda: len(list(Path(f"/proc/{pair.process.pid}/fd").iterdir())) <= files)


def test_a_request_fails_in_time_where_no_engine_is_left_and_the_server_ends(pair):
    with client_of(pair) as client:
        stream = client.completions.create(model=MODEL, prompt="x", stream=True, **given(ENDLESS))
        next(stream)
        for pid in pair.engines().values():
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        began = monotonic()
        with pytest.raises(openai.APIError, match=r"engine"):
            list(stream)
    assert monotonic() - began < SECONDS / 2
    assert pair.process.wait(SECONDS) == 1
    assert re.search("no engine is left", pair.log())


def given(body):
    """Fields for the client, which puts those that OpenAI doesn't know into `extra_body`."""
    known = {key: value for key, value in body.items() if key != "ignore_eos"}
    return {**known, "extra_body": {"ignore_eos": body["ignore_eos"]}}
