"""Run one rung of the ladder by itself: ``python docs/course/rung_05.py``, or ``rung.py 5``.

The program prints the idea of the rung and what changed since the rung before, runs its kernel on a
small problem, on the GPU if there is one and in the simulator if not, and checks the result.

One program serves all rungs, and the script of a rung does nothing but call it. A kernel beside the
ladder is asked for by its name: ``python docs/course/rung.py where_x_lives``.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))
sys.path.insert(0, str(TOP / "docs" / "_ext"))

from kernel_pages import sections, source_of  # noqa: E402

import gemv  # noqa: E402
from gemv.kernels import REGISTRY  # noqa: E402
from gemv.measure.reference import error_in_bounds, reference  # noqa: E402

#: Rows and columns; the first problem that the kernel accepts is run.
SHAPES = [(33, 70), (64, 96), (4, 300), (300, 4)]
SHAPES_OF_A_GPU = [(4000, 1000), (8, 1 << 20), (1 << 20, 8), *SHAPES]
#: Lines of a difference that are printed; ``--all`` prints the rest as well.
DIFFERENCE = 60


def kernel_of(wanted: str):
    """The rung of that number, or the kernel of that name; a ValueError lists what there is."""
    for kernel in REGISTRY.values():
        if wanted == kernel.name or (wanted.lstrip("0") == str(kernel.rung) and not kernel.beside):
            return kernel
    known = ", ".join(f"{kernel.rung} {kernel.name}" for kernel in REGISTRY.values())
    raise ValueError(f"there is no rung {wanted!r}; there are: {known}")


def before(kernel):
    """The rung that this one is to be compared with; None for the first one."""
    earlier = [each for each in REGISTRY.values() if not each.beside and each.rung < kernel.rung]
    return earlier[-1] if earlier else None


def code_of(kernel) -> list[str]:
    """The lines of its ``build`` and ``geometry``: the kernel and its launch."""
    path = source_of(kernel)
    text = path.read_text(encoding="utf-8")
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name in ("build", "geometry"):
            found += [*ast.get_source_segment(text, node).splitlines(), ""]
    return found


def difference(kernel, most: int | None) -> str:
    """What changed since the rung before, as lines with + and -."""
    old = before(kernel)
    lines = list(
        difflib.unified_diff(
            code_of(old) if old else [], code_of(kernel), old.name if old else "nothing",
            kernel.name, n=2, lineterm="",
        )
    )  # fmt: skip
    left = len(lines) - len(lines[:most])
    rest = [f"... and {left} more lines: --all shows them"] if left else []
    return "\n".join([*lines[:most], *rest])


def run(kernel) -> str:
    """Run the kernel on the first problem that it accepts, and say how far from right it is.

    A ValueError says why the kernel refuses all of them.
    """
    shapes = SHAPES_OF_A_GPU if gemv.backend() == "cuda" else SHAPES
    rng = np.random.default_rng(0)
    refusal: Exception = ValueError("there is no problem to run")
    for (m, n), order, op in itertools.product(shapes, "CF", "NT"):
        a = np.asarray(rng.standard_normal((m, n)), np.float32, order=order)
        op_a = a if op == "N" else a.T
        y, x = (rng.standard_normal(length).astype(np.float32) for length in op_a.shape)
        try:
            with gemv.trace() as calls:
                result = gemv.gemv(2.0, a, x, -1.0, y, trans=op, kernel=kernel.name)
        except ValueError as error:
            refusal = error
            continue
        exact, magnitude = reference(np.float32(2), op_a, x, np.float32(-1), y)
        error = error_in_bounds(result, exact, magnitude, len(x), 2.0)
        along = "rows" if order == "C" else "columns"
        if calls[0].kernel != kernel.name or not error <= 1:
            raise AssertionError(f"{kernel.name}: wrong by {error:.3g} of the bound")
        return (
            f"{kernel.name} on the backend {gemv.backend()}: y := 2*op(A)*x - y, A {m} x {n}"
            f" float32 stored by {along}, op {op}\n"
            f"    NumPy, first elements:  {exact[:4].astype(np.float32)}\n"
            f"    the kernel:             {result[:4]}\n"
            f"    right: the largest error is {error:.2g} of its bound"
        )
    raise refusal


def main(arguments: list[str], rung: str | None = None) -> int:
    """Run the `rung` that is given, or else the one that the first argument names."""
    parser = argparse.ArgumentParser(description="Run one rung of the ladder by itself.")
    if rung is None:
        parser.add_argument("rung", help="a number, or the name of a kernel")
    parser.add_argument("--all", action="store_true", help="all lines of the difference")
    options = parser.parse_args(arguments)
    wanted = rung or options.rung
    if "NUMBA_ENABLE_CUDASIM" not in os.environ and gemv.backend() == "host":
        # Numba decides for the simulator when it is imported, so another Python starts with it
        simulated = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
        command = [sys.executable, __file__, wanted, *(["--all"] if options.all else [])]
        return subprocess.run(command, env=simulated).returncode
    try:
        kernel = kernel_of(wanted)
        kind = "Beside rung" if kernel.beside else "Rung"
        lesson = sections(kernel.doc)
        print(f"{kind} {kernel.rung}, {kernel.name}: {kernel.idea}\n\n{lesson['Idea']}\n")
        print(difference(kernel, None if options.all else DIFFERENCE), end="\n\n")
        print(run(kernel))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
