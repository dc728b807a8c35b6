"""Where a call is computed: on the GPU, on the simulated GPU, or by SciPy's BLAS on the host."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
from typing import Any

from gemv.core import errors, memo
from gemv.core.errors import BackendError

NAMES = ("cuda", "simulator", "host")

_lock = threading.Lock()
_chosen: str | None = None
_engines: dict[str, Any] = {}
_probed: tuple[str, str] | None = None


def _devices() -> int:
    """CUDA devices, as the driver counts them; 0 without one, and where Numba has to be asked.

    Importing Numba takes most of a second, which a call with the tensors of another library does
    not need where its machine code is on the disk.
    """
    numba_decides = "numba" in sys.modules or os.path.exists(".numba_config.yaml")
    if numba_decides or "NUMBA_ENABLE_CUDASIM" in os.environ:
        return 0
    try:
        if importlib.util.find_spec("numba_cuda") is None:
            return 0
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except (ImportError, ValueError, OSError):
        return 0
    count = ctypes.c_int(0)
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return 0 if failed else count.value


def _simulator_enabled() -> bool:
    from numba.cuda.core import config

    return bool(config.ENABLE_CUDASIM)


def probe() -> tuple[str, str]:
    """What an automatic choice gives, and the reason in words.

    Returns
    -------
    (str, str)
        ``("cuda", …)`` with a usable GPU, ``("simulator", …)`` under ``NUMBA_ENABLE_CUDASIM=1``,
        else ``("host", why there is no GPU)``.
    """
    global _probed
    with _lock:
        if _probed is None:
            _probed = _probe()
        return _probed


def _probe() -> tuple[str, str]:
    count = _devices()
    if count:
        problem = errors.new_numpy() or _too_old()
        if problem:
            return "host", f"no usable GPU ({problem})"
        return "cuda", f"{count} CUDA device{'s' if count != 1 else ''}"
    try:
        simulator = _simulator_enabled()
    except Exception as error:
        words = errors.new_numpy() or "numba-cuda cannot be imported"
        return "host", f"{words} ({type(error).__name__}: {' '.join(str(error).split())})"
    if simulator:
        return "simulator", "NUMBA_ENABLE_CUDASIM=1 was set before Numba was imported"
    try:
        from numba import cuda

        if not cuda.is_available():
            return "host", f"no usable GPU ({errors.no_gpu(cuda.cuda_error())})"
        count = len(cuda.gpus)
        problem = errors.new_numpy() or _too_old()
        if problem:
            return "host", f"no usable GPU ({problem})"
    except Exception as error:
        return "host", f"no usable GPU ({errors.no_gpu(f'{type(error).__name__}: {error}')})"
    return "cuda", f"{count} CUDA device{'s' if count != 1 else ''}"


def _too_old() -> str | None:
    """What is wrong if the driver is of an older major version than CUDA's libraries."""
    import cuda.bindings
    from cuda.bindings import driver

    status, supported = driver.cuDriverGetVersion()
    if int(status) != 0 or supported // 1000 >= int(cuda.bindings.__version__.partition(".")[0]):
        return None
    # Asked only now, because it loads one of the libraries, which the bindings may be newer than.
    from cuda.bindings import nvjitlink

    with errors.compiling():
        libraries = nvjitlink.version()[0]
    return errors.old_driver(supported, libraries) if supported // 1000 < libraries else None


def _validate(name: str, source: str) -> str:
    if name not in NAMES:
        raise ValueError(f"{source}: no backend {name!r}; known backends: {', '.join(NAMES)}")
    return name


def _require(name: str) -> str:
    if name == "host":
        return name  # works everywhere, and nobody has to load CUDA to learn that
    automatic, reason = probe()
    if name == "simulator" and automatic != "simulator":
        raise BackendError(
            "the simulator must be chosen before Numba is imported, because Numba decides then: "
            "set NUMBA_ENABLE_CUDASIM=1 in the environment and start Python again"
        )
    if name == "cuda" and automatic == "simulator":
        raise BackendError(
            "the cuda backend is not there: NUMBA_ENABLE_CUDASIM=1 was set before Numba was "
            "imported, so this process only has the simulator; unset it and start Python again"
        )
    if name == "cuda" and automatic != "cuda":
        raise BackendError(f"the cuda backend was asked for, but there is {reason}")
    return name


def use_backend(name: str | None) -> None:
    """Choose the backend of this process.

    Parameters
    ----------
    name : {"cuda", "host", "simulator", None}
        ``None`` goes back to the automatic choice: ``GEMV_BACKEND`` from the environment if set,
        then the GPU, then SciPy on the host. The simulator can be named only where it runs
        already, under ``NUMBA_ENABLE_CUDASIM=1``.

    Raises
    ------
    BackendError
        If the backend cannot work here.
    ValueError
        If there is no backend of that name.
    """
    global _chosen
    _chosen = None if name is None else _require(_validate(name, "use_backend"))
    # Calls that were made before are made again without asking for the backend.
    memo.forget()


def chosen() -> str | None:
    """The backend somebody asked for, by function or environment; None if nobody did."""
    if _chosen is not None:
        return _chosen
    name = os.environ.get("GEMV_BACKEND", "").strip().lower()
    if name in ("", "auto"):
        return None
    return _require(_validate(name, "GEMV_BACKEND"))


def backend() -> str:
    """``"cuda"``, ``"simulator"`` or ``"host"``: where a call made now would be computed."""
    return chosen() or probe()[0]


def engine() -> Any:
    """The engine of the cuda or simulator backend."""
    name = backend()
    try:
        return _engines[name]
    except KeyError:
        pass
    with _lock:
        if name not in _engines:
            if name == "cuda":
                with errors.loading_driver():
                    from gemv.engines.cuda import CudaEngine

                _engines[name] = CudaEngine()
                if hasattr(os, "register_at_fork"):
                    os.register_at_fork(after_in_child=_after_fork)
            elif name == "simulator":
                with errors.importing_simulator():
                    from gemv.engines.simulator import SimulatorEngine

                _engines[name] = SimulatorEngine()
            else:
                raise BackendError("the host backend has no engine")
        return _engines[name]


def _after_fork() -> None:
    """Let every call of a forked process say why it cannot use the GPU, instead of the driver."""
    global _lock
    _lock = threading.Lock()  # another thread may have held it
    _engines["cuda"] = errors.Forked()
    memo.after_fork()


class Home:
    """Where the memory of device arrays is, as the backend of the moment sees it.

    Adopting an array asks this object and knows no engine itself.
    """

    def in_host_memory(self) -> bool:
        """Whether device memory is host memory, as it is in the simulator."""
        return backend() == "simulator"

    def device_of(self, pointer: int) -> int | None:
        """Ordinal of the GPU that memory belongs to; None where nobody knows."""
        return engine().device_of(pointer) if backend() == "cuda" else None


HOME = Home()
