"""The engine of the cuda backend: device memory, loaded modules, packed arguments, streams.

Kernels are launched by the driver's ``cuLaunchKernel`` with arguments packed by name. Numba's own
launch path is not used: it rebuilds the description of every array at each call. Numba manages
the context (the device's primary one, shared with every other library in the process) and memory.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver
from numba import cuda

from gemv import _trace
from gemv._compile import Binary, binaries, compile_function
from gemv._problem import MAX_GRID_X, Device, Problem, ceil_div
from gemv._select import Choice

_REAL = {4: ctypes.c_float, 8: ctypes.c_double}


class CudaError(RuntimeError):
    """A call of the CUDA driver failed."""


def _check(answer: tuple) -> Any:
    """The results of a driver call, or a :class:`CudaError` that names the driver's error."""
    status, *results = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        text = driver.cuGetErrorString(status)[1]
        raise CudaError(f"{status.name}: {text.decode() if text else 'unknown error'}")
    return results[0] if results else None


@dataclass(frozen=True)
class _Function:
    """A loaded kernel function; `module` keeps it loaded."""

    handle: Any
    binary: Binary
    dtype: np.dtype
    module: Any


class _Workspace:
    """Scratch memory and counters of one (context, stream); launches on a stream never overlap."""

    def __init__(self) -> None:
        self.scratch: Any = None
        self.counters: Any = None

    def reserve(self, scratch_bytes: int, counters: int, stream: int) -> tuple[int, int]:
        """Addresses of at least so many bytes and zeroed counters."""
        if scratch_bytes and (self.scratch is None or self.scratch.nbytes < scratch_bytes):
            size = max(scratch_bytes, 1 << 20)
            self.scratch = cuda.device_array(size, np.uint8)
        if counters and (self.counters is None or self.counters.size < counters):
            self.counters = cuda.device_array(max(counters, 4096), np.uint32)
            # Kernels leave them zero again, so this happens once, ahead of the launch.
            _check(driver.cuMemsetD8Async(_address(self.counters), 0, self.counters.nbytes, stream))
        return (
            _address(self.scratch) if scratch_bytes else 0,
            _address(self.counters) if counters else 0,
        )


def _address(array: Any) -> int:
    return int(array.__cuda_array_interface__["data"][0])


def stream_handle(stream: Any) -> int:
    """The driver's handle of a stream: an int, or an object of Numba, CuPy or PyTorch.

    Raises
    ------
    TypeError
        If `stream` is none of these.
    """
    if stream is None:
        return 0
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("ptr", "cuda_stream"):  # CuPy, PyTorch
        if isinstance(getattr(stream, name, None), int):
            return int(getattr(stream, name))
    handle = getattr(stream, "handle", None)  # Numba: a ctypes void pointer, or an int
    handle = getattr(handle, "value", handle)
    if handle is None and hasattr(stream, "handle"):
        return 0
    if isinstance(handle, int):
        return handle
    raise TypeError(f"stream must be an int or a stream object, not {type(stream).__name__}")


