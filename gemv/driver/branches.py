"""Launches that need nothing of each other, as one CUDA graph without edges.

One after the other on a stream, small launches leave most of the GPU idle: each begins when the one
before it has ended, or at best when that has begun. The nodes of a graph without edges run beside
each other, and the host launches all of them with one call.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from cuda.bindings import driver

from gemv.driver.capture import Capture, capture_of, outside_of_captures
from gemv.driver.libcuda import check, failed, libcuda

_capture_info = libcuda.cuStreamGetCaptureInfo_v2
_update = libcuda.cuStreamUpdateCaptureDependencies
_update.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
_add_child = libcuda.cuGraphAddChildGraphNode
_add_child.argtypes = (
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
)  # fmt: skip
#: Replaces the nodes that the next one comes behind.
_SET = 1


def pending(stream: int) -> list[int]:
    """The nodes that the next one of a capture comes behind."""
    status, identity, graph = ctypes.c_int(0), ctypes.c_uint64(0), ctypes.c_void_p()
    nodes, count = ctypes.c_void_p(), ctypes.c_size_t(0)
    answer = _capture_info(
        stream, ctypes.byref(status), ctypes.byref(identity), ctypes.byref(graph),
        ctypes.byref(nodes), ctypes.byref(count),
    )  # fmt: skip
    if answer != 0:
        raise failed(answer)
    if not count.value:
        return []
    found = ctypes.cast(nodes, ctypes.POINTER(ctypes.c_void_p))
    return [found[k] or 0 for k in range(count.value)]


def come_behind(stream: int, nodes: Sequence[int]) -> None:
    """Let the next node of a capture come behind these nodes, and behind no other."""
    answer = _update(stream, _array(nodes), len(nodes), _SET)
    if answer != 0:
        raise failed(answer)


def _array(nodes: Sequence[int]) -> Any:
    return (ctypes.c_void_p * max(len(nodes), 1))(*nodes)


class Branches:
    """A graph of launches, each a branch of its own.

    Parameters
    ----------
    enqueuers : sequence of callable
        Each enqueues one launch on the stream whose handle it gets. All functions are loaded, and
        no launch uses scratch memory.

    Notes
    -----
    The GPU of the launches is current, here and in every call.
    """

    def __init__(self, enqueuers: Sequence[Callable[[int], None]]) -> None:
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        stream = check(driver.cuStreamCreate(flags))
        try:
            # Relaxed, since other threads may allocate meanwhile.
            mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            check(driver.cuStreamBeginCapture(stream, mode))
            try:
                nodes: list[int] = []
                for enqueue in enqueuers:
                    come_behind(int(stream), [])
                    enqueue(int(stream))
                    nodes += pending(int(stream))
                come_behind(int(stream), nodes)
            except BaseException:
                _, left = driver.cuStreamEndCapture(stream)
                if left:  # the launches before the error
                    driver.cuGraphDestroy(left)
                raise
            self._graph = check(driver.cuStreamEndCapture(stream))
        finally:
            driver.cuStreamDestroy(stream)
        try:
            self._executable = check(driver.cuGraphInstantiate(self._graph, 0))
        except BaseException:
            driver.cuGraphDestroy(self._graph)
            raise
        weakref.finalize(self, _destroy, self._executable, self._graph).atexit = False

    def launch(self, stream: int) -> None:
        """Enqueue all launches: behind the work on a stream, or as a node of its capture."""
        capture = capture_of(stream)
        if capture is not None:
            self._add_to(capture, stream)
            return
        check(driver.cuGraphLaunch(self._executable, stream))

    def _add_to(self, capture: Capture, stream: int) -> None:
        before, node = pending(stream), ctypes.c_void_p()
        answer = _add_child(
            ctypes.byref(node), capture.graph, _array(before), len(before), int(self._graph)
        )
        if answer != 0:
            raise failed(answer)
        come_behind(stream, [node.value or 0])


def _destroy(executable: Any, graph: Any) -> None:
    with outside_of_captures():
        driver.cuGraphExecDestroy(executable)
        driver.cuGraphDestroy(graph)
