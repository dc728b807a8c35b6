"""Captures of streams into graphs, and how long a graph lives."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from gemv.driver.libcuda import CudaError, failed, libcuda

_exchange_mode = libcuda.cuThreadExchangeStreamCaptureMode
_capture_info = libcuda.cuStreamGetCaptureInfo_v2
_capture_info.argtypes = (
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_int),
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
    ctypes.c_void_p,
)
_add_child = libcuda.cuGraphAddChildGraphNode
_add_child.argtypes = (
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
)  # fmt: skip
_set_dependencies = libcuda.cuStreamUpdateCaptureDependencies
_set_dependencies.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
_CAPTURE_IMPLICIT = 906
#: That nodes take the place of what the next one of a stream would come behind.
_SET = 1
_RELAXED = 2


class Capture:
    """A stream's part in a graph that is being captured."""

    __slots__ = ("graph", "identity")

    def __init__(self, identity: int, graph: int) -> None:
        self.identity = identity
        self.graph = graph


def capture_of(stream: int) -> Capture | None:
    """The capture that a stream is part of, or None.

    Raises
    ------
    CudaError
        If work on the stream would break a capture elsewhere: the legacy default stream while
        another stream that waits for it is captured.
    """
    status, identity, graph = ctypes.c_int(0), ctypes.c_uint64(0), ctypes.c_void_p()
    answer = _capture_info(
        stream, ctypes.byref(status), ctypes.byref(identity), ctypes.byref(graph), None, None
    )
    if answer == _CAPTURE_IMPLICIT:
        raise CudaError(
            "a stream is being captured that waits for the legacy default stream, on which this"
            " call would run: capture the stream that the arrays are used on, or pass it as stream="
        )
    if answer != 0:
        raise failed(answer)
    return Capture(identity.value, graph.value or 0) if status.value else None


class Front(NamedTuple):
    """Where a captured stream has got to.

    Attributes
    ----------
    identity, graph : int
        Those of the capture.
    nodes : tuple of int
        What the next node of the stream would come behind.
    """

    identity: int
    graph: int
    nodes: tuple[int, ...]


def front_of(stream: int) -> Front:
    """Where a stream that is captured has got to.

    Raises
    ------
    CudaError
        If nothing is captured on it.
    """
    status, identity, whole = ctypes.c_int(0), ctypes.c_uint64(0), ctypes.c_void_p()
    before, count = ctypes.c_void_p(), ctypes.c_size_t(0)
    answer = _capture_info(
        stream, ctypes.byref(status), ctypes.byref(identity), ctypes.byref(whole),
        ctypes.byref(before), ctypes.byref(count),
    )  # fmt: skip
    if answer != 0:
        raise failed(answer)
    if not status.value:
        raise CudaError("nothing is captured on the stream")
    nodes = (ctypes.c_void_p * count.value).from_address(before.value or 0) if count.value else ()
    return Front(identity.value, whole.value or 0, tuple(nodes))


def add_child(graph: int, nodes: Sequence[int], child: int) -> int:
    """Make a graph a node of another graph, behind some of its nodes.

    It is a copy, so `child` may end. Nothing of a stream comes behind it yet, even if `graph` is
    being captured, and what nothing comes behind need not be joined as the capture ends.

    Raises
    ------
    CudaError
        If the driver refuses the node.
    """
    made, before = ctypes.c_void_p(), (ctypes.c_void_p * len(nodes))(*nodes)
    answer = _add_child(ctypes.byref(made), graph, before, len(nodes), child)
    if answer != 0:
        raise failed(answer)
    return made.value or 0


def come_behind(stream: int, nodes: Sequence[int]) -> None:
    """Let what is captured on a stream from now on come behind these nodes and nothing else."""
    answer = _set_dependencies(stream, (ctypes.c_void_p * len(nodes))(*nodes), len(nodes), _SET)
    if answer != 0:
        raise failed(answer)


def join(stream: int, graph: int) -> None:
    """Make a graph a node of the graph that is captured on a stream, behind what is there.

    The driver refuses to launch a graph on such a stream. The node is a copy: `graph` may end.

    Raises
    ------
    CudaError
        If nothing is captured on the stream, or the driver refuses the node.
    """
    front = front_of(stream)
    come_behind(stream, [add_child(front.graph, front.nodes, graph)])


@contextmanager
def outside_of_captures() -> Iterator[None]:
    """Let this thread allocate, free and query while a stream is captured, apart from the graph."""
    mode = ctypes.c_int(_RELAXED)
    _exchange_mode(ctypes.byref(mode))
    try:
        yield
    finally:
        _exchange_mode(ctypes.byref(mode))


class GraphLife:
    """Tells whether a graph that was captured still exists.

    When the graph and all that was instantiated from it is destroyed, the driver calls a function
    on a thread of its own, where no Python may run. So this is a function of the C library, which
    posts a semaphore.
    """

    def __init__(self, graph: int) -> None:
        self._semaphore: Any = None
        if sys.platform == "win32" or not graph:
            return  # the graph counts as alive for ever
        libc = ctypes.CDLL(None)
        semaphore = ctypes.create_string_buffer(64)
        if libc.sem_init(semaphore, 0, 0) != 0:
            return
        post = ctypes.cast(libc.sem_post, ctypes.c_void_p)
        user_object = ctypes.c_void_p()
        libcuda.cuUserObjectCreate.argtypes = (
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint,
        )  # fmt: skip
        libcuda.cuGraphRetainUserObject.argtypes = (
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint,
        )  # fmt: skip
        address = ctypes.addressof(semaphore)
        created = libcuda.cuUserObjectCreate(ctypes.byref(user_object), address, post, 1, 1)
        # 1: the graph takes our reference over.
        if created == 0 and libcuda.cuGraphRetainUserObject(graph, user_object, 1, 1) == 0:
            self._semaphore = semaphore
            # The driver may post it at any time, so its memory must stay.
            _semaphores.append(semaphore)
            self._libc = libc

    def ended(self) -> bool:
        """Whether the graph is gone."""
        if self._semaphore is None or self._libc.sem_trywait(self._semaphore) != 0:
            return False
        _semaphores.remove(self._semaphore)
        self._semaphore = None
        return True


_semaphores: list[Any] = []
