"""The engine of the simulator backend; see :class:`gemv.engines.protocol.Engine`.

Device arrays are NumPy arrays, and the threads of a launch are greenlets: see
:mod:`gemv.language.simulator.scheduler`. Everything is done in the order of the calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from gemv.arrays.adopt import on_device
from gemv.arrays.host import host_copy
from gemv.core import trace
from gemv.core.geometry import Device, Geometry
from gemv.core.operand import Operand, part_of
from gemv.core.problem import Problem
from gemv.core.splits import Lines
from gemv.engines.coefficients import Coefficients, Lease
from gemv.engines.slots import SlotTable
from gemv.engines.tables import PackedLaunch, Tables
from gemv.kernels.spec import SLOTS
from gemv.language.simulator import atomics, memory, scheduler, thread
from gemv.language.simulator.tables import Items, Words
from gemv.selection.select import Choice

#: Few multiprocessors, so that grids stay small; enough that columns are split over blocks.
DEVICE = Device("simulator", (0, 0), multiprocessors=1)


def _scratch(geometry: Geometry, number: np.dtype) -> np.ndarray:
    """Scratch memory in which reading before writing shows."""
    if number.fields is not None:
        return np.full(geometry.scratch, None, object)  # sums of two numbers each are objects here
    made = np.full(geometry.scratch, np.nan, number)
    if geometry.posts:
        atomics.make_empty(made)
    return made


def _require_clean(
    name: str, geometry: Geometry, scratch: np.ndarray, counters: np.ndarray
) -> None:
    """Raise unless counters are zero again, and memory for posts is empty."""
    if counters.any():
        raise thread.SimulatorError(
            f"{name}: counters are not zero after the last launch: {counters}"
        )
    if geometry.posts and not atomics.is_empty(scratch):
        raise thread.SimulatorError(f"{name}: sums that nobody took are left after the last launch")


def _in_tables(tables: Tables, number: np.dtype) -> dict[str, Any]:
    """The pointers of a launch whose blocks find their item in tables."""
    pointer_to = memory.pointer_to
    return {
        "a": Items(pointer_to(a.owner, 0, "a", False, number, exact=True) for a in tables.a),
        "x": Items(pointer_to(x.owner, 0, "x", False, number, exact=True) for x in tables.x),
        "y": Items(pointer_to(y.owner, 0, "y", number=number) for y in tables.y),
        **{name: Words(words.owner, name) for name, words in tables.arrays.items()},
    }


class SimulatedConstants:
    """The constant symbols of functions, for a :class:`~gemv.engines.slots.SlotTable`."""

    device: int | None = None

    def __init__(self, arrays: Iterable[np.ndarray]) -> None:
        self.arrays = list(arrays)

    def current(self) -> AbstractContextManager:
        return nullcontext()

    def write(self, slot: int, values: np.ndarray, stream: int) -> None:
        for array in self.arrays:
            array[2 * slot : 2 * slot + 2] = values

    def write_now(self, slot: int, values: np.ndarray, events: Sequence[Any]) -> None:
        self.write(slot, values, 0)

    def mark(self, stream: int, event: Any) -> Any:
        return None

    def wait(self, stream: int, event: Any) -> None:
        pass

    def capturing(self, stream: int) -> bool:
        return False

    def handle(self, stream: Any) -> int:
        return 0

    def device_of(self, stream: int) -> int | None:
        return None


class SimulatedShared:
    """Scratch memory and counters of the launches of one product."""

    def __init__(self, engine: SimulatorEngine, geometry: Geometry, dtype: np.dtype) -> None:
        self._engine, self._geometry = engine, geometry
        self._scratch = _scratch(geometry, dtype)
        self._counters = np.zeros(geometry.counters, np.uint32)

    def at(self, shift: int) -> dict[str, Any]:
        return {
            "scratch": memory.pointer_to(self._scratch, shift, name="scratch"),
            "counters": memory.pointer_to(self._counters, name="counters"),
        }

    def begin(self, counted: int, stream: int) -> None:
        """No sum is there, and every counter has the value `counted`."""
        self._scratch[:] = _scratch(self._geometry, self._scratch.dtype)
        self.count(counted, stream)

    def count(self, counted: int, stream: int) -> None:
        """Every counter has the value `counted`."""
        self._counters[:] = counted

    def sums(self, lines: Lines, device: int | None) -> Operand:
        """The memory of some sums, of shape (lines, their length)."""
        first, count, length, pitch = lines
        whole = on_device(self._scratch, self._engine)
        return part_of(whole, first, (count, length), (pitch, 1))

    def require_clean(self) -> None:
        """Raise unless the last launch has left both as the first one found them."""
        _require_clean("panels", self._geometry, self._scratch, self._counters)


class SimulatedVectors:
    """x and y of a matrix that stays."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y
        self._x, self._y = x._ary, y._ary  # the memory of Numba's stand-ins

    def put(self, x: np.ndarray, y: Any, stream: int) -> None:
        self._x[:] = x
        self._y[:] = np.nan if y is None else y

    def get(self, stream: int) -> np.ndarray:
        return self._y.copy()


