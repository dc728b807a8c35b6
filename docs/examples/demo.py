"""gemv's main job on sample files, then the ladder of kernels: what ``make demo`` runs.

Writes a matrix and vectors below ``build/demo``, computes ``y := alpha*A*x + beta*y`` from them
with the command line and compares the answer with NumPy.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
from scipy.io import mmwrite
from scipy.sparse import random_array

import gemv

FOLDER = Path("build/demo")
SIMULATOR = {"NUMBA_ENABLE_CUDASIM": "1"}


def command(*arguments: str, extra: dict[str, str] | None = None) -> None:
    """Show a command as one would type it, then run it."""
    variables = "".join(f"{name}={value} " for name, value in (extra or {}).items())
    print(f"\n$ {variables}python -m gemv {shlex.join(arguments)}", flush=True)
    subprocess.run(
        [sys.executable, "-m", "gemv", *arguments],
        check=True,
        env={**os.environ, **(extra or {})},
    )


def check(path: Path, a, x, y, alpha, beta) -> None:
    """Compare a file with NumPy in the problem's precision and say how close it is."""
    expected = alpha * (a @ x) + beta * y
    size = abs(alpha) * (np.abs(a) @ np.abs(x)) + abs(beta) * np.abs(y)
    eps = np.finfo(expected.dtype).eps
    bound = 2 * (a.shape[1] + 2) * eps * size
    error = np.abs(np.load(path) - expected)
    if not np.all(error <= bound):
        sys.exit(f"{path} differs from NumPy by {error.max():.3g}")
    print(f"agrees with NumPy: largest difference {error.max():.2g}, allowed {bound.max():.2g}")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(2026)

    command("info")

    a = rng.standard_normal((2000, 3000))
    x = rng.standard_normal(3000)
    y = rng.standard_normal(2000)
    np.save(FOLDER / "A.npy", a)
    np.save(FOLDER / "x.npy", x)
    np.save(FOLDER / "y.npy", y)
    names = {name: str(FOLDER / f"{name}.npy") for name in ("A", "x", "y", "result")}
    command(
        *("run", "--a", names["A"], "--x", names["x"], "--y", names["y"]),
        *("--alpha", "2", "--beta", "-0.5", "-o", names["result"]),
    )
    check(FOLDER / "result.npy", a, x, y, 2.0, -0.5)

    # Without a GPU the product above came from SciPy. Our own kernels run on the host as well, one
    # simulated thread after another, so on a smaller matrix.
    sparse = random_array((120, 70), density=0.2, rng=rng)
    mmwrite(FOLDER / "S.mtx", sparse)
    np.save(FOLDER / "s.npy", x[:120])
    command(
        *("run", "--a", str(FOLDER / "S.mtx"), "--x", str(FOLDER / "s.npy")),
        *("--trans", "T", "-o", str(FOLDER / "t.npy")),
        extra=None if gpu() else SIMULATOR,
    )
    check(FOLDER / "t.npy", sparse.toarray().T, x[:120], np.zeros(70), 1.0, 0.0)

    command("ladder", "--dtype", "f32", *(["--m", "4096", "--n", "4096"] if gpu() else []))


def gpu() -> bool:
    return gemv.backend() == "cuda"


if __name__ == "__main__":
    main()
