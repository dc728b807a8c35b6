"""Solvers on a matrix that stays on the GPU, against CuPy and SciPy: time and iterations.

    python -m benchmarks.measure.solvers --json FILE    measures, on a GPU with CuPy
    python -m benchmarks.measure.solvers --small        the same on a few rows, anywhere

Every problem is solved by the same solver from the same start to the same tolerance:

- ``gemv, SciPy``: SciPy's solver, whose vectors are in host memory, with a :class:`gemv.Matrix`
- ``gemv, CuPy``: CuPy's solver, all on the GPU, with the same matrix's ``cupy_operator()``
- ``CuPy``: CuPy's solver with CuPy's own array
- ``SciPy``: SciPy's solver with NumPy's array, on the host's CPU
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np

import gemv
from gemv.core.files import write_text

TOLERANCE = 1e-8
SIZES = {"cg": 16384, "gmres": 8192, "pagerank": 16384, "ridge": (100_000, 1000)}
SMALL = {"cg": 24, "gmres": 24, "pagerank": 40, "ridge": (60, 8)}


# --- problems -------------------------------------------------------------------------------------


def cg_problem(n: int) -> tuple[np.ndarray, np.ndarray]:
    """A kernel matrix as Gaussian process regression has it, with noise on its diagonal."""
    places = np.random.default_rng(0).random(n) * n / 64
    a = np.exp(-0.5 * (places[:, None] - places) ** 2)
    a[np.diag_indices(n)] += 0.1
    return a, np.sin(places)


def gmres_problem(n: int) -> tuple[np.ndarray, np.ndarray]:
    """An integral equation of the second kind, not symmetric."""
    t = (np.arange(n) + 0.5) / n
    a = np.cos(7 * t[:, None] * t) * np.exp(-3 * np.abs(t[:, None] - t) * (1 + t)) * (-4.0 / n)
    a[np.diag_indices(n)] += 1
    return a, np.ones(n)


def write_links(path: Path, n: int) -> None:
    """A graph of pages that link to earlier ones, popular ones more often, as a Matrix Market file.

    It stands for the files of such graphs that collections of sparse matrices offer.
    """
    from scipy.io import mmwrite
    from scipy.sparse import coo_matrix

    rng = np.random.default_rng(1)
    source = rng.integers(1, n, 12 * n)
    target = (source * rng.random(12 * n) ** 3).astype(np.int64)
    links = coo_matrix((np.ones(len(source), np.float32), (target, source)), (n, n))
    links.sum_duplicates()
    mmwrite(path, links)


def pagerank_matrix(path: Path, damping: float = 0.85) -> np.ndarray:
    """The dense matrix of PageRank from a file of links: columns sum to one."""
    from scipy.io import mmread

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy changes the class of what it reads
        links = np.asarray(mmread(path).todense(), np.float32)
    n = len(links)
    out = links.sum(0)
    links[:, out == 0] = 1
    links /= links.sum(0)
    return np.float32(damping) * links + np.float32((1 - damping) / n)


def ridge_problem(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Correlated features and a noisy answer."""
    m, n = shape
    rng = np.random.default_rng(2)
    a = rng.standard_normal((m, n))
    a[:, 1:] += 0.9 * a[:, :-1]
    return a, a @ rng.standard_normal(n) + rng.standard_normal(m)


# --- solvers --------------------------------------------------------------------------------------


def power_iteration(product: Callable, v, tolerance: float, norm: Callable) -> tuple:
    """The largest eigenvalue's vector of a matrix with columns that sum to one, and iterations."""
    change, iterations = np.inf, 0
    while change > tolerance:
        w = product(v)
        w /= w.sum()
        change = float(norm(w - v))
        v, iterations = w, iterations + 1
    return v, iterations


def counted(solver: Callable, a, b, **options) -> tuple:
    """The solution of a solver that calls back, and its iterations."""
    count = [0]

    def step(_):
        count[0] += 1

    x, info = solver(a, b, callback=step, **options)
    if info:
        raise ArithmeticError(f"{solver.__name__} has not converged: {info}")
    return x, count[0]


def solve(problem: str, linalg, a, b, dot: Callable, norm: Callable, scipy: bool) -> tuple:
    """One solve by the functions of one library."""
    tolerance = {"rtol": TOLERANCE}
    if problem == "cg":
        return counted(linalg.cg, a, b, **tolerance)
    if problem == "gmres":
        # With the norm of the residual SciPy calls back for each product, CuPy for each restart.
        restart = 10
        options = {"restart": restart, "callback_type": "pr_norm", **tolerance}
        x, count = counted(linalg.gmres, a, b, **options)
        return x, count if scipy else count * restart
    if problem == "ridge":
        found = linalg.lsmr(a, b, damp=10.0, atol=TOLERANCE, btol=TOLERANCE)
        return found[0], int(found[2])
    return power_iteration(lambda v: dot(a, v), b, 1e-6, norm)


