"""The y that a call makes where none is overwritten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemv.arrays import adopt as arrays_adopt
from gemv.arrays import dlpack, jax
from gemv.calls.bind import Call
from gemv.calls.order import Order
from gemv.core.operand import Operand
from gemv.core.rules import y_length
from gemv.engines import backend as engines_backend


def note_written(target: Operand) -> None:
    note = target.exporter.notes_writes
    if note is not None:
        note(target.origin)


@dataclass(slots=True)
class NewY:
    """A y that is made for the call: of zeros, or a copy of the y that was passed."""

    array: Any
    operand: Operand
    source: Operand | None

    def fill(self, engine: Any, stream: int) -> None:
        """Enqueue its first values."""
        if self.source is not None:
            engine.copy(self.source, self.operand, stream)
        elif engine.name == "cuda":
            nbytes = self.operand.shape[0] * self.operand.dtype.itemsize
            engine.clear(self.operand.pointer, nbytes, stream)

    def finish(self, engine: Any, stream: int) -> Any:
        """The array as the caller gets it."""
        if not isinstance(self.array, dlpack.Export):
            return self.array if engine.name == "cuda" else engine.wrap(self.array)
        self.array.before_export = lambda consumer: engine.wait(consumer, stream)
        return jax.Jax.finish(self.array)


def make_y(call: Call, engine: Any, order: Order) -> NewY:
    """A new y in the kind and on the device that A is on; nothing is in it yet."""
    problem, y, a = call.problem, call.y, call.a
    if y is None:
        length = y_length(problem.rows, call.offy, call.incy)
    else:
        length = y.shape[0]
    if engine.name == "simulator":
        zeros = engine.zeros(length, problem.y_dtype)
        return NewY(zeros, arrays_adopt.on_device(zeros, engines_backend.HOME), y)
    library = a.exporter
    if not library.allocates_in_capture and order.capture_here() is not None:
        raise RuntimeError(
            f"{call.routine}: a stream is being captured, where no {library.name} array can be"
            " made for the result: pass y and overwrite_y=1"
        )
    if y is not None and (y.conj or y.neg):
        array = y.exporter.resolved(y.origin, False)
        operand = arrays_adopt.on_device(array, engines_backend.HOME)
        order.uses(operand)
        return CopiedY(array, operand, None)
    if library.on_default_stream and order.stream == engine.default_stream():
        array = engine.empty(length, problem.y_dtype)
    else:
        array = library.empty(a.origin, length, problem.y_dtype, call.device or 0)
    operand = arrays_adopt.on_device(array, engines_backend.HOME)
    order.uses(operand)
    return NewY(array, operand, y)


class CopiedY(NewY):
    """A y whose first values its library has written already."""

    def fill(self, engine: Any, stream: int) -> None:
        """Nothing is left to do."""
