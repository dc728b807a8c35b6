"""Which backend is chosen, by whom, and what is said when it cannot work."""

import os
import sys

import pytest
from helpers import processes

import gemv
from gemv.engines import backend


@pytest.fixture(autouse=True)
def automatic_again():
    yield
    gemv.use_backend(None)


def python(code, **environment):
    """Run `code` in a process of its own without a GPU in sight; standard output."""
    inherited = {k: v for k, v in os.environ.items() if k not in environment}
    inherited.pop("NUMBA_ENABLE_CUDASIM", None)
    run = processes.run(
        [sys.executable, "-c", code],
        env={**inherited, "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return run.stdout


def test_this_process_computes_with_kernels():
    assert gemv.backend() in ("cuda", "simulator")
    assert gemv.backend() == backend.engine().name


def test_host_by_function_and_back():
    automatic = gemv.backend()
    gemv.use_backend("host")
    assert gemv.backend() == "host"
    with pytest.raises(backend.BackendError, match="no engine"):
        backend.engine()
    gemv.use_backend(None)
    assert gemv.backend() == automatic


def test_host_by_environment(monkeypatch):
    monkeypatch.setenv("GEMV_BACKEND", "host")
    assert gemv.backend() == "host"
    monkeypatch.setenv("GEMV_BACKEND", "auto")
    assert gemv.backend() != "host"


def test_a_function_beats_the_environment(monkeypatch):
    monkeypatch.setenv("GEMV_BACKEND", "host")
    gemv.use_backend(backend.probe()[0])
    assert gemv.backend() != "host"


def test_unknown_names_list_the_known(monkeypatch):
    with pytest.raises(ValueError, match="no backend 'gpu'; known backends: cuda, simulator, host"):
        gemv.use_backend("gpu")
    monkeypatch.setenv("GEMV_BACKEND", "opencl")
    with pytest.raises(ValueError, match="GEMV_BACKEND: no backend 'opencl'"):
        gemv.backend()


def test_the_other_of_cuda_and_simulator_is_refused_with_the_way_out():
    other = "cuda" if gemv.backend() == "simulator" else "simulator"
    with pytest.raises(backend.BackendError, match="NUMBA_ENABLE_CUDASIM=1.*start Python again"):
        gemv.use_backend(other)


def test_without_a_gpu_the_host_computes_and_cuda_is_an_error():
    code = """
import gemv
print(gemv.backend())
try:
    gemv.use_backend("cuda")
except RuntimeError as error:
    print(error)
"""
    first, second = python(code).splitlines()
    assert first == "host"
    assert second.startswith("the cuda backend was asked for, but there is no usable GPU")


def test_simulator_asked_for_too_late():
    code = """
import numba, os
os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
import gemv
try:
    gemv.use_backend("simulator")
except RuntimeError as error:
    print(error)
"""
    assert "before Numba is imported" in python(code)


def test_simulator_by_environment():
    code = "import gemv; print(gemv.backend(), gemv.sgemv(2, [[1, 2], [3, 4]], [1, 1]))"
    assert python(code, NUMBA_ENABLE_CUDASIM="1").split() == ["simulator", "[", "6.", "14.]"]
