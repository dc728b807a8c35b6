"""The tables of constants: which kernel and which constants a GPU's problems get."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
import tomllib
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

from gemv.core import rules
from gemv.core.dtypes import ACCUMULATE, PREFIXES
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.kernels import REGISTRY, get
from gemv.kernels.kernel import Kernel, accepts_all
from gemv.kernels.spec import Spec

#: Fields of a row that state a condition on a number; each of them absent means any.
RANGES = ("line_bytes", "lines", "element_bytes", "load_bytes", "lda_alignment")
#: Bytes that the memory fetches together.
_MEMORY_LINE = 128

_LETTERS = "".join(PREFIXES.values())


def _one_of(*words: str) -> tuple[Callable[[Any], bool], str]:
    known = ", ".join(f'"{word}"' for word in words)
    return lambda value: isinstance(value, str) and value in words, f"one of {known}"


_TEXT = (lambda value: isinstance(value, str), "a string")
_SIZE = (
    lambda value: type(value) is int and 1 <= value <= sys.maxsize,
    f"an integer from 1 to {sys.maxsize}",
)
#: Fields of a row that state a condition, each with what its value must pass, and that in words.
_CONDITIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "access": _one_of("dot", "axpy", "strided"),
    "dtype": (
        lambda value: isinstance(value, str) and value != "" and set(value) <= set(_LETTERS),
        f"one or more of the letters {', '.join(_LETTERS)}",
    ),
    "accumulate": _one_of(*ACCUMULATE),
    **{f"{name}_{end}": _SIZE for name in RANGES for end in ("min", "max")},
}
#: All fields of a row.
_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "kernel": _TEXT,
    "reason": _TEXT,
    "figure": _TEXT,
    "knobs": (lambda value: isinstance(value, dict), "a table of constants"),
    **_CONDITIONS,
}
_NEEDED = ("kernel", "reason")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a selection table."""

    kernel: str
    reason: str
    conditions: Mapping[str, Any]
    knobs: Mapping[str, int]
    figure: str | None = None
    place: str = ""
    """Its file and number, for error texts."""

    def matches(self, problem: Problem) -> bool:
        for name in ("access", "accumulate"):
            if name in self.conditions and self.conditions[name] != getattr(problem, name):
                return False
        return PREFIXES[problem.dtype] in self.letters and all(
            low <= number <= high
            for number, (low, high) in zip(_numbers(problem), self.ranges, strict=True)
        )

    @property
    def letters(self) -> str:
        """Of the dtypes that it is for."""
        return self.conditions.get("dtype", _LETTERS)

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Smallest and largest of each of the numbers that :data:`RANGES` names."""
        get = self.conditions.get
        return tuple((get(f"{name}_min", 0), get(f"{name}_max", sys.maxsize)) for name in RANGES)


def _numbers(problem: Problem) -> tuple[int, int, int, int, int]:
    """What the ranges of a row are about, in their order."""
    return _numbers_of(problem, problem.access, problem.widths[0])


def _numbers_of(problem: Problem, access: str, width: int) -> tuple[int, int, int, int, int]:
    """The same where it is known already how A is read."""
    size = problem.dtype.itemsize
    if access == "axpy":
        line, lines, step = problem.rows * size, problem.cols, problem.col_stride
    else:
        line, lines, step = problem.cols * size, problem.rows, problem.row_stride
    # Loads of one element, narrow ones and those of complex128, do not care, and a choice by
    # alignment is not wanted everywhere.
    aligned = width == 1 or lines == 1
    lda_alignment = _MEMORY_LINE if aligned else gcd(_MEMORY_LINE, step * size)
    return line, lines, size, width * size, lda_alignment


# Tables ----------------------------------------------------------------------------------------


def parse(text: str, last: bool = True, source: str = "of this text") -> tuple[Row, ...]:
    """Rows of a table; a ValueError that names `source`, row and rule for what is none.

    The `last` of all tables must end with a row that every problem fits.
    """
    place = f"selection table {source}"
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: it is not valid TOML: {error}") from error
    _refuse_unknown(place, set(content) - {"row", "about"})
    entries = content.get("row", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{place}: row must be an array of tables: write [[row]] above each")
    if not entries:
        raise ValueError(f"{place}: it has no [[row]]")
    if not isinstance(content.get("about", {}), dict):
        raise ValueError(f"{place}: about must be a table, got {rules.typed(content['about'])}")
    rows = tuple(
        _row(entry, f"{place}, row {number}") for number, entry in enumerate(entries, start=1)
    )
    if last:
        final = rows[-1]
        if final.conditions or REGISTRY[final.kernel].accepts is not accepts_all:
            raise ValueError(
                f"{final.place}: the last row must accept every problem, so it has no condition,"
                " and a kernel that refuses none"
            )
    return rows


def _row(entry: Mapping[str, Any], place: str) -> Row:
    """One row of a table that has been read."""
    _refuse_unknown(place, set(entry) - set(_FIELDS))
    for name in _NEEDED:
        if name not in entry:
            raise ValueError(f"{place}: {name} is missing")
    for name, value in entry.items():
        is_right, rule = _FIELDS[name]
        if not is_right(value):
            raise ValueError(f"{place}: {name} must be {rule}, got {rules.typed(value)}")
    for name in RANGES:
        low, high = (entry.get(f"{name}_{end}") for end in ("min", "max"))
        if low is not None and high is not None and low > high:
            raise ValueError(f"{place}: {name}_min = {low} is larger than {name}_max = {high}")
    knobs = entry.get("knobs", {})
    try:
        kernel = get(entry["kernel"])
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    if kernel.teaching:
        raise ValueError(
            f"{place}: kernel {kernel.name!r} is there to be read and cannot be selected"
        )
    objection = kernel.objection(knobs)
    if objection:
        raise ValueError(f"{place}: {objection}")
    conditions = {name: entry[name] for name in _CONDITIONS if name in entry}
    return Row(kernel.name, entry["reason"], conditions, knobs, entry.get("figure"), place)


def _refuse_unknown(place: str, names: set[str]) -> None:
    if names:
        raise ValueError(f"{place}: unknown field {', '.join(map(repr, sorted(names)))}")


class _Candidate(NamedTuple):
    """A row that problems of a kind can match, and by homes what its kernel is compiled for."""

    row: Row
    kernel: Kernel
    line: tuple[int, int]
    lines: tuple[int, int]
    specs: dict[tuple[str, str], tuple[Spec, dict[str, int]]]


class _Grid(NamedTuple):
    """The rows for one kind of problem, found by where its sizes lie among all their thresholds.

    Problems of a kind are read by the same machine code. Between two neighbouring thresholds all of
    them match the same rows, so those are looked for once for each such cell.
    """

    #: Lengths and numbers of lines at which a row begins to match, or no longer does.
    lengths: list[int]
    counts: list[int]
    candidates: tuple[_Candidate, ...]
    cells: dict[tuple[int, int], tuple[_Candidate, ...]]


class Tables:
    """The tables of one device, the special ones first.

    Attributes
    ----------
    names : tuple of str
        Of the tables, without ``.toml``.
    rows : tuple of Row
        All rows in the order in which they are tried.
    hash : str
        SHA-256 of what the rows say, but for reasons and figures: equal hashes select alike.
    """

    def __init__(self, sources: Mapping[str, tuple[Row, ...]]) -> None:
        self.names = tuple(sources)
        self.rows = tuple(row for rows in sources.values() for row in rows)
        said = [[row.kernel, dict(row.conditions), dict(row.knobs)] for row in self.rows]
        text = json.dumps(said, sort_keys=True, separators=(",", ":"))
        self.hash = hashlib.sha256(text.encode()).hexdigest()
        self._by_access: dict[str, list[tuple[Row, str, tuple[tuple[int, int], ...]]]] = {}
        self._grids: dict[tuple, _Grid] = {}

    def _rows(self, access: str) -> list[tuple[Row, str, tuple[tuple[int, int], ...]]]:
        """The rows for one access, and what they say in a form that is quickly compared."""
        rows = self._by_access.get(access)
        if rows is None:
            mine = (row for row in self.rows if row.conditions.get("access", access) == access)
            rows = self._by_access[access] = [(row, row.letters, row.ranges) for row in mine]
        return rows

    def _grid(self, kind: tuple, problem: Problem) -> _Grid:
        letter, (_, _, size, load, step) = PREFIXES[problem.dtype], _numbers(problem)
        candidates = tuple(
            _Candidate(row, REGISTRY[row.kernel], line, lines, {})
            for row, letters, (line, lines, sizes, loads, steps) in self._rows(problem.access)
            if letter in letters
            and row.conditions.get("accumulate", problem.accumulate) == problem.accumulate
            and sizes[0] <= size <= sizes[1]
            and loads[0] <= load <= loads[1]
            and steps[0] <= step <= steps[1]
        )
        lengths = {at for each in candidates for at in (each.line[0], each.line[1] + 1)}
        counts = {at for each in candidates for at in (each.lines[0], each.lines[1] + 1)}
        grid = _Grid(sorted(lengths), sorted(counts), candidates, {})
        return self._grids.setdefault(kind, grid)

    def matching(self, problem: Problem) -> tuple[_Candidate, ...]:
        """The rows that match a problem, in their order."""
        dtype, access, widths = problem.dtype, problem.access, problem.widths
        length, count, _, _, step = _numbers_of(problem, access, widths[0])
        # All that decides on rows, but for sizes, and on machine code.
        kind = (
            dtype, access, widths, problem.whole, step, problem.conj, problem.result,
            problem.accumulate,
        )  # fmt: skip
        lengths, counts, candidates, cells = self._grids.get(kind) or self._grid(kind, problem)
        cell = bisect_right(lengths, length), bisect_right(counts, count)
        found = cells.get(cell)
        if found is None:
            found = cells[cell] = tuple(
                each
                for each in candidates
                if each.line[0] <= length <= each.line[1]
                and each.lines[0] <= count <= each.lines[1]
            )
        return found


def file_names(device: Device) -> tuple[str, str]:
    """Names of the tables for exactly this GPU, and for its compute capability."""
    slug = re.sub("[^a-z0-9]+", "-", device.name.lower()).strip("-")
    major, minor = device.compute_capability
    return slug, f"cc{major}{minor}"


def _read(name: str) -> tuple[str, str] | None:
    """A table's file and text: from the folder that ``GEMV_TABLES`` names, or from the package."""
    own = os.environ.get("GEMV_TABLES")
    folders = [_own_folder(own)] if own else []
    for folder in (*folders, resources.files("gemv.selection").joinpath("tables")):
        file = folder.joinpath(f"{name}.toml")
        try:
            return str(file), file.read_bytes().decode("utf-8")
        except FileNotFoundError:
            continue
        except OSError as error:
            why = error.strerror or error
            raise ValueError(f"selection table {file}: it cannot be read: {why}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"selection table {file}: it is not UTF-8: {error}") from error
    return None


def _own_folder(name: str) -> Path:
    try:
        folder = Path(name).expanduser()
        if folder.is_dir():
            return folder
    except (OSError, RuntimeError) as error:
        raise ValueError(f"GEMV_TABLES = {name!r} cannot be looked into: {error}") from error
    raise ValueError(f"GEMV_TABLES must name a folder with selection tables, got {name!r}")


@functools.lru_cache(maxsize=64)
def tables(device: Device | None = None) -> Tables:
    """The tables that selection uses on a device; without one, those of every device.

    Raises
    ------
    ValueError
        For a table that cannot be used; the text names its file, the row and the rule.
    """
    sources = {}
    special = () if device is None else file_names(device)
    for name in (*special, "default"):
        found = _read(name)
        if found is not None:
            file, text = found
            sources[name] = parse(text, name == "default", file)
    return Tables(sources)


def table() -> tuple[Row, ...]:
    """The rows for every device."""
    return tables().rows
