"""The engine of the simulator backend: device arrays are NumPy arrays, launches are greenlets."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np

from gemv import _simulator, _trace
from gemv._problem import Device, Problem
from gemv._select import Choice

#: Few multiprocessors, so that grids stay small; enough that columns are split over blocks.
DEVICE = Device("simulator", (0, 0), multiprocessors=1)


class SimulatorEngine:
    """Runs kernels as plain Python functions; see :mod:`gemv._simulator`."""

    name = "simulator"

    def device(self) -> Device:
        return DEVICE

    def to_device(self, host: np.ndarray) -> np.ndarray:
        return host.copy(order="K")

    def zeros(self, n: int, dtype: np.dtype, stream: Any = None) -> np.ndarray:
        return np.zeros(n, dtype)

    def copy(self, operand: Any, stream: Any = None) -> np.ndarray:
        return operand.owner.copy()

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def wrap(self, array: np.ndarray) -> Any:
        from numba import cuda

        return cuda.to_device(array, copy=False)

    def run(
        self,
        choice: Choice,
        problem: Problem,
        alpha: Any,
        a: Any,
        x: Any,
        beta: Any,
        y: Any,
        stream: Any = None,
    ) -> None:
        """Launch the functions of ``choice.kernel`` one after the other."""
        geometry, dtype = choice.geometry, problem.dtype
        scratch = np.full(geometry.scratch, np.nan, dtype)  # poisoned: reading before writing shows
        counters = np.zeros(geometry.counters, np.uint32)
        values = {
            "rows": problem.rows,
            "cols": problem.cols,
            "alpha": dtype.type(alpha),
            "a": _simulator.pointer_to(a.owner, name="a", writable=False),
            "row_stride": problem.row_stride,
            "col_stride": problem.col_stride,
            "x": _simulator.pointer_to(x.owner, problem.x_offset, name="x", writable=False),
            "incx": problem.incx,
            "beta": dtype.type(beta),
            "y": _simulator.pointer_to(y.owner, problem.y_offset, name="y"),
            "incy": problem.incy,
            "scratch": _simulator.pointer_to(scratch, name="scratch"),
            "counters": _simulator.pointer_to(counters, name="counters"),
            **geometry.sizes,
        }
        _trace.record(
            backend=self.name,
            kernel=choice.kernel.name,
            knobs=choice.knobs,
            geometry=geometry,
            coefficients=choice.coefficients,
        )
        functions = choice.kernel.functions(choice.spec)
        for function, launch in zip(functions, geometry.launches, strict=True):
            arguments = [values[name] for name in inspect.signature(function).parameters]
            with warnings.catch_warnings():
                # Infinities and NaN are the data's business here, as they are on a GPU.
                warnings.simplefilter("ignore", RuntimeWarning)
                _simulator.launch(function, launch.grid, launch.block, arguments)
        if counters.any():
            raise _simulator.SimulatorError(
                f"{choice.kernel.name}: counters are not zero after the last launch: {counters}"
            )
