"""A product on several GPUs as one CUDA graph: a call of the driver launches all of it."""

from __future__ import annotations

import weakref
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
        self._engine = engine = backend.engine()
        places = ", ".join(dict.fromkeys(place.name for place in groups.places))
        self._who = f"{routine}: shards on {places}"
        self._x, self._y, self._groups = x, y, groups
        groups.settle()  # what fills scratch memory is no part of the graph
        with engine.on(x.device):
            flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
            stream = check(driver.cuStreamCreate(flags))
            try:
                streams = [(x.device, int(stream))]
                self._graph = captured(stream, lambda: groups.run(x, [Target(y)], streams))
                try:
                    self._executable = check(driver.cuGraphInstantiate(self._graph, 0))
                except BaseException:
                    driver.cuGraphDestroy(self._graph)
                    raise
            finally:
                driver.cuStreamDestroy(stream)
        weakref.finalize(self, _destroy, self._executable, self._graph).atexit = False
        #: What a captured stream gets in place of the graph, if that is faster.
        self._chains = chains_of(groups, x, y) if is_part else None
        named = x.stream is not None or y.stream is not None
        self._apart = named or y.device != x.device or y.exporter is not x.exporter

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
