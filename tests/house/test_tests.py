"""Rules for the tests themselves."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import processes

TESTS = Path(__file__).resolve().parents[1]
DOCS = TESTS.parent / "docs"
#: What the names of functions have that check something.
CHECKS = ("assert", "raises", "warns", "check", "fail")


def checks(function, known, depth=3):
    """Whether a function asserts anything, by itself or by functions of its own file."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if any(word in name for word in CHECKS):
                return True
            called = known.get(name.rpartition(".")[2])
            if depth and called not in (None, function) and checks(called, known, depth - 1):
                return True
    return False


def without_a_check(source):
    """Names of the tests in a file that can only fail by an error."""
    tree = ast.parse(source)
    known = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return [
        name
        for name, function in known.items()
        if name.startswith("test_") and not checks(function, known)
    ]


def test_every_test_checks_something():
    found = {
        path.name: names
        for path in sorted(TESTS.rglob("test_*.py"))
        if (names := without_a_check(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_what_checks_nothing_is_found():
    source = "def helper():\n    {}\n\ndef test_it():\n    helper()\n"
    for nothing in ("len([])", "case.run('serial')"):
        assert without_a_check(source.format(nothing)) == ["test_it"]
    assert without_a_check(source.format("assert 1")) == []


# --------------------------------------------------------------------------------------------------
# what files of tests import


def test_every_file_is_collected_without_the_simulator():
    """On a GPU the modules of the simulator cannot be imported; nor on the host backend."""
    done = processes.run(
        [sys.executable, "-m", "pytest", "-n", "0", "--collect-only", "-qq", "-p",
         "no:cacheprovider", "--assert=plain", str(TESTS)],
        capture_output=True, text=True, cwd=TESTS.parent,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": "-1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]


#: Names of the modules of docs/.
STEMS = {path.stem for path in DOCS.rglob("*.py")}


def documents_of(source: str) -> Iterator[str]:
    """Modules of docs/ that a file of tests imports, or runs, wherever kernels run."""
    # Read closely only if need be: each process of a run does this when it collects the tests. Each
    # import has a line of its own (ruff's E401).
    if STEMS.isdisjoint(re.findall(r"(?<=import )\w+|(?<=from )\w+|\w+(?=\.py\b)", source)):
        return
    tree = ast.parse(source)
    simulated: set[ast.AST] = set()
    if "needs the simulator" in source:
        for function in ast.walk(tree):
            is_function = isinstance(function, ast.FunctionDef)
            if is_function and "needs the simulator" in ast.unparse(function):
                simulated |= set(ast.walk(function))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif is_run_path(node):
            inside = (each for argument in node.args for each in ast.walk(argument))
            values = [each.value for each in inside if isinstance(each, ast.Constant)]
            names = [each.removesuffix(".py") for each in values if str(each).endswith(".py")]
        if node not in simulated:
            yield from (name for name in names if name in STEMS)


def is_run_path(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    of_runpy = isinstance(called, ast.Attribute) and called.attr == "run_path"
    return of_runpy and ast.unparse(called) == "runpy.run_path"


#: Imports a module of docs/, and says what has become of Numba's variables.
IMPORT = """
import os, sys
from pathlib import Path
file = next(Path(sys.argv[1]).rglob(sys.argv[2] + ".py"))
sys.path[:0] = [str(file.parent), *map(str, file.parents[1].glob("*/"))]
__import__(file.stem)
print([name for name in os.environ if name.startswith("NUMBA_")])
"""
DOCUMENTS = sorted(
    {name for path in TESTS.rglob("*.py") for name in documents_of(path.read_text("utf-8"))}
)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_tests_import_leaves_numbas_variables_alone(name):
    """Numba reads them again as it compiles: the tests after it would have half a simulator."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    done = processes.run(
        [sys.executable, "-c", IMPORT, str(DOCS), name], capture_output=True, text=True,
        env={**kept, "PYTHONPATH": str(TESTS.parent)},
    )  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr


def test_what_tests_import_of_the_documents_is_found():
    assert {"notebook", "parts", "links", "kernel_pages"} <= set(DOCUMENTS)
    source = "def f():\n    {}\n    import watch\n"
    assert list(documents_of(source.format("pass"))) == ["watch"]
    assert not list(documents_of(source.format("skip('needs the simulator')")))
