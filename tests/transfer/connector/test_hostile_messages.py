"""Messages that are damaged, forged, repeated, too long or from another version harm nobody."""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import zmq

from blockstride.transfer.connector import ProtocolError
from blockstride.transfer.connector.messages import Hello, seal, unseal_request
from tests.transfer.connector import roles
from tests.transfer.connector.middle import (
    contents,
    in_the_middle,
    kind_of,
    resealed,
    rewriting,
    sealed,
)
from tests.transfer.connector.processes import Crew
from tests.transfer.connector.scenes import QUICK, scene


def damaged(kind: str):
    """Flips one bit of the messages of one kind."""

    def tamper(frame: bytes) -> list[bytes]:
        if kind_of(frame) != kind:
            return [frame]
        middle = len(frame) // 2
        return [frame[:middle] + bytes([frame[middle] ^ 1]) + frame[middle + 1 :]]

    return tamper


def of_version(version: int):
    return lambda frame: [frame[:4] + version.to_bytes(2, "big") + frame[6:]]


def set_pool(what: str, value: int):
    def change(welcome: dict) -> None:
        welcome["memory"][what][0] = value

    return change


def set_engine(**fields):
    def change(welcome: dict) -> None:
        welcome["engine"].update(fields)

    return change


def drop_pool(welcome: dict) -> None:
    for what in ("addresses", "sizes"):
        del welcome["memory"][what][0]


def overlap(welcome: dict) -> None:
    addresses = welcome["memory"]["addresses"]
    addresses[1] = addresses[0] + 16


def elsewhere(welcome: dict) -> None:
    welcome["memory"]["addresses"][0] += 1 << 40


def other_dtype(welcome: dict) -> None:
    for spec in welcome["engine"]["specs"]:
        for segment in spec["segments"]:
            for part in segment["fields"]:
                # of the same width, so that nothing but the name tells
                part["dtype"] = part["dtype"].replace("bfloat16", "float16")


