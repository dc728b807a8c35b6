"""Write a rung of the ladder as a Jupyter notebook: ``python docs/course/notebook.py 5``.

The notebook has the lesson, the kernel's code to change, a run in the simulator with what it
counts, and the exercise with its check. It needs a clone of the repository with the package
installed in place (``make demo``), and Jupyter, which is not installed with it. ``--folder FOLDER``
says where the file goes; ``all`` in place of a number writes every rung.

Notebooks are made when they are asked for, and when the documentation is built. None is kept in the
repository, so none can differ from its kernel.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP), str(TOP / "docs" / "_ext"), str(TOP / "docs" / "course")]

from kernel_pages import EXERCISES, markdown, sections, source_of, stem  # noqa: E402
from rung import kernel_of  # noqa: E402

from gemv.core.dtypes import DTYPES  # noqa: E402
from gemv.kernels import REGISTRY  # noqa: E402
from gemv.measure.inputs import make_problem  # noqa: E402

#: Rows and columns of the matrix that is run: what the pages of rungs are counted on.
SHAPE = (32, 128)

START = """\
import os
import sys
from pathlib import Path

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # before Numba is imported: kernels run on the CPU

import gemv

DOCS = Path(gemv.__file__).resolve().parents[1] / "docs"
sys.path.insert(0, str(DOCS / "figures"))
from watch import watch
"""

RUN = """\
record = watch(KERNEL, {m}, {n}, order={order!r})
print(record.first_wrong() or "right")
for launch in record.geometry.launches:
    print("blocks", launch.grid, "of threads", launch.block)
print(f"lines that a request for A touches: {{record.lines():.3g}}")
print(f"sectors that it moves: {{record.sectors():.3g}}")
print(f"share of their bytes that it asked for: {{record.useful():.0%}}")
print("barriers", record.barriers, "atomic operations", record.atomics)
"""

CHECK = """\
import runpy

check = runpy.run_path(str(DOCS / "exercises"))
problem = check["wrong"](KERNEL) or check["unmet"](KERNEL, goal)
print(f"not yet: {problem}" if problem else "done: right in every order of its threads")
"""


def order_of(kernel) -> str:
    """A storage order that the kernel accepts."""
    orders = (o for o in "CF" if not kernel.accepts(make_problem(*SHAPE, DTYPES["s"], o, "N")))
    return next(orders)


def code_of(path: Path) -> str:
    """A file without its docstring."""
    text = path.read_text(encoding="utf-8")
    first, *rest = ast.parse(text).body
    start = rest[0] if isinstance(first, ast.Expr) else first
    lines = text.splitlines()[start.lineno - 1 :]
    return "\n".join(line for line in lines if line != "from __future__ import annotations").strip()


def cells_of(kernel) -> list[tuple[str, str]]:
    """Kind and text of each cell."""
    lesson = sections(kernel.doc)
    kind = "Beside rung" if kernel.beside else "Rung"
    (m, n), order = SHAPE, order_of(kernel)
    along = "rows" if order == "C" else "columns"
    cells = [
        ("markdown", f"# {kind} {kernel.rung}: `{kernel.name}`\n\n{markdown(lesson[''])}"),
        ("markdown", f"## Idea\n\n{markdown(lesson['Idea'])}"),
        ("markdown", f"## Picture\n\n{markdown(lesson['Picture'])}"),
        ("markdown", "## Set up\n\nThe simulator runs each thread as a small Python program."),
        ("code", START),
        ("markdown", "## The kernel\n\nChange it, run the cell, and run the one below again."),
        ("code", code_of(source_of(kernel))),
        ("markdown", f"## A run\n\nA has {m} x {n} float32, stored along {along}."),
        ("code", RUN.format(m=m, n=n, order=order)),
    ]
    exercise = EXERCISES / f"{kernel.name}.py"
    if exercise.exists():
        task = ast.get_docstring(ast.parse(exercise.read_text(encoding="utf-8"))) or ""
        title, _, rest = task.partition("\n")
        cells += [
            ("markdown", f"## Exercise: {title}\n\n{rest.strip()}"),
            ("code", code_of(exercise)),
            ("code", CHECK),
        ]
    cells.append(("markdown", f"## Source\n\n{markdown(lesson['Source'])}"))
    return cells


def notebook(kernel) -> dict:
    """The notebook of a kernel, in the format 4.5 of Jupyter."""
    made = []
    for number, (kind, text) in enumerate(cells_of(kernel)):
        cell = {
            "cell_type": kind,
            "id": f"{kernel.name}-{number}",
            "metadata": {},
            "source": text.rstrip("\n").splitlines(keepends=True),
        }
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        made.append(cell)
    kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": made,
        "metadata": {"kernelspec": kernelspec, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def text_of(kernel) -> str:
    return json.dumps(notebook(kernel), indent=1, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rung", help="a number, the name of a kernel, or all")
    parser.add_argument("--folder", type=Path, default=Path(), help="by default the current one")
    options = parser.parse_args(arguments)
    try:
        everything = options.rung == "all"
        kernels = list(REGISTRY.values()) if everything else [kernel_of(options.rung)]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    options.folder.mkdir(parents=True, exist_ok=True)
    for kernel in kernels:
        path = options.folder / f"{stem(kernel)}.ipynb"
        path.write_text(text_of(kernel), encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
