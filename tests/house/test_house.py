"""Rules of the house that import-linter (`make lint`) cannot check: names, sizes, kernel files."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemv.kernels import REGISTRY

TOP = Path(__file__).resolve().parents[2]
PACKAGE = TOP / "gemv"
KERNEL_FILES = sorted((PACKAGE / "kernels").glob("[kt][0-9][0-9]_*.py"))
#: Those of the ladder, and of the folders beside it.
LESSONS = KERNEL_FILES + sorted((PACKAGE / "kernels").glob("*/b[0-9][0-9]_*.py"))
PROGRAMS = [path for folder in ("gemv", "benchmarks") for path in (TOP / folder).rglob("*.py")]

#: Private names of these are theirs to offer: named tuples, PyTorch, ctypes, Numba, Python itself.
FOREIGN = {
    "_asdict",
    "_replace",
    "_fields",
    "_make",
    "_C",
    "_name",
    "_ary",
    "_getvalue",
    "_getframe",
}
#: Files that break a rule until what is written here has happened; then the line goes.
PENDING: dict[str, str] = {}


def name_of(path: Path) -> str:
    return path.relative_to(TOP).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def broken(found: dict[str, object]) -> dict[str, object]:
    """What breaks a rule, and is not known to be on its way."""
    return {name: what for name, what in found.items() if what and name not in PENDING}


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def borrowed(path: Path) -> Iterator[str]:
    """Names with an underscore that a file uses and does not define."""
    tree, defined = tree_of(path), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
            defined.add(node.attr)
        elif isinstance(node, ast.Constant):  # in __slots__
            defined.add(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.lineno}: {a.name}" for a in node.names if private(a.name))
        elif isinstance(node, ast.Attribute) and private(node.attr):
            if node.attr not in defined | FOREIGN:
                yield f"{node.lineno}: {ast.unparse(node)}"


def test_private_names_stay_in_their_file():
    assert broken({name_of(path): [*borrowed(path)] for path in PROGRAMS}) == {}


def test_modules_are_reached_by_importing_them():
    """A rename silences what looks a module up by its name."""
    reach = re.compile(r"""sys\.modules(\.get\(|\[)["']gemv\.""")
    found = {name_of(path): reach.search(path.read_text(encoding="utf-8")) for path in PROGRAMS}
    assert broken(found) == {}


def test_files_have_400_lines_at_most():
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PROGRAMS}
    # a lesson is as long as it has to be
    too_long = {name_of(p): n for p, n in lines.items() if n > 400 and p not in LESSONS}
    assert broken(too_long) == {}


#: Every file of the package by the name of its module.
MODULES = {
    name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
    for path in PACKAGE.rglob("*.py")
}


def imports(path: Path) -> set[str]:
    """Modules of the package that a file imports, wherever it does so."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: relative import; the rules read full names"
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                found.add(module if module in MODULES else str(node.module))
    return found & MODULES.keys()


def test_files_import_each_other_in_one_direction():
    """``lint-imports`` knows no circle of a folder's ``__init__`` with what is in the folder."""
    graph = {name: imports(path) - {name, "gemv"} for name, path in MODULES.items()}
    del graph["gemv"]  # public names, loaded when they are used
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_kernel_file_imports_no_other_kernel(path):
    others = {name_of(other)[: -len(".py")].replace("/", ".") for other in LESSONS}
    assert not imports(path) & others
    above = {name for name in imports(path) if name.split(".")[1] not in ("core", "kernels")}
    assert above <= {"gemv.language"}, "device functions come from gemv.language itself"


HEADINGS = ["Idea", "Picture", "Bytes", "Wins", "Loses", "Sums", "Source"]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_kernel_docstring_has_the_headings(path):
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    # a heading starts a line, or follows another heading's text after some space
    places = [re.search(rf"(?:^|\s{{2,}}){heading}(?:\s|$)", doc, re.M) for heading in HEADINGS]
    assert [h for h, place in zip(HEADINGS, places, strict=True) if place is None] == []
    starts = [place.start() for place in places]
    assert starts == sorted(starts), "the headings come in this order"


def test_registry_has_every_kernel_file():
    assert len(REGISTRY) == len(KERNEL_FILES) > 0
    for path in KERNEL_FILES:
        kernel = REGISTRY[path.stem.split("_", 1)[1]]
        assert kernel.rung == int(path.stem[1:3])
        assert kernel.beside == path.stem.startswith("t")
        assert kernel.idea


def test_no_file_names_a_place_of_one_machine():
    places = "|".join(("home", "root", "work", "Users", "mnt", "opt"))
    pattern = re.compile(rf"(?<![\w.~$}})/-])/(?:{places})/\w")
    folders = [TOP / name for name in ("gemv", "tests", "benchmarks", "docs", ".ci")]
    files = [*TOP.glob("*.md"), TOP / "Makefile", TOP / "pyproject.toml", TOP / "asv.conf.json"]
    files += [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    found = []
    for path in files:
        if {"__pycache__", "_build"} & set(path.parts):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")  # some are pictures
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                found.append(f"{name_of(path)}:{number}: {line.strip()}")
    assert found == []
