"""Whether a result is right, before it is timed.

All numbers are small and whole, so a sum is exact in any order, and a result of ours has to be
equal to that of NumPy, or to that of another kernel where NumPy would take too long.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemv.core.narrow import cast
from gemv.measure.frames import FramedCell, Frames
from gemv.measure.plain import Enqueue

#: NumPy computes the expected result of a matrix of at most so many elements.
NUMPY_ELEMENTS = 1 << 20
#: The kernel that computes it for a larger one: it loads and sums unlike those that are selected.
SECOND_KERNEL = "coalesced"


class WholeNumbers:
    """A cell's first frame, filled with whole numbers in -2..2."""

    def __init__(self, frames: Frames, framed: FramedCell, stream: int) -> None:
        self._frames, self._framed, self._stream = frames, framed, stream
        dtype, layout = framed.problem.dtype, framed.layout
        start = framed.start(framed.places[0])
        frames.fill("whole", dtype, start, layout.nbytes // dtype.itemsize)

    def result(self, call: Enqueue) -> np.ndarray:
        """y after a call, which finds NaN there unless it has to read y."""
        frames, dtype, y = self._frames, self._framed.problem.dtype, self._framed.places[0].y
        if self._framed.cell.beta:
            frames.fill("whole", dtype, y, self._length)
        else:
            frames.spoil(y, self._length * dtype.itemsize)
        call(self._stream)
        return frames.read(y, dtype, self._length)

    @property
    def _length(self) -> int:
        """Elements of y, of all items."""
        return self._framed.layout.items * self._framed.problem.rows

    def by_numpy(self) -> np.ndarray:
        """What a call has to give."""
        problem, layout, beta = self._framed.problem, self._framed.layout, self._framed.cell.beta
        dtype, pattern = problem.dtype, self._frames.pattern("whole", problem.dtype)
        frame = wide(np.resize(pattern, layout.nbytes // dtype.itemsize))
        steps = (layout.a_step, problem.row_stride, problem.col_stride)
        op_a = np.lib.stride_tricks.as_strided(
            frame[layout.first :],
            (layout.items, problem.rows, problem.cols),
            tuple(step * frame.itemsize for step in steps),
        )
        op_a = op_a.conj() if problem.conj else op_a
        x = frame[layout.x_at // dtype.itemsize :][: layout.items * problem.cols]
        y = np.matmul(op_a, x.reshape(layout.items, problem.cols, 1)).reshape(-1)
        if beta:
            y = y + beta * wide(np.resize(pattern, self._length))
        return cast(y, dtype)


def wide(values: np.ndarray) -> np.ndarray:
    """The values in float64 or complex128."""
    return cast(values, np.dtype(np.complex128 if values.dtype.kind == "c" else np.float64))


def equal(ours: np.ndarray, expected: np.ndarray) -> bool:
    """Bit by bit, which is quick, or at least as numbers: a zero may have either sign."""
    same = np.array_equal(ours.view(np.uint8), expected.view(np.uint8))
    return same or np.array_equal(wide(ours), wide(expected))


def nearly_equal(theirs: np.ndarray, expected: np.ndarray) -> bool:
    """Equal, or within 8 eps of the largest element.

    A library may round partial sums to the narrow type of its result.
    """
    if equal(theirs, expected):
        return True
    exact = wide(expected)
    allowed = 8 * epsilon(expected.dtype) * float(np.max(np.abs(exact)))
    # NaN is not within anything
    return bool(np.max(np.abs(wide(theirs) - exact)) <= allowed)


def epsilon(dtype: Any) -> float:
    """Distance from 1 to the next number; NumPy does not know bfloat16's."""
    step = 1.0
    while wide(cast(np.array([1 + step / 2]), dtype))[0] != 1:
        step /= 2
    return step
