"""Errors of the environment: each text says in one sentence what is wrong and what to do.

Importing this imports neither NumPy nor Numba nor CUDA, which may be what is broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class BackendError(RuntimeError):
    """The backend asked for cannot work here; the message says why and what to do."""


#: numba-cuda calls functions that this NumPy no longer has; as in pyproject.toml.
NUMPY_BELOW = (2, 5)

_TOOLKIT = (
    "install CUDA's libraries beside gemv: python -m pip install 'gemv[cu13]', or 'gemv[cu12]'"
    " where the driver is of CUDA 12"
)
_NO_DRIVER = (
    "no NVIDIA driver was found (libcuda.so.1, nvcuda.dll): install it, or, in a container, start"
    " that with its GPUs"
)
_LOST = (
    "the GPU is lost to this process: start Python again, and if that does not help look at"
    " nvidia-smi and the system's log, and restart the machine"
)
_FAULT = (
    "a kernel that ran before, not necessarily one of gemv's, has destroyed the CUDA context, and"
    " nothing can run on this GPU in this process any more: start Python again, and to find the"
    " kernel run with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer"
)
_OLD_DRIVER = (
    "the driver is too old for the CUDA libraries that are installed: update the driver, or install"
    " gemv[cu12] in place of gemv[cu13]"
)

#: By name of the driver's status: what it means for who calls us, and what to do.
_STATUS = {
    "CUDA_ERROR_OUT_OF_MEMORY": "the GPU's memory is full: free arrays there, or use a smaller A",
    "CUDA_ERROR_NO_DEVICE": "there is no GPU that this process may use: look at nvidia-smi and at"
    " CUDA_VISIBLE_DEVICES",
    "CUDA_ERROR_NOT_INITIALIZED": "CUDA does not run in this process; after a fork it cannot: start"
    ' processes by multiprocessing.get_context("spawn")',
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver and its library are of different versions:"
    " restart the machine after an update of the driver",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": _OLD_DRIVER,
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": _OLD_DRIVER,
    "CUDA_ERROR_INVALID_IMAGE": _OLD_DRIVER,
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "gemv's kernels need compute capability 7.5 or more",
    **dict.fromkeys(
        (
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "CUDA_ERROR_MISALIGNED_ADDRESS",
            "CUDA_ERROR_INVALID_ADDRESS_SPACE",
            "CUDA_ERROR_INVALID_PC",
            "CUDA_ERROR_ILLEGAL_INSTRUCTION",
            "CUDA_ERROR_HARDWARE_STACK_ERROR",
            "CUDA_ERROR_LAUNCH_FAILED",
            "CUDA_ERROR_LAUNCH_TIMEOUT",
            "CUDA_ERROR_ASSERT",
            "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        ),
        _FAULT,
    ),
    **dict.fromkeys(
        (
            "CUDA_ERROR_DEVICE_UNAVAILABLE",
            "CUDA_ERROR_ECC_UNCORRECTABLE",
            "CUDA_ERROR_NVLINK_UNCORRECTABLE",
            "CUDA_ERROR_SYSTEM_NOT_READY",
            "CUDA_ERROR_DEINITIALIZED",
            "CUDA_ERROR_UNKNOWN",
        ),
        _LOST,
    ),
}


def of_status(name: str) -> str | None:
    """What to say beside the driver's own words for a status; None where they are enough."""
    return _STATUS.get(name)


def no_gpu(problem: object) -> str:
    """Why Numba finds no usable GPU, from what it says about its driver."""
    if problem is None:
        # A driver, and still not available: what compiles kernels is missing.
        return f"NVVM, which compiles kernels, cannot be loaded: {_TOOLKIT}"
    text = " ".join(str(problem).split())
    if "driver library cannot be found" in text:
        return _NO_DRIVER
    for name, words in _STATUS.items():
        if name in text:
            return f"{name}: {words}"
    return text


def new_numpy() -> str | None:
    """What is wrong if NumPy is too new: numba-cuda is imported, and fails when it compiles."""
    import numpy

    parts = tuple(int(part) for part in numpy.__version__.split(".")[:2] if part.isdigit())
    if parts < NUMPY_BELOW:
        return None
    return (
        f"NumPy {numpy.__version__} is newer than numba-cuda can use: python -m pip install"
        f" 'numpy<{'.'.join(map(str, NUMPY_BELOW))}'"
    )


def old_driver(supported: int, libraries: int) -> str:
    """A driver, by the CUDA version that it supports (12040), and libraries of a later major."""
    return (
        f"the driver supports CUDA {supported // 1000}.{supported % 1000 // 10}, and the CUDA"
        f" libraries installed are of CUDA {libraries}: update the driver, or install"
        f" gemv[cu{supported // 1000}] in place of gemv[cu{libraries}]"
    )


@contextmanager
def loading_driver() -> Iterator[None]:
    """Say what to do where the driver's library lacks a function that we need."""
    try:
        yield
    except (AttributeError, OSError) as error:
        raise BackendError(
            "the NVIDIA driver cannot be used: it has to support CUDA 12.0 or newer, so update it"
            f" ({type(error).__name__}: {error})"
        ) from error


def numba_cuda() -> Any:
    """Numba's package for GPUs, where it is first needed."""
    try:
        from numba import cuda
    except ImportError as error:
        raise BackendError(
            f"numba-cuda, which compiles kernels, cannot be imported ({error}): python -m pip"
            " install --force-reinstall numba numba-cuda"
        ) from error
    return cuda


@contextmanager
def importing_simulator() -> Iterator[None]:
    """Say which extra brings greenlet, which the simulator alone needs."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "greenlet":
            raise
        raise BackendError(
            "the simulator (NUMBA_ENABLE_CUDASIM=1) runs each CUDA thread as a greenlet, and"
            f" greenlet cannot be imported ({error}): python -m pip install 'gemv[simulator]'"
        ) from error


@contextmanager
def compiling() -> Iterator[None]:
    """Say what to do where a library is missing that kernels are compiled with."""
    try:
        yield
    except Exception as error:
        missing = _missing_library(error)
        if missing is None:
            raise
        words = f"{missing}, which compiles kernels, cannot be loaded: {_TOOLKIT}"
        raise BackendError(words) from error


def _missing_library(error: BaseException | None) -> str | None:
    """NVVM or nvJitLink, if that is what an exception, or a cause of it, did not find."""
    while error is not None:
        kind, text = type(error).__name__, str(error).lower()
        if kind in _NOT_FOUND:
            for library in ("nvJitLink", "NVVM"):
                if library.lower() in text:
                    return library
        error = error.__cause__ or error.__context__
    return None


_NOT_FOUND = {
    "DynamicLibNotFoundError", "DynamicLibNotAvailableError", "NvvmSupportError",
    "FunctionNotFoundError", "NotSupportedError", "RuntimeError", "ImportError", "OSError",
    "ModuleNotFoundError",
}  # fmt: skip


class Forked:
    """In place of the engine in a process that was forked from one with a GPU in use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise BackendError(
            "this process was forked from one that had used the GPU, and CUDA does not survive a"
            ' fork: start processes by multiprocessing.get_context("spawn"), or call'
            ' gemv.use_backend("host") in this one'
        )


def drop_frames(error: BaseException | None) -> None:
    """Free what the frames of a handled error hold: arrays, and memory of GPUs.

    Under Python 3.13 the frames of an error that passed a context manager keep the error itself,
    so that they would stay until the next garbage collection.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