def error_of(problem: str, a: np.ndarray, b: np.ndarray, x: np.ndarray) -> float:
    """A residual in double precision, relative to what it should be small beside."""
    x = np.asarray(x, np.float64)
    if problem == "pagerank":
        return float(np.abs(a @ x - x).sum())
    if problem == "ridge":
        gradient = a.T @ (a @ x - b) + 100.0 * x
        return float(np.linalg.norm(gradient) / np.linalg.norm(a.T @ b))
    return float(np.linalg.norm(a @ x - b) / np.linalg.norm(b))


def timed(work: Callable, wait: Callable, rounds: int) -> tuple:
    """What a solve gives and its median time; a single one is not warmed up."""
    if rounds > 1:
        work()
        wait()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        result = work()
        wait()
        times.append(time.perf_counter() - start)
    return (*result, statistics.median(times))


def measure(sizes: dict, rounds: int = 3) -> dict:
    """All problems by all contenders that are there."""
    from scipy.sparse import linalg as scipy_linalg

    try:
        import cupy
        from cupyx.scipy.sparse import linalg as cupy_linalg
    except ImportError:
        cupy = None
    rows = []
    if gemv.backend() == "cuda":  # what a process pays once
        gemv.Matrix(np.ones((2048, 2048))).free()
    for problem, size in sizes.items():
        if problem == "pagerank":
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "links.mtx"
                write_links(path, size)
                a = pagerank_matrix(path)
            b = np.full(size, 1 / size, np.float32)
        else:
            a, b = {"cg": cg_problem, "gmres": gmres_problem, "ridge": ridge_problem}[problem](size)
        start = time.perf_counter()
        # One thread in the simulator is enough; a GPU gets the kernel for the shape.
        kept = gemv.Matrix(a, kernel="serial" if gemv.backend() == "simulator" else None)
        moved = time.perf_counter() - start
        host = (scipy_linalg, np.dot, np.linalg.norm, True)
        ways = {"gemv, SciPy": (kept, b, scipy_linalg, lambda a, v: a @ v, np.linalg.norm, True)}
        wait = {"SciPy": lambda: None, "gemv, SciPy": lambda: None}
        if cupy is not None:
            b_gpu = cupy.asarray(b)
            a_gpu = cupy.asarray(a)
            gpu = (cupy_linalg, lambda a, v: a @ v, lambda v: cupy.linalg.norm(v), False)
            operator = kept.cupy_operator()
            ways["gemv, CuPy"] = (operator, b_gpu, gpu[0], lambda a, v: a.matvec(v), *gpu[2:])
            ways["CuPy"] = (a_gpu, b_gpu, *gpu)
            wait["gemv, CuPy"] = wait["CuPy"] = cupy.cuda.Device().synchronize
        ways["SciPy"] = (a, b, *host)
        for name, (matrix, right, linalg, dot, norm, scipy) in ways.items():

            def work(matrix=matrix, right=right, linalg=linalg, dot=dot, norm=norm, scipy=scipy):
                return solve(problem, linalg, matrix, right, dot, norm, scipy)  # noqa: B023

            x, iterations, time_s = timed(work, wait[name], 1 if name == "SciPy" else rounds)
            x = x.get() if hasattr(x, "get") else x
            row = {
                "problem": problem,
                "shape": list(a.shape),
                "dtype": str(a.dtype),
                "by": name,
                "iterations": iterations,
                "time_s": time_s,
                "error": error_of(problem, a, b, x),
                "move_s": moved if name.startswith("gemv") else None,
            }
            rows.append(row)
            print(
                f"{problem:9} {name:12} {iterations:4d} iterations {time_s:9.4f} s"
                f"  {time_s / iterations * 1e6:10.1f} us each  error {row['error']:.2e}",
                flush=True,
            )
        kept.free()
        if cupy is not None:
            del a_gpu, b_gpu, operator, ways
            cupy.get_default_memory_pool().free_all_blocks()
    names = ("numpy", "scipy", "numba", "numba-cuda") + (("cupy-cuda13x",) if cupy else ())
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except ImportError:
            versions[name] = getattr(cupy, "__version__", "")
    device = gemv.backend()
    if device == "cuda":
        from numba import cuda

        name = cuda.get_current_device().name
        device = name.decode() if isinstance(name, bytes) else name
    return {"device": device, "tolerance": TOLERANCE, "versions": versions, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a few rows of each problem")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    results = measure(SMALL if options.small else SIZES)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        write_text(options.json, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
