"""Which backend computes calls: a GPU, a simulated GPU, or SciPy's BLAS on the host."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gemv.core import errors, memo
from gemv.core.errors import BackendError
from gemv.core.values import is_word, shown

NAMES = ("cuda", "simulator", "host")

_lock = threading.Lock()
_chosen: str | None = None
_engines: dict[str, Any] = {}
_probed: tuple[str, str] | None = None
#: The name of the first GPU; empty where there is none, or where the driver does not tell.
_gpu_name = ""


def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def _devices() -> int:
    """How many GPUs the driver counts; 0 for none, and where Numba has to be asked instead.

    Importing Numba takes most of a second. A call on host arrays or on another library's tensors
    does without Numba where its machine code is on disk.
    """
    numba_decides = "numba" in sys.modules or os.path.exists(".numba_config.yaml")
    if numba_decides or "NUMBA_ENABLE_CUDASIM" in os.environ:
        return 0
    try:
        if importlib.util.find_spec("numba_cuda") is None:
            return 0
        driver = _driver()
    except (ImportError, ValueError, OSError):
        return 0
    count = ctypes.c_int(0)
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return 0 if failed else count.value


def _name_of_first() -> str:
    """The name of the first GPU, which makes no context on it; empty if the driver fails."""
    try:
        driver = _driver()
    except OSError:
        return ""
    device, name = ctypes.c_int(0), ctypes.create_string_buffer(256)
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceGetName(name, len(name) - 1, device)
    )
    return "" if failed else name.value.decode("utf-8", "replace")


def _simulator_enabled() -> bool:
    from numba.cuda.core import config

    return bool(config.ENABLE_CUDASIM)


def probe() -> tuple[str, str]:
    """The backend that is chosen automatically, and the reason in words.

    Returns
    -------
    (str, str)
        ``("cuda", …)`` with a usable GPU, ``("simulator", …)`` under ``NUMBA_ENABLE_CUDASIM=1``,
        else ``("host", why there is no GPU)``.
    """
    global _probed, _gpu_name
    with _lock:
        if _probed is None:
            _probed = _probe()
            if _probed[0] == "cuda":
                _gpu_name = _name_of_first()
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
    """What to do about a driver whose major version is older than that of CUDA's libraries."""
    import cuda.bindings
    from cuda.bindings import driver

    status, supported = driver.cuDriverGetVersion()
    if int(status) != 0 or supported // 1000 >= int(cuda.bindings.__version__.partition(".")[0]):
        return None
    # The bindings may be newer than the libraries, so one of these is loaded and asked.
    from cuda.bindings import nvjitlink

    with errors.compiling():
        libraries = nvjitlink.version()[0]
    return errors.old_driver(supported, libraries) if supported // 1000 < libraries else None


