"""Each barrier and each wait of the kernels that are no rungs is left out: then some sum is wrong.

``test_schedules.py`` does so for the rungs, whose barriers are all in the file of the kernel. Those
of the kernels for several vectors are in files that several kernels could share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import re
import types
from pathlib import Path

import pytest
from helpers import family_cases
from helpers.family_cases import CASES
from helpers.problems import ALL_ROWS

import gemv
from gemv import kernels
from gemv.engines import backend

if backend.backend() != "simulator":
    pytest.skip("only the simulator runs threads in a chosen order", allow_module_level=True)

from gemv.language.simulator.scheduler import Schedule, scheduled
from gemv.language.simulator.thread import SimulatorError

FOLDER = Path(kernels.__file__).parent
#: How a line begins that keeps threads in order: those of a block, of a warp, or all.
WORDS = ("cuda.sync", "cuda.threadfence", "copies_wait(", "cluster_wait(", "cluster_take(")
#: Orders of threads and blocks; "warps" is not for warps that wait for sums that others post. With
#: stores that are seen late, a line is missed that makes them seen; with those that are seen at
#: once, one that keeps them from coming too early. A case that ends takes less than half of the
#: switches of threads that it may have; without a line, some wait for ever.
MOST = 100_000
ORDERS = [Schedule("forward", max_switches=MOST), Schedule("forward", late=True, max_switches=MOST),
          Schedule("reversed", max_switches=MOST),
          *(Schedule("random", k, max_switches=MOST) for k in range(6))]  # fmt: skip
WARPS = Schedule("warps", max_switches=MOST)
#: Those in which most of the lines are missed; they are tried first.
FEW = [*ORDERS[:4], WARPS]
MORE = ORDERS[4:]

#: The cases whose sums have shared memory for one vector at a time.
FEW_BYTES = CASES["several_columns"][-1:]
#: The files that have lines of a kernel beside its own.
SHARED = {
    "several_rows": ("ends_of_rows", "helpers_of_ends"),
    "several_columns": ("ends_of_columns", "ends_of_splits", "helpers_of_ends"),
}
#: Those that use one another.
USERS = sorted({each for files in SHARED.values() for each in files})


def files_of(name):
    """The modules that have such lines of a kernel."""
    modules = [kernels.BATCHED[name], *SHARED.get(name, ())]
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
    own = importlib.import_module(f"gemv.kernels.{kernels.BATCHED[name]}")
    made = without_line(module, number)
    if hasattr(made, "KERNEL"):
        monkeypatch.setattr(own, "KERNEL", made.KERNEL)
        return
    build = own.build
    shared = module.rpartition(".")[2]
    users = [own, *(importlib.import_module(f"gemv.kernels.{each}") for each in USERS)]
    for user in users:
        if hasattr(user, shared):
            monkeypatch.setattr(user, shared, made)
    # What has been built is kept by its function.
    kernel = dataclasses.replace(own.KERNEL, build=lambda spec: build(spec))
    monkeypatch.setattr(own, "KERNEL", kernel)


def choose(name, case, monkeypatch):
    """Let products have the constants of a case."""
    _, _, alone, constants = case
    if case in FEW_BYTES:
        own = importlib.import_module(f"gemv.kernels.{kernels.BATCHED[name]}")
        monkeypatch.setattr(getattr(own, SHARED[name][0]), "SUMS_BYTES", 1)
    family_cases.choose(name, alone, constants, monkeypatch)


def in_orders(name, case, monkeypatch, orders):
    """Whether the sums of a case are right in each order, one after the other."""
    m, n, alone, _ = case
    posts = bool(alone and alone.get("BLOCKS_PER_SM"))
    with monkeypatch.context() as patch:
        choose(name, case, patch)
        gemv.use_alignment(True)  # forgets the choices
        right, run = family_cases.products(name, m, n)
        for order in (each for each in orders if not (posts and each is WARPS)):
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
    """In FEW of them without ``GEMV_ALL_ROWS=1``."""
    assert all(in_orders(name, case, monkeypatch, ORDERS + [WARPS] if ALL_ROWS else FEW))


@pytest.mark.parametrize(
    "name, module, line",
    [(name, file, line) for name in CASES for file in files_of(name) for line in places(file)],
)
def test_every_barrier_and_every_wait_protects_something(name, module, line, monkeypatch):
    plant(name, module, line, monkeypatch)
    # Only splits need these files, and cases with splits stand last.
    of_splits = module.endswith(("ends_of_splits", "helpers_of_ends"))
    cases = CASES[name][:: -1 if of_splits else 1]
    found = (
        each
        for orders in (FEW, MORE)
        for case in cases
        for each in in_orders(name, case, monkeypatch, orders)
    )
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


#: A call of what keeps threads in order.
CALL = re.compile(
    r"\b(cuda\.sync\w*|cuda\.threadfence\w*|copies_wait|cluster_(?:arrive|wait|take))\("
)


def test_each_of_these_lines_begins_with_its_call():
    """So it is found, and can be left out."""
    lines = [
        (path.name, number, line.strip())
        for path in FOLDER.rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if CALL.search(line)
    ]
    assert len(lines) > 60
    assert [each for each in lines if not CALL.match(each[-1])] == []


def test_every_kernel_of_families_has_a_case(monkeypatch):
    """For the sanitizer, which is for a GPU."""
    others = {"small_matrix", "list_rows", "list_in_order"}  # of single products, and of lists
    assert family_cases.every_family(monkeypatch) == set(kernels.BATCHED) - others
