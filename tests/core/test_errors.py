"""What is said where the environment fails: by an import, by a call and by ``python -m gemv``."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import tomllib
import weakref
from pathlib import Path

import pytest
from helpers import processes

import gemv
from gemv.core import errors

TOP = Path(gemv.__file__).parents[1]

#: The driver, as far as Numba asks for it on its way to the first device.
DRIVER = """
from cuda.bindings import driver
import numba.cuda
import numba.cuda.cudadrv.driver as numba_driver
numba_driver.driver.is_initialized, numba_driver.driver.initialization_error = False, None
driver.cuInit = lambda flags: (driver.CUresult.{init},)
numba.cuda.gpus = [object()]
driver.cuDriverGetVersion = lambda: (driver.CUresult.CUDA_SUCCESS, {version})
"""

NO_DRIVER = """
import numba.cuda.cudadrv.driver as numba_driver
numba_driver.driver.is_initialized = True
numba_driver.driver.initialization_error = "CUDA driver library cannot be found."
"""

NO_NVVM = DRIVER.format(init="CUDA_SUCCESS", version=13000) + (
    "from numba.cuda.cudadrv import nvvm\nnvvm.is_available = lambda: False\n"
)

#: A GPU is there, and numba-cuda calls what NumPy 2.5 has dropped.
NEW_NUMPY = DRIVER.format(init="CUDA_SUCCESS", version=13000) + (
    "import numpy\nnumpy.__version__ = '2.5.0'\n"
)

LOST = "the GPU is lost to this process: start Python again"

#: name: what breaks, and what has to be said.
CONDITIONS = {
    "no_driver": (NO_DRIVER, "no NVIDIA driver was found", "install it"),
    "no_device": (
        DRIVER.format(init="CUDA_ERROR_NO_DEVICE", version=13000),
        "there is no GPU that this process may use",
        "CUDA_VISIBLE_DEVICES",
    ),
    "gpu_lost": (
        DRIVER.format(init="CUDA_ERROR_UNKNOWN", version=13000), LOST, "restart the machine",
    ),
    "driver_updated": (
        DRIVER.format(init="CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", version=13000),
        "different versions",
        "restart the machine",
    ),
    "old_driver": (
        DRIVER.format(init="CUDA_SUCCESS", version=11080),
        "the driver supports CUDA 11.8, and the CUDA libraries installed are of CUDA 1",
        "update the driver",
    ),
    "no_nvvm": (NO_NVVM, "NVVM, which compiles kernels, cannot be loaded", "'gemv[cu13]'"),
    "new_numpy": (NEW_NUMPY, "NumPy 2.5.0 is newer than numba-cuda can use", "'numpy<2.5'"),
}  # fmt: skip


def python(tmp_path, prelude, *arguments, **environment):
    """A process in which `prelude` has run before anything else was imported."""
    # The simulator asks no driver, so it must not be chosen here.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "GEMV_"))}
    (tmp_path / "sitecustomize.py").write_text(prelude, encoding="utf-8")
    path = [str(tmp_path), str(TOP), *filter(None, [os.environ.get("PYTHONPATH")])]
    return processes.run(
        [sys.executable, *arguments],
        env={**inherited, "PYTHONPATH": os.pathsep.join(path), **environment},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("condition", CONDITIONS)
def test_one_sentence_says_what_is_wrong_and_what_to_do(tmp_path, condition):
    prelude, *wanted = CONDITIONS[condition]
    code = """
import sys, warnings
import gemv                                                       # says nothing
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(gemv.dgemv(2.0, [[1.0, 2.0]], [3.0, 4.0]))              # computes, and says why not there
    gemv.dgemv(2.0, [[1.0, 2.0]], [3.0, 4.0])                     # once
print([type(w.message).__name__ for w in caught if "gemv" in str(w.message)])
print(caught[-1].message)
try:
    gemv.use_backend("cuda")
except gemv.BackendError as error:
    print(error)
from gemv.__main__ import main
sys.exit(main(["info"]))
"""
    done = python(tmp_path, prelude, "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    result, kinds, warning, error, *_ = done.stdout.splitlines()
    assert (result, kinds) == ("[22.]", "['HostFallbackWarning']")
    (report,) = re.findall(r"^backend +(.*)$", done.stdout, re.M)
    assert re.search(r"^self-check +passed", done.stdout, re.M)
    for said in (warning, error, report):
        assert all(words in said for words in wanted), said


@pytest.mark.parametrize("library", ["nvvm", "nvJitLink"])
def test_a_library_that_compiles_is_missing(tmp_path, library):
    """Found out only when it is first needed, which is in a call."""
    prelude = f"""
