"""A GPU that is not there, for what is decided before a call reaches one.

The package finds a GPU by itself, an H200 beside 32 processors. What goes there is computed by the
kernels of the simulator; an engine that nobody asks is never made.
"""

from __future__ import annotations

import pytest

from gemv.calls import faster
from gemv.core import memo
from gemv.engines import backend
from gemv.engines.simulator import SimulatorEngine

NAME = "NVIDIA H200"
BLAS_THREADS, COPYING_THREADS = 32, 8


class Engine(SimulatorEngine):
    """The simulator's engine under the name of the GPU's."""

    name = "cuda"


@pytest.fixture
def gpu(monkeypatch):
    """A process with a GPU, where nobody has asked for a backend; the engine is yielded."""
    if backend.probe()[0] == "host":
        pytest.skip("the simulator is off")
    engine = Engine()
    monkeypatch.delenv("GEMV_BACKEND", raising=False)
    monkeypatch.setattr(backend, "_chosen", None)
    monkeypatch.setattr(backend, "_probed", ("cuda", "1 CUDA device"))
    monkeypatch.setattr(backend, "_gpu_name", NAME)
    monkeypatch.setitem(backend._engines, "cuda", engine)
    monkeypatch.setattr(faster, "blas_threads", lambda: BLAS_THREADS)
    monkeypatch.setattr(faster, "copying_threads", lambda: COPYING_THREADS)
    memo.forget()
    yield engine
    monkeypatch.undo()
    memo.forget()