class CudaEngine:
    """Runs kernels on the current CUDA device."""

    name = "cuda"

    def __init__(self) -> None:
        self._devices: dict[int, Device] = {}
        self._functions: dict[tuple, tuple[_Function, ...]] = {}
        self._workspaces: dict[tuple[int, int], _Workspace] = {}
        self._lock = threading.Lock()

    def device(self) -> Device:
        """The current device."""
        current = cuda.get_current_device()
        index = current.id
        if index not in self._devices:
            name = current.name
            self._devices[index] = Device(
                name.decode() if isinstance(name, bytes) else name,
                tuple(current.compute_capability),
                current.MULTIPROCESSOR_COUNT,
                index,
            )
        return self._devices[index]

    def to_device(self, host: np.ndarray) -> Any:
        return cuda.to_device(host)

    def zeros(self, n: int, dtype: np.dtype, stream: Any = None) -> Any:
        array = cuda.device_array(n, dtype)
        if n:
            _check(driver.cuMemsetD8Async(_address(array), 0, array.nbytes, stream_handle(stream)))
        return array

    def copy(self, operand: Any, stream: Any = None) -> Any:
        """A contiguous copy of a 1-D device operand of any stride."""
        (n,), (stride,) = operand.shape, operand.strides
        array = cuda.device_array(n, operand.dtype)
        if n:
            device = self.device()
            function = self._copy_function(operand.dtype, device)
            values = {"rows": n, "x": operand.pointer, "incx": stride, "y": _address(array)}
            grid = (min(ceil_div(n, _COPY_THREADS), MAX_GRID_X), 1, 1)
            self._submit(function, grid, (_COPY_THREADS, 1, 1), stream_handle(stream), values)
        return array

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
    ) -> None:
        """Launch the functions of ``choice.kernel`` one after the other on `stream`."""
        handle = stream_handle(stream)
        device = self.device()
        geometry, dtype = choice.geometry, problem.dtype
        functions = self.load(choice, device)
        with self._lock:
            workspace = self._workspaces.setdefault((device.index, handle), _Workspace())
            scratch, counters = workspace.reserve(
                geometry.scratch * dtype.itemsize, geometry.counters, handle
            )
        values = {
            "rows": problem.rows,
            "cols": problem.cols,
            "alpha": alpha,
            "a": a.pointer,
            "row_stride": problem.row_stride,
            "col_stride": problem.col_stride,
            "x": x.pointer + problem.x_offset * dtype.itemsize,
            "incx": problem.incx,
            "beta": beta,
            "y": y.pointer + problem.y_offset * dtype.itemsize,
            "incy": problem.incy,
            "scratch": scratch,
            "counters": counters,
            **geometry.sizes,
        }
        _trace.record(
            backend=self.name,
            kernel=choice.kernel.name,
            knobs=choice.knobs,
            geometry=geometry,
            coefficients=choice.coefficients,
        )
        for function, launch in zip(functions, geometry.launches, strict=True):
            self._submit(function, launch.grid, launch.block, handle, values)

    def _submit(
        self,
        function: _Function,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        stream: int,
        values: dict[str, Any],
    ) -> None:
        packed = _pack(function.binary.arguments, values, function.dtype)
        _check(driver.cuLaunchKernel(function.handle, *grid, *block, 0, stream, packed, 0))

    def load(self, choice: Choice, device: Device) -> tuple[_Function, ...]:
        """The functions of a choice on `device`, compiled and loaded at first use."""
        key = (choice.kernel.name, choice.spec, device.index)
        loaded = self._functions.get(key)
        if loaded is None:
            compiled = binaries(choice.kernel, choice.spec, device.compute_capability)
            loaded = tuple(_load(binary, choice.spec.dtype) for binary in compiled)
            self._functions[key] = loaded
        return loaded

    def _copy_function(self, dtype: np.dtype, device: Device) -> _Function:
        key = ("copy", dtype, device.index)
        loaded = self._functions.get(key)
        if loaded is None:
            binary = compile_function(_copy, dtype, device.compute_capability)
            loaded = self._functions[key] = (_load(binary, dtype),)
        return loaded[0]


def _load(binary: Binary, dtype: np.dtype) -> _Function:
    module = _check(driver.cuModuleLoadData(binary.cubin))
    handle = _check(driver.cuModuleGetFunction(module, binary.name.encode()))
    return _Function(handle, binary, dtype, module)


_COPY_THREADS = 256


def _copy(rows, x, incx, y):
    for i in range(cuda.grid(1), rows, cuda.gridsize(1)):
        y[i] = x[i * incx]


def _pack(names: tuple[str, ...], values: dict[str, Any], dtype: np.dtype) -> tuple:
    """Values and ctypes of a kernel's parameters; a complex number is two reals."""
    packed: list[Any] = []
    kinds: list[Any] = []
    real = _REAL[dtype.itemsize // (2 if dtype.kind == "c" else 1)]
    for name in names:
        value = values[name]
        if name in ("alpha", "beta"):
            if dtype.kind == "c":
                packed += [float(value.real), float(value.imag)]
                kinds += [real, real]
            else:
                packed.append(float(value))
                kinds.append(real)
        elif name in ("a", "x", "y", "scratch", "counters"):
            packed.append(value)
            kinds.append(ctypes.c_void_p)
        else:
            packed.append(value)
            kinds.append(ctypes.c_int64)
    return tuple(packed), tuple(kinds)
