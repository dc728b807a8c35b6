"""Decide before Numba is imported whether kernels run on a GPU or on the simulator.

One command runs everything: with a usable GPU kernels run there, without one under Numba's CUDA
simulator. Setting NUMBA_ENABLE_CUDASIM=1 chooses the simulator on a GPU machine too.
"""

import ctypes
import faulthandler
import gc
import os
import sys
import tempfile

import pytest
from helpers import outcomes
from helpers.codegen import compiler, whole_compiler, worker  # noqa: F401  fixtures


def _gpu_count() -> int:
    """Devices the driver reports, asked without Numba and without creating a context."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


if "NUMBA_ENABLE_CUDASIM" not in os.environ and _gpu_count() == 0:
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
os.environ.pop("GEMV_BACKEND", None)
if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "0" and _gpu_count():
    # Of themselves, host arrays would go to the host wherever that is faster, and their tests would
    # pass without a kernel. The processes that tests start inherit this: see helpers.processes.
    os.environ["GEMV_BACKEND"] = "cuda"
# Processes of one run share what they compile; the user's own directory stays out of it. The first
# process of a parallel run hands its environment on.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="gemv-cache-", ignore_cleanup_errors=True)
    os.environ["GEMV_CACHE_DIR"] = _cache.name
    os.environ.pop("GEMV_CACHE", None)
# Where CI collects outcomes; tests that start pytest themselves add none.
_outcomes = os.environ.pop("GEMV_TEST_OUTCOMES", None)
# JAX would take three quarters of the GPU's memory for itself, in each process of a parallel run.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


#: Seconds that no test takes on a GPU: one that does waits for a kernel that never ends.
ENDLESS = 300


@pytest.fixture(autouse=True)
def nothing_waits_for_ever():
    """A kernel cannot be interrupted, so the process ends, and says where it waited."""
    from gemv import backend

    watched = backend() == "cuda"
    if watched:
        faulthandler.dump_traceback_later(ENDLESS, exit=True, file=sys.__stderr__)
    yield
    if watched:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def kernels_compute():
    """Where there is a GPU every test finds it asked for, so that host arrays go there as well."""
    from gemv.engines import backend

    assert not backend.compares(), "a test before this one has left the choice of the place open"
    yield


@pytest.fixture(autouse=True)
def numba_is_left_as_it_is():
    """Numba reads its variables again as it compiles: one left behind would break other tests."""
    before = {name: value for name, value in os.environ.items() if name.startswith("NUMBA_")}
    yield
    after = {name: value for name, value in os.environ.items() if name.startswith("NUMBA_")}
    assert after == before, "the test has changed what Numba reads"


def pytest_report_header(config):
    simulated = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
    return f"gemv kernels run on: {'the simulator' if simulated else 'the GPU'}"


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """All that is collected stays to the end: the search for circular garbage leaves it out.

    Twelve thousand tests and the modules that they import took it a tenth of the time of a run. It
    is rarer as well: tests make little such garbage, and ask for the search where they wait for it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 10, 50)


def pytest_terminal_summary(terminalreporter):
    if _outcomes is not None:
        outcomes.write(_outcomes, terminalreporter.stats)


def pytest_collection_modifyitems(config, items):
    from gemv import backend

    if backend() == "cuda":
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
