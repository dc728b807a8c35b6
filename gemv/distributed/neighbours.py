"""Vectors between workers of one machine: each writes into memory that the others read.

A message of Dask's goes through the event loops of both workers. On a machine with two cores a
product of 600 x 80 took 0.6 ms so, and 0.07 ms as neighbours do it. Each neighbour has a *door*: a
socket that listens, and that only processes of the same machine can reach. When a solve starts, a
worker connects to the doors of the others and sends the descriptor of its own memory through each
connection. From then on it writes its part of a product into that memory, and *rings*: it sends the
number of the product, 8 bytes. The thread that waits for a product reads these sockets itself.

Each worker decides alone how it sends to another one. Where it finds no door, as on other machines,
in other containers or for another user, it sends messages of Dask's.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import mmap
import os
import socket
import struct
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gemv.core.geometry import ceil_div
from gemv.distributed.mailbox import Mailbox, Place, Product

#: Vectors begin at multiples of a line of the cache.
_LINE = 64
#: Words in front of the places: the digest, the number of vectors, and their dtype.
_FIRST = 3
#: Words of a vector: its place, which is two numbers, and its length.
_EACH = 3
#: Bytes of an element of the widest dtype, complex128.
_WIDEST = 16
#: The most bytes of what is said at a door: a number and an address.
_GREETING = 4096
#: What a ring says: the number of the product.
_RING = struct.Struct("q")
#: Process, user and group, as Linux tells them of whoever has the other end of a socket.
_CREDENTIALS = struct.Struct("3i")


class Capacity(NamedTuple):
    """The most that a worker has to tell of a product.

    Attributes
    ----------
    vectors : int
    size : int
        Their elements, together.
    """

    vectors: int
    size: int


def is_possible() -> bool:
    """Whether the system has such sockets, and memory without a name."""
    needs = (socket, "AF_UNIX"), (socket, "SO_PEERCRED"), (os, "memfd_create")
    return all(hasattr(module, name) for module, name in needs)


class Memory:
    """What a worker tells, for two products: others may still read the one before.

    Product c + 2 takes the place of c. A worker that tells of c + 2 has heard all others tell of
    c + 1, neighbours or not, and each of them had read c by then. So nothing is written over that
    another one still reads.

    Parameters
    ----------
    memory : mmap.mmap
    vectors : int
        The most of a product.
    """

    def __init__(self, memory: mmap.mmap, vectors: int) -> None:
        self._bytes = np.frombuffer(memory, np.uint8)
        self._vectors = vectors

    @staticmethod
    def size(capacity: Capacity) -> int:
        """Bytes of such a memory, whatever the dtype."""
        vectors = capacity.vectors * _LINE + capacity.size * _WIDEST
        return 2 * _aligned(Memory._start(capacity.vectors) + vectors)

    @staticmethod
    def _start(vectors: int) -> int:
        return _aligned(8 * (_FIRST + _EACH * vectors))

    def _slot(self, number: int) -> np.ndarray:
        half = len(self._bytes) // 2
        start = number % 2 * half
        return self._bytes[start : start + half]

    def write(self, product: Product) -> None:
        """Put down what is told of a product."""
        slot, start = self._slot(product.number), self._start(self._vectors)
        dtype = product.parts[0][1].dtype
        words = slot[:start].view(np.int64)
        words[:_FIRST] = product.digest, len(product.parts), 0
        slot[2 * 8 : 3 * 8] = np.frombuffer(dtype.str.encode().ljust(8), np.uint8)
        for k, (place, vector) in enumerate(product.parts):
            first = _FIRST + _EACH * k
            words[first : first + _EACH] = *place, len(vector)
            slot[start : start + vector.nbytes].view(dtype)[:] = vector
            start += _aligned(vector.nbytes)

    def read(self, number: int) -> Product:
        """What was told of a product; its vectors hold until the next but one is told."""
        slot, start = self._slot(number), self._start(self._vectors)
        words = slot[:start].view(np.int64)
        digest, vectors, _ = words[:_FIRST].tolist()
        dtype = np.dtype(slot[2 * 8 : 3 * 8].tobytes().decode().strip())
        parts = []
        for k in range(vectors):
            first = _FIRST + _EACH * k
            block, position, length = words[first : first + _EACH].tolist()
            bytes_ = length * dtype.itemsize
            parts.append(((block, position), slot[start : start + bytes_].view(dtype)))
            start += _aligned(bytes_)
        return Product(number, digest, parts)


class Neighbours:
    """The other workers of this machine, for one solve.

    Parameters
    ----------
    here : str
        The address of this worker.
    mailbox : Mailbox
        Gets what neighbours tell; only the thread that waits at it may use this object.
    capacity : Capacity
        Of this worker's part of a product.
    """

    def __init__(self, here: str, mailbox: Mailbox, capacity: Capacity) -> None:
        self._here, self._mailbox, self._capacity = here, mailbox, capacity
        self._bells: dict[str, socket.socket] = {}
        self._sources: list[socket.socket] = []
        self._memory: Memory | None = None
        self._descriptor = -1
        #: Where others find this worker; empty if they cannot.
        self.door = ""
        if is_possible():
            with contextlib.suppress(OSError):  # it may have as many files as it may have
                self._open()

    def _open(self) -> None:
        self._descriptor = os.memfd_create("gemv")
        os.ftruncate(self._descriptor, Memory.size(self._capacity))
        self._memory = Memory(mmap.mmap(self._descriptor, 0), self._capacity.vectors)
        listening = _socket()
        self._sources.append(listening)
        # No name in a file system: it goes with the socket.
        door = f"gemv-{uuid.uuid4().hex}"
        listening.bind(f"\0{door}")
        listening.listen(socket.SOMAXCONN)
        # Not before: a socket that does not listen counts as one that can be read, for ever.
        self._mailbox.watch(listening, functools.partial(self._admit, listening))
        self.door = door

    def reach(self, doors: dict[str, str]) -> list[str]:
        """Hand in the memory at the doors of others, and say which of them had none.

        Parameters
        ----------
        doors : dict of str to str
            Those of the other workers, by address.

        Returns
        -------
        list of str
            The addresses of those that have to be told otherwise.
        """
        for peer, door in doors.items():
            if door and self.door:
                with contextlib.suppress(OSError):  # on another machine, or no more files
                    self._visit(peer, door)
        return [peer for peer in doors if peer not in self._bells]

    def tell(self, product: Product) -> None:
        """Tell those that have been reached."""
        if not self._bells:
            return
        assert self._memory is not None
        self._memory.write(product)
        ring = _RING.pack(product.number)
        for bell in self._bells.values():
            # That it is gone is heard by Dask's connection.
            with contextlib.suppress(ConnectionError):
                bell.send(ring)

    def close(self) -> None:
        """Forget all of them."""
        for source in self._sources:
            with contextlib.suppress(KeyError):  # it has ended
                self._mailbox.unwatch(source)
            source.close()
        for bell in self._bells.values():
            bell.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._bells, self._sources, self._memory, self._descriptor = {}, [], None, -1

    def _visit(self, peer: str, door: str) -> None:
        """Hand in the memory at a door, unless it is another user's."""
        with contextlib.ExitStack() as stack:
            bell = stack.enter_context(_socket())
            bell.setblocking(False)  # whoever has a queue at its door is told otherwise
            bell.connect(f"\0{door}")
            if _is_same_user(bell):
                hello = f"{self._capacity.vectors} {self._here}".encode()
                socket.send_fds(bell, [hello], [self._descriptor])
                bell.setblocking(True)
                stack.pop_all()
                self._bells[peer] = bell

    # Whoever has handed in its memory tells in no other way. So errors of what follows, such as too
    # many open files, have to end the solve: it would wait for ever.

    def _admit(self, listening: socket.socket) -> None:
        """Somebody is at the door."""
        bell, _ = listening.accept()
        if _is_same_user(bell):
            self._sources.append(bell)
            self._mailbox.watch(bell, functools.partial(self._greet, bell))
        else:
            bell.close()

    def _greet(self, bell: socket.socket) -> None:
        """The first that is heard of a neighbour: its memory."""
        self._mailbox.unwatch(bell)
        flags = socket.MSG_CMSG_CLOEXEC  # programs that are started meanwhile do not get it
        hello, descriptors, _, _ = socket.recv_fds(bell, _GREETING, 1, flags)
        if not hello:
            return  # it has left again
        if not descriptors:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        [descriptor] = descriptors
        try:
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        vectors, sender = hello.decode().split(maxsplit=1)
        memory = Memory(mapped, int(vectors))
        self._mailbox.watch(bell, functools.partial(self._listen, bell, sender, memory))

    def _listen(self, bell: socket.socket, sender: str, memory: Memory) -> None:
        """A neighbour has told of a product."""
        ring = bell.recv(_RING.size)
        if ring:
            self._mailbox.keep(sender, memory.read(*_RING.unpack(ring)))
        else:  # it may have finished; if it died, Dask's connection ends as well
            self._mailbox.unwatch(bell)


def capacity_of(places: Iterable[Place], chunks: Sequence[Sequence[int]]) -> Capacity:
    """The most that a worker tells which holds the chunks at these places.

    The sizes of all `chunks` are given along the rows, and along the columns.
    """
    rows, columns = chunks
    sizes = [max(rows[row], columns[column]) for row, column in places]
    return Capacity(len(sizes), sum(sizes))


def _socket() -> socket.socket:
    """One that keeps messages apart, and tells who is at the other end."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _is_same_user(end: socket.socket) -> bool:
    """Whether the other end of a socket is a process of the same user."""
    found = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(found)[1] == os.geteuid()


def _aligned(size: int) -> int:
    return ceil_div(size, _LINE) * _LINE
