"""The host backend has no devices: shards are only names for parts of one array."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemv.calls.operators import KeptOperator
from gemv.core.dtypes import PREFIXES
from gemv.engines.host import run


class HostShardedMatrix(KeptOperator):
    """A matrix in host memory that a program for several GPUs can use as if it were sharded.

    A product is one call of SciPy's BLAS with the whole array, so its bits cannot depend on the
    number of shards.

    Attributes
    ----------
    shape : (int, int)
    dtype : numpy.dtype
    split : str
    places : tuple of str
    """

    def __init__(self, array: np.ndarray, split: str, count: int) -> None:
        self._array: np.ndarray | None = array
        self.split, self.places = split, ("host memory",) * count
        super().__init__(array.dtype, array.shape)

    def _products(self, trans: int, x: np.ndarray) -> np.ndarray:
        array = self.kept()
        rows, cols = self.shape if trans == 0 else self.shape[::-1]
        result = np.zeros((len(x), rows), self.dtype)
        if rows and cols:
            routine = PREFIXES[self.dtype] + "gemv"
            for number, vector in enumerate(x):
                used = np.ascontiguousarray(vector, self.dtype)
                result[number] = run(routine, trans, 1, array, used, 0, result[number])
        return result

    def _on_device(self, op: int, x: Any) -> Any:
        raise TypeError(
            "Matrix: x is on a device, but the backend is host, which takes host arrays only"
        )

    def plan(self, x: Any, y: Any, trans: Any = 0) -> Any:
        """A plan is bound to device arrays, which this backend does not take."""
        raise TypeError(
            "Matrix.plan: the backend is host, which has no device arrays for a plan to be bound"
            " to; A @ x takes vectors in host memory"
        )

    def free(self) -> None:
        """Let go of the array; the matrix cannot be used afterwards."""
        self._array = None

    def __enter__(self) -> HostShardedMatrix:
        self.kept()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.free()

    def kept(self) -> np.ndarray:
        if self._array is None:
            raise ValueError("Matrix: the matrix was freed and cannot be used any more")
        return self._array

    def _kept(self) -> Any:
        return self.kept()

    def __repr__(self) -> str:
        m, n = self.shape
        count = len(self.places)
        return (
            f"<{m}x{n} gemv.Matrix of {self.dtype}, one array for {count} shards of {self.split}>"
        )
