"""The planted faults of this folder, as records, and what makes a record a fault of the tree."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
#: Where a fault can be found: without a GPU, without a GPU where the packages of
#: :data:`LIBRARIES` are, on a GPU alone, or nowhere, because no result, no error and no memory
#: differs.
PLACES = ("host", "libraries", "gpu", "equivalent")
#: What the tests of faults with the place "libraries" import.
LIBRARIES = ("torch", "jax", "distributed")


class Fault(NamedTuple):
    """One wrong line, and the tests that should notice it.

    Attributes
    ----------
    room : str
        Name of the list that has it.
    id : str
        Unique over all lists.
    file : str
        What is changed, relative to the top of the tree.
    old, new : str
        Text that is there exactly once, and what takes its place.
    tests : str
        Arguments of pytest: paths, and ``-k`` with an expression.
    found : str
        One of :data:`PLACES`.
    wrong : str
        What is wrong with `new`, or why nothing is.
    """

    room: str
    id: str
    file: str
    old: str
    new: str
    tests: str
    found: str
    wrong: str

    def applied(self, top: Path = TOP) -> str:
        """The text of the file with the fault in it."""
        return (top / self.file).read_text(encoding="utf-8").replace(self.old, self.new)

    def syntax_error(self, top: Path = TOP) -> str | None:
        """Why the file with the fault in it is no Python, or None."""
        try:
            compile(self.applied(top), self.file, "exec", dont_inherit=True)
        except SyntaxError as error:
            return f"{self.id}: {self.file} with the fault is no Python: {error}"
        return None

    def objections(self, top: Path = TOP) -> list[str]:
        """What keeps this record from being a fault of the tree at `top`."""
        found = []
        path = top / self.file
        if not path.is_file():
            return [f"{self.id}: there is no file {self.file}"]
        times = path.read_text(encoding="utf-8").count(self.old)
        if times != 1:
            found.append(f"{self.id}: the old text occurs {times} times in {self.file}, not once")
        elif self.old == self.new:
            found.append(f"{self.id}: the new text is the old one")
        if self.found not in PLACES:
            found.append(f"{self.id}: found must be one of {', '.join(PLACES)}, got {self.found}")
        paths = test_paths(self.tests)
        missing = [each for each in paths if not (top / each.partition("::")[0]).exists()]
        if missing or not paths:
            found.append(f"{self.id}: no such tests: {' '.join(missing) or self.tests}")
        if not self.wrong.strip():
            found.append(f"{self.id}: nothing says what is wrong")
        return found


def test_paths(arguments: str) -> list[str]:
    """The paths among arguments of pytest."""
    return [each for each in shlex.split(arguments) if each.startswith("tests/")]


def rooms() -> list[str]:
    """Names of the lists."""
    return sorted(path.stem for path in HERE.glob("*.toml"))


def listed(room: str) -> list[Fault]:
    """The faults of one list."""
    with open(HERE / f"{room}.toml", "rb") as file:
        return [Fault(room=room, **entry) for entry in tomllib.load(file)["fault"]]


def all_faults() -> list[Fault]:
    """The faults of all lists."""
    return [fault for room in rooms() for fault in listed(room)]
