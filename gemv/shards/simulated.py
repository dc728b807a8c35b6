"""Places of the simulator: parts of host memory that only its copies connect."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from gemv.arrays.adopt import on_device
from gemv.core import trace
from gemv.core.geometry import LOAD_BYTES, Geometry
from gemv.core.operand import Operand
from gemv.core.problem import Problem
from gemv.selection.select import Choice
from gemv.shards.places import Launch


class SimulatedPlace:
    """One place; all are on the one device that the simulator has."""

    index = None
    stream = turns = 0  # nothing is pending

    def __init__(self, engine: Any, number: int) -> None:
        self._engine = engine
        self.device = engine.device()
        self.name = f"place {number} of the simulator"

    def current(self) -> AbstractContextManager[None]:
        return nullcontext()

    def turn(self, starts: Iterable[Any], *others: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def store(self, lines: np.ndarray, dtype: np.dtype, pitch: int, offset: int) -> Operand:
        count, length = lines.shape
        flat = self.vector(count * pitch, dtype, offset).owner.reshape(count, pitch)
        flat[:, :length] = lines
        return on_device(flat, self._engine)

    def vector(self, n: int, dtype: np.dtype, offset: int = 0) -> Operand:
        memory = np.full((n + 1) * dtype.itemsize + 2 * LOAD_BYTES, 0xFF, np.uint8)  # NaN
        start = -memory.ctypes.data % LOAD_BYTES + offset
        vector = memory[start : start + n * dtype.itemsize].view(dtype)
        return on_device(vector, self._engine)

    def sums(self, geometry: Geometry, dtype: np.dtype) -> Any:
        from gemv.engines.simulator import SimulatedShared

        return SimulatedShared(self._engine, geometry, dtype)

    def packed(self, choice: Choice, problem: Problem) -> Launch:
        def launch(a: Operand, x: Operand, y: Operand) -> None:
            with trace.silent():
                self._engine.run(choice, problem, 1, a, x, 0, y)

        return launch

    def copy(self, source: Operand, target: Operand) -> None:
        target.owner[...] = source.owner

    copy_lines = copy

    def settle(self) -> None:
        pass

    def reaches(self, operand: Operand, own: bool) -> bool:
        return True


class SimulatedFabric:
    """All places of a matrix in the simulator, where everything is done at once."""

    def __init__(self, engine: Any, devices: list[int]) -> None:
        self._engine, self._devices = engine, devices
        self.places = tuple(SimulatedPlace(engine, number) for number in range(len(devices)))

    def starts(self, streams: Iterable[tuple[int | None, int]]) -> list[Any]:
        return []

    def join(self, streams: Iterable[tuple[int | None, int]], places: Iterable[Any]) -> None:
        pass

    def another(self) -> SimulatedFabric:
        return SimulatedFabric(self._engine, self._devices)

    def free(self) -> None:
        pass
