"""A GPU that is not there, for what is decided before a call reaches one.

The package finds a GPU by itself, an H200 beside 32 processors. What goes there is computed by the
kernels of the simulator.
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

    def __init__(self):
        super().__init__()
        #: Names of the kernels that were loaded ahead of a launch.
        self.loaded = []

    def load(self, choice, device, stream=None):
        self.loaded.append(choice.kernel.name)


@pytest.fixture
def gpu(monkeypatch):
    """A process that has a GPU, where nobody has asked for a backend; its engine."""
    engine = Engine()
    monkeypatch.setattr(backend, "_probed", ("cuda", "1 CUDA device"))
    monkeypatch.setattr(backend, "_gpu_name", NAME)
    monkeypatch.setitem(backend._engines, "cuda", engine)
    monkeypatch.setattr(faster, "blas_threads", lambda: BLAS_THREADS)
    monkeypatch.setattr(faster, "copying_threads", lambda: COPYING_THREADS)
    backend.use_backend(None)
    yield engine
    monkeypatch.undo()
    backend.use_backend(None)
    memo.forget()
