"""The engine of the cuda backend: device memory, loaded modules, packed arguments, streams.

Kernels are launched by the driver's ``cuLaunchKernel`` with arguments packed by name. Numba's own
launch path is not used: it rebuilds the description of every array at each call. The context is
the device's primary one, shared with every other library in the process. Numba makes one where
there is none, and arrays where the caller's library does not; a call with the tensors of another
library, whose machine code comes from the disk, does not import Numba.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import Any

import numpy as np
from cuda.bindings import driver

from gemv.arrays.adopt import on_device
from gemv.core import errors, trace
from gemv.core.dtypes import NARROW
from gemv.core.geometry import MAX_GRID_X, PANEL_BYTES, Device, ceil_div
from gemv.core.narrow import cast
from gemv.core.problem import Problem
from gemv.driver import capture as driver_capture
from gemv.driver import devices, machine, streams
from gemv.driver import library as driver_library
from gemv.driver.block import Block, Function
from gemv.driver.library import check as _check
from gemv.driver.streams import stream_handle
from gemv.engines import binaries
from gemv.engines.coefficients import Coefficients, Lease
from gemv.engines.loading import EARLY, LoadedFunction, load, pack, pack_by_address
from gemv.engines.slots import DeviceMemory, SlotTable
from gemv.engines.workspaces import (
    MAX_WORKSPACES,
    Arena,
    CapturedWorkspace,
    DeviceBytes,
    Workspace,
    address_of,
    stream_name,
)
from gemv.kernels.spec import COEFFICIENTS, SLOTS, X_SYMBOL, Spec
from gemv.selection.select import Choice


def _per_thread_default_stream() -> bool:
    """What Numba takes for its default stream, or would if it were imported."""
    config = sys.modules.get("numba.cuda.core.config")
    if config is not None:
        return bool(config.CUDA_PER_THREAD_DEFAULT_STREAM)
    return os.environ.get("NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM", "0") not in ("", "0")


class CudaEngine:
    """Runs kernels on the current CUDA device."""

    name = "cuda"

    def __init__(self) -> None:
        self._devices: dict[int, Device] = {}
        self._functions: dict[tuple, tuple[LoadedFunction, ...]] = {}
        self._workspaces: dict[tuple[int, int], Workspace] = {}
        self._slots: dict[tuple, SlotTable] = {}
        self._captured: dict[tuple[int, int, int], CapturedWorkspace] = {}
        self._arenas: dict[int, Arena] = {}
        self._pools: dict[int, Any] = {}
        self._reached: set[tuple[int, int]] = set()
        self._links: dict[int, Any] = {}
        self._lock = threading.Lock()
        self.held = streams.Held()
        #: Compiled code that launches.
        self.machine = machine.machine(
            machine.Driver(**driver_library.addresses()), binaries.last_step
        )
        #: Whether there is more than one GPU, so that it matters which is the current one.
        _check(driver.cuInit(0))
        self.several = _check(driver.cuDeviceGetCount()) > 1
        #: The stream of arrays of Numba that are bound to none.
        self.numba_stream = self.default_stream()

    def on(self, index: int | None) -> AbstractContextManager:
        """Make the device of the arrays current for a while; None for the one that is."""
        return nullcontext() if index is None else devices.on_device(index)

    def current_device(self) -> int:
        """Ordinal of the current device; -1 where this thread has none."""
        return devices.current_device()

    def in_host_memory(self) -> bool:
        """Device memory is the GPU's own."""
        return False

    def device_of(self, pointer: int) -> int | None:
        """Ordinal of the GPU that memory belongs to."""
        return devices.device_of(pointer)

    def memory_at(self, pointer: int) -> Any:
        """What the driver lists at an address."""
        return devices.memory_at(pointer)

    def default_stream(self) -> int:
        """The stream of arrays whose library has none of its own."""
        return 2 if _per_thread_default_stream() else 0

    def runs_by_itself(self, stream: int) -> bool:
        """Whether a stream is not ordered with the default streams, as most libraries' own are."""
        return streams.runs_by_itself(stream)

    def capture_of(self, stream: int) -> Any:
        """The capture that a stream is part of, or None."""
        return driver_capture.capture_of(stream)

    def wait(
        self,
        waiting: int,
        other: int,
        waiting_device: int | None = None,
        other_device: int | None = None,
    ) -> None:
        """What comes on one stream from now on is after what is on the other by now."""
        if waiting_device == other_device:
            streams.wait(waiting, other)
        else:
            streams.wait_across(waiting, waiting_device, other, other_device)

    def reach(self, routine: str, device: int, peer: int) -> None:
        """Let kernels on a GPU read and write the memory of another one.

        Raises
        ------
        ValueError
            If the two cannot.
        """
        if (device, peer) in self._reached:
            return
        if not _check(driver.cuDeviceCanAccessPeer(device, peer)):
            raise ValueError(
                f"{routine}: peer=True needs a GPU that can reach the other one's memory, and"
                f" cuda:{device} cannot reach that of cuda:{peer}"
            )
        devices.enable_peer(device, peer)
        pool = self._pools.get(peer)
        if pool is not None:
            pool.share(device)
        self._reached.add((device, peer))

    def device(self) -> Device:
        """The current device."""
        index = devices.current_device()
        if index < 0:
            # Makes the primary one current, and if need be.
            errors.numba_cuda().current_context()
            index = devices.current_device()
        if index not in self._devices:
            self._devices[index] = devices.describe(index)
        return self._devices[index]

    def to_device(self, host: np.ndarray) -> Any:
        """A copy of contiguous host memory, as it lies, in a flat device array."""
        # Not Numba's copy: it takes an array for a broadcast one when a single row or column
        # has a stride of 0, which NumPy calls contiguous, and then leaves that side out.
        flat = host.ravel(order="K")
        array = self.empty(flat.size, host.dtype)
        if flat.size:
            _check(driver.cuMemcpyHtoD(address_of(array), flat.ctypes.data, flat.nbytes))
        return array

    def matrix(self, operand: Any, dtype: np.dtype) -> Any:
        """A copy of a matrix in host memory that stays, contiguous and in the same order."""
        from numba import cuda

        order = "C" if operand.strides[1] == 1 else "F"
        try:
            array = cuda.device_array(operand.shape, dtype, order=order)
            lines = np.asarray(operand.owner)
            lines = cast(lines, dtype) if lines.dtype in NARROW else lines
            self._link().fill(lines if order == "C" else lines.T, dtype, address_of(array))
        except Exception as error:
            if not self.exhausted(error):
                raise
            m, n = operand.shape
            raise MemoryError(
                f"Matrix: {m} x {n} {dtype} take {m * n * dtype.itemsize} bytes, and"
                f" {self.free_memory()} bytes of device memory are free; gemv.gemv streams a matrix"
                " that does not fit"
            ) from error
        return array

    def vectors(self, cols: int, rows: int, dtype: np.dtype) -> Any:
        """A vector of each length for products of vectors in host memory."""
        from gemv.driver.link import Vectors

        return Vectors(cols, rows, dtype, self.numba_stream)

    def release(self) -> None:
        """Give memory back that nobody uses but that is kept for later."""
        link = self._links.get(self.device().index)
        if link is not None:
            link.release()
        self.free_memory()

    def free_memory(self) -> int:
        """Bytes of device memory that are free."""
        from gemv.driver.memory import room_left

        return room_left()

    def exhausted(self, error: BaseException) -> bool:
        """Whether an error says that the device has no memory left."""
        from gemv.driver.memory import is_exhausted

        return is_exhausted(error)

    def shared(self, geometry: Any, dtype: np.dtype) -> Any:
        """What several launches of one product share; the call that asks for it owns it."""
        from gemv.driver.memory import Shared

        return Shared(self.fill, geometry, dtype, 0)

    def session(self) -> AbstractContextManager:
        """One call on host arrays at a time: they share the way to the device and its stages."""
        return self._link().session(0)

    def send(self, name: str, host: np.ndarray, dtype: np.dtype) -> Any:
        """A contiguous array as the operand of a launch in this session."""
        return self._link().send(name, host, dtype, 0)

    def blank(self, name: str, n: int, dtype: np.dtype) -> Any:
        """A vector of zeros as the operand of a launch in this session."""
        operand = self._link().reserve(name, n, dtype)
        self.clear(operand.pointer, n * dtype.itemsize, 0)
        return operand

    def receive(self, operand: Any, shared: Any) -> np.ndarray:
        """The values of a vector after the last launch of this session.

        `shared` is what the launches shared, if anything: it lives until they are done.
        """
        return self._link().receive(operand, 0)

    def feed(self, source: Any, made: Any) -> Iterator[tuple[Any, Any]]:
        """Each panel of a cut with its copy, which one launch may read before the next panel."""
        from gemv.driver.link import SMALL_BYTES

        link = self._link()
        if made.panel_bytes <= SMALL_BYTES and len(made.panels) == 1:
            (panel,) = made.panels
            block = np.require(source.block(panel), source.dtype, ["A", "C"])
            yield panel, link.send("a", block, source.dtype, 0)
            return
        arrays = link.panels(made.buffers, made.panel_bytes, PANEL_BYTES)
        operands = [on_device(each, self) for each in arrays]
        with closing(link.feed(source, made, arrays, 0)) as fed:
            for panel, place in fed:
                yield panel, operands[place]

    def _link(self) -> Any:
        index = self.device().index
        link = self._links.get(index)
        if link is None:
            from gemv.driver.link import Link

            with self._lock:
                link = self._links.setdefault(index, Link())
        return link

    def zeros(self, n: int, dtype: np.dtype, stream: Any = None) -> Any:
        array = self.empty(n, dtype)
        self.clear(address_of(array), array.nbytes, stream_handle(stream))
        return array

    def empty(self, n: int, dtype: np.dtype) -> Any:
        """A vector of Numba's on the current device."""
        if n == 0:
            from numba import cuda

            return cuda.device_array(n, dtype)
        return self.pool().empty(n, dtype)[0]

    def pool(self) -> Any:
        """Where new vectors on the current device come from."""
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
        """Zeros, enqueued."""
        self.fill(pointer, nbytes, 0, stream)

    def fill(self, pointer: int, nbytes: int, value: int, stream: int) -> None:
        """The same value in each byte, enqueued."""
        if nbytes:
            _check(driver.cuMemsetD8Async(pointer, value, nbytes, stream))

    def copy(self, source: Any, target: Any, stream: int) -> None:
        """Enqueue a copy of one 1-D operand, of any stride, to a contiguous one."""
        (n,), (stride,) = source.shape, source.strides
        if not n:
            return
        if stride == 1:
            nbytes = n * source.dtype.itemsize
            _check(driver.cuMemcpyDtoDAsync(target.pointer, source.pointer, nbytes, stream))
            return
        function = self._copy_function(source.dtype, self.device(), stream)
        values = {"rows": n, "x": source.pointer, "incx": stride, "y": target.pointer}
        grid = (min(ceil_div(n, _COPY_THREADS), MAX_GRID_X), 1, 1)
        self._submit(function, grid, (_COPY_THREADS, 1, 1), stream, values)

    def workspace(self, geometry: Any, device: Device, stream: int) -> Any:
        """Where the calls on a stream keep what their blocks exchange."""
        key = (device.index, stream_name(stream))
        workspace = self._workspaces.get(key)
        if workspace is None:
            with self._lock:
                workspace = self._workspaces.setdefault(key, Workspace())
                if len(self._workspaces) > MAX_WORKSPACES:
                    del self._workspaces[next(iter(self._workspaces))]
                self._release_captured()
        return workspace

    def _captured_workspace(self, device: Device, stream: int, capture: Any) -> CapturedWorkspace:
        key = (device.index, capture.identity, stream_name(stream))
        with self._lock:
            workspace = self._captured.get(key)
            if workspace is None:
                # Whoever captures again and again needs what graphs that are gone have left.
                with driver_capture.outside_of_captures():
                    self._release_captured()
                life = driver_capture.GraphLife(capture.graph)
                workspace = CapturedWorkspace(partial(self._arena, device, stream), life)
                self._captured[key] = workspace
        return workspace

    def _release_captured(self) -> None:
        for key, workspace in list(self._captured.items()):
            if workspace.life.ended():
                del self._captured[key]
                workspace.release()

    def _arena(self, device: Device, stream: int | None) -> Arena:
        arena = self._arenas.get(device.index)
        if arena is None:
            if stream is not None and driver_capture.capture_of(stream) is not None:
                raise RuntimeError(
                    "a kernel whose blocks count each other is captured before any of its kind has"
                    " run: call gemv.precompile with the same arguments before the capture"
                )
            arena = self._arenas.setdefault(device.index, Arena())
        return arena

    def to_host(self, array: Any) -> np.ndarray:
        return array.copy_to_host()

    def wrap(self, array: Any) -> Any:
        return array

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
        """Launch the functions of ``choice.kernel`` one after the other on `stream`.

        alpha and beta are numbers, or operands where their home is device memory; `owner` is the
        one whose slot is used where it is constant memory.
        """
        handle = stream_handle(stream)
        device = self.device()
        geometry, precision = choice.geometry, choice.spec.precision
        functions = self.load(choice, device, handle)
        scratch_bytes = geometry.scratch * precision.sums.itemsize
        workspace: Any = None
        capture: Any = None
        if scratch_bytes or geometry.counters:
            capture = driver_capture.capture_of(handle)
            if capture is None:
                workspace = self.workspace(geometry, device, handle)
            else:
                workspace = self._captured_workspace(device, handle, capture)
        values = {
            "alpha": alpha,
            "a": a.pointer,
            "x": x.pointer + problem.x_offset * precision.data.itemsize,
            "beta": beta,
            "y": y.pointer + problem.y_offset * precision.y.itemsize,
            "scratch": 0,
            "counters": 0,
            **problem.arguments(geometry),
        }
        trace.record(
            backend=self.name,
            kernel=choice.kernel.name,
            knobs=choice.knobs,
            geometry=geometry,
            coefficients=choice.coefficients,
        )
        x_home = choice.kernel.x_home(choice.knobs)
        if x_home != "pointer":
            if (x_home == "value" or problem.incx != 1) and driver_capture.capture_of(handle):
                raise RuntimeError(
                    f"kernel {choice.kernel.name!r} waits for a copy of x, which a stream that is"
                    " being captured cannot do"
                )
            self._bring_x(x_home, choice.spec, functions, values, problem, handle)
        lease = self._place(choice, device, functions, values, handle, owner)
        try:
            with nullcontext() if workspace is None else workspace.lock:
                if workspace is not None:
                    values["scratch"], values["counters"] = workspace.reserve(
                        scratch_bytes,
                        geometry.counters,
                        handle if capture is None else a,
                        geometry.posts,
                    )
                for function, launch in zip(functions, geometry.launches, strict=True):
                    self._submit(function, launch.grid, launch.block, handle, values)
        finally:
            if lease is not None:
                lease.done()

    def block(
        self,
        choice: Choice,
        functions: tuple[LoadedFunction, ...],
        sizes: dict[str, int],
        x_start: int,
        y_start: int,
    ) -> Block:
        """A call as machine code launches it."""
        factors = choice.spec.precision.factors
        parts = 2 if factors.kind == "c" else 1
        packed = [
            Function(
                int(function.handle),
                launch.grid,
                launch.block,
                function.binary.arguments,
                function.attributes,
            )
            for function, launch in zip(functions, choice.geometry.launches, strict=True)
        ]
        return Block(packed, factors.itemsize // parts, parts, sizes, x_start, y_start)

    def _place(
        self,
        choice: Choice,
        device: Device,
        functions: tuple[LoadedFunction, ...],
        values: dict[str, Any],
        stream: int,
        owner: Coefficients | None,
    ) -> Lease | None:
        """Bring alpha and beta to the homes that the kernel reads; a lease ends after it."""
        for name, home in zip(("alpha", "beta"), choice.spec.homes, strict=True):
            if home in ("pointer", "global"):
                values[f"{name}_pointer"] = values[name].pointer
        if "constant" not in choice.spec.homes:
            return None
        alpha, beta = (
            values[name] if home == "constant" else 0
            for name, home in zip(("alpha", "beta"), choice.spec.homes, strict=True)
        )
        table = self._slot_table(choice, device, functions)
        lease = Lease(table, alpha, beta, stream, owner)
        values["slot"] = lease.slot
        return lease

    def _bring_x(
        self,
        home: str,
        spec: Spec,
        functions: tuple[LoadedFunction, ...],
        values: dict[str, Any],
        problem: Problem,
        stream: int,
    ) -> None:
        """A contiguous x in constant memory or in the parameters, for the kernel that shows it.

        The symbol is one for all launches of the kernel, so this is for one stream at a time.
        """
        cols, dtype = problem.cols, problem.dtype
        pointer, packed = values["x"], None
        if problem.incx != 1:
            packed = DeviceBytes(cols, dtype)
            copy = self._copy_function(dtype, self.device())
            places = {"rows": cols, "x": pointer, "incx": problem.incx, "y": address_of(packed)}
            grid = (min(ceil_div(cols, _COPY_THREADS), MAX_GRID_X), 1, 1)
            self._submit(copy, grid, (_COPY_THREADS, 1, 1), stream, places)
            pointer = address_of(packed)
        if home == "constant":
            if cols * dtype.itemsize > spec.constant_bytes:
                raise ValueError(
                    f"x takes {cols * dtype.itemsize} bytes, and {spec.constant_bytes} of the 64 KB"
                    " of constant memory are left beside alpha and beta"
                )
            for function in functions:
                symbol = _check(driver.cuModuleGetGlobal(function.module, X_SYMBOL.encode()))
                nbytes = cols * dtype.itemsize
                _check(driver.cuMemcpyDtoDAsync(int(symbol), pointer, nbytes, stream))
        else:
            host = np.empty(cols, dtype)
            _check(driver.cuMemcpyDtoHAsync(host.ctypes.data, pointer, host.nbytes, stream))
            _check(driver.cuStreamSynchronize(stream))
            values["x"] = host
        if packed is not None:
            _check(driver.cuStreamSynchronize(stream))  # its memory is freed on return

    def _slot_table(
        self, choice: Choice, device: Device, functions: tuple[LoadedFunction, ...]
    ) -> SlotTable:
        key = (choice.kernel.name, choice.spec, device.index)
        table = self._slots.get(key)
        if table is None:
            symbols = [
                int(_check(driver.cuModuleGetGlobal(each.module, COEFFICIENTS.encode())))
                for each in functions
                if "slot" in each.binary.arguments
            ]
            # Two threads may come here at once; one table must win.
            table = self._slots.setdefault(
                key,
                SlotTable(
                    DeviceMemory(symbols, device.index if self.several else None),
                    choice.spec.precision.factors,
                    SLOTS,
                ),
            )
        return table

    def _submit(
        self,
        function: LoadedFunction,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        stream: int,
        values: dict[str, Any],
    ) -> None:
        packed: Any = pack(function.binary.arguments, values, function.dtype)
        keep = None
        if isinstance(values.get("x"), np.ndarray):
            packed, keep = pack_by_address(packed)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.hStream = stream
        if function.attributes is not None:
            early = driver.CUlaunchAttribute()
            early.id = driver.CUlaunchAttributeID(EARLY[0].id)
            early.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [early], 1
        _check(driver.cuLaunchKernelEx(config, function.handle, packed, 0))
        del keep  # the driver has copied the parameters

    def load(
        self, choice: Choice, device: Device, stream: int | None = None
    ) -> tuple[LoadedFunction, ...]:
        """The functions of a choice on `device`, compiled and loaded at first use.

        Raises
        ------
        RuntimeError
            If that first use is on a `stream` which is being captured: loading would break it.
        """
        key = (choice.kernel.name, choice.spec, device.index)
        loaded = self._functions.get(key)
        if loaded is None:
            self._refuse_loading(f"kernel {choice.kernel.name!r}", stream)
            with errors.compiling():
                compiled = binaries.binaries(choice.kernel, choice.spec, device.compute_capability)
            loaded = tuple(load(binary, choice.spec.precision.factors) for binary in compiled)
            # Whoever comes second takes what the first one loaded: its symbols have the slots.
            loaded = self._functions.setdefault(key, loaded)
        if choice.geometry.counters and device.index not in self._arenas:
            # Made outside of captures, for the captures to come.
            self._arena(device, stream)
        return loaded

    @staticmethod
    def _refuse_loading(what: str, stream: int | None) -> None:
        """Raise if a module would be loaded, which takes the whole device, inside a capture."""
        if stream is not None and driver_capture.capture_of(stream) is not None:
            raise RuntimeError(
                f"{what} is not compiled yet, and a stream is being captured: call gemv.precompile"
                " with the same arguments before the capture"
            )

    def prepare_copy(self, source: Any) -> None:
        """Load what :meth:`copy` of this operand needs."""
        if source.strides != (1,):
            self._copy_function(source.dtype, self.device())

    def _copy_function(
        self, dtype: np.dtype, device: Device, stream: int | None = None
    ) -> LoadedFunction:
        # Bits are copied: narrow numbers would be converted on the way.
        dtype = np.dtype(np.uint16) if dtype in NARROW else dtype
        key = ("copy", dtype, device.index)
        loaded = self._functions.get(key)
        if loaded is None:
            self._refuse_loading("the copy of y", stream)
            with errors.compiling():
                binary = binaries.copy(dtype, device.compute_capability)
            loaded = self._functions[key] = (load(binary, dtype),)
        return loaded[0]


_COPY_THREADS = 256
