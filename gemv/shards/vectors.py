"""Vectors on devices: x as shards read it, and the memory that y is computed in."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemv.arrays import adopt, dlpack
from gemv.core.batch import aligned_step
from gemv.core.geometry import LOAD_BYTES
from gemv.core.operand import Operand, part_of
from gemv.engines import backend
from gemv.shards.remembered import Layouts
from gemv.shards.steps import as_vectors


def rows_of(columns: Operand) -> Operand:
    """The columns of an array of shape (length, vectors) as vectors of shape (vectors, length)."""
    return part_of(columns, 0, columns.shape[::-1], columns.strides[::-1])


def readable(x: Operand, stream: int, layouts: Layouts) -> tuple[Operand, int]:
    """x as shards read it, one vector or several of shape (vectors, cols), and its stream.

    Every vector of the result is contiguous. A single one begins at a multiple of 16 bytes. Several
    may begin anywhere: a shard that needs them aligned copies them. If x itself is not like that,
    the result is a copy of it, and later work on `stream` comes behind the reads of x.
    """
    if x.conj or x.neg:
        resolved = x.exporter.resolved(x.origin, x.conj)
        x = _adopted(resolved) if len(x.shape) == 1 else rows_of(_adopted(resolved))
    *apart, along = x.strides
    if x.shape[-1] == 1:
        along = 1
    if along == 1 and (apart or x.pointer % LOAD_BYTES == 0):
        return x, stream
    engine, length = backend.engine(), x.shape[-1]
    pitch, count = (aligned_step(length), x.shape[0]) if apart else (length, 1)
    made = NewVector(x, x.device, count * pitch, x.dtype, layouts)
    with engine.on(x.device):
        if made.stream != stream:  # its memory is of its own stream
            engine.wait(made.stream, stream)
        try:
            for number in range(count):
                source = part_of(x, number * apart[0] if apart else 0, (length,), (along,))
                target = part_of(made.operand, number * pitch, (length,), (1,))
                engine.copy(source, target, made.stream)
        finally:  # behind an error as well: copies before it still read x
            if made.stream != stream:
                engine.wait(stream, made.stream)
    if apart:
        return as_vectors(made.operand, count, length, pitch), made.stream
    return made.operand, made.stream


def _adopted(array: Any) -> Operand:
    return adopt.adopt("Matrix", "x", array, None, backend.HOME, batch=True)


class NewVector:
    """A vector that is made for a product, in the order of its library's stream on that device.

    Attributes
    ----------
    operand : Operand
    own : bool
        Whether this package allocated its memory.
    index, stream
        Its GPU and the stream that it is made on.
    """

    def __init__(
        self, like: Operand, index: int | None, rows: int, dtype: np.dtype, layouts: Layouts
    ) -> None:
        engine = backend.engine()
        self.index = index
        self._library = library = like.exporter
        if engine.name == "simulator":
            self.stream, self.own = 0, True
            self._array = engine.zeros(rows, dtype)
        else:
            current = library.current_stream(index)
            self.stream = engine.default_stream() if current is None else current
            self.own = library.on_default_stream
            with engine.on(index):
                if self.own:
                    self._array = self._empty(engine, rows, dtype)
                else:
                    self._array = library.empty(like.origin, rows, dtype, index)
        # What JAX takes over in the end is read as the array of ours that it exports, whose layout
        # is kept; reading the export itself would export it once more.
        is_export = isinstance(self._array, dlpack.Export)
        memory = self._array.array if is_export else self._array
        self.operand = layouts.operand(memory, dtype, rows)

    def _empty(self, engine: Any, rows: int, dtype: np.dtype) -> Any:
        try:
            return engine.empty(rows, dtype)
        except MemoryError as error:
            raise MemoryError(
                f"Matrix: a vector of {rows * dtype.itemsize} bytes does not fit on"
                f" cuda:{self.index}, of which {engine.free_memory()} bytes are free"
            ) from error
        except RuntimeError as error:
            raise type(error)(f"Matrix: vectors on cuda:{self.index}: {error}") from error

    def clear(self) -> None:
        """Enqueue zeros, which the simulator's memory has from the start."""
        engine, operand = backend.engine(), self.operand
        if engine.name == "cuda" and operand.shape[0]:
            with engine.on(self.index):
                nbytes = operand.shape[0] * operand.dtype.itemsize
                engine.clear(operand.pointer, nbytes, self.stream)

    def finished(self, vectors: int = 0) -> Any:
        """The array as the caller gets it: with so many columns, unless it is one vector."""
        engine = backend.engine()

        def wait(consumer: int) -> None:
            with engine.on(self.index):
                engine.wait(consumer, self.stream)

        if engine.name == "simulator":
            made = engine.wrap(self._array)
        else:
            made = self._library.finished(self._array, wait)
        return _columns(made, vectors) if vectors else made


def _columns(array: Any, vectors: int) -> Any:
    """Vectors one behind the other as the columns of an array, which shares their memory."""
    if hasattr(array, "copy_to_host"):  # Numba's transpose is a copy
        return array.reshape((array.shape[0] // vectors, vectors), order="F")
    return array.reshape((vectors, array.shape[0] // vectors)).T
