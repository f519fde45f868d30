"""Connections between machines: only who knows the key is heard, and nobody waits for others."""

import pickle
import socket
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from time import monotonic

import numpy as np
import pytest

from blockstride.models.distributed import sockets
from blockstride.models.distributed.sockets import Door, interface_of, knock

KEY = b"a key"


@pytest.fixture(params=["127.0.0.1", "::1"])
def door(request):
    made = Door(request.param, KEY)
    yield made
    made.close()


def test_both_ends_are_heard_whatever_the_size(door):
    with ThreadPoolExecutor(1) as pool:
        inside = pool.submit(door.let_in, 10)
        with knock(door.address, KEY, 10) as ours, inside.result() as theirs:
            large = np.arange(1 << 20)
            sending = pool.submit(ours.send, ["first", large])
            word, got = theirs.recv()
            sending.result()
            assert word == "first"
            assert np.array_equal(got, large)
            theirs.send("back")
            assert ours.recv() == "back"
            # small words aren't kept until others are acknowledged
            with socket.socket(fileno=ours.fileno()) as peer:
                assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                # nobody is hurried once both are known
                assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16) == bytes(16)
                peer.detach()
            theirs.close()
            with pytest.raises(EOFError):
                ours.recv()


def test_strangers_are_sent_away_and_their_messages_are_not_decoded(door, monkeypatch):
    monkeypatch.setattr(sockets, "GREETING_SECONDS", 1)
    host, _, port = door.address.rpartition(":")
    silent = socket.create_connection((host, int(port)))
    talks = socket.create_connection((host, int(port)))
    Connection(talks.detach()).send(Trap())
    with ThreadPoolExecutor(2) as pool:
        inside = pool.submit(door.let_in, 20)
        with pytest.raises(TimeoutError, match="no connection in 3 s: digest sent was rejected"):
            knock(door.address, b"another", 3)
        with knock(door.address, KEY, 10) as ours, inside.result(20) as theirs:
            ours.send("friend")
            assert theirs.recv() == "friend"
    silent.close()


class Trap:
    """Whoever decodes it fails."""

    def __reduce__(self):
        return pickle.loads, (b"",)


def test_nobody_waits_longer_than_was_said(door):
    begin = monotonic()
    with pytest.raises(TimeoutError, match=r"nobody has come in 0.2 s"):
        door.let_in(0.2)
    door.close()
    with pytest.raises(TimeoutError, match=r"no connection in 0.2 s: .*refused"):
        knock(door.address, KEY, 0.2)
    assert monotonic() - begin < 5


def test_a_door_needs_a_key():
    with pytest.raises(ValueError, match="key: expected a shared secret"):
        Door("127.0.0.1", b"")


def test_an_interface_is_found_by_its_address():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") == ""
