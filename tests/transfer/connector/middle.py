"""Somebody in the middle, who sees every frame between reader and producer and may change it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b

import msgspec
import zmq

from blockstride.transfer.connector.messages import DIGEST_BYTES, HEADER_BYTES, MAGIC, VERSION

Tamper = Callable[[bytes], list[bytes]]
"""The frames that arrive instead of one."""


def leave(frame: bytes) -> list[bytes]:
    return [frame]


class Middle:
    """Forwards frames from one address to another.

    Attributes:
        address: Where it listens.
        requests: What it does to frames of readers.
        answers: What it does to frames of the producer.
        seen: All frames of readers that it has seen.
    """

    def __init__(self, address: str, context: zmq.Context) -> None:
        self.requests: Tamper = leave
        self.answers: Tamper = leave
        self.seen: list[bytes] = []
        self._front, self._back = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        for socket in (self._front, self._back):
            socket.setsockopt(zmq.LINGER, 0)
        port = self._front.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"
        self._back.connect(address)

    def run(self, is_over: threading.Event) -> None:
        identity, poller = b"", zmq.Poller()
        for socket in (self._front, self._back):
            poller.register(socket, zmq.POLLIN)
        while not is_over.is_set():
            ready = dict(poller.poll(20))
            if self._front in ready:
                identity, frame = self._front.recv_multipart()
                self.seen.append(frame)
                for changed in self.requests(frame):
                    self._back.send(changed)
            if self._back in ready:
                for changed in self.answers(self._back.recv()):
                    self._front.send_multipart([identity, changed])
        self._front.close()
        self._back.close()


@contextmanager
def in_the_middle(address: str) -> Iterator[Middle]:
    """Somebody who stands before a producer."""
    context = zmq.Context()
    middle, is_over = Middle(address, context), threading.Event()
    thread = threading.Thread(target=middle.run, args=(is_over,), daemon=True)
    thread.start()
    try:
        yield middle
    finally:
        is_over.set()
        thread.join(5)
        context.destroy(linger=0)


def kind_of(frame: bytes) -> str:
    return contents(frame)["type"]


def contents(frame: bytes) -> dict:
    return msgspec.msgpack.decode(frame[HEADER_BYTES:])


def sealed(content: dict) -> bytes:
    """A frame whose digest is right, whatever it says."""
    return _sealed(msgspec.msgpack.encode(content))


def resealed(frame: bytes) -> bytes:
    """The frame with the digest that it would have to have."""
    return _sealed(frame[HEADER_BYTES:])


def _sealed(payload: bytes) -> bytes:
    head = MAGIC + VERSION.to_bytes(2, "big")
    return head + blake2b(head + payload, digest_size=DIGEST_BYTES).digest() + payload


def rewriting(kind: str, change: Callable[[dict], None]) -> Tamper:
    """Changes messages of one kind so that nobody notices by their digest."""

    def tamper(frame: bytes) -> list[bytes]:
        content = contents(frame)
        if content["type"] != kind:
            return [frame]
        change(content)
        return [sealed(content)]

    return tamper
