"""Which kernel a problem gets: the first row of a table that matches and whose kernel accepts.

The tables are data, ``gemv/tables/*.toml``: plain fields with the reason beside them. Those of the
very GPU come first, then those of its compute capability, then the default one, whose last row has
no condition, so every problem finds a kernel.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
import tomllib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from math import gcd, prod
from pathlib import Path
from typing import Any, NamedTuple

from gemv.core import memo, rules
from gemv.core.dtypes import ACCUMULATE, PREFIXES
from gemv.core.geometry import Device, Geometry
from gemv.core.problem import Problem
from gemv.kernels import REGISTRY, get
from gemv.kernels.kernel import Kernel, accepts_all
from gemv.kernels.spec import Spec, describe_homes

#: Fields of a row that state a condition on a number; each of them absent means any.
RANGES = ("line_bytes", "lines", "element_bytes", "load_bytes", "lda_alignment")
#: Bytes that the memory fetches together.
_MEMORY_LINE = 128
#: Threads that a block may have, on every GPU.
_MOST_THREADS = 1024

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

#: Makes a named tuple in half the time that its own constructor takes.
_new = tuple.__new__

#: Choices that are remembered; beyond, the oldest is forgotten.
MAX_KNOWN = 4096


class Choice(NamedTuple):
    """A kernel, what it is compiled for, and how it is launched."""

    kernel: Kernel
    spec: Spec
    geometry: Geometry
    reason: str

    @property
    def coefficients(self) -> str:
        """Where the kernel reads alpha and beta, in words."""
        return describe_homes(self.spec.homes)

    @property
    def knobs(self) -> dict[str, int]:
        return dict(self.spec.knobs)


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
        raise ValueError(f"{place}: about must be a table, got {rules.describe(content['about'])}")
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
            raise ValueError(f"{place}: {name} must be {rule}, got {rules.describe(value)}")
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
    for folder in (*folders, resources.files("gemv").joinpath("tables")):
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


# Selection -------------------------------------------------------------------------------------

#: Ordered, because an ordinary dict takes ever longer to find its oldest key.
_known: OrderedDict[tuple, Choice] = OrderedDict()
_by_alignment = os.environ.get("GEMV_ALIGNMENT", "1").strip() != "0"


def use_alignment(yes: bool = True) -> None:
    """Whether kernels may be chosen by how operands are aligned in memory.

    The order of a sum depends on the width of its loads, and that on the alignment of A and x: of
    their addresses and of A's leading dimension. So views of the same values may differ in their
    last bits. Without alignment every load is one element wide, whatever the address, and kernels
    that look for the next multiple of 16 bytes are not used, so that the bits depend on the values,
    the shape, the storage order and the GPU alone, where elements are aligned to their own size.
    That takes time: narrow loads reach a smaller part of the memory's rate.

    Parameters
    ----------
    yes : bool
        False to forbid it for this process from now on, in plans that exist as well.
        ``GEMV_ALIGNMENT=0`` in the environment does the same from the start.

    Examples
    --------
    >>> import gemv
    >>> gemv.use_alignment(False)
    >>> gemv.use_alignment(True)
    """
    global _by_alignment
    if not isinstance(yes, bool):
        raise TypeError(f"use_alignment: yes must be True or False, got {yes!r}")
    _by_alignment = yes
    _known.clear()
    memo.forget()


def _like_any_other(problem: Problem) -> Problem:
    """A problem aligned to its elements, as every array is."""
    size = problem.dtype.itemsize
    return problem.aligned(min(problem.a_alignment, size), min(problem.x_alignment, size))


def select(
    problem: Problem,
    device: Device,
    kernel: str | None = None,
    knobs: Mapping[str, int] | None = None,
    homes: tuple[str, str] = ("arguments", "arguments"),
    literals: tuple[Any, ...] = (),
) -> Choice:
    """The kernel for `problem`, or the one asked for.

    Parameters
    ----------
    problem : Problem
        With ``rows >= 1`` and ``cols >= 1``.
    device : Device
        Its number of multiprocessors shapes the grid.
    kernel : str, optional
        A name from the registry, forced.
    knobs : mapping of str to int, optional
        Over the table's, if it chooses; over the kernel's own, if one is asked for. Left out, a
        kernel that is asked for has those of its first row in the table that matches, if any: the
        constants that it was tuned to for such a shape.
    homes : (str, str)
        Where it finds alpha and beta: see :data:`gemv.kernels.spec.HOMES`.
    literals : (number, number)
        Their values, where they are compiled in.

    Raises
    ------
    ValueError
        For an unknown kernel or knob, or a kernel that refuses the problem, with its reason.
    """
    usual = kernel is None and knobs is None and not literals
    by_alignment = _by_alignment
    if usual:
        key = (problem, device, homes, by_alignment)
        choice = _known.get(key)
        if choice is not None:
            return choice
    if not by_alignment:
        problem = _like_any_other(problem)
    if (
        device.has_few_doubles
        and problem.accumulate == "wide"
        and problem.precision.sums.fields is None  # float64, or two for a complex number
    ):
        problem = problem._replace(accumulate="pairs")
    if usual:
        choice = _first(problem, device, homes, by_alignment)
        _known[key] = choice
        if len(_known) > MAX_KNOWN:
            try:
                _known.popitem(last=False)
            except KeyError:  # emptied by another thread
                pass
        return choice
    if kernel is not None:
        forced = get(kernel)
        refusal = forced.accepts(problem)
        if forced.phased and not by_alignment:
            refusal = "its sums follow addresses, which use_alignment(False) forbids"
        if refusal:
            raise ValueError(f"kernel {kernel!r} refuses this problem: {refusal}")
        row = None
        if knobs is None:
            matching = (e.row for e in tables(device).matching(problem) if e.row.kernel == kernel)
            row = next(matching, None)
        spec = forced.spec(problem, knobs if row is None else row.knobs, homes, literals)
        geometry = _geometry(row, forced, problem, device, dict(spec.knobs))
        return Choice(forced, spec, geometry, "asked for by name")
    for each in tables(device).matching(problem):
        if _usable(each.kernel, problem, by_alignment):
            merged = {**each.row.knobs, **(knobs or {})}
            spec = each.kernel.spec(problem, merged, homes, literals)
            row = None if knobs else each.row
            geometry = _geometry(row, each.kernel, problem, device, dict(spec.knobs))
            return Choice(each.kernel, spec, geometry, each.row.reason)
    raise RuntimeError("no row of the selection table accepts this problem")


def _usable(kernel: Kernel, problem: Problem, by_alignment: bool) -> bool:
    return (by_alignment or not kernel.phased) and kernel.accepts(problem) is None


def _geometry(
    row: Row | None, kernel: Kernel, problem: Problem, device: Device, knobs: Mapping[str, int]
) -> Geometry:
    """The launches of a kernel, which knows best what its constants may be together.

    What it says against them names the `row` that they are from, if they are not a caller's own.
    """
    place = "" if row is None else f"{row.place}: "
    try:
        geometry = kernel.geometry(problem, device, knobs)
    except ValueError as error:
        raise ValueError(f"{place}{error}") from error
    for launch in geometry.launches:
        threads = prod(launch.block)
        if threads > _MOST_THREADS:
            raise ValueError(
                f"{place}a block has at most {_MOST_THREADS} threads, and the constants of"
                f" {kernel.name} make it {threads}"
            )
    return geometry


def _first(problem: Problem, device: Device, homes: tuple[str, str], by_alignment: bool) -> Choice:
    """The first row that matches and whose kernel accepts, with nothing of a caller's own."""
    for row, kernel, _, _, specs in tables(device).matching(problem):
        if _usable(kernel, problem, by_alignment):
            found = specs.get(homes)
            if found is None:
                spec = kernel.spec(problem, row.knobs, homes)
                found = specs[homes] = spec, dict(spec.knobs)
            spec, knobs = found
            geometry = _geometry(row, kernel, problem, device, knobs)
            return _new(Choice, (kernel, spec, geometry, row.reason))
    raise RuntimeError("no row of the selection table accepts this problem")
