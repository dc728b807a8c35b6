"""Sockets from worker to worker, which the computing thread reads and writes itself.

A message over Dask's connections passes the event loops of two workers, and waits for each of them
to be woken. A product is too short for that. Here the thread that waits for a vector is the one
that the operating system wakes. Where the cluster uses TLS, so do these sockets.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import selectors
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping

import numpy as np

from gemv.distributed.outcome import Stopped

#: The number of the product, the checksum of the vector that is multiplied, bytes that follow: of
#: the description of the parts, and of the parts.
_HEADER = struct.Struct("<QIIQ")
#: Seconds between two looks at whether the others are alive.
_LOOK = 0.5
_MOMENT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

#: A chunk's place in the matrix, and what it contributes to a product.
Part = tuple[tuple[int, int], np.ndarray]


class Links:
    """A connection to each of the other workers of a solve.

    Parameters
    ----------
    host : str
        Where the others find this worker.
    here : str
        Its address.
    token : bytes
        What a connection has to begin with. Only those that Dask has told it know it.
    client_tls, server_tls : ssl.SSLContext, optional
        For connections that are made, and for those that are accepted.
    """

    def __init__(
        self,
        host: str,
        here: str,
        token: bytes,
        client_tls: ssl.SSLContext | None,
        server_tls: ssl.SSLContext | None,
    ) -> None:
        self._here, self._token = here, token
        self._tls = (client_tls, server_tls)
        family, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        try:
            self._listener = socket.create_server(place[:2], family=family)
        except OSError:  # an address that only others see, for example behind a translation
            self._listener = socket.create_server(("", 0), family=family)
        self.port: int = self._listener.getsockname()[1]
        self._sockets: dict[str, socket.socket] = {}

    def connect(self, peers: Mapping[str, tuple[str, int]], limit: float) -> None:
        """Connect to `peers`, each given by its address, its host and its port.

        Parameters
        ----------
        peers : mapping of str to (str, int)
        limit : float
            Seconds that one of them may take.

        Raises
        ------
        OSError
            If one of them cannot be reached.
        """
        name = self._here.encode()
        for peer in sorted(peers):
            if self._here < peer:
                link = socket.create_connection(peers[peer], limit)
                if self._tls[0] is not None:
                    link = self._tls[0].wrap_socket(link)
                link.sendall(self._token + len(name).to_bytes(4, "little") + name)
                self._keep(peer, link)
        self._listener.settimeout(limit)
        while len(self._sockets) < len(peers):
            link, _ = self._listener.accept()
            # whoever connects and says nothing must not keep the others waiting
            link.settimeout(limit / 4)
            peer = None
            with contextlib.suppress(OSError):
                if self._tls[1] is not None:
                    link = self._tls[1].wrap_socket(link, server_side=True)
                peer = self._greeting(link)
            if peer is not None and peer in peers:
                self._keep(peer, link)
            else:
                link.close()

    def _greeting(self, link: socket.socket) -> str | None:
        """The address of the worker that has connected, if it knows the token."""
        if not hmac.compare_digest(_exactly(link, len(self._token)), self._token):
            return None
        size = int.from_bytes(_exactly(link, 4), "little")
        return _exactly(link, size).decode()

    def _keep(self, peer: str, link: socket.socket) -> None:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setblocking(False)
        self._sockets[peer] = link

    def swap(
        self, count: int, digest: int, parts: list[Part], check: Callable[[set[str]], None]
    ) -> dict[str, tuple[int, list[Part]]]:
        """Send to all and hear from all.

        Parameters
        ----------
        count, digest : int
            The number of the product, and the checksum of its vector.
        parts : list of (place, numpy.ndarray)
            At least one, all of one dtype.
        check : callable
            Is called at times with those that are missing; it raises if one will not come.

        Returns
        -------
        dict of str to (int, list of parts)
            The checksum and the parts of each worker.
        """
        places = [[*place, vector.size] for place, vector in parts]
        kind = json.dumps([parts[0][1].dtype.str, places]).encode()
        vectors = [np.ascontiguousarray(vector).view(np.uint8).data for _, vector in parts]
        size = sum(vector.nbytes for vector in vectors)
        message = b"".join([_HEADER.pack(count, digest, len(kind), size), kind, *vectors])
        transfers = {peer: _Transfer(link, message) for peer, link in self._sockets.items()}
        missing = {peer for peer in transfers if not self._moved(peer, transfers[peer], check)}
        with selectors.DefaultSelector() as selector:
            for peer in missing:
                selector.register(transfers[peer].link, transfers[peer].events, peer)
            while missing:
                ready = selector.select(_LOOK)
                if not ready:
                    check(missing)
                for key, _ in ready:
                    transfer = transfers[key.data]
                    if self._moved(key.data, transfer, check):
                        selector.unregister(transfer.link)
                        missing.discard(key.data)
                    elif transfer.events != key.events:
                        selector.modify(transfer.link, transfer.events, key.data)
        return {peer: transfer.heard(count) for peer, transfer in transfers.items()}

    def _moved(self, peer: str, transfer: _Transfer, check: Callable[[set[str]], None]) -> bool:
        """Whether a transfer has ended after what could be sent and received at once."""
        try:
            return transfer.move()
        except OSError as error:
            # Why is told over Dask's connection, which may take a moment longer.
            deadline = time.monotonic() + 4 * _LOOK
            while time.monotonic() < deadline:
                check({peer})
                time.sleep(_LOOK / 50)
            raise Stopped(f"worker {peer} is gone", (peer,)) from error

    def close(self) -> None:
        """End all connections."""
        for link in (self._listener, *self._sockets.values()):
            link.close()


class _Transfer:
    """One message to a worker, and the one from it."""

    def __init__(self, link: socket.socket, message: bytes) -> None:
        self.link = link
        self._out = memoryview(message)
        self._header: tuple[int, int, int, int] | None = None
        self._buffer = bytearray(_HEADER.size)
        self._in = memoryview(self._buffer)

    @property
    def events(self) -> int:
        """What the socket has to be ready for."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)

    def move(self) -> bool:
        """Send and receive what goes at once; whether that was all."""
        with contextlib.suppress(*_MOMENT):
            while self._out:
                self._out = self._out[self.link.send(self._out) :]
        with contextlib.suppress(*_MOMENT):
            while self._in:
                size = self.link.recv_into(self._in)
                if not size:
                    raise ConnectionResetError("the other end has closed the connection")
                self._in = self._in[size:]
                if not self._in and self._header is None:
                    self._header = _HEADER.unpack(self._buffer)
                    self._buffer = bytearray(self._header[2] + self._header[3])
                    self._in = memoryview(self._buffer)
        return not self._out and not self._in

    def heard(self, count: int) -> tuple[int, list[Part]]:
        """The checksum and the parts that were received."""
        assert self._header is not None
        other, digest, size, _ = self._header
        assert other == count, "every worker sends one message for each product"
        dtype, places = json.loads(self._buffer[:size])
        parts, first = [], size
        for block, position, length in places:
            vector = np.frombuffer(self._buffer, dtype, length, first)
            parts.append(((block, position), vector))
            first += vector.nbytes
        return digest, parts


def _exactly(link: socket.socket, size: int) -> bytes:
    """The next bytes of a connection that blocks."""
    found = b""
    while len(found) < size:
        more = link.recv(min(size - len(found), 4096))
        if not more:
            raise ConnectionResetError("the other end has closed the connection")
        found += more
    return found
