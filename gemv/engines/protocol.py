"""What an engine can do: the promise that the GPU's and the simulator's engine both keep.

An engine runs kernels on one kind of device, real or simulated, and owns what that takes: device
memory, constant memory, scratch memory and the way from host memory. :func:`backend.engine
<gemv.engines.backend.engine>` hands out the one in use.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gemv.core.geometry import Device, Geometry
from gemv.core.operand import Operand
from gemv.core.problem import Problem
from gemv.engines.coefficients import Coefficients
from gemv.engines.tables import PackedLaunch, Tables
from gemv.selection.select import Choice

if TYPE_CHECKING:
    from gemv.engines.cuda import CudaEngine
    from gemv.engines.simulator import SimulatorEngine


class Shared(Protocol):
    """Scratch memory and counters that several launches of one product share."""

    def at(self, shift: int) -> dict[str, Any]:
        """The parameters ``scratch`` and ``counters`` of a launch.

        The scratch memory begins `shift` elements behind its start; `shift` may be negative.
        """


class Vectors(Protocol):
    """x and y on the device, for a matrix that stays there and vectors in host memory.

    Attributes
    ----------
    x, y : device array
        The operands of every product.
    """

    x: Any
    y: Any

    def put(self, x: np.ndarray, y: Any, stream: int) -> None:
        """Give x and y the values of the next product; None for a y that is not read."""

    def get(self, stream: int) -> np.ndarray:
        """The y of the last product on this stream, in host memory."""


class Session(Protocol):
    """One call on host arrays. Its launches run on the default stream, in order."""

    def send(self, name: str, host: np.ndarray, dtype: np.dtype) -> Operand:
        """A copy of a contiguous array in `dtype`; `name` is that of the operand."""

    def blank(self, name: str, n: int, dtype: np.dtype) -> Operand:
        """A vector of `n` zeros."""

    def shared(self, geometry: Geometry, dtype: np.dtype) -> Shared:
        """Scratch memory and counters for the launches of this call, sums being of `dtype`."""

    def feed(self, source: Any, cut: Any) -> Generator[tuple[Any, Operand]]:
        """Copy the panels of a cut in turn; yield each with the operand that holds it.

        The caller launches what reads a panel before it takes the next one. `source` and `cut` are
        those of :mod:`gemv.streaming.cut`.
        """

    def receive(self, operand: Operand, shared: Any) -> np.ndarray:
        """The values of a vector once all launches are done, in host memory.

        `shared` is what the launches have shared, or None; the simulator looks whether they have
        left it as they found it.
        """


class Engine(Protocol):
    """Runs kernels.

    Attributes
    ----------
    name : str
        ``"cuda"`` or ``"simulator"``: the backend it belongs to.
    """

    name: str

    # Devices: which there are, and whose memory is where.

    def device(self) -> Device:
        """The current device; one is made current in a thread that has none."""

    def on(self, index: int | None) -> AbstractContextManager:
        """Make the device with this ordinal current for a block; None for the one that is."""

    def device_of(self, pointer: int) -> int | None:
        """Ordinal of the GPU whose memory is at an address; None where there is none."""

    def devices_of(self, pointers: Sequence[int]) -> Sequence[int | None]:
        """The same for each of these addresses."""

    def in_host_memory(self) -> bool:
        """Whether device memory is host memory."""

    # Streams, by their handles: what comes after what.

    def default_stream(self) -> int:
        """The stream of arrays whose library has none of its own."""

    def capture_of(self, stream: int) -> Any:
        """The capture into a graph that a stream is part of, or None."""

    def wait(
        self,
        waiting: int,
        other: int,
        waiting_device: int | None = None,
        other_device: int | None = None,
    ) -> None:
        """Let all later work on stream `waiting` come after the work that is on `other` now."""

    # Device arrays: made, copied, handed to the user.

    def to_device(self, host: np.ndarray) -> Any:
        """A copy of contiguous host memory, as it lies in memory."""

    def to_host(self, array: Any) -> np.ndarray:
        """A copy of a device array in host memory."""

    def zeros(self, n: int, dtype: np.dtype, stream: Any = None) -> Any:
        """A new vector of zeros, which work on `stream` finds there."""

    def copy(self, source: Operand, target: Operand, stream: int) -> None:
        """Enqueue a copy of a vector of any stride to a contiguous one."""

    def wrap(self, array: Any) -> Any:
        """A device array of :meth:`zeros` as the user gets it: as an array of Numba's."""

    # Memory of the device: how much there is, and what is kept of it.

    def free_memory(self) -> int | None:
        """Bytes that are free; None where nobody counts them."""

    def exhausted(self, error: BaseException) -> bool:
        """Whether an exception says that the device has no memory left."""

    def release(self) -> None:
        """Free the memory that is kept for later calls and that nobody uses."""

    # Operands in host memory: one call, or a matrix that stays on the device.

    def session(self) -> AbstractContextManager[Session]:
        """Begin one call on host arrays; another thread's call waits until it has ended."""

    def matrix(self, operand: Operand, dtype: np.dtype) -> Any:
        """A contiguous device array of Numba's, with the values and the order of a host matrix.

        Raises
        ------
        MemoryError
            If the device's memory does not suffice, with the sizes.
        """

    def vectors(self, cols: int, rows: int, dtype: np.dtype) -> Vectors:
        """Vectors of `cols` and of `rows` elements beside a matrix on the device."""

    # Launches.

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
        """Launch the functions of the chosen kernel on `stream`, one after the other.

        Parameters
        ----------
        choice, problem
            The kernel with its geometry, and what it computes.
        alpha, beta : number or Operand
            Operands where their home is device memory.
        a, x, y : Operand
            In device memory.
        stream : stream, optional
            A handle or the object of a library; the legacy default stream if left out.
        owner : Coefficients, optional
            Whose slot is used where the home of alpha or beta is constant memory.
        tables : Tables, optional
            Where the items are, for a choice whose blocks find their item in tables. `a`, `x` and
            `y` are those of the first item, and `alpha` and `beta` arrays with a number for each.
        """

    def packed(
        self, choice: Choice, problem: Problem, alpha: Operand, beta: Operand, tables: Tables
    ) -> PackedLaunch:
        """A launch as :meth:`run` makes it, with all that does not change from one to the next.

        It is for choices whose blocks find their item in tables.
        """

    def upload(self, host: np.ndarray, target: Operand, stream: int, finish: bool = False) -> None:
        """Enqueue a copy of bytes to device memory; `host` may change when this returns.

        With `finish` it returns when the bytes are there, for work on any stream.
        """


if TYPE_CHECKING:

    def _promises(cuda: CudaEngine, simulator: SimulatorEngine) -> tuple[Engine, Engine]:
        """Both classes keep the promise, or mypy says which method does not."""
        return cuda, simulator
