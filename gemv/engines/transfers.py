"""Calls on host arrays: a session sends x, y and A to the GPU and gets y back."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from gemv.core.dtypes import NARROW
from gemv.core.geometry import PANEL_BYTES, Geometry
from gemv.core.narrow import cast
from gemv.core.operand import Operand
from gemv.driver import memory
from gemv.driver.link import SMALL_BYTES, Link, Vectors, operand_in
from gemv.driver.memory import Shared

#: The stream that launches of a session run on: the legacy default stream.
_STREAM = 0


class CudaSession:
    """One call on host arrays, which has the link to its GPU alone."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def send(self, name: str, host: np.ndarray, dtype: np.dtype) -> Operand:
        return self._link.send(name, host, dtype, _STREAM)

    def blank(self, name: str, n: int, dtype: np.dtype) -> Operand:
        operand = self._link.reserve(name, n, dtype)
        memory.fill(operand.pointer, n * dtype.itemsize, 0, _STREAM)
        return operand

    def shared(self, geometry: Geometry, dtype: np.dtype) -> Shared:
        return Shared(geometry, dtype, _STREAM)

    def feed(self, source: Any, cut: Any) -> Generator[tuple[Any, Operand]]:
        link = self._link
        if cut.panel_bytes <= SMALL_BYTES and len(cut.panels) == 1:
            (panel,) = cut.panels
            block = np.require(source.block(panel), source.dtype, ["A", "C"])
            yield panel, link.send("a", block, source.dtype, _STREAM)
            return
        buffers = link.panels(cut.buffers, cut.panel_bytes, PANEL_BYTES)
        elements = cut.panel_bytes // source.dtype.itemsize
        operands = [operand_in(buffer, elements, source.dtype) for buffer in buffers]
        with closing(link.feed(source, cut, buffers, _STREAM)) as fed:
            for panel, place in fed:
                yield panel, operands[place]

    def receive(self, operand: Operand, shared: Any) -> np.ndarray:
        # `shared` is an argument so that its memory lives until the launches are done.
        return self._link.receive(operand, _STREAM)


class Transfers:
    """The links from host memory to the GPUs, each made at first use."""

    def __init__(self) -> None:
        self._links: dict[int, Link] = {}
        self._lock = threading.Lock()

    def link(self, device: int) -> Link:
        """The link to a GPU, which is the current one."""
        link = self._links.get(device)
        if link is None:
            with self._lock:
                link = self._links.get(device)
                if link is None:
                    link = self._links[device] = Link()
        return link

    @contextmanager
    def session(self, device: int) -> Iterator[CudaSession]:
        """A session on a GPU, which is the current one."""
        link = self.link(device)
        with link.session(_STREAM):
            yield CudaSession(link)

    def release(self, device: int) -> None:
        """Free the memory that the link to a GPU keeps for the next call."""
        link = self._links.get(device)
        if link is not None:
            link.release()

    def matrix(self, device: int, operand: Operand, dtype: np.dtype) -> Any:
        """A copy in a Numba array: the user gets it, as :attr:`gemv.Matrix.array`."""
        from numba import cuda

        order = "C" if operand.strides[1] == 1 else "F"
        try:
            array = cuda.device_array(operand.shape, dtype, order=order)
            lines = np.asarray(operand.owner)
            lines = cast(lines, dtype) if lines.dtype in NARROW else lines
            target = memory.address_of(array)
            self.link(device).fill(lines if order == "C" else lines.T, dtype, target)
        except Exception as error:
            if not memory.is_exhausted(error):
                raise
            m, n = operand.shape
            raise MemoryError(
                f"Matrix: {m} x {n} {dtype} take {m * n * dtype.itemsize} bytes, and"
                f" {memory.free_memory()} bytes of device memory are free; gemv.gemv streams a"
                " matrix that does not fit"
            ) from error
        return array


def vectors(cols: int, rows: int, dtype: np.dtype) -> Vectors:
    """Vectors in Numba arrays: a call on nothing but these takes the short way."""
    from numba import cuda

    return Vectors(cuda.device_array(cols, dtype), cuda.device_array(rows, dtype))
