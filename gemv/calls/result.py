"""The new y of a call on device arrays that overwrites none: made, computed into, handed out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gemv.arrays.adopt import on_device
from gemv.arrays.base import Library
from gemv.calls.bind import Call
from gemv.calls.order import Order
from gemv.core.operand import Operand
from gemv.core.rules import y_length
from gemv.engines import backend as engines_backend


def note_written(target: Operand) -> None:
    """Tell the library of an array that was overwritten, if it counts that."""
    note = target.exporter.notes_writes
    if note is not None:
        note(target.origin)


def notes_written(targets: Sequence[Operand]) -> list[Callable[[], None]]:
    """For each library that counts what is overwritten, a function that tells it of all of them."""
    by_library: dict[int, tuple[Library, list[Any]]] = {}
    for target in targets:
        library = target.exporter
        if id(library) not in by_library:
            by_library[id(library)] = library, []
        by_library[id(library)][1].append(target.origin)
    notes = (library.notes_writes_to(arrays) for library, arrays in by_library.values())
    return [note for note in notes if note is not None]


class NewY(NamedTuple):
    """A y that is made for the call: zeros, or a copy of the y that was passed."""

    #: What its library made, and the same memory as an operand of the launch.
    array: Any
    operand: Operand
    exporter: Library
    #: The y that is copied into it; None for zeros.
    source: Operand | None
    #: Whether its library has written its first values already.
    filled: bool = False

    def fill(self, engine: Any, stream: int) -> None:
        """Enqueue the copy of its source, or zeros."""
        if self.source is not None:
            engine.copy(self.source, self.operand, stream)
        elif not self.filled and engine.name == "cuda":
            nbytes = self.operand.shape[0] * self.operand.dtype.itemsize
            engine.clear(self.operand.pointer, nbytes, stream)

    def finish(self, engine: Any, stream: int) -> Any:
        """The array as the caller gets it."""
        if engine.name != "cuda":
            return engine.wrap(self.array)
        return self.exporter.finished(self.array, lambda consumer: engine.wait(consumer, stream))


def make_y(call: Call, engine: Any, order: Order) -> NewY:
    """A new y from A's library, on A's GPU; :meth:`NewY.fill` gives it its first values."""
    problem, y, a = call.problem, call.y, call.a
    if y is None:
        length = y_length(problem.rows, call.offy, call.incy)
    else:
        length = y.shape[0]
    if engine.name == "simulator":
        return NewY(*new_vector(call, engine, order, length, problem.y_dtype), a.exporter, y)
    library = a.exporter
    if not library.allocates_in_capture and order.capture_here() is not None:
        raise RuntimeError(
            f"{call.routine}: a stream is being captured, where no {library.name} array can be"
            " made for the result: pass y and overwrite_y=1"
        )
    if y is not None and (y.conj or y.neg):
        array = y.exporter.resolved(y.origin, False)
        operand = on_device(array, engines_backend.HOME)
        order.uses(operand)
        return NewY(array, operand, y.exporter, None, filled=True)
    array, operand = new_vector(call, engine, order, length, problem.y_dtype)
    return NewY(array, operand, library, y)


def new_vector(
    call: Call, engine: Any, order: Order, length: int, dtype: np.dtype
) -> tuple[Any, Operand]:
    """New memory for a call, from A's library on A's GPU, as its array and as an operand."""
    if engine.name == "simulator":
        array = engine.zeros(length, dtype)
        return array, on_device(array, engines_backend.HOME)
    library = call.a.exporter
    if library.on_default_stream and order.stream == engine.default_stream():
        array = engine.empty(length, dtype)
    else:
        array = library.empty(call.a.origin, length, dtype, call.device or 0)
    operand = on_device(array, engines_backend.HOME)
    order.uses(operand)
    return array, operand
