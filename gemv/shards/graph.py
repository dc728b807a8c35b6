"""A product on several GPUs as one CUDA graph: a call of the driver launches all of it."""

from __future__ import annotations

import weakref
from typing import Any

from cuda.bindings import driver

from gemv.core.operand import Operand
from gemv.driver.capture import outside_of_captures
from gemv.driver.libcuda import CudaError, check
from gemv.engines import backend
from gemv.shards.product import Product, Target


class Graph:
    """The graph of a product whose places, streams and memory nobody else uses.

    Parameters
    ----------
    product : Product
        It has not run yet: events that were recorded outside of a capture cannot be waited for
        inside of it.
    x, y : Operand
    """

    def __init__(self, product: Product, x: Operand, y: Operand) -> None:
        self._engine = engine = backend.engine()
        self._x, self._y, self._keep = x, y, product
        product.settle()  # what fills scratch memory is no part of the graph
        with engine.on(x.device):
            flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
            stream = check(driver.cuStreamCreate(flags))
            try:
                # Relaxed, since memory for vectors is allocated meanwhile.
                mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
                check(driver.cuStreamBeginCapture(stream, mode))
                try:
                    product.run(x, [Target(y)], [(x.device, int(stream))])
                except BaseException:
                    driver.cuStreamEndCapture(stream)
                    raise
                graph = check(driver.cuStreamEndCapture(stream))
                try:
                    self._executable = check(driver.cuGraphInstantiate(graph, 0))
                finally:
                    driver.cuGraphDestroy(graph)
            finally:
                driver.cuStreamDestroy(stream)
        weakref.finalize(self, _destroy, self._executable).atexit = False
        if not x.exporter.on_default_stream:
            self._stream = x.exporter.stream_getter()
        else:
            self._stream = None
        self._default = engine.default_stream()
        self._apart = y.device != x.device or y.exporter is not x.exporter

    def launch(self) -> None:
        """Launch on the current stream of x's library, and let that of y come after it."""
        engine, x = self._engine, self._x
        stream = self._default if self._stream is None else int(self._stream(x.device))
        with engine.on(x.device if engine.several else None):
            if self._apart:
                engine.wait(stream, self._stream_of_y(), x.device, self._y.device)
            self._enqueue(stream)
            if self._apart:
                engine.wait(self._stream_of_y(), stream, self._y.device, x.device)

    def _enqueue(self, stream: int) -> None:
        (status,) = driver.cuGraphLaunch(self._executable, stream)
        if status != driver.CUresult.CUDA_SUCCESS:
            places = ", ".join(dict.fromkeys(place.name for place in self._keep.places))
            try:
                check((status,))
            except CudaError as error:
                raise type(error)(f"Matrix.plan: shards on {places}: {error}") from None

    def _stream_of_y(self) -> int:
        current = self._y.exporter.current_stream(self._y.device)
        return self._default if current is None else int(current)


def _destroy(executable: Any) -> None:
    with outside_of_captures():
        driver.cuGraphExecDestroy(executable)
