"""Which kernel a problem gets: the first row of a table that matches and whose kernel accepts.

The table is data, ``gemv/tables/*.toml``: plain fields with the reason beside them. Its last row
has no condition, so every problem finds a kernel.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from gemv._coefficients import describe
from gemv._problem import Device, Geometry, Problem
from gemv.kernels import REGISTRY, get
from gemv.kernels._base import Kernel, Spec

#: Fields of a row that state a condition; each of them absent means any.
_CONDITIONS = ("access", "line_bytes_min", "line_bytes_max", "lines_min", "lines_max")


@dataclass(frozen=True, slots=True)
class Choice:
    """A kernel, what it is compiled for, and how it is launched."""

    kernel: Kernel
    spec: Spec
    geometry: Geometry
    reason: str

    @property
    def coefficients(self) -> str:
        """Where the kernel reads alpha and beta, in words."""
        return describe(self.spec.homes)

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

    def matches(self, problem: Problem) -> bool:
        wanted, line, lines = self.conditions, problem.line_bytes, problem.lines
        return (
            wanted.get("access", problem.access) == problem.access
            and wanted.get("line_bytes_min", 0) <= line <= wanted.get("line_bytes_max", line)
            and wanted.get("lines_min", 0) <= lines <= wanted.get("lines_max", lines)
        )


def parse(text: str) -> tuple[Row, ...]:
    """Rows of a table; a ValueError for a field, kernel or knob that does not exist."""
    rows = []
    for entry in tomllib.loads(text)["row"]:
        unknown = set(entry) - {"kernel", "reason", "knobs", *_CONDITIONS}
        if unknown:
            raise ValueError(f"selection table: unknown field {', '.join(sorted(unknown))}")
        kernel = get(entry["kernel"])
        knobs = entry.get("knobs", {})
        if kernel.teaching or not set(knobs) <= set(kernel.knobs):
            raise ValueError(f"selection table: {kernel.name!r} cannot be selected with {knobs}")
        conditions = {name: entry[name] for name in _CONDITIONS if name in entry}
        rows.append(Row(kernel.name, entry["reason"], conditions, knobs))
    if not rows or rows[-1].conditions:
        raise ValueError("selection table: the last row must accept every problem")
    return tuple(rows)


@functools.cache
def table() -> tuple[Row, ...]:
    """The table that selection uses."""
    return parse(resources.files("gemv").joinpath("tables/default.toml").read_text("utf-8"))


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
        Where it finds alpha and beta: see :data:`gemv.kernels._base.HOMES`.
    literals : (number, number)
        Their values, where they are compiled in.

    Raises
    ------
    ValueError
        For an unknown kernel or knob, or a kernel that refuses the problem, with its reason.
    """
    if kernel is not None:
        forced = get(kernel)
        refusal = forced.accepts(problem)
        if refusal:
            raise ValueError(f"kernel {kernel!r} refuses this problem: {refusal}")
        if knobs is None:
            matching = (row for row in table() if row.kernel == kernel and row.matches(problem))
            knobs = next((row.knobs for row in matching), None)
        spec = forced.spec(problem, knobs, homes, literals)
        return _choose(forced, problem, device, spec, "asked for by name")
    for row in table():
        candidate = REGISTRY[row.kernel]
        if row.matches(problem) and candidate.accepts(problem) is None:
            spec = candidate.spec(problem, {**row.knobs, **(knobs or {})}, homes, literals)
            return _choose(candidate, problem, device, spec, row.reason)
    raise RuntimeError("no row of the selection table accepts this problem")


def _choose(
    kernel: Kernel, problem: Problem, device: Device, spec: Spec, reason: str
) -> Choice:
    return Choice(kernel, spec, kernel.geometry(problem, device, dict(spec.knobs)), reason)
