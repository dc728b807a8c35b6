"""The peers that calls are compared with: cuBLAS through PyTorch and through CuPy.

A peer works on the same memory as our call, without a copy. Operands that it cannot take as
they lie it refuses, with a reason. Both libraries are optional, and imported when first used.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gemv.core.dtypes import dtype_name
from gemv.core.problem import Problem
from gemv.measure.frames import Place
from gemv.measure.plain import Enqueue

#: Libraries that :func:`peers` knows.
LIBRARIES = ("torch", "cupy")


@dataclass(frozen=True, slots=True)
class Peer:
    """One routine of another library.

    Attributes
    ----------
    name : str
    at : callable
        ``at(place)`` gives a function that enqueues the product on a stream.
    checked : callable
        The same for checking: y gets the result, which a dot of `at` leaves elsewhere.
    """

    name: str
    at: Callable[[Place], Enqueue]
    checked: Callable[[Place], Enqueue]


def installed(library: str) -> bool:
    """Whether a library can be imported; one that is broken counts as absent."""
    try:
        importlib.import_module(library)
    except Exception:
        return False
    return True


def versions(libraries: tuple[str, ...]) -> dict[str, str]:
    """Of the libraries, and of the cuBLAS that they call."""
    found: dict[str, str] = {}
    for library in libraries:
        module = importlib.import_module(library)
        found[library] = str(module.__version__)
    if "cupy" in libraries:
        found["cuBLAS"] = cublas().version()
    return found


def peers(
    library: str, problem: Problem, beta: int, memory: Any
) -> tuple[list[Peer], dict[str, str]]:
    """Routines of a library for a problem, and why others cannot take it.

    Parameters
    ----------
    library : {"torch", "cupy"}
    problem : Problem
        With increments of 1.
    beta : int
        alpha is 1.
    memory : array
        Bytes on the device that all places lie in, with ``__cuda_array_interface__``.
    """
    found, refused = {"torch": _torch, "cupy": _cupy}[library](problem, beta, memory)
    return list(found), refused


class TorchMemory:
    """Tensors anywhere in memory that is not PyTorch's, and streams that are not."""

    def __init__(self, torch: Any, memory: Any, dtype: Any, itemsize: int) -> None:
        self._torch, self._dtype, self._itemsize = torch, dtype, itemsize
        self._everything = torch.as_tensor(memory, device="cuda")
        self._base = self._everything.data_ptr()
        self._streams: dict[int, Any] = {}

    def at(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        """A tensor at an address; strides are in elements."""
        reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        start = address - self._base
        # PyTorch views bytes as another dtype only where they start at a multiple of its size
        part = self._everything[start : start + reach * self._itemsize].view(self._dtype)
        return part.as_strided(shape, strides)

    def on(self, stream: int) -> Any:
        """A context in which PyTorch works on a stream."""
        if stream not in self._streams:
            self._streams[stream] = self._torch.cuda.ExternalStream(stream)
        return self._torch.cuda.stream(self._streams[stream])


def _torch(problem: Problem, beta: int, memory: Any) -> tuple[list[Peer], dict[str, str]]:
    torch = importlib.import_module("torch")
    dtype = getattr(torch, dtype_name(problem.dtype), None)
    routine = "torch.addmv" if beta else "torch.mv"
    if dtype is None:
        return [], {routine: f"PyTorch has no {dtype_name(problem.dtype)}"}
    tensors = TorchMemory(torch, memory, dtype, problem.dtype.itemsize)
    tensor, on = tensors.at, tensors.on

    def operands(place: Place) -> tuple[Any, Any, Any]:
        shape, strides = (problem.rows, problem.cols), (problem.row_stride, problem.col_stride)
        a = tensor(place.a, shape, strides)
        a = a.conj() if problem.conj else a
        return a, tensor(place.x, (problem.cols,), (1,)), tensor(place.y, (problem.rows,), (1,))

    def product(place: Place) -> Enqueue:
        a, x, y = operands(place)

        def call(stream: int) -> None:
            with on(stream):
                if beta:
                    torch.addmv(y, a, x, beta=beta, out=y)
                else:
                    torch.mv(a, x, out=y)

        return call

    def dot(place: Place, keep: bool) -> Enqueue:
        a, x, y = operands(place)
        row = a[0].conj() if problem.conj else a[0]
        routine = torch.vdot if problem.conj else torch.dot

        def call(stream: int) -> None:
            with on(stream):
                result = routine(row, x)
                if keep:
                    y[0] = result

        return call

    found = [Peer(routine, product, product)]
    if problem.rows == 1 and not beta:
        found.append(Peer("torch.dot", partial(dot, keep=False), partial(dot, keep=True)))
    return found, {}


def cublas_form(problem: Problem) -> tuple[str, int, int, int] | str:
    """trans, m, n and lda of the same product for a routine that reads columns, or why not.

    Rows of op(A) that are contiguous are the columns of its transpose.
    """
    if problem.access == "dot":
        lda = problem.row_stride if problem.rows > 1 else problem.cols
        return "C" if problem.conj else "T", problem.cols, problem.rows, lda
    if problem.access == "strided":
        return "neither rows nor columns of A are contiguous"
    if problem.conj:
        return "no conjugate without a transpose"
    lda = problem.col_stride if problem.cols > 1 else problem.rows
    return "N", problem.rows, problem.cols, lda


def _cupy(problem: Problem, beta: int, memory: Any) -> tuple[list[Peer], dict[str, str]]:
    gemv_name, dot_name = "cuBLAS gemv", "cuBLAS dot"
    letter = LETTERS.get(dtype_name(problem.dtype))
    if letter is None:
        return [], {gemv_name: f"cuBLAS has no gemv for {dtype_name(problem.dtype)}"}
    form = cublas_form(problem)
    if isinstance(form, str):
        return [], {gemv_name: form}
    library = cublas()
    trans, m, n, lda = form
    operation = "NTC".index(trans)
    scalars = np.array([1, beta], problem.dtype)
    alpha_at, beta_at = (
        ctypes.c_void_p(scalars.ctypes.data + k * problem.dtype.itemsize) for k in range(2)
    )

    def product(place: Place) -> Enqueue:
        a, x, y = (ctypes.c_void_p(address) for address in (place.a, place.x, place.y))

        def call(stream: int, keep: Any = scalars) -> None:
            library.on(stream, results_on_host=True)
            library.call(
                f"cublas{letter}gemv_v2", operation, m, n, alpha_at, a, lda, x, 1, beta_at, y, 1
            )

        return call

    found = [Peer(gemv_name, product, product)]
    if problem.rows == 1 and not beta:
        kind = "" if problem.dtype.kind == "f" else "c" if problem.conj else "u"

        def dot(place: Place) -> Enqueue:
            a, x, y = (ctypes.c_void_p(address) for address in (place.a, place.x, place.y))

            def call(stream: int) -> None:
                library.on(stream, results_on_host=False)
                library.call(
                    f"cublas{letter}dot{kind}_v2", problem.cols, a, problem.col_stride, x, 1, y
                )

            return call

        found.append(Peer(dot_name, dot, dot))
    return found, {}


#: The letter of each dtype in the names of cuBLAS.
LETTERS = {"float32": "S", "float64": "D", "complex64": "C", "complex128": "Z"}


class Cublas:
    """CuPy's cuBLAS, called with a handle of our own.

    CuPy refuses to call cuBLAS while a stream is captured. The library itself has no objection,
    if it has a workspace and need not allocate one.
    """

    WORKSPACE_BYTES = 32 << 20

    def __init__(self, library: Any, workspace: Any) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        self._workspace = workspace
        self._check("cublasCreate_v2", library.cublasCreate_v2(ctypes.byref(self._handle)))

    def on(self, stream: int, results_on_host: bool) -> None:
        """Have what follows on a stream, with scalars and results on the host or the device."""
        # A new stream takes the workspace away again.
        self.call("cublasSetStream_v2", ctypes.c_void_p(stream))
        address = ctypes.c_void_p(self._workspace.__cuda_array_interface__["data"][0])
        self.call("cublasSetWorkspace_v2", address, ctypes.c_size_t(self.WORKSPACE_BYTES))
        self.call("cublasSetPointerMode_v2", 0 if results_on_host else 1)

    def call(self, name: str, *arguments: Any) -> None:
        self._check(name, getattr(self._library, name)(self._handle, *arguments))

    @staticmethod
    def _check(name: str, status: int) -> None:
        if status:
            raise RuntimeError(f"{name}: status {status}")

    def version(self) -> str:
        number = ctypes.c_int()
        self.call("cublasGetVersion_v2", ctypes.byref(number))
        return str(number.value)


@functools.cache
def cublas() -> Cublas:
    """The library, loaded by CuPy."""
    from numba import cuda

    cupy = importlib.import_module("cupy")
    cupy.cuda.device.get_cublas_handle()  # now the library is loaded
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = re.findall(r"(/\S*/libcublas\.so\S*)", maps.read())
    if not paths:
        raise RuntimeError("no libcublas.so is loaded after CuPy has made a handle")
    workspace = cuda.device_array(Cublas.WORKSPACE_BYTES, np.uint8)
    return Cublas(ctypes.CDLL(paths[0]), workspace)
