"""What is missing in a kernel file, in words that say what to do."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device, Geometry
from gemv.engines import backend
from gemv.kernels import REGISTRY
from gemv.kernels.kernel import Kernel

HEADINGS = ("Idea", "Picture", "Bytes", "Wins", "Loses", "Sums", "Source")
#: Parameters that a launch fills in; a geometry can add 64-bit integers in ``sizes``.
PARAMETERS = (
    "rows cols alpha a row_stride col_stride x incx beta y incy scratch counters".split()
)  # fmt: skip
#: Files of the folder that kernels are made of.
PARTS = (
    "busiest", "columns_of_items", "depths", "ends_of_columns", "ends_of_rows", "ends_of_splits",
    "fetching", "grids", "helpers_of_ends", "items", "kernel", "rings", "list_blocks",
    "list_shares", "list_words", "numbers_of_x", "old_y", "several", "small_sums", "spec",
    "stages_of_rows", "staging", "tables", "units_of_x", "wide_tiles", "work",
)  # fmt: skip
#: Modules that a kernel file may import beside the standard library, and what is in them.
IMPORTS = ("numpy", "gemv.core", "gemv.language", *(f"gemv.kernels.{name}" for name in PARTS))


def complaints(path: Path, top: Path) -> list[str]:
    """All that is missing or wrong in the kernel file `path` of the checkout `top`."""
    found = list(_about_the_file(path))
    if not found:
        try:
            spec = importlib.util.spec_from_file_location(f"gemv.kernels.{path.stem}", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        except TypeError as error:
            return [f"KERNEL = Kernel(...): {error}; the docstring of Kernel describes each field"]
        found += _about_the_record(module.KERNEL, module.__doc__, path)
    if not found:
        found += [*_about_the_launch(module.KERNEL), *_about_the_lists(module.KERNEL, top)]
    if not found and backend.backend() == "simulator":
        found += _about_the_result(module.KERNEL)
    return found


def _about_the_file(path: Path) -> Iterator[str]:
    """What the text alone says."""
    if not re.fullmatch(r"[kt]\d\d_[a-z][a-z0-9_]*", path.stem):
        yield "name the file kNN_name.py, or tNN_name.py beside the ladder; NN is the rung"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if "KERNEL" not in names:
        yield "end the file with KERNEL = Kernel(name=..., rung=..., ...)"
    for node in ast.walk(tree):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        for module in modules:
            ours = f"{module}.".startswith(tuple(f"{each}." for each in IMPORTS))
            if not ours and module.split(".")[0] not in sys.stdlib_module_names:
                allowed = f"the standard library, {', '.join(IMPORTS)}"
                yield f"import only {allowed}; the file imports {module}"
            if module.startswith("gemv.language") and node in tree.body:
                yield f"import {module} inside build: it loads the compiler"
    yield from _about_the_lesson(ast.get_docstring(tree) or "")


def _about_the_lesson(doc: str) -> Iterator[str]:
    lines = doc.splitlines()
    if not lines or not lines[0].endswith("."):
        yield "begin the docstring with one sentence that says the idea, on one line"
    places = [lines.index(each) if each in lines else None for each in HEADINGS]
    for place, (number, heading) in zip(places, enumerate(HEADINGS), strict=True):
        if place is None:
            where = "first" if not number else f"after {HEADINGS[number - 1]}"
            yield f"write the heading {heading} into the docstring, {where}"
        elif not any(line.startswith("    ") for line in lines[place + 1 : place + 3]):
            yield f"write the text of the heading {heading} below it, indented by four spaces"
    known = [place for place in places if place is not None]
    if known != sorted(known):
        yield f"put the headings into this order: {', '.join(HEADINGS)}"


def _about_the_record(kernel: Kernel, doc: str | None, path: Path) -> Iterator[str]:
    """The fields of KERNEL."""
    letter, rung, name = path.stem[0], int(path.stem[1:3]), path.stem[4:]
    if kernel.name != name:
        yield f"write name={name!r} into KERNEL, as in the name of the file, not {kernel.name!r}"
    if kernel.rung != rung:
        yield f"write rung={rung} into KERNEL, as in the name of the file, not {kernel.rung}"
    if kernel.beside != (letter == "t"):
        yield f"write beside={letter == 't'} into KERNEL: the name of the file begins with {letter}"
    if kernel.doc != doc:
        yield "write doc=__doc__ into KERNEL"
    unknown = set(kernel.small_knobs) - set(kernel.knobs)
    if unknown:
        yield f"small_knobs has {', '.join(sorted(unknown))}, which knobs lacks: add it there"
    if kernel.knobs and not kernel.small_knobs:
        yield "write small_knobs into KERNEL: the smallest sensible constants, for the simulator"
    objection = kernel.objection({**kernel.knobs, **kernel.small_knobs})
    if objection:
        yield f"change knobs: {objection}"
    try:
        sides = kernel.tile({**kernel.knobs, **kernel.small_knobs})
        right = len(sides) == 2 and all(type(each) is int and each > 0 for each in sides)
    except Exception as error:
        right, sides = False, f"{type(error).__name__}: {error}"
    if not right:
        yield f"let tile(knobs) give the rows and columns of a block's step, not {sides}"
    counts = kernel.work is not None  # so that selection can compare it with others
    if not kernel.teaching and not counts:
        yield "write teaching=True into KERNEL, or count its work: work(problem, geometry, knobs)"


def _about_the_launch(kernel: Kernel) -> Iterator[str]:
    """build and geometry, asked for a small problem that the kernel accepts."""
    for problem in _problems(kernel, "plain"):
        spec = kernel.spec(problem, kernel.small_knobs)
        functions = kernel.build(spec)
        if type(functions) is not tuple or not functions:
            yield "let build(spec) return a tuple of functions, (kernel,) for one"
            return
        made = kernel.geometry(problem, Device("any", (9, 0), 4), dict(spec.knobs))
        if type(made) is not Geometry:
            yield f"let geometry return a Geometry, not {type(made).__name__}"
            return
        if len(made.launches) != len(functions):
            numbers = f"{len(functions)} functions, and geometry {len(made.launches)} launches"
            yield f"let build and geometry agree: build makes {numbers}"
        for function in functions:
            for name in inspect.signature(function).parameters:
                if name not in PARAMETERS and name not in made.sizes:
                    yield (
                        f"nobody fills in the parameter {name} of {function.__name__}: it is none"
                        f" of {', '.join(PARAMETERS)}; put it into sizes of the geometry"
                    )
        depth = kernel.depth(problem, made, dict(spec.knobs))
        if type(depth) is not int or depth < 0:
            yield f"let depth give a number of additions, not {depth!r}"
        return
    yield "let accepts take a small problem in one of the storage orders: it refuses all of them"


def _about_the_lists(kernel: Kernel, top: Path) -> Iterator[str]:
    """Where else a rung has to be named."""
    listed = runpy.run_path(str(top / "benchmarks" / "suites" / "kernels.py"))["KERNELS"]
    if not kernel.beside and kernel.name not in listed:
        yield f"add {kernel.name!r} to KERNELS in benchmarks/suites/kernels.py, at its rung"
    if f"`{kernel.name}`" not in (top / "README.md").read_text(encoding="utf-8"):
        yield "run make table, which adds the kernel to the table of README.md"


def _about_the_result(kernel: Kernel) -> Iterator[str]:
    """A small product, with plain and with wide sums."""
    from helpers.problems import Case

    rows, cols = kernel.tile({**kernel.knobs, **kernel.small_knobs})
    with mock.patch.dict(REGISTRY, {kernel.name: kernel}):
        for accumulate in ("plain", "wide"):
            for order in "CF":
                case = Case(rows + 1, cols + 3, "d", order, "T", 3, 2, -1, 1.5, 0.5,
                            accumulate=accumulate)  # fmt: skip
                if kernel.accepts(case.problem) is not None:
                    continue
                try:
                    case.check(kernel.name, kernel.small_knobs)
                except Exception as error:
                    advice = "run it: python docs/exercises FILE"
                    if accumulate == "wide":
                        advice = "if it cannot add sums of two numbers, write accepts=no_twofold"
                    yield f"accumulate={accumulate!r} goes wrong: {error}; {advice}"
                    return


def _problems(kernel: Kernel, accumulate: str) -> Iterator:
    from helpers.problems import Case

    rows, cols = kernel.tile({**kernel.knobs, **kernel.small_knobs})
    for dtype in DTYPES:
        for order in "CF":
            problem = Case(rows + 1, cols + 3, dtype, order, accumulate=accumulate).problem
            if kernel.accepts(problem) is None:
                yield problem
