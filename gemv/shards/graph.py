"""A product on several GPUs as one CUDA graph: a call of the driver launches all of it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cuda.bindings import driver

from gemv.core.operand import Operand
from gemv.driver.capture import capture_of, join, outside_of_captures
from gemv.driver.libcuda import CudaError, check
from gemv.engines import backend
from gemv.shards.chains import captured, chains_of
from gemv.shards.groups import Groups
from gemv.shards.steps import Target
from gemv.shards.streams import stream_by_now


class Graph:
    """The graph of all products of a plan, whose places, streams and memory nobody else uses.

    Parameters
    ----------
    groups : Groups
        No product of theirs has run yet: events that were recorded outside of a capture cannot be
        waited for inside of it.
    x, y : Operand
    is_part : bool
        Whether it may become a part of other graphs.
    routine : str
        For error texts.
    """

    def __init__(
        self, groups: Groups, x: Operand, y: Operand, is_part: bool = True,
        routine: str = "Matrix",
    ) -> None:  # fmt: skip
        self._engine = backend.engine()
        places = ", ".join(dict.fromkeys(place.name for place in groups.places))
        self._who = f"{routine}: shards on {places}"
        self._x, self._y, self._groups = x, y, groups
        with self._naming():
            self._graph, self._executable = self._made()
        weakref.finalize(self, _destroy, self._executable, self._graph).atexit = False
        #: What a captured stream gets in place of the graph, if that is faster.
        self._chains = None
        if is_part:
            with self._naming():
                self._chains = chains_of(groups, x, y)
        named = x.stream is not None or y.stream is not None
        self._apart = named or y.device != x.device or y.exporter is not x.exporter

    def _made(self) -> tuple[Any, Any]:
        """The graph, and what can be launched of it."""
        groups, x, y = self._groups, self._x, self._y
        groups.settle()  # what fills scratch memory is no part of the graph
        with self._engine.on(x.device):
            flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
            stream = check(driver.cuStreamCreate(flags))
            try:
                streams = [(x.device, int(stream))]
                graph = captured(stream, lambda: groups.run(x, [Target(y)], streams))
                try:
                    return graph, check(driver.cuGraphInstantiate(graph, 0))
                except BaseException:
                    driver.cuGraphDestroy(graph)
                    raise
            finally:
                driver.cuStreamDestroy(stream)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Let each error of the driver say what was computed, and where."""
        try:
            yield
        except CudaError as error:
            if str(error).startswith("Matrix: "):  # a shard, which that names as well
                raise
            raise type(error)(f"{self._who}: {error}") from None

    def launch(self, stream: int) -> None:
        """Launch on the stream that x is used on, and let that of y come after it."""
        engine, x, y = self._engine, self._x, self._y
        with engine.on(x.device):  # a thread that has not used CUDA has no current GPU
            of_y = stream_by_now(y) if self._apart else stream
            apart = (y.device, of_y) != (x.device, stream)
            if apart:
                engine.wait(stream, of_y, x.device, y.device)
            try:
                self.enqueue(stream)
            except CudaError as error:
                raise type(error)(f"{self._who}: {error}") from None
            if apart:
                engine.wait(of_y, stream, y.device, x.device)

    def enqueue(self, stream: int) -> None:
        """Launch on a stream of the GPU of x, which is current; nothing else is ordered.

        On a stream that is captured, all of it becomes a part of that graph.
        """
        if capture_of(stream) is None:
            check(driver.cuGraphLaunch(self._executable, stream))
        elif self._chains is not None:
            self._chains.enqueue(stream)
        else:
            join(stream, int(self._graph))


def _destroy(executable: Any, graph: Any) -> None:
    with outside_of_captures():
        driver.cuGraphExecDestroy(executable)
        driver.cuGraphDestroy(graph)
