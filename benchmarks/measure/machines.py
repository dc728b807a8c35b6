"""A matrix on Dask's workers beside one process on the same machine: LSMR, and products.

    python -m benchmarks.measure.machines FILE.json [--workers N] [--sizes "1 GiB a worker"]

Each worker has one GPU, or, where there is none, one thread of SciPy's BLAS; the one process has
all of them. The matrix is float64 and cut by rows. Ways:

- ``lsmr, one process``: SciPy's LSMR with one :class:`gemv.Matrix` on all GPUs
- ``lsmr, workers``: ``gemv.dask.Matrix.solve("lsmr")``
- ``matvec, workers``: ``gemv.dask.matvec``, which Dask's scheduler runs as tasks
- ``dask.array @``: the product of Dask's own arrays on the same chunks

An iteration of LSMR is two products and sums of vectors. Its time is the difference between a solve
of :data:`MANY` iterations and one of :data:`FEW`, divided by the difference of these numbers; the
file has the median of :data:`ROUNDS`. A product by tasks is the median of :data:`PRODUCTS`. Results
of the first two ways are compared with each other, and those of the last two.

The file is written after each size, and a run with the same file goes on where the last one ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import gemv
from gemv.core.files import write_text

#: Rows of each worker, and columns.
SIZES = {
    "64 MiB a worker": (4096, 2048),
    "256 MiB a worker": (8192, 4096),
    "1 GiB a worker": (16384, 8192),
    "4 GiB a worker": (32768, 16384),
    "16 GiB a worker": (65536, 32768),
}
#: Iterations of the short solve and of the long one; how often both are timed; products.
FEW, MANY, ROUNDS, PRODUCTS = 5, 65, 5, 5
#: Seconds that the long solve takes at least, with more iterations if need be, and the most of
#: these. Solves begin at unequal times: with 65 of them, one run had a negative time for each.
LONG_S, MOST = 0.5, 1000
#: Of LSMR: it goes on until it may not.
ENDLESS = {"atol": 0.0, "btol": 0.0, "conlim": 0.0}


def library() -> Any:
    """CuPy where there is a GPU, else NumPy."""
    if gemv.backend() != "cuda":
        return np
    import cupy

    return cupy


def chunk(number: int, rows: int, columns: int) -> Any:
    """The rows of one worker, alike wherever they are made: LSMR needs many iterations for them."""
    where = library()
    made = where.random.RandomState(number).standard_normal((rows, columns))
    made *= where.logspace(0, -9, columns)
    return made


def right(rows: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(rows)


def each_iteration(solve: Callable[[int], Any]) -> dict[str, float]:
    """The time of an iteration, and the norm of the residual after the most of them."""
    solve(FEW)
    taken, _, residual = timed(solve, MANY)
    many = MANY if taken > LONG_S else min(MOST, math.ceil(MANY * LONG_S / taken))
    # What disturbs a solve makes it longer, so the least times are compared.
    short, long = (
        min(timed(solve, limit)[:2] for _ in range(ROUNDS)) for limit in (FEW, many)
    )  # fmt: skip
    return {"time_s": (long[0] - short[0]) / (long[1] - short[1]), "found": residual}


def timed(solve: Callable[[int], Any], limit: int) -> tuple[float, int, float]:
    """The time of a solve, the iterations that it took, and the norm of the residual."""
    start = time.perf_counter()
    _, _, iterations, residual, *_ = solve(limit)
    return time.perf_counter() - start, iterations, float(residual)


def each_product(lazy: Any) -> dict[str, float]:
    """The time of a product that the scheduler runs, and the norm of its result at the client."""
    y = lazy.compute()
    times = []
    for _ in range(PRODUCTS):
        start = time.perf_counter()
        lazy.compute()
        times.append(time.perf_counter() - start)
    return {"time_s": statistics.median(times), "found": float(np.linalg.norm(y))}


def in_one_process(workers: int, rows: int, columns: int) -> dict[str, float]:
    """SciPy's LSMR on the parts of all workers."""
    from scipy.sparse.linalg import lsmr

    with contextlib.ExitStack() as stack:
        if gemv.backend() == "cuda":
            import cupy

            parts = []
            for number in range(workers):
                with cupy.cuda.Device(number):
                    parts.append(chunk(number, rows, columns))
            a = stack.enter_context(gemv.sharded(parts, axis=0, reproducible=False))
        else:
            whole = np.concatenate([chunk(number, rows, columns) for number in range(workers)])
            a = stack.enter_context(gemv.Matrix(whole))
        b = right(workers * rows)
        return each_iteration(lambda limit: lsmr(a, b, maxiter=limit, **ENDLESS))


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """A worker for each GPU, or for each thread."""
    from distributed import Client, Nanny, Scheduler, SpecCluster

    environment = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    if gemv.backend() != "cuda":
        environment["GEMV_BACKEND"] = "host"
    specs = {
        number: {
            "cls": Nanny,
            "options": {
                "nthreads": 1,
                "memory_limit": 0,
                "silence_logs": logging.WARNING,
                "env": {**environment, "CUDA_VISIBLE_DEVICES": str(number)},
            },
        }
        for number in range(workers)
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard": False}}
    made = SpecCluster(specs, scheduler=scheduler, silence_logs=logging.WARNING)
    with made, Client(made) as client:
        client.wait_for_workers(workers)
        yield client


def on_workers(client: Any, rows: int, columns: int) -> Iterator[tuple[str, dict[str, float]]]:
    """What Dask's workers do with such a matrix, by way."""
    import dask
    import dask.array as da

    import gemv.dask

    workers = len(client.nthreads())
    like = library().empty((0, 0))
    parts = [
        da.from_delayed(
            dask.delayed(chunk)(number, rows, columns), (rows, columns), "f8", meta=like
        )
        for number in range(workers)
    ]
    a = client.persist(da.concatenate(parts))
    matrix, b = gemv.dask.Matrix(a), right(workers * rows)
    solve = each_iteration(lambda limit: matrix.solve("lsmr", b, maxiter=limit, **ENDLESS))
    yield "lsmr, workers", solve
    v = np.random.default_rng(2).standard_normal(columns)
    x = da.from_array(v, chunks=-1).map_blocks(_to_library)
    yield "matvec, workers", each_product(gemv.dask.matvec(a, x).map_blocks(_to_numpy))
    yield "dask.array @", each_product((a @ x).map_blocks(_to_numpy))


def _to_library(x: Any) -> Any:
    return library().asarray(x)


def _to_numpy(x: Any) -> Any:
    return x.get() if hasattr(x, "get") else x


def measure(size: str, shape: tuple[int, int], workers: int) -> list[dict[str, Any]]:
    """All ways of a size; numbers that differ by more than rounding are marked."""
    rows = [{"size": size, "way": "lsmr, one process", **in_one_process(workers, *shape)}]
    with cluster(workers) as client:
        rows += [{"size": size, "way": way, **row} for way, row in on_workers(client, *shape)]
    for first, second in ((rows[0], rows[1]), (rows[2], rows[3])):
        alike = bool(np.isclose(first["found"], second["found"], rtol=1e-6, atol=0))
        first["right"] = second["right"] = alike
    for row in rows:
        row["rows"], row["columns"] = shape[0] * workers, shape[1]
    return rows


def host() -> dict[str, Any]:
    """What is measured on."""
    names = ("dask", "distributed", "numpy", "scipy", "cupy-cuda13x", "numba-cuda")
    versions = {"gemv": gemv.__version__}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    if gemv.backend() != "cuda":
        return {"device": "host", "processors": os.cpu_count(), "versions": versions}
    from numba import cuda

    found = cuda.get_current_device().name
    return {
        "device": found.decode() if isinstance(found, bytes) else found,
        "processors": os.cpu_count(),
        "versions": versions,
    }


def workers_here() -> int:
    """GPUs, or processors where there is none."""
    if gemv.backend() != "cuda":
        return os.cpu_count() or 1
    from numba import cuda

    return len(cuda.gpus)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, metavar="FILE.json")
    parser.add_argument("--workers", type=int, help="by default one for each GPU, or processor")
    parser.add_argument("--sizes", help="names, with a comma between them; by default all")
    options = parser.parse_args(arguments)
    workers = options.workers or workers_here()
    names = options.sizes.split(",") if options.sizes else list(SIZES)
    results = {**host(), "workers": workers, "rows": []}
    if options.file.exists():
        earlier = json.loads(options.file.read_text(encoding="utf-8"))
        for what in ("device", "processors", "workers"):
            if earlier[what] != results[what]:
                parser.error(f"{options.file} has {what} {earlier[what]}, here: {results[what]}")
        results["rows"] = earlier["rows"]
    for name in names:
        if any(row["size"] == name for row in results["rows"]):
            continue
        for row in measure(name, SIZES[name], workers):
            results["rows"].append(row)
            print(
                f"{name:18} {row['way']:18} {row['time_s'] * 1e3:10.3f} ms"
                f"{'' if row['right'] else '  WRONG'}", flush=True,
            )  # fmt: skip
        options.file.parent.mkdir(parents=True, exist_ok=True)
        write_text(options.file, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
