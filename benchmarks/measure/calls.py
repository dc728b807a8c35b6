"""What one call costs the host: ours on each kind of array, plans, graphs, and other libraries.

Times are those of enqueuing: the clock stops without waiting for the GPU, whose work is kept small.
Each figure is the best of several rounds, and everything that is compared was timed in one run.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from benchmarks.measure.calls_records import CallResults, CallRow
from gemv.core import memo
from gemv.engines import backend

#: A square of 16 KiB, and a tall matrix.
SMALL, TALL = (64, 64), (16384, 64)
_THREADS = 8


class _Timer:
    """Times calls, all of them in each round, and collects the rows."""

    def __init__(self, rounds: int, calls: int, progress: Callable[[str], None] | None) -> None:
        from numba import cuda

        self.rounds, self.calls, self.progress = rounds, calls, progress
        self.synchronize = cuda.synchronize
        self.rows: list[CallRow] = []
        self._pending: list[tuple[CallRow, Callable[[], Any], Callable[[], Any]]] = []

    def add(
        self,
        group: str,
        name: str,
        call: Callable[[], Any],
        note: str = "",
        within: Callable[[], AbstractContextManager] = nullcontext,
    ) -> None:
        """Have `call` timed in the next :meth:`run`; a failure becomes a row that says why."""
        row = CallRow(group, name, None, note)
        self.rows.append(row)
        try:
            with within():
                for _ in range(20):
                    call()
            self._pending.append((row, call, within))
        except Exception as error:  # a library whose version lacks something must not end the table
            row.note = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"

    def run(self) -> None:
        """Time what is pending, all of it in each round: a slow moment of the machine hits all."""
        repeat = range(self.calls)
        for number in range(self.rounds):
            if self.progress is not None:
                self.progress(f"round {number + 1} of {self.rounds}")
            for row, call, within in self._pending:
                self.synchronize()
                with within():
                    start = time.perf_counter()
                    for _ in repeat:
                        call()
                    seconds = (time.perf_counter() - start) / self.calls
                row.time_s = seconds if row.time_s is None else min(row.time_s, seconds)
        self.synchronize()
        self._pending.clear()


def installed(name: str) -> Any:
    """A library that can be imported, or None."""
    try:
        return importlib.import_module(name)
    except Exception:  # broken counts as absent
        return None


def measure(
    rounds: int = 20, calls: int = 250, progress: Callable[[str], None] | None = None
) -> CallResults:
    """Time everything.

    Raises
    ------
    BackendError
        Without a GPU: host times of a simulator say nothing.
    """
    if backend.backend() != "cuda":
        raise backend.BackendError(
            "the cost of calls can only be measured on a GPU, and the backend is"
            f" {backend.backend()}: {backend.probe()[1]}"
        )
    from importlib.metadata import PackageNotFoundError, version

    engine = backend.engine()
    table = CallResults(engine.device().name)
    for name in ("numba-cuda", "cuda-bindings", "torch", "cupy-cuda13x", "cupy-cuda12x", "jax"):
        try:
            table.versions[name] = version(name)
        except PackageNotFoundError:
            continue
    timer = _Timer(rounds, calls, progress)
    for shape in (SMALL, TALL):
        _shape(timer, shape)
        timer.run()
    _selection(timer)
    table.rows = timer.rows
    return table


def _shape(timer: _Timer, shape: tuple[int, int]) -> None:
    """All calls on matrices of one shape."""
    from numba import cuda

    import gemv

    group = f"{shape[0]} x {shape[1]}"
    rng = np.random.default_rng(0)
    host = [rng.random(size, dtype=np.float32) for size in (shape, shape[1], shape[0])]
    a, x, y = (cuda.to_device(array) for array in host)
    timer.add(group, "packed cuLaunchKernel", _packed(a, x, y), "cuda.bindings, nothing checked")
    kinds = {"numba": (a, x, y)}
    cupy, torch, jax = installed("cupy"), installed("torch"), installed("jax")
    if cupy is not None:
        kinds["cupy"] = tuple(cupy.asarray(array) for array in host)
    if torch is not None:
        kinds["torch"] = tuple(torch.from_numpy(array).cuda() for array in host)
    for kind, arrays in kinds.items():
        _ours(timer, group, kind, *arrays)
    if jax is not None:
        arrays = tuple(jax.numpy.asarray(array) for array in host)
        timer.add(group, "gemv, jax, new y", partial(gemv.gemv, 1.0, *arrays[:2]))
    if torch is not None:
        _torch(timer, group, torch, *kinds["torch"])
    if cupy is not None:
        a, x, y = kinds["cupy"]
        cublas = installed("cupy.cublas")
        timer.add(group, "cupy.cublas.gemv", lambda: cublas.gemv("N", 1.0, a, x, 0.0, y))
        timer.add(group, "cupy a @ x", lambda: a @ x)


def _ours(timer: _Timer, group: str, kind: str, a: Any, x: Any, y: Any) -> None:
    """Our calls and plans on one kind of array."""
    import gemv

    f, bound, loose = gemv.gemv, gemv.plan(a, x, y), gemv.plan(a)
    timer.add(group, f"gemv, {kind}, in place", lambda: f(1.0, a, x, 0.0, y, overwrite_y=1))
    timer.add(group, f"gemv, {kind}, new y", lambda: f(1.0, a, x))
    timer.add(group, f"plan, {kind}, bound", lambda: bound(1.0, 0.0))
    timer.add(group, f"plan, {kind}, new x and y", lambda: loose(1.0, 0.0, x, y))


def _torch(timer: _Timer, group: str, torch: Any, a: Any, x: Any, y: Any) -> None:
    """What there is for PyTorch alone: a side stream, threads, a graph, and its own calls."""
    import gemv

    f = gemv.gemv
    stream = torch.cuda.Stream()
    timer.add(
        group, "gemv, torch, in place, side stream",
        lambda: f(1.0, a, x, 0.0, y, overwrite_y=1),
        within=partial(torch.cuda.stream, stream),
    )  # fmt: skip
    for name, call in (
        ("gemv, torch, in place", lambda mine: f(1.0, a, x, 0.0, mine, overwrite_y=1)),
        ("torch.mv(out=)", lambda mine: torch.mv(a, x, out=mine)),
    ):
        seconds = _threads(torch, call, y)
        note = "time between two calls of all threads together"
        timer.rows.append(CallRow(group, f"{name}, {_THREADS} threads", seconds, note))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f(1.0, a, x, 0.0, y, overwrite_y=1)
    timer.add(group, "graph replay, torch", graph.replay)
    timer.add(group, "torch.mv(out=)", lambda: torch.mv(a, x, out=y))
    timer.add(group, "torch.mv", lambda: torch.mv(a, x))
    timer.add(group, "torch.addmv(out=)", lambda: torch.addmv(y, a, x, out=y))


def _packed(a: Any, x: Any, y: Any) -> Callable[[], Any]:
    """The launch of the same kernel with everything packed, and nothing else."""
    from cuda.bindings import driver

    import gemv
    from gemv.calls.remembered import remembered_calls
    from gemv.driver.memory import address_of

    memo.forget()
    gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
    known = list(remembered_calls.values())[-1]
    if known.shares_scratch or len(known.functions) != 1:
        raise RuntimeError(f"{known.choice.kernel.name} is more than one plain launch")
    (function,), (launch,) = known.functions, known.choice.geometry.launches
    values = {**known.sizes, **dict(zip("axy", map(address_of, (a, x, y)), strict=True))}
    values |= {"alpha": 1.0, "beta": 0.0, "scratch": 0, "counters": 0}
    real = ctypes.c_float if function.dtype.itemsize == 4 else ctypes.c_double
    held = [
        (real if name in ("alpha", "beta") else ctypes.c_int64)(values[name])
        for name in function.binary.arguments
    ]
    parameters = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
    address = ctypes.addressof(parameters)
    call, handle, grid, block = driver.cuLaunchKernel, function.handle, launch.grid, launch.block

    def run(keep: Any = (a, x, y, known, held, parameters)) -> None:
        call(handle, *grid, *block, 0, 0, address, 0)

    return run


def _threads(torch: Any, call: Callable[[Any], Any], y: Any, calls: int = 2000) -> float:
    """Seconds a call when several threads call at once, each with a stream and a y of its own."""
    barrier = threading.Barrier(_THREADS + 1)

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            mine = torch.zeros_like(y)
            call(mine)
            barrier.wait()
            for _ in range(calls):
                call(mine)
            barrier.wait()

    threads = [threading.Thread(target=work) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    barrier.wait()
    start = time.perf_counter()
    barrier.wait()
    seconds = time.perf_counter() - start
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    return seconds / (_THREADS * calls)


def _selection(timer: _Timer) -> None:
    """What a shape costs that was not seen before, and the selection in it."""
    from numba import cuda

    import gemv
    from benchmarks.measure.new_shapes import known_s, rows_of_64

    new = known_s(rows_of_64(), backend.engine().device())
    single = np.dtype(np.float32)
    timer.rows.append(CallRow("selection", "a new shape", new))
    key = ("gemv", 0, None, single, (64, 64), (256, 4), single, (64,), (4,), single, (64,), (4,), 0)
    filled = dict.fromkeys([key])
    timer.add("selection", "a known shape", lambda: filled.get(key), "a look-up in the memo")
    timer.run()

    a = cuda.to_device(np.ones((600, 64), np.float32))
    x, y = cuda.to_device(np.ones(64, np.float32)), cuda.to_device(np.ones(600, np.float32))
    views = [(a[:m], y[:m]) for m in range(100, 600)]
    gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
    memo.forget()
    start = time.perf_counter()
    for each, target in views:
        gemv.gemv(1.0, each, x, 0.0, target, overwrite_y=1)
    first = (time.perf_counter() - start) / len(views)
    timer.rows.append(CallRow("selection", "first call of a new shape, compiled", first))
    timer.synchronize()