FORGED = {
    "a pool that overflows": (set_pool("addresses", 2**63 - 16), "separate ones below"),
    "a pool beyond 63 bits": (set_pool("addresses", 2**63), "digest|known form"),
    "a negative address": (set_pool("addresses", -16), "known form"),
    "a pool of another size": (set_pool("sizes", 1 << 20), "pools of .* bytes"),
    "a pool that isn't there": (drop_pool, "pools of .* bytes"),
    "pools that overlap": (overlap, "separate ones below"),
    "memory that isn't registered": (elsewhere, "NIXL"),
    "a field that nobody knows": (lambda w: w.update(colour="red"), "unknown field"),
    "another rank": (lambda w: w.update(rank=1), "expected .*'producer', 0"),
    "another engine": (set_engine(engine_id="other"), "expected .*'producer', 0"),
    "another dtype": (other_dtype, "dtype: expected torch.bfloat16, got torch.float16"),
    "a block size that never meets ours": (set_engine(block_size=999_983), "meet within"),
    "a larger group than anybody has": (set_engine(tp_size=1 << 20), "known form"),
    "more ranks than can be planned for": (set_engine(tp_size=64, cp_size=64), "at most 1024"),
    "blocks of no pool": (set_engine(num_blocks=[5]), "num_blocks: expected 2 counts"),
    "metadata of nobody": (lambda w: w.update(metadata=b"nobody"), "NIXL"),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_welcome_is_refused_before_any_byte_moves(forgery: str, crew: Crew):
    change, message = FORGED[forgery]
    play = scene(crew)
    with in_the_middle(play.address) as middle:
        play.reader.call(roles.add_peer, "producer", [middle.address])
        middle.answers = rewriting("Welcome", change)
        found = play.read(seconds=5.0)
    assert found["kind"] in {"refused", "protocol", "failed"}
    assert "request 'r', producer rank 0" in found["error"]
    assert re.search(message, found["error"]), found["error"]
    assert found["settled"]
    play.reader.call(roles.compare_untouched)
    # the producer is none the worse for it
    play.reader.call(roles.add_peer, "producer", [play.address])
    play.producer.call(roles.offer, "next")
    assert play.read("next")["kind"] == ""


@pytest.mark.parametrize("kind", ["Challenge", "Welcome", "Grant"])
def test_a_damaged_answer_ends_the_request_and_says_so(kind: str, crew: Crew):
    play = scene(crew)
    with in_the_middle(play.address) as middle:
        play.reader.call(roles.add_peer, "producer", [middle.address])
        middle.answers = damaged(kind)
        found = play.read(seconds=5.0)
    assert found["kind"] in {"protocol", "lost"}
    assert "request 'r', producer rank 0" in found["error"]
    assert found["settled"]
    assert play.reader.call(roles.counters).refused_messages >= 1


@pytest.mark.parametrize("whose", ["requests", "answers"])
def test_another_version_is_named_by_both_numbers(whose: str, crew: Crew):
    play = scene(crew)
    with in_the_middle(play.address) as middle:
        play.reader.call(roles.add_peer, "producer", [middle.address])
        setattr(middle, whose, of_version(7))
        found = play.read(seconds=5.0)
    assert found["kind"] in {"protocol", "refused"}
    assert "protocol version: expected 4, got 7" in found["error"]
    assert "request 'r', producer rank 0" in found["error"]


def test_a_reader_with_another_key_is_refused(crew: Crew):
    play = scene(crew, reader=replace(QUICK, key=b"another secret"))
    found = play.read(seconds=5.0)
    assert found["kind"] == "protocol"
    assert "expected a digest that fits" in found["error"]
    assert play.producer.call(roles.resources, "p0")["sessions"] == 0


def test_peers_that_share_a_key_understand_each_other(crew: Crew):
    both = replace(QUICK, key=b"a shared secret")
    assert scene(crew, producer=both, reader=both).read()["kind"] == ""


def test_messages_that_come_twice_count_once(crew: Crew):
    play = scene(crew)
    with in_the_middle(play.address) as middle:
        play.reader.call(roles.add_peer, "producer", [middle.address])
        middle.requests = middle.answers = lambda frame: [frame, frame]
        assert play.read()["kind"] == ""
    play.reader.call(roles.compare)
    assert play.producer.call(roles.counters, "p0").refused_messages >= 3
    assert play.producer.call(roles.until_ended) == [("r", "read")]


def test_messages_of_a_session_that_is_over_are_refused(crew: Crew):
    play = scene(crew)
    with in_the_middle(play.address) as middle:
        play.reader.call(roles.add_peer, "producer", [middle.address])
        assert play.read()["kind"] == ""
        play.reader.call(roles.close, "d")
        play.producer.call(roles.until, "p0", "sessions", 0)
        play.producer.call(roles.offer, "r")
        before = play.producer.call(roles.counters, "p0").refused_messages
        answers = [ask(play.address, frame) for frame in middle.seen if kind_of(frame) != "Hello"]
    assert {answer["type"] for answer in answers} == {"Refusal"}
    assert play.producer.call(roles.counters, "p0").refused_messages == before + len(answers)
    assert play.producer.call(roles.ended) == [("r", "read")]
    assert play.producer.call(roles.resources, "p0")["sessions"] == 0


def ask(address: str, frame: bytes) -> dict:
    """What a producer answers to a frame."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address)
        socket.send(frame)
        assert socket.poll(5000), "no answer"
        return contents(socket.recv())


def test_a_message_that_is_too_long_closes_its_connection_and_no_other(crew: Crew):
    play = scene(crew, producer=replace(QUICK, max_message_bytes=1 << 20))
    assert play.read()["kind"] == ""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        socket.connect(play.address)
        socket.send(bytes(2 << 20))
        assert monitor.poll(5000), "still connected"
        socket.disable_monitor()
        monitor.close()
    play.producer.call(roles.offer, "next")
    assert play.read("next")["kind"] == ""


def test_random_bytes_never_decode_and_never_stop_a_producer(crew: Crew):
    play = scene(crew)
    with in_the_middle(play.address) as middle:
        play.reader.call(roles.add_peer, "producer", [middle.address])
        assert play.read()["kind"] == ""
        valid = list(middle.seen)
    rng = np.random.default_rng(0)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(play.address)
        for frame in mutations(valid, rng, 300):
            socket.send(frame)
        nonce = rng.bytes(16)
        socket.send(seal(Hello(nonce), b""))
        answer = {}
        while answer.get("nonce") != nonce:
            assert socket.poll(5000), "no answer"
            answer = contents(socket.recv())
            assert answer["type"] in {"Refusal", "Challenge"}
    play.producer.call(roles.offer, "next")
    play.reader.call(roles.add_peer, "producer", [play.address])
    assert play.read("next")["kind"] == ""


def mutations(frames: list[bytes], rng: np.random.Generator, number: int) -> Iterator[bytes]:
    """Valid frames with bytes changed, cut or added; half of them sealed again."""
    for i in range(number):
        frame = bytearray(frames[rng.integers(len(frames))])
        for _ in range(rng.integers(1, 6)):
            frame[rng.integers(len(frame))] = rng.integers(256)
        if rng.integers(4) == 0:
            del frame[rng.integers(len(frame)) :]
        if rng.integers(4) == 0:
            frame += rng.bytes(8)
        yield bytes(frame) if i % 2 else resealed(bytes(frame))


def test_a_message_says_what_is_wrong_with_it():
    frame = seal(Hello(bytes(16)), b"")
    assert unseal_request(frame, b"") == Hello(bytes(16))
    for wrong, message in (
        (b"GET / HTTP/1.1", "expected one that begins with b'BSTR'"),
        (b"", "expected one that begins"),
        (frame[:-1], "expected a digest"),
        (sealed({"type": "Hello", "nonce": bytes(15)}), "length >= 16"),
        (sealed({"type": "Hello", "nonce": bytes(16), "more": 1}), "unknown field `more`"),
        (sealed({"type": "Bye"}), "Invalid value 'Bye'"),
        (sealed({"type": "Hello"}), "missing required field `nonce`"),
    ):
        with pytest.raises(ProtocolError, match=re.escape(message)):
            unseal_request(wrong, b"")