import cuda.pathfinder as pathfinder
load = pathfinder.load_nvidia_dynamic_lib
def load_nvidia_dynamic_lib(name):
    if name.lower() == {library.lower()!r}:
        raise pathfinder.DynamicLibNotFoundError(f'Failure finding "lib{{name}}.so"')
    return load(name)
pathfinder.load_nvidia_dynamic_lib = load_nvidia_dynamic_lib
"""
    code = """
import numpy as np
from gemv import BackendError
from gemv.core import errors
from gemv.language.numba_cuda.compile import compile_function
def serial(rows, alpha, a):
    a[0] = alpha
try:
    with errors.compiling():
        compile_function(serial, np.dtype("f"), (9, 0))
except BackendError as error:
    print(error)
"""
    done = python(tmp_path, prelude, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.lower().startswith(f"{library.lower()}, which compiles kernels, cannot")
    assert "pip install 'gemv[cu13]'" in done.stdout


def test_code_that_is_refused_is_no_missing_library(tmp_path):
    """A kernel with more shared memory than there is: the assembler says so itself."""
    code = """
from gemv.core import errors
from gemv.language.numba_cuda.compile import AssemblerError, assemble
ptx = '''
.version 8.0
.target sm_90
.address_size 64
.visible .entry large() { .shared .align 4 .b8 room[65536]; ret; }
'''
try:
    with errors.compiling():
        assemble(ptx, (9, 0))
except AssemblerError as error:
    print(error)
"""
    done = python(tmp_path, "", "-c", code)
    assert done.returncode == 0, done.stderr
    assert "too much shared data" in done.stdout


def test_an_error_of_another_kind_passes_through():
    with pytest.raises(ZeroDivisionError), errors.compiling():
        1 / 0  # noqa: B018
    with pytest.raises(RuntimeError, match="of its own"), errors.compiling():
        raise RuntimeError("of its own")


def test_a_driver_that_lacks_a_function():
    with pytest.raises(gemv.BackendError, match="CUDA 12.0 or newer, so update it"):
        with errors.loading_driver():
            raise AttributeError("libcuda.so.1: undefined symbol: cuLaunchKernelEx")


def test_every_status_that_is_worded_exists():
    from cuda.bindings.driver import CUresult

    assert not [name for name in errors._STATUS if not hasattr(CUresult, name)]
    assert errors.of_status("CUDA_ERROR_INVALID_VALUE") is None
    assert "nothing can run on this GPU" in errors.of_status("CUDA_ERROR_ILLEGAL_ADDRESS")


def test_the_bound_of_numpy_is_that_of_the_package():
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (numpy,) = (each for each in project["dependencies"] if re.match(r"numpy[^;]*$", each))
    assert numpy.endswith("<" + ".".join(map(str, errors.NUMPY_BELOW)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_a_forked_process_says_so(tmp_path):
    """The engine is a stand-in: what is proved is that it is not the one that is used."""
    code = """
import os, sys
import gemv
from gemv.engines import backend
backend._probed = ("cuda", "1 CUDA device")
backend._engines["cuda"] = object()
backend._lock.acquire()                                # by a thread that does not live on
if os.fork() == 0:
    status = 0 if gemv.gemv(1.0, [[1.0]], [1.0])[0] == 1 else 1  # on the host, of itself
    try:
        gemv.gemv(1.0, [[1.0]], [1.0], kernel="serial")
        status |= 2
    except gemv.BackendError as error:
        print(error, flush=True)
        gemv.use_backend("host")
        status |= 0 if gemv.gemv(1.0, [[1.0]], [1.0])[0] == 1 else 4
    os._exit(status)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = python(tmp_path, "", "-c", code)
    assert done.returncode == 0, done.stderr
    assert "CUDA does not survive a fork" in done.stdout and '"spawn"' in done.stdout


def test_frames_of_a_handled_error_hold_nothing():
    """Those of its causes neither."""

    class Held:
        pass

    @contextlib.contextmanager
    def naming():
        held = Held()
        watched.append(weakref.ref(held))
        try:
            yield
        except ValueError as error:
            raise KeyError("named") from error

    def fails():
        held = Held()
        watched.append(weakref.ref(held))
        with naming():
            raise ValueError("no")

    watched = []
    gc.disable()
    try:
        try:
            fails()
        except KeyError as error:
            errors.drop_frames(error)
            assert [each() for each in watched] == [None, None]
            assert isinstance(error.__cause__, ValueError)
    finally:
        gc.enable()
