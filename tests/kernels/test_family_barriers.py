"""Each barrier and each wait of the kernels that are no rungs is left out: then some sum is wrong.

``test_schedules.py`` does so for the rungs, whose barriers are all in the file of the kernel. Those
of the kernels for several vectors are in files that several kernels could share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from helpers import forced
from numba import cuda

import gemv
from gemv import kernels
from gemv.core.batch import aligned_step
from gemv.core.dtypes import DTYPES
from gemv.engines import backend

if backend.backend() != "simulator":
    pytest.skip("only the simulator runs threads in a chosen order", allow_module_level=True)

from gemv.language.simulator.scheduler import Schedule, scheduled
from gemv.language.simulator.thread import SimulatorError

FOLDER = Path(kernels.__file__).parent
#: How a line begins that keeps threads in order: those of a block, of a warp, or all.
WORDS = ("cuda.sync", "cuda.threadfence", "copies_wait(", "cluster_wait(", "cluster_take(")
#: Orders of threads and blocks; "warps" is not for warps that wait for sums that others post.
ORDERS = [Schedule("forward"), Schedule("reversed"), *(Schedule("random", k) for k in range(6))]
WARPS = Schedule("warps")

ROWS = {"ROWS": 1, "VECTORS": 1, "MIN_BLOCKS": 1, "BLOCKS_PER_SM": 0}
COLUMNS = {"COLUMNS": 2, "THREADS_PER_BLOCK": 64, "MIN_BLOCKS": 1, "ACROSS": 1, "LANES": 4,
           "PIECES": 1, "BLOCKS_PER_SM": 0}  # fmt: skip
#: By kernel, the cases in which its lines matter: rows and columns of A, then constants of the
#: kernel for one product and of the kernel itself.
CASES = {
    "small_items": [(16, 16, None, None)],
    "staged_rows": [
        # sums of two warps, which meet, in a ring that goes round
        (7, 67, {**ROWS, "LANES": 64, "THREADS_PER_BLOCK": 64},
         {"ROWS": 2, "VECTORS": 1, "THREADS_PER_BLOCK": 64, "CHUNK_ROWS": 2}),
    ],
    "staged_columns": [
        (45, 37, {**COLUMNS, "LANES": 8},
         {"WHOLE": 0, "THREADS_PER_BLOCK": 32, "LINE_THREADS": 4, "POOL_BYTES": 4096}),
    ],
    "several_rows": [
        # one sum of a row is left, and a thread finishes neighbours; two warps; lanes in four turns
        (37, 131, {**ROWS, "LANES": 4, "THREADS_PER_BLOCK": 32},
         {"PARTS": 4, "ROWS": 2, "COUNT": 2, "THREADS_PER_BLOCK": 64}),
        (2, 517, {**ROWS, "LANES": 64, "THREADS_PER_BLOCK": 64}, {"PARTS": 2}),
        (5, 1031, {**ROWS, "LANES": 128, "THREADS_PER_BLOCK": 128},
         {"PARTS": 2, "TURNS": 4, "ROWS": 2, "COUNT": 2, "THREADS_PER_BLOCK": 128}),
    ],
    "several_columns": [
        # x in registers, and in two stages with a rest; sums of one vector after the other; splits
        (37, 70, {**COLUMNS, "PIECES": 2}, {"LOADS": 3}),
        (9, 170, COLUMNS, {"LOADS": 1, "COUNT": 8, "STAGED": 1}),
        (9, 170, COLUMNS, {"LOADS": 1, "COUNT": 8, "STAGED": 2}),
        (9, 150, {**COLUMNS, "BLOCKS_PER_SM": 8}, {"LOADS": 2, "COUNT": 2}),
        # splits of one vector after the other: see FEW_BYTES, which changes what is built from
        # constants, so no other test has these
        (9, 150, {**COLUMNS, "BLOCKS_PER_SM": 8}, {"LOADS": 2, "COUNT": 4, "MIN_BLOCKS": 2}),
    ],
}  # fmt: skip
#: The cases whose sums have shared memory for one vector at a time.
FEW_BYTES = CASES["several_columns"][-1:]
#: The kernel for one product that has the sums.
ALONE = {
    "staged_rows": "vector_rows", "staged_columns": "vector_columns",
    "several_rows": "vector_rows", "several_columns": "vector_columns",
}  # fmt: skip
#: The files that have lines of a kernel beside its own.
SHARED = {"several_rows": "ends_of_rows", "several_columns": "ends_of_columns"}


def files_of(name):
    """The modules that have such lines of a kernel."""
    modules = [kernels.BATCHED[name], *([SHARED[name]] if name in SHARED else [])]
    return [module for each in modules if places(module := f"gemv.kernels.{each}")]


def path_of(module):
    return FOLDER / f"{module.removeprefix('gemv.kernels.').replace('.', '/')}.py"


def places(module):
    """Numbers of the lines of a module that keep threads in order."""
    lines = path_of(module).read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines) if line.strip().startswith(WORDS)]


def without_line(module, number):
    """The module of a file in which one line does nothing."""
    path = path_of(module)
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[number] = lines[number][: len(lines[number]) - len(lines[number].lstrip())] + "pass"
    made = types.ModuleType("without_a_line")
    made.__file__ = str(path)
    exec(compile("\n".join(lines), path, "exec"), vars(made))
    return made


def plant(name, module, number, monkeypatch):
    """Let the kernel `name` be made without a line of `module`."""
    own = sys.modules[f"gemv.kernels.{kernels.BATCHED[name]}"]
    made = without_line(module, number)
    if hasattr(made, "KERNEL"):
        monkeypatch.setattr(own, "KERNEL", made.KERNEL)
        return
    build = own.build
    monkeypatch.setattr(own, SHARED[name], made)
    # What has been built is kept by its function.
    kernel = dataclasses.replace(own.KERNEL, build=lambda spec: build(spec))
    monkeypatch.setattr(own, "KERNEL", kernel)


def operands(name, m, n):
    """Small integers, whose sums are exact in any order."""
    rng = np.random.default_rng([m, n])
    letter = "d" if name == "staged_rows" else "s"
    shared = name.startswith("several")
    a = rng.integers(-4, 5, (m, n) if shared else (9 if name == "small_items" else 2, m, n))
    x = rng.integers(-4, 5, (3 if shared else len(a), n))
    return a.astype(DTYPES[letter]), x.astype(DTYPES[letter])


def products(name, m, n):
    """What is right, and a call that makes it."""
    a, x = operands(name, m, n)
    lines = a if name.endswith("_rows") else a.swapaxes(-1, -2)  # as they are in memory
    if name.startswith("staged"):  # one element behind a multiple of 16 bytes
        whole = np.concatenate([[0], lines.ravel()]).astype(a.dtype)
        stored = cuda.to_device(whole)[1:].reshape(lines.shape)
    else:  # each line whole vectors of 16 bytes long
        length = lines.shape[-1]
        whole = np.zeros((*lines.shape[:-1], aligned_step(length)), a.dtype)
        whole[..., :length] = lines
        stored = cuda.to_device(whole)[..., :length]
    vectors = cuda.to_device(x)
    runs = {
        "several_rows": lambda: gemv.matvec(stored, vectors),
        "several_columns": lambda: gemv.vecmat(vectors, stored),
    }
    run = runs.get(name, lambda: gemv.gemv(1, stored, vectors, trans=int(lines is not a)))
    return np.matmul(a, x[..., None])[..., 0], run


def choose(name, case, monkeypatch):
    """Let products have the constants of a case."""
    _, _, alone, constants = case
    if case in FEW_BYTES:
        own = sys.modules[f"gemv.kernels.{kernels.BATCHED[name]}"]
        monkeypatch.setattr(getattr(own, SHARED[name]), "SUMS_BYTES", 1)
    if name.startswith("staged"):
        pool = {"MIN_BLOCKS": 1, "POOL_BYTES": 14 << 10, "STAGES": 3}
        forced.in_stages(monkeypatch, ALONE[name], alone, {**pool, **constants})
    elif name.startswith("several"):
        forced.together(monkeypatch, ALONE[name], alone, name, constants)


def in_orders(name, case, monkeypatch):
    """Whether the sums of a case are right in each order, one after the other."""
    m, n, alone, _ = case
    posts = bool(alone and alone["BLOCKS_PER_SM"])
    with monkeypatch.context() as patch:
        choose(name, case, patch)
        gemv.use_alignment(True)  # forgets the choices
        right, run = products(name, m, n)
        for order in [*ORDERS, *([] if posts else [WARPS])]:
            with scheduled(order), gemv.trace() as calls:
                try:
                    found = run().copy_to_host()
                except SimulatorError:
                    yield False
                    continue
            assert {call.kernel for call in calls} == {name}
            yield found.tobytes() == right.tobytes()
    gemv.use_alignment(True)


@pytest.mark.parametrize("name, case", [(name, case) for name in CASES for case in CASES[name]])
def test_sums_are_right_in_every_order(name, case, monkeypatch):
    assert all(in_orders(name, case, monkeypatch))


@pytest.mark.parametrize(
    "name, module, line",
    [(name, file, line) for name in CASES for file in files_of(name) for line in places(file)],
)
def test_every_barrier_and_every_wait_protects_something(name, module, line, monkeypatch):
    plant(name, module, line, monkeypatch)
    found = (each for case in CASES[name] for each in in_orders(name, case, monkeypatch))
    with contextlib.closing(found):
        assert not all(found), f"line {line + 1} of {module} protects nothing"


def test_no_kernel_is_forgotten():
    """Whatever file of kernels has such a line is that of a rung, or is looked at here."""
    looked_at = {module for name in CASES for module in files_of(name)}
    modules = {
        "gemv.kernels." + ".".join(path.relative_to(FOLDER).with_suffix("").parts)
        for path in FOLDER.rglob("*.py")
    }
    rungs = {kernel.build.__module__ for kernel in kernels.REGISTRY.values()}
    assert {module for module in modules - rungs if places(module)} == looked_at
