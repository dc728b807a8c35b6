"""The CUDA driver's library, its status codes as exceptions, and addresses of its functions."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from cuda.bindings import driver

from gemv.core import errors

libcuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def addresses() -> dict[str, int]:
    """Addresses of the driver's functions that machine code calls, by the names it has for them."""
    functions = {
        "launch": libcuda.cuLaunchKernelEx,
        "allocate": libcuda.cuMemAllocFromPoolAsync,
        "free": libcuda.cuMemFreeAsync,
        "is_capturing": libcuda.cuStreamIsCapturing,
        "current_device": libcuda.cuCtxGetDevice,
        "context": libcuda.cuCtxGetCurrent,
        "set_context": libcuda.cuCtxSetCurrent,
        "stream_id": libcuda.cuStreamGetId,
    }
    return {
        name: ctypes.cast(function, ctypes.c_void_p).value or 0
        for name, function in functions.items()
    }


class LaunchAttribute(ctypes.Structure):
    """``CUlaunchAttribute``."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class CudaError(RuntimeError):
    """A call of the CUDA driver failed."""


class OutOfMemory(CudaError, MemoryError):
    """There is not enough memory on the GPU."""


class CannotCapture(CudaError):
    """A stream is being captured, and the driver cannot make this work a part of a graph."""


_SUCCESS = driver.CUresult.CUDA_SUCCESS


def check(answer: tuple) -> Any:
    """The first result of a call of the driver; raises a CudaError that names the driver's error.

    `answer` is what the bindings return: a status, and then the results.
    """
    status = answer[0]
    # The bindings answer with one object for it; the comparison takes longer than the rest here.
    if status is not _SUCCESS and status != _SUCCESS:
        raise failed(int(status))
    return answer[1] if len(answer) > 1 else None


#: What the driver says of work that it only does outside of graphs, beside its errors of captures.
_NOT_IN_GRAPHS = ("CUDA_ERROR_NOT_PERMITTED", "CUDA_ERROR_NOT_SUPPORTED")


def failed(status: int) -> CudaError:
    """The exception for a status of the driver."""
    result = driver.CUresult(status)
    text = driver.cuGetErrorString(result)[1]
    said = text.decode() if text else "unknown error"
    words = [result.name, said, errors.of_status(result.name)]
    kind = CudaError
    if result.name == "CUDA_ERROR_OUT_OF_MEMORY":
        kind = OutOfMemory
    elif result.name.startswith("CUDA_ERROR_STREAM_CAPTURE_") or result.name in _NOT_IN_GRAPHS:
        kind = CannotCapture
    return kind(": ".join(filter(None, words)))
