"""What one call for matrices of different sizes costs the host: batches, plans, ``gemv_batched``.

A figure is the best of several rounds, with the number of Python functions that a call enters,
which no other work on the machine changes. Under the simulator launches are left out: what remains
is the Python before a launch, on its arrays in host memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.measure.calls import installed
from benchmarks.measure.calls_records import CallResults, CallRow
from gemv.engines import backend

#: Numbers of matrices. 1500 of float32 have about 64 MiB.
COUNTS = (1, 16, 1500)
ROUNDS = 9


def measure(
    counts: Sequence[int] = COUNTS,
    rounds: int = ROUNDS,
    progress: Callable[[str], None] | None = None,
) -> CallResults:
    """Time the calls for each number of matrices and each kind of array.

    Raises
    ------
    BackendError
        On the host backend, which launches nothing.
    """
    engine = backend.engine()
    table = CallResults(engine.device().name)
    with _measured(engine) as synchronize:
        for count in counts:
            for kind, convert in _kinds(engine.name):
                if progress is not None:
                    progress(f"{count} matrices, {kind}")
                for name, call in _ways(count, convert):
                    row = CallRow(f"{count} matrices, {kind}", name, None)
                    row.time_s = _fastest(call, rounds, synchronize)
                    row.note = f"{entered(call)} functions of Python"
                    table.rows.append(row)
    return table


@contextmanager
def _measured(engine: Any) -> Iterator[Callable[[], None]]:
    """A function that waits for the GPU; under the simulator nothing is launched meanwhile."""
    if engine.name == "cuda":
        from numba import cuda

        yield cuda.synchronize
        return
    # These hide the methods of the class. The second one lists the vectors of all items for `run`.
    engine.run = lambda *arguments, **more: None
    engine.in_host_memory = lambda: False
    try:
        yield lambda: None
    finally:
        del engine.run, engine.in_host_memory


def _kinds(engine: str) -> Iterator[tuple[str, Callable[[np.ndarray], Any]]]:
    """The kinds of arrays, and how one is made."""
    from numba import cuda

    yield "numba", cuda.to_device
    if engine == "cuda":
        torch, cupy = installed("torch"), installed("cupy")
        if cupy is not None:
            yield "cupy", cupy.asarray
        if torch is not None:
            yield "torch", lambda array: torch.from_numpy(array).cuda()


def _ways(
    count: int, convert: Callable[[np.ndarray], Any]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The calls on `count` matrices of float32, whose sides are log-uniform from 4 to 512."""
    import gemv
    from gemv.measure.ragged import RaggedCell

    sizes = RaggedCell(count, "s").sizes
    a = [convert(np.ones(size, np.float32)) for size in sizes]
    x = [convert(np.ones(n, np.float32)) for _, n in sizes]
    y = [convert(np.ones(m, np.float32)) for m, _ in sizes]
    whole = convert(np.ones(sum(n for _, n in sizes), np.float32))
    batch = gemv.Batch(a)
    plan = batch.plan(x, y)

    def one_by_one() -> None:
        for own in zip(a, x, y, strict=True):
            gemv.gemv(1, *own[:2], 0, own[2], overwrite_y=1)

    yield "plan()", plan
    yield "Batch @ x, one vector", lambda: batch @ whole
    yield "Batch @ xs", lambda: batch @ x
    yield "gemv_batched, new y", lambda: gemv.gemv_batched(1, a, x)
    yield "gemv_batched, in place", lambda: gemv.gemv_batched(1, a, x, 0, y, overwrite_y=1)
    yield "gemv.gemv, one by one", one_by_one


def _fastest(call: Callable[[], Any], rounds: int, synchronize: Callable[[], None]) -> float:
    """Least seconds of a call, after two that compile and remember."""
    call()
    call()
    best = float("inf")
    for _ in range(rounds):
        synchronize()
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    synchronize()
    return best


def entered(call: Callable[[], Any]) -> int:
    """How many functions of Python a call enters, those that it calls included."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count
