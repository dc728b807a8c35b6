"""Products that come again and again with new vectors: one graph for each kind.

One by one, the launches, copies and events of a product with two shards take the host some 130 us.
A graph of all of them is launched by one call of the driver, but it is bound to its vectors. So a
matrix that is multiplied often has a graph between an x and a y of its own: x is copied to the one
before the graph and the other to the new y behind it, all on the stream of x.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import driver

from gemv.core import trace
from gemv.core.errors import drop_frames
from gemv.core.operand import Operand
from gemv.driver.capture import capture_of, outside_of_captures
from gemv.driver.libcuda import CannotCapture, CudaError, check
from gemv.driver.streams import identity
from gemv.engines import backend
from gemv.shards.graph import Graph
from gemv.shards.groups import Groups
from gemv.shards.vectors import NewVector

#: Products of a kind that are enqueued one by one before there is a graph, which takes some
#: milliseconds and the memory of a plan.
ONE_BY_ONE = 4
#: Bytes of x and y together up to which they are copied: some microseconds of the GPU's time.
LONGEST = 8 << 20


class Repeated:
    """The graph of one form of the matrix, for vectors on one GPU.

    Parameters
    ----------
    groups : Groups
        As :class:`Graph` wants it.
    place : Place
        On the GPU of the vectors.
    dtype : numpy.dtype
    cols : int
        The length of x.
    """

    def __init__(self, groups: Groups, place: Any, dtype: np.dtype, cols: int) -> None:
        self._engine, self._index = backend.engine(), place.index
        x, y = place.vector(cols, dtype), place.vector(groups.rows, dtype)
        self._names = ", ".join(dict.fromkeys(each.name for each in groups.places))
        self._graph = Graph(groups, x, y, is_part=False)
        self._x, self._x_bytes = x.pointer, cols * dtype.itemsize
        self._y, self._y_bytes = y.pointer, groups.rows * dtype.itemsize
        with self._engine.on(self._index):
            flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value
            #: Behind the last product, which was on the stream of this identity if there was one.
            self._done = check(driver.cuEventCreate(flags))
        self._last: int | None = None
        weakref.finalize(self, _destroy, self._done).atexit = False

    def run(self, x: Operand, stream: int, y: NewVector) -> None:
        """Enqueue a product on the stream that x is used on, and let that of y come behind it."""
        engine, apart = self._engine, y.stream != stream
        try:
            with engine.on(self._index):
                if apart:
                    engine.wait(stream, y.stream)
                mine = identity(stream)
                if self._last is not None and self._last != mine:
                    check(driver.cuStreamWaitEvent(stream, self._done, 0))
                try:
                    check(driver.cuMemcpyAsync(self._x, x.pointer, self._x_bytes, stream))
                    self._graph.enqueue(stream)
                    check(driver.cuMemcpyAsync(y.operand.pointer, self._y, self._y_bytes, stream))
                finally:  # behind an error as well: what was enqueued before it uses both vectors
                    self._last = mine
                    recorded = driver.cuEventRecord(self._done, stream)
                check(recorded)
                if apart:
                    engine.wait(y.stream, stream)
        except CudaError as error:
            raise type(error)(f"Matrix: shards on {self._names}: {error}") from error

    def settle(self) -> None:
        """Wait for the last product."""
        if self._last is not None:
            with self._engine.on(self._index):
                check(driver.cuEventSynchronize(self._done))


class Again:
    """Which products of a matrix have a graph by now.

    Parameters
    ----------
    make : callable
        ``make(trans, count)`` gives what computes so many vectors, with streams and memory of its
        own.
    places : sequence of Place
    """

    def __init__(self, make: Callable[[int, int], Groups], places: tuple[Any, ...]) -> None:
        self._make, self._places = make, places
        #: By form and GPU: how many there were, or the graph; None if there can be none.
        self._known: dict[tuple[int, int], int | Repeated | None] = {}

    def of(self, trans: int, x: Operand, rows: int, stream: int) -> Repeated | None:
        """The graph for an x, and for a y of `rows` elements beside it; None for one by one."""
        device = x.device
        plain = x.strides == (1,) and not (x.conj or x.neg)
        is_long = (rows + x.shape[0]) * x.dtype.itemsize > LONGEST
        if device is None or is_long or not plain or trace.open_traces():
            return None
        found = self._known.get((trans, device), 0)
        if isinstance(found, int) and found < ONE_BY_ONE:
            self._known[trans, device] = found + 1
            return None
        if found is None or _is_captured(stream):
            return None
        if isinstance(found, int):
            found = self._known[trans, device] = self._made(trans, x)
        return found

    def _made(self, trans: int, x: Operand) -> Repeated | None:
        place = next((each for each in self._places if each.index == x.device), None)
        if place is None:
            return None
        try:
            with outside_of_captures():  # of other threads
                return Repeated(self._make(trans, 1), place, x.dtype, x.shape[0])
        except (CannotCapture, MemoryError) as error:
            drop_frames(error)
            return None

    def forget(self) -> None:
        """Drop all graphs, once their work is done."""
        try:
            for each in self._known.values():
                if isinstance(each, Repeated):
                    each.settle()
        finally:
            self._known.clear()


def _is_captured(stream: int) -> bool:
    """Whether work on a stream becomes a part of somebody's graph, or must not be asked for."""
    try:
        return capture_of(stream) is not None
    except CudaError:
        return True


def _destroy(event: Any) -> None:
    with outside_of_captures():
        driver.cuEventDestroy(event)
