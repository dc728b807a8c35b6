"""The engine of the simulator backend: device arrays are NumPy arrays, launches are greenlets."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from gemv.arrays.adopt import on_device
from gemv.arrays.host import host_copy
from gemv.core import trace
from gemv.core.geometry import Device, Geometry
from gemv.core.problem import Problem
from gemv.engines.coefficients import Coefficients, Lease
from gemv.engines.slots import HostMemory, SlotTable
from gemv.kernels.spec import SLOTS
from gemv.language.simulator import memory, scheduler, thread
from gemv.selection.select import Choice

#: Few multiprocessors, so that grids stay small; enough that columns are split over blocks.
DEVICE = Device("simulator", (0, 0), multiprocessors=1)


def _scratch(geometry: Geometry, number: np.dtype) -> np.ndarray:
    """Scratch memory in which reading before writing shows."""
    if number.fields is not None:
        return np.full(geometry.scratch, None, object)  # sums of two numbers each are objects here
    made = np.full(geometry.scratch, np.nan, number)
    if geometry.posts:
        memory.make_empty(made)
    return made


class Shared:
    """Scratch memory and counters of the launches of one product; see the other engine."""

    def __init__(self, geometry: Geometry, dtype: np.dtype) -> None:
        self._geometry = geometry
        self._scratch = _scratch(geometry, dtype)
        self._counters = np.zeros(geometry.counters, np.uint32)

    def at(self, shift: int) -> dict[str, Any]:
        """Pointers to both, the one to the scratch memory shifted by so many elements."""
        return {
            "scratch": memory.pointer_to(self._scratch, shift, name="scratch"),
            "counters": memory.pointer_to(self._counters, name="counters"),
        }

    def check(self) -> None:
        """Raise unless the last launch has left it as the first one found it."""
        _look_at_what_is_left("panels", self._geometry, self._scratch, self._counters)


def _look_at_what_is_left(
    name: str, geometry: Geometry, scratch: np.ndarray, counters: np.ndarray
) -> None:
    """Raise unless counters are zero again, and memory for posts is empty."""
    if counters.any():
        raise thread.SimulatorError(
            f"{name}: counters are not zero after the last launch: {counters}"
        )
    if geometry.posts and not memory.is_empty(scratch):
        raise thread.SimulatorError(f"{name}: sums that nobody took are left after the last launch")


class Vectors:
    """x and y on the device, for products of vectors that are in host memory."""

    def __init__(self, engine: SimulatorEngine, cols: int, rows: int, dtype: np.dtype) -> None:
        self.x, self.y = engine.wrap(np.zeros(cols, dtype)), engine.wrap(np.zeros(rows, dtype))
        self._x, self._y = self.x._ary, self.y._ary  # the memory of Numba's stand-ins

    def put(self, x: np.ndarray, y: Any) -> None:
        """Take the values of the next product; None for a y that is not read."""
        self._x[:] = x
        self._y[:] = np.nan if y is None else y

    def get(self) -> np.ndarray:
        """The y that came out."""
        return self._y.copy()


class SimulatorEngine:
    """Runs kernels as plain Python functions; see :mod:`gemv.language.simulator.scheduler`."""

    name = "simulator"

    def __init__(self) -> None:
        self._slots: dict[tuple, tuple[tuple[Any, ...], SlotTable]] = {}

    def device(self) -> Device:
        return DEVICE

    def in_host_memory(self) -> bool:
        """Device arrays are NumPy arrays here."""
        return True

    def device_of(self, pointer: int) -> int | None:
        """There is no GPU that memory could belong to."""
        return None

    def to_device(self, host: np.ndarray) -> np.ndarray:
        return host.copy(order="K")

    def matrix(self, operand: Any, dtype: np.dtype) -> Any:
        """A matrix in host memory as a device array."""
        host = host_copy(operand, dtype)
        return self.wrap(host)

    def vectors(self, cols: int, rows: int, dtype: np.dtype) -> Vectors:
        """A vector of each length for products of vectors in host memory."""
        return Vectors(self, cols, rows, dtype)

    def release(self) -> None:
        """Nothing is kept for later."""

    def free_memory(self) -> None:
        """Nobody counts it."""

    def exhausted(self, error: BaseException) -> bool:
        """Whether an error says that the device has no memory left."""
        return False

    def shared(self, geometry: Geometry, dtype: np.dtype) -> Shared:
        """What several launches of one product share; the call that asks for it owns it."""
        return Shared(geometry, dtype)

    def session(self) -> AbstractContextManager:
        """There is no way to the device that calls would share."""
        return nullcontext()

    def send(self, name: str, host: np.ndarray, dtype: np.dtype) -> Any:
        """A contiguous array as the operand of a launch."""
        return on_device(self.to_device(host), self)

    def blank(self, name: str, n: int, dtype: np.dtype) -> Any:
        """A vector of zeros as the operand of a launch."""
        return on_device(self.zeros(n, dtype), self)

    def receive(self, operand: Any, shared: Shared | None) -> np.ndarray:
        """The values of a vector, after the last launch; `shared` is what the launches shared."""
        if shared is not None:
            shared.check()
        return self.to_host(operand.owner)

    def feed(self, source: Any, made: Any) -> Iterator[tuple[Any, Any]]:
        """Each panel of a cut with its copy; see the other engine."""
        for panel in made.panels:
            block = source.block(panel)
            # What lies between the lines reaches no sum.
            copy = np.empty((len(block), panel.pitch), source.dtype)
            copy.view(np.uint8)[:] = 0xFF  # a NaN
            copy[:, : block.shape[1]] = block
            yield panel, on_device(copy, self)

    def zeros(self, n: int, dtype: np.dtype, stream: Any = None) -> np.ndarray:
        return np.zeros(n, dtype)

    def copy(self, source: Any, target: Any, stream: int) -> None:
        target.owner[...] = source.owner

    def on(self, index: int | None) -> AbstractContextManager:
        return nullcontext()

    def default_stream(self) -> int:
        return 0

    def capture_of(self, stream: int) -> None:
        return None

    def wait(self, waiting: int, other: int, *devices: int | None) -> None:
        """Everything is done in the order of the calls."""

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
        owner: Coefficients | None = None,
    ) -> None:
        """Launch the functions of ``choice.kernel`` one after the other."""
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
                scheduler.launch(function, launch.grid, launch.block, arguments)
        finally:
            if lease is not None:
                lease.done()
        _look_at_what_is_left(choice.kernel.name, geometry, scratch, counters)

    def _built(self, choice: Choice) -> tuple[tuple[Any, ...], SlotTable | None]:
        """The functions of a kernel, and the slots of their constant symbols if they have any.

        Slots keep values from call to call, so they keep their functions, too: built again, these
        would have other memory.
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
            table = SlotTable(HostMemory(symbols), spec.precision.factors, SLOTS)
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
        """Bring alpha and beta to the homes that the kernel reads; a lease ends after it."""
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
