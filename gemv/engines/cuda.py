"""The engine of the cuda backend; see :class:`gemv.engines.protocol.Engine`.

The context is the GPU's primary one, shared with every other library in the process. Numba is
imported where something has to be compiled or a Numba array is made: a call on host arrays, or on
the tensors of another library, does without it where the machine code is on disk.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from cuda.bindings import driver

from gemv.core import errors, trace
from gemv.core.geometry import Device, Launch
from gemv.core.operand import Operand
from gemv.core.problem import Problem
from gemv.driver import capture, devices, libcuda, memory, streams
from gemv.driver.block import Block
from gemv.driver.libcuda import check
from gemv.driver.link import Vectors
from gemv.driver.machine import Driver, machine
from gemv.driver.streams import stream_handle
from gemv.engines import binaries, launches, transfers
from gemv.engines.coefficients import Coefficients
from gemv.engines.homes import Homes
from gemv.engines.loading import LoadedFunction, LoadedFunctions
from gemv.engines.tables import PackedLaunch, Tables
from gemv.engines.workspaces import Workspace, Workspaces
from gemv.selection.select import Choice


class CudaEngine:
    """Runs kernels on the current GPU.

    Beyond what every engine can do, it offers the parts of a launch to calls that are made again
    and again: :attr:`machine`, :meth:`load`, :meth:`block` and :meth:`workspace`.
    """

    name = "cuda"

    def __init__(self) -> None:
        #: Compiled code that launches.
        with errors.compiling():
            self.machine = machine(Driver(**libcuda.addresses()), binaries.last_step)
        check(driver.cuInit(0))
        #: Whether there is more than one GPU, so that it matters which one is current.
        self.several = check(driver.cuDeviceGetCount()) > 1
        #: The stream of Numba's arrays that name none.
        self.numba_stream = self.default_stream()
        #: What has to live until a stream has come past some point.
        self.held = streams.KeepAlive()
        #: ``behind(stream)``: a stream for allocators to be told of; see its class.
        self.behind = streams.Behind().of
        self.functions = LoadedFunctions()
        self.workspaces = Workspaces()
        self.transfers = transfers.Transfers()
        self._launcher = launches.Launcher(self.machine, self.functions)
        self._homes = Homes(self._launcher, self.several)
        self._devices: dict[int, Device] = {}
        self._pools: dict[int, Any] = {}
        #: Pairs of GPUs, the first of which reaches the memory of the second.
        self._reached: set[tuple[int, int]] = set()
        self._lock = threading.Lock()

    # GPUs ------------------------------------------------------------------------------------

    def device(self) -> Device:
        index = devices.current_device()
        if index < 0:
            index = 0
            devices.make_current(index)
        if index not in self._devices:
            self._devices[index] = devices.properties(index)
        return self._devices[index]

    def on(self, index: int | None) -> AbstractContextManager:
        return nullcontext() if index is None else devices.on_device(index)

    def in_host_memory(self) -> bool:
        return False

    device_of = staticmethod(devices.device_of)

    def devices_of(self, pointers: Sequence[int]) -> Sequence[int | None]:
        if self.several:
            return devices.devices_of(pointers)
        return [0 if pointer else None for pointer in pointers]

    memory_at = staticmethod(devices.memory_at)
    current_device = staticmethod(devices.current_device)

    def reach(self, routine: str, device: int, peer: int) -> None:
        """Let kernels on a GPU read and write the memory of another one.

        Raises
        ------
        ValueError
            If the two cannot.
        """
        if (device, peer) in self._reached:
            return
        if not check(driver.cuDeviceCanAccessPeer(device, peer)):
            raise ValueError(
                f"{routine}: peer=True needs a GPU that can reach the other one's memory, and"
                f" cuda:{device} cannot reach that of cuda:{peer}"
            )
        devices.enable_peer(device, peer)
        with self._lock:  # a pool that another thread makes meanwhile is shared by that thread
            pool = self._pools.get(peer)
            if pool is not None:
                pool.share(device)
            self._reached.add((device, peer))

    # Streams ---------------------------------------------------------------------------------

    def default_stream(self) -> int:
        return streams.PER_THREAD if _per_thread_default_stream() else 0

    wait = staticmethod(streams.wait)
    identity = staticmethod(streams.identity)
    capture_of = staticmethod(capture.capture_of)
    runs_by_itself = staticmethod(streams.runs_by_itself)

    # Arrays ----------------------------------------------------------------------------------

    def to_device(self, host: np.ndarray) -> Any:
        # Not Numba's copy: it takes an array for a broadcast one when a single row or column
        # has a stride of 0, which NumPy calls contiguous, and then leaves that side out.
        flat = host.ravel(order="K")
        array = self.empty(flat.size, host.dtype)
        if flat.size:
            check(driver.cuMemcpyHtoD(memory.address_of(array), flat.ctypes.data, flat.nbytes))
        return array

    def to_host(self, array: Any) -> np.ndarray:
        return array.copy_to_host()

    def wrap(self, array: Any) -> Any:
        return array

    def zeros(self, n: int, dtype: np.dtype, stream: Any = None) -> Any:
        array = self.empty(n, dtype)
        self.clear(memory.address_of(array), array.nbytes, stream_handle(stream))
        return array

    def empty(self, n: int, dtype: np.dtype) -> Any:
        """A Numba vector on the current GPU."""
        return self.pool().vector(n, dtype)

    def pool(self) -> Any:
        """The :class:`gemv.engines.pool.Pool` of new vectors on the current GPU."""
        index = self.device().index
        pool = self._pools.get(index)
        if pool is None:
            with self._lock:
                pool = self._pools.get(index)
                if pool is None:
                    from gemv.engines.pool import Pool

                    pool = Pool(index, self.numba_stream, self.machine)
                    for device, peer in self._reached:
                        if peer == index:
                            pool.share(device)
                    self._pools[index] = pool
        return pool

    def clear(self, pointer: int, nbytes: int, stream: int) -> None:
        """Enqueue zeros for device memory."""
        memory.fill(pointer, nbytes, 0, stream)

    def copy(self, source: Operand, target: Operand, stream: int) -> None:
        (n,), (stride,) = source.shape, source.strides
        if n and stride == 1:
            self.copy_bytes(source.pointer, target.pointer, n * source.dtype.itemsize, stream)
        elif n:
            device, dtype = self.device(), source.dtype
            self._launcher.copy_vector(
                device, dtype, n, source.pointer, stride, target.pointer, stream
            )

    def upload(self, host: np.ndarray, target: Operand, stream: int, finish: bool = False) -> None:
        # From memory that is not pinned: the driver returns once it has read it. Another thread may
        # be capturing a stream of its own.
        with capture.outside_of_captures():
            check(driver.cuMemcpyHtoDAsync(target.pointer, host.ctypes.data, host.nbytes, stream))
            if finish:
                check(driver.cuStreamSynchronize(stream))

    def copy_bytes(self, source: int, target: int, nbytes: int, stream: int) -> None:
        """Enqueue a copy from one address of device memory to another."""
        check(driver.cuMemcpyDtoDAsync(target, source, nbytes, stream))

    def prepare_copy(self, source: Operand) -> None:
        """Compile and load what :meth:`copy` of this operand needs."""
        if source.strides != (1,):
            self.functions.copy(source.dtype, self.device())

    # Memory ----------------------------------------------------------------------------------

    free_memory = staticmethod(memory.free_memory)
    exhausted = staticmethod(memory.is_exhausted)

    def release(self) -> None:
        self.transfers.release(self.device().index)
        memory.free_what_numba_keeps()

    # Operands in host memory -----------------------------------------------------------------

    def session(self) -> AbstractContextManager[transfers.CudaSession]:
        return self.transfers.session(self.device().index)

    def matrix(self, operand: Operand, dtype: np.dtype) -> Any:
        return self.transfers.matrix(self.device().index, operand, dtype)

    def vectors(self, cols: int, rows: int, dtype: np.dtype) -> Vectors:
        return transfers.vectors(cols, rows, dtype)

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
        handle, device = stream_handle(stream), self.device()
        geometry, precision = choice.geometry, choice.spec.precision
        functions = self.load(choice, device, handle)
        self._record(choice)
        x_at = x.pointer + problem.x_offset * precision.data.itemsize
        y_at = y.pointer + problem.y_offset * precision.y.itemsize
        fixed: dict[str, Any] = problem.arguments(geometry)
        if tables is not None:
            fixed |= {name: words.pointer for name, words in tables.arrays.items()}
        x_value = self._homes.x(choice, device, functions, problem, x_at, handle)
        alpha_home, beta_home = choice.spec.homes
        passed_alpha = alpha if alpha_home == "arguments" else 0
        passed_beta = beta if beta_home == "arguments" else 0
        factors, scratch_bytes = precision.factors, geometry.scratch * precision.sums.itemsize
        early = tables is None or tables.is_beside
        homes = self._homes.coefficients(choice, device, functions, alpha, beta, handle, owner)
        with homes as places:
            if places or x_value is not None:
                fixed |= places if x_value is None else {**places, "x": x_value}
                block = launches.pack(functions, geometry.launches, factors, fixed, early=early)
            else:
                sizes = tuple(fixed.items())
                block = launches.pack_sizes(functions, geometry.launches, factors, sizes, early)
            with self.workspaces.reserved(geometry, scratch_bytes, device, handle, a) as shared:
                launches.enqueue(
                    self.machine, block, factors, handle,
                    a.pointer, x_at, y_at, passed_alpha, passed_beta, *shared,
                )  # fmt: skip

    def packed(
        self, choice: Choice, problem: Problem, alpha: Operand, beta: Operand, tables: Tables
    ) -> PackedLaunch:
        device, precision, geometry = self.device(), choice.spec.precision, choice.geometry
        functions = self.load(choice, device)
        fixed = {
            **problem.arguments(geometry),
            **{name: words.pointer for name, words in tables.arrays.items()},
            "alpha_pointer": alpha.pointer,
            "beta_pointer": beta.pointer,
        }
        block = launches.pack(
            functions, geometry.launches, precision.factors, fixed, early=tables.is_beside
        )
        scratch_bytes = geometry.scratch * precision.sums.itemsize

        def launch(stream: int, a: Operand, x: Operand, y: Operand, tables: Tables) -> None:
            if trace.open_traces():
                self._record(choice)
            with self.workspaces.reserved(geometry, scratch_bytes, device, stream, a) as shared:
                launches.enqueue(
                    self.machine, block, precision.factors, stream,
                    a.pointer, x.pointer, y.pointer, 0, 0, *shared,
                )  # fmt: skip

        return launch

    def _record(self, choice: Choice) -> None:
        trace.record(
            backend=self.name,
            kernel=choice.kernel.name,
            knobs=choice.knobs,
            geometry=choice.geometry,
            coefficients=choice.coefficients,
        )

    def load(
        self, choice: Choice, device: Device, stream: int | None = None
    ) -> tuple[LoadedFunction, ...]:
        """The functions of a choice on `device`, compiled and loaded at first use.

        Raises
        ------
        RuntimeError
            If that first use is on a `stream` which is being captured: loading would break it.
        """
        functions = self.functions.of(choice, device, stream)
        if choice.geometry.counters:
            self.workspaces.arena(device, stream)  # outside of captures, for the captures to come
        return functions

    def block(
        self,
        choice: Choice,
        functions: tuple[LoadedFunction, ...],
        sizes: dict[str, int],
        x_start: int,
        y_start: int,
    ) -> Block:
        """A call as :attr:`machine` launches it; all but the sizes comes with each launch."""
        factors = choice.spec.precision.factors
        return launches.pack(functions, choice.geometry.launches, factors, sizes, x_start, y_start)

    def block_with_old_y(
        self,
        choice: Choice,
        sizes: dict[str, int],
        x_start: int,
        stream: int,
    ) -> Block:
        """The same with an old y beside the new one, whose address comes with each launch, too.

        Raises as :meth:`load`.
        """
        functions = self.load(choice.with_old_y, self.device(), stream)
        return self.block(choice, functions, sizes, x_start, 0)

    def copying_block(self, word: np.dtype, count: int) -> Block:
        """A copy of so many words on the current GPU, from the x to the y of each launch.

        The kernel is loaded if it was not, so no stream of this thread may be captured then.
        """
        return launches.pack_copy(self.functions.copy(word, self.device()), count)

    def line_copying_block(
        self, word: np.dtype, count: int, length: int, x_step: int, y_step: int
    ) -> Block:
        """A copy of `count` lines of so many words, which begin as many words apart as the steps.

        The rest is as for :meth:`copying_block`.
        """
        function = self.functions.copy_lines(word, self.device())
        return launches.pack_copy_of_lines(function, count, length, x_step, y_step)

    def fetching_block(self, pieces: int) -> Block:
        """A fetch to the L2 cache of the current GPU, from the x of each launch on.

        The kernel is loaded if it was not, so no stream of this thread may be captured then.
        """
        return launches.pack_fetch(self.functions.fetch(self.device()), pieces)

    def workspace(self, geometry: Any, device: Device, stream: int) -> Workspace:
        """Scratch memory and counters of the calls on a stream that is not being captured."""
        return self.workspaces.of_stream(device, stream)

    def launch(
        self,
        function: LoadedFunction,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        stream: int,
        values: dict[str, Any],
    ) -> None:
        """Launch a loaded function that is no kernel of the ladder, with parameters by name."""
        self._launcher.launch(function, Launch(grid, block), stream, values)


def _per_thread_default_stream() -> bool:
    """Whether Numba's default stream is the per-thread one, or would be if it were imported."""
    config = sys.modules.get("numba.cuda.core.config")
    if config is not None:
        return bool(config.CUDA_PER_THREAD_DEFAULT_STREAM)
    return os.environ.get("NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM", "0") not in ("", "0")
