"""The selection tables of one GPU: found, read, and indexed by the length and number of lines."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from bisect import bisect_right
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from gemv.core.dtypes import PREFIXES
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.kernels import REGISTRY
from gemv.kernels.kernel import Kernel
from gemv.kernels.spec import Spec
from gemv.selection import compiled
from gemv.selection.row import Row, numbers


class _Candidate(NamedTuple):
    """A row that problems of one kind can match.

    `line` and `lines` are its ranges of the length and the number of lines; `specs` are what its
    kernel is compiled for, by the homes of alpha and beta.
    """

    row: Row
    kernel: Kernel
    line: tuple[int, int]
    lines: tuple[int, int]
    specs: dict[tuple[str, str], tuple[Spec, dict[str, int]]]


class _Index(NamedTuple):
    """The rows for problems of one kind, found by the length and the number of their lines.

    `lengths` and `counts` are the thresholds: where a row begins to match, or no longer does.
    All problems between the same two neighbouring thresholds match the same rows, so these are
    searched for once and kept in `cells`.
    """

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
    """

    def __init__(self, sources: Mapping[str, tuple[Row, ...]]) -> None:
        self.names = tuple(sources)
        self.rows = tuple(row for rows in sources.values() for row in rows)
        self._indices: dict[tuple, _Index] = {}

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the rows without reasons and figures: equal hashes select alike."""
        said = [[row.kernel, row.conditions, dict(row.knobs)] for row in self.rows]
        text = json.dumps(said, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def _index(self, kind: tuple, problem: Problem) -> _Index:
        """The index for problems of this kind, one of which is `problem`."""
        letter = PREFIXES[problem.dtype]
        _, _, size, load, step = numbers(problem, problem.access, problem.widths[0])
        candidates = []
        for row in self.rows:
            if letter in row.letters and row.is_for(problem.access, problem.accumulate):
                line, lines, sizes, loads, steps = row.ranges
                if (
                    sizes[0] <= size <= sizes[1]
                    and loads[0] <= load <= loads[1]
                    and steps[0] <= step <= steps[1]
                ):
                    kernel = REGISTRY[row.kernel]
                    candidates.append(_Candidate(row, kernel, line, lines, {}))
        lengths = {at for each in candidates for at in (each.line[0], each.line[1] + 1)}
        counts = {at for each in candidates for at in (each.lines[0], each.lines[1] + 1)}
        index = _Index(sorted(lengths), sorted(counts), tuple(candidates), {})
        return self._indices.setdefault(kind, index)

    def matching(self, problem: Problem) -> tuple[_Candidate, ...]:
        """The rows that match a problem, in their order."""
        dtype, access, widths = problem.dtype, problem.access, problem.widths
        length, count, _, _, step = numbers(problem, access, widths[0])
        # All of a problem that decides on its row and on its machine code, except for its sizes.
        kind = (
            dtype, access, widths, problem.whole, step, problem.conj, problem.result,
            problem.accumulate,
        )  # fmt: skip
        lengths, counts, candidates, cells = self._indices.get(kind) or self._index(kind, problem)
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


#: The tables of the package.
_PACKAGE = resources.files("gemv.selection").joinpath("tables")


def _read(name: str) -> tuple[Row, ...] | None:
    """The rows of a table: from the folder that ``GEMV_TABLES`` names, or from the package."""
    own = os.environ.get("GEMV_TABLES")
    folders = [_own_folder(own)] if own else []
    for folder in (*folders, _PACKAGE):
        file = folder.joinpath(f"{name}.toml")
        try:
            toml = file.read_bytes()
            text = toml.decode("utf-8")
        except FileNotFoundError:
            continue
        except OSError as error:
            why = error.strerror or error
            raise ValueError(f"selection table {file}: it cannot be read: {why}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"selection table {file}: it is not UTF-8: {error}") from error
        rows = _compiled(name, toml) if folder is _PACKAGE else None
        if rows is None:
            from gemv.selection.parse import parse  # with tomllib, which a compiled table needs not

            rows = parse(text, name == "default", str(file))
        return rows
    return None


def _compiled(name: str, toml: bytes) -> tuple[Row, ...] | None:
    """The rows of a table of the package in compiled form; None if that is not up to date."""
    try:
        compact = _PACKAGE.joinpath(f"{name}.json").read_bytes()
    except OSError:
        return None
    return compiled.rows_of(compact, toml, str(_PACKAGE.joinpath(f"{name}.toml")))


def _own_folder(name: str) -> Path:
    """The folder that ``GEMV_TABLES`` names."""
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
        rows = _read(name)
        if rows is not None:
            sources[name] = rows
    return Tables(sources)


def table() -> tuple[Row, ...]:
    """The rows for every device."""
    return tables().rows
