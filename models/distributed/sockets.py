"""Connections between machines, like pipes to those who use them, opened by a shared key.

A rank opens a door, and whoever tells it what to do knocks. Both prove that they have the key
before a message is decoded; messages themselves are not encrypted.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from fcntl import ioctl
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from time import monotonic, sleep

from blockstride.checks import expect

GREETING_SECONDS = 3.0
"""How long whoever knocks may take for each word of proof."""

RETRY_SECONDS = 0.2
SIOCGIFADDR = 0x8915
NO_ANSWER = (OSError, EOFError, AuthenticationError)

# a machine that vanishes says no goodbye: after 30 s without a sign of it the connection ends
KEEPALIVE = {
    socket.TCP_KEEPIDLE: 15,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 3,
}


class Door:
    """Lets in whoever knows the key.

    Args:
        host: The interface.
        key: What both know.

    Attributes:
        address: Where to knock.
    """

    def __init__(self, host: str, key: bytes, port: int = 0) -> None:
        expect(bool(key), "key", "a shared secret", "none")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family)
        self._key = key
        self.address = f"{host}:{self._socket.getsockname()[1]}"

    def let_in(self, seconds: float) -> Connection:
        """Waits for one who knows the key; strangers are sent away.

        Raises:
            TimeoutError: Nobody has come in time.
        """
        deadline = monotonic() + seconds
        while (left := deadline - monotonic()) > 0:
            self._socket.settimeout(left)
            with suppress(*NO_ANSWER):
                visitor, _ = self._socket.accept()
                connection = _begin(visitor)
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
                return _trust(connection)
        raise TimeoutError(f"{self.address}: nobody has come in {seconds:g} s")

    def close(self) -> None:
        """Lets nobody in any more."""
        self._socket.close()


def knock(address: str, key: bytes, seconds: float) -> Connection:
    """Connects to a door.

    Args:
        address: Its host and port.
        key: What both know.
        seconds: How long to try.

    Raises:
        TimeoutError: It isn't there, or doesn't know the key.
    """
    host, _, port = address.rpartition(":")
    deadline, reason = monotonic() + seconds, "no time"
    while (left := deadline - monotonic()) > 0:
        try:
            connection = _begin(socket.create_connection((host.strip("[]"), int(port)), left))
            answer_challenge(connection, key)
            deliver_challenge(connection, key)
            return _trust(connection)
        except NO_ANSWER as error:
            reason = str(error) or type(error).__name__
            sleep(min(RETRY_SECONDS, max(0.0, left)))
    raise TimeoutError(f"{address}: no connection in {seconds:g} s: {reason}")


def _begin(peer: socket.socket) -> Connection:
    """A connection with a peer who is waited for no longer than a greeting takes."""
    peer.setblocking(True)
    _set_patience(peer, GREETING_SECONDS)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        peer.setsockopt(socket.IPPROTO_TCP, option, value)
    return Connection(peer.detach())


def _trust(connection: Connection) -> Connection:
    """The same, waited for as long as it takes."""
    with socket.socket(fileno=connection.fileno()) as peer:
        _set_patience(peer, 0.0)
        # the number is the connection's
        peer.detach()
    return connection


def _set_patience(peer: socket.socket, seconds: float) -> None:
    """How long one call may wait for the peer; 0: for ever."""
    span = struct.pack("ll", int(seconds), 0)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)


def interface_of(host: str) -> str:
    """Name of the network interface that has an IPv4 address; "" when none has."""
    wanted = socket.inet_aton(socket.gethostbyname(host))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                request = struct.pack("256s", name.encode())
                if ioctl(any_socket.fileno(), SIOCGIFADDR, request)[20:24] == wanted:
                    return name
    return ""