def _validate(name: str, source: str) -> str:
    if not is_word(name, NAMES):
        raise ValueError(f"{source}: no backend {shown(name)}; known backends: {', '.join(NAMES)}")
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
        then the GPU, then SciPy on the host. With the GPU chosen automatically, a call on host
        arrays goes to the faster of GPU and host; ``"cuda"`` sends it to the GPU. The simulator can
        be named only where it runs already, under ``NUMBA_ENABLE_CUDASIM=1``.

    Raises
    ------
    BackendError
        If the backend cannot work here.
    ValueError
        If there is no backend of that name.
    """
    global _chosen
    _chosen = None if name is None else _require(_validate(name, "use_backend"))
    # Remembered calls are launched without asking for the backend.
    memo.forget()


@contextmanager
def using(name: str) -> Iterator[None]:
    """Compute on this backend inside the ``with`` block, host arrays as well; then as before."""
    before = None if is_by_environment() else chosen()
    use_backend(name)
    try:
        yield
    finally:
        use_backend(before)


def chosen() -> str | None:
    """The backend that was asked for by function or environment; None if none was."""
    if _chosen is not None:
        return _chosen
    name = os.environ.get("GEMV_BACKEND", "").strip().lower()
    if name in ("", "auto"):
        return None
    return _require(_validate(name, "GEMV_BACKEND"))


def is_by_environment() -> bool:
    """Whether ``GEMV_BACKEND`` alone decides: a program may change it at any time."""
    return _chosen is None and chosen() is not None


def backend() -> str:
    """The backend that is available to a call made now, or that was asked for.

    Returns
    -------
    {"cuda", "simulator", "host"}
        Calls on device arrays run there. Where nobody has asked for ``"cuda"``, a call on host
        arrays goes to SciPy's BLAS instead if that is expected to be faster than copying A to the
        GPU; :func:`gemv.explain` says where a call would run.
    """
    return chosen() or probe()[0]


def compares() -> bool:
    """Whether a call on host arrays goes to the faster of host and GPU: there is one, by itself."""
    return chosen() is None and probe()[0] == "cuda"


def gpu_name() -> str:
    """The name of the first GPU; empty where there is none, or where the driver does not tell."""
    probe()
    return _gpu_name


def engine() -> Any:
    """The :class:`~gemv.engines.protocol.Engine` of the cuda or simulator backend, made once.

    It is typed Any because callers use what only the GPU's engine has where its name is "cuda".
    """
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
            elif name == "simulator":
                with errors.importing_simulator():
                    from gemv.engines.simulator import SimulatorEngine

                _engines[name] = SimulatorEngine()
            else:
                raise BackendError("the host backend has no engine")
        return _engines[name]


def engine_of(name: str) -> Any:
    """The engine of a backend that was in use before, whichever is now."""
    return _engines[name]


def require_device(routine: str) -> None:
    """Refuse to multiply by a matrix that lies on a device, while the backend is host.

    And in a forked process, where it lies on no device.
    """
    if backend() == "host":
        raise TypeError(
            f"{routine}: the matrix lies on a device, but the backend is host by now, which takes"
            " host arrays only; call gemv.use_backend(None), or make another matrix"
        )
    engine().in_host_memory()  # no matter where it is: there an engine answers nothing


def refuse_capture(routine: str, stream: int) -> None:
    """Refuse a product whose result comes to host memory, on a stream that is being captured.

    To wait for the result would break the capture, and so would an allocation.

    Parameters
    ----------
    routine : str
        For error texts.
    stream : int
        The stream that the vectors are copied on.

    Raises
    ------
    ValueError
        If it is being captured.
    RuntimeError
        If a stream that is being captured waits for it.
    """
    try:
        captured = engine().capture_of(stream) is not None
    except RuntimeError as error:
        raise type(error)(f"{routine}: {error}") from None
    if captured:
        raise ValueError(
            f"{routine}: stream {stream:#x} is being captured into a graph, and a product of"
            " vectors in host memory waits for its result; pass vectors on the GPU"
        )


def _after_fork() -> None:
    """Make a forked process independent of the threads that it has not got.

    If the driver has been initialized, let every call that needs it say that CUDA does not survive
    a fork.
    """
    global _lock
    _lock = threading.Lock()  # another thread may have held it
    if _probed is not None and _probed[0] == "cuda":
        _engines["cuda"] = errors.Forked()
    memo.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Home:
    """Where the memory of device arrays is, for the backend that is in use at the moment.

    The room `arrays` lies below the engines, so it is given this object in place of one of them.
    """

    def in_host_memory(self) -> bool:
        """Whether device memory is host memory, as it is in the simulator."""
        return backend() == "simulator"

    def device_of(self, pointer: int) -> int | None:
        """Ordinal of the GPU that the memory at an address belongs to; None where there is none."""
        return engine().device_of(pointer) if backend() == "cuda" else None

    def devices_of(self, pointers: Sequence[int]) -> Sequence[int | None]:
        """The same for the memory at each of these addresses; None for the address 0."""
        if backend() != "cuda":
            return [None] * len(pointers)
        found: list[int | None] = engine().devices_of(pointers)
        return found


HOME = Home()