class SimulatedSession:
    """One call on host arrays."""

    def __init__(self, engine: SimulatorEngine) -> None:
        self._engine = engine

    def send(self, name: str, host: np.ndarray, dtype: np.dtype) -> Operand:
        return on_device(self._engine.to_device(host), self._engine)

    def blank(self, name: str, n: int, dtype: np.dtype) -> Operand:
        return on_device(self._engine.zeros(n, dtype), self._engine)

    def shared(self, geometry: Geometry, dtype: np.dtype) -> SimulatedShared:
        return SimulatedShared(self._engine, geometry, dtype)

    def feed(self, source: Any, cut: Any) -> Generator[tuple[Any, Operand]]:
        for panel in cut.panels:
            block = source.block(panel)
            # What lies between the lines must reach no sum, so NaN is there.
            copy = np.empty((len(block), panel.pitch), source.dtype)
            copy.view(np.uint8)[:] = 0xFF
            copy[:, : block.shape[1]] = block
            yield panel, on_device(copy, self._engine)

    def receive(self, operand: Operand, shared: SimulatedShared | None) -> np.ndarray:
        if shared is not None:
            shared.require_clean()
        return self._engine.to_host(operand.owner)


class SimulatorEngine:
    """Runs kernels as plain Python functions."""

    name = "simulator"

    def __init__(self) -> None:
        self._slots: dict[tuple, tuple[tuple[Any, ...], SlotTable]] = {}

    # Devices ---------------------------------------------------------------------------------

    def device(self) -> Device:
        return DEVICE

    def on(self, index: int | None) -> AbstractContextManager:
        return nullcontext()

    def device_of(self, pointer: int) -> int | None:
        return None

    def devices_of(self, pointers: Sequence[int]) -> Sequence[int | None]:
        return [None] * len(pointers)

    def in_host_memory(self) -> bool:
        return True

    # Streams ---------------------------------------------------------------------------------

    def default_stream(self) -> int:
        return 0

    def capture_of(self, stream: int) -> None:
        return None

    def wait(
        self,
        waiting: int,
        other: int,
        waiting_device: int | None = None,
        other_device: int | None = None,
    ) -> None:
        pass

    # Arrays ----------------------------------------------------------------------------------

    def to_device(self, host: np.ndarray) -> np.ndarray:
        return host.copy(order="K")

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def zeros(self, n: int, dtype: np.dtype, stream: Any = None) -> np.ndarray:
        return np.zeros(n, dtype)

    def copy(self, source: Operand, target: Operand, stream: int) -> None:
        target.owner[...] = source.owner

    def upload(self, host: np.ndarray, target: Operand, stream: int, finish: bool = False) -> None:
        target.owner.view(np.uint8)[: host.size] = host

    def wrap(self, array: np.ndarray) -> Any:
        from numba import cuda

        return cuda.to_device(array, copy=False)

    # Memory ----------------------------------------------------------------------------------

    def free_memory(self) -> None:
        return None

    def exhausted(self, error: BaseException) -> bool:
        return False

    def release(self) -> None:
        pass

    # Operands in host memory -----------------------------------------------------------------

    def session(self) -> AbstractContextManager[SimulatedSession]:
        return nullcontext(SimulatedSession(self))

    def matrix(self, operand: Operand, dtype: np.dtype) -> Any:
        return self.wrap(host_copy(operand, dtype))

    def vectors(self, cols: int, rows: int, dtype: np.dtype) -> SimulatedVectors:
        return SimulatedVectors(*(self.wrap(np.zeros(length, dtype)) for length in (cols, rows)))

    # Launches --------------------------------------------------------------------------------

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
        owner: Coefficients | None = None,
        tables: Tables | None = None,
    ) -> None:
        geometry, number = choice.geometry, choice.spec.precision.sums
        pointer_to = memory.pointer_to
        scratch = _scratch(geometry, number)
        counters = np.zeros(geometry.counters, np.uint32)
        values: dict[str, Any] = {
            "a": pointer_to(a.owner, name="a", writable=False, number=number, exact=True),
            "x": pointer_to(x.owner, problem.x_offset, "x", False, number=number, exact=True),
            "y": pointer_to(y.owner, problem.y_offset, "y", number=number),
            "scratch": pointer_to(scratch, name="scratch"),
            "counters": pointer_to(counters, name="counters"),
            **problem.arguments(geometry),
        }
        if tables is not None:
            values |= _in_tables(tables, number)
        trace.record(
            backend=self.name,
            kernel=choice.kernel.name,
            knobs=choice.knobs,
            geometry=geometry,
            coefficients=choice.coefficients,
        )
        functions, table = self._built(choice)
        x_home = choice.kernel.x_home(choice.knobs)
        if x_home != "pointer":
            packed = np.array([values["x"][j * problem.incx] for j in range(problem.cols)], number)
            values["x"] = pointer_to(packed, name="x", writable=False)
            for function in functions if x_home == "constant" else ():
                function.__dict__["x_symbol"].memory[: packed.size] = packed
        lease = self._place(choice, table, values, alpha, beta, owner)
        try:
            for function, launch in zip(functions, geometry.launches, strict=True):
                arguments = [values[name] for name in inspect.signature(function).parameters]
                scheduler.launch(
                    function, launch.grid, launch.block, arguments, shared=launch.shared
                )
        finally:
            if lease is not None:
                lease.done()
        _require_clean(choice.kernel.name, geometry, scratch, counters)

    def packed(
        self, choice: Choice, problem: Problem, alpha: Operand, beta: Operand, tables: Tables
    ) -> PackedLaunch:
        def launch(stream: int, a: Operand, x: Operand, y: Operand, tables: Tables) -> None:
            self.run(choice, problem, alpha, a, x, beta, y, stream=stream, tables=tables)

        return launch

    def _built(self, choice: Choice) -> tuple[tuple[Any, ...], SlotTable | None]:
        """The functions of a kernel, and the slots of their constant symbols if they have any.

        A slot keeps its values from call to call, so the functions with slots are kept as well:
        built again, they would have other memory.
        """
        spec = choice.spec
        functions: tuple[Any, ...] = choice.kernel.functions(spec)
        if "constant" not in spec.homes:
            return functions, None
        kept = self._slots.get((choice.kernel, spec))
        if kept is None:
            symbols = [
                function.coefficients.memory
                for function in functions
                if getattr(function, "coefficients", None) is not None
            ]
            table = SlotTable(SimulatedConstants(symbols), spec.precision.factors, SLOTS)
            kept = self._slots.setdefault((choice.kernel, spec), (functions, table))
        return kept

    def _place(
        self,
        choice: Choice,
        table: SlotTable | None,
        values: dict[str, Any],
        alpha: Any,
        beta: Any,
        owner: Coefficients | None,
    ) -> Lease | None:
        """Put alpha and beta where the kernel reads them; the lease of their slot, if any."""
        spec = choice.spec
        shared = {}
        for name, home, value in zip(("alpha", "beta"), spec.homes, (alpha, beta), strict=True):
            if home in ("pointer", "global"):
                pointer = f"{name}_pointer"
                values[pointer] = memory.pointer_to(value.owner, name=name, writable=False)
            else:
                values[name] = spec.precision.factors.type(value)
            shared[name] = values[name] if home == "constant" else 0
        if table is None:
            return None
        lease = Lease(table, shared["alpha"], shared["beta"], 0, owner)
        values["slot"] = lease.slot
        return lease
