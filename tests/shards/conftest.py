"""What tests of shards share: GPUs that are not there, and kernels that split short sums."""

import dataclasses

import pytest

from gemv import kernels
from gemv.engines import backend
from gemv.kernels import REGISTRY
from gemv.selection import batches
from gemv.selection.select import select
from gemv.shards import cut


@pytest.fixture
def virtual_gpus(monkeypatch):
    """Three GPUs that a stand-in for the driver plays; see :mod:`helpers.virtual_gpus`."""
    if backend.backend() != "simulator":
        pytest.skip("with a GPU the real driver is tested")
    from helpers import virtual_gpus as stand_in  # which imports the simulator

    return stand_in.installed(monkeypatch)


@pytest.fixture
def small_knobs(monkeypatch):
    """Kernels that are asked for by name have the smallest constants: they split short sums."""

    def with_small_knobs(problem, device, kernel=None, **other):
        knobs = dict(REGISTRY[kernel].small_knobs) if kernel else None
        if kernel and REGISTRY[kernel].phased:  # several blocks for each tile of rows
            knobs["BLOCKS_PER_SM"] *= problem.phases
        return select(problem, device, kernel=kernel, knobs=knobs, **other)

    for module in (cut, batches):
        monkeypatch.setattr(module, "select", with_small_knobs)


#: Constants of kernels for several vectors that their sums do not depend on.
SMALL_BLOCKS = {
    "several_rows": {"PARTS": 1, "ROWS": 1, "COUNT": 2, "VECTORS": 1, "THREADS_PER_BLOCK": 32},
    "several_columns": {"COUNT": 2, "LOADS": 1},
    "several_long_columns": {"COUNT": 2, "PIECES": 1, "COLUMNS": 2, "THREADS_PER_BLOCK": 8},
}


@pytest.fixture
def small_blocks(monkeypatch):
    """Kernels for several vectors take two at a time, by small blocks, which are soon simulated."""

    def get(name):
        kernel = kernels.get(name)
        small = SMALL_BLOCKS.get(name)
        if small is None:
            return kernel

        def constants(problem, knobs, vectors):
            return {**kernel.for_vectors(problem, knobs, vectors), **small}

        return dataclasses.replace(kernel, for_vectors=constants)

    monkeypatch.setattr(batches, "get", get)
