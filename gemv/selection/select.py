"""Which kernel a problem gets: the first row of a table that matches and whose kernel accepts.

The tables are data, ``gemv/selection/tables/*.toml``: plain fields with the reason beside them. The
table of exactly this GPU comes first, then that of its compute capability, then the default one.
The last row of that has no condition, so every problem finds a kernel.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from gemv.core import memo
from gemv.core.geometry import Device, Geometry
from gemv.core.problem import Problem
from gemv.kernels import get
from gemv.kernels.kernel import Kernel
from gemv.kernels.spec import Spec, describe_homes
from gemv.selection.small import kernel_of_small
from gemv.selection.table import Row, tables

#: Threads that a block may have, on every GPU.
_MOST_THREADS = 1024

#: Makes a named tuple, in half the time that its own constructor takes.
_new = tuple.__new__

#: Choices that are kept. One more, and the oldest is forgotten.
MAX_CHOICES = 4096


class Choice(NamedTuple):
    """A kernel, what it is compiled for, how it is launched, and the reason of its row."""

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
        """The kernel's compile-time constants by name."""
        return dict(self.spec.knobs)


# Selection -------------------------------------------------------------------------------------

#: Ordered, because an ordinary dict takes ever longer to find its oldest key.
_choices: OrderedDict[tuple, Choice] = OrderedDict()
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
    _choices.clear()
    memo.forget()


def _aligned_to_elements(problem: Problem) -> Problem:
    """`problem` as if its addresses had no other alignment than that of its elements."""
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
        Compile-time constants. If the table chooses the kernel, they replace those of the row; if
        `kernel` is given, the kernel's defaults. With `kernel` alone the constants are those of its
        first row that matches, which it was tuned to for such a shape, or else its defaults.
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
        choice = _choices.get(key)
        if choice is not None:
            return choice
    if not by_alignment:
        problem = _aligned_to_elements(problem)
    if (
        device.has_few_doubles
        and problem.accumulate == "wide"
        and problem.precision.sums.fields is None  # sums in float64 or complex128
    ):
        problem = problem._replace(accumulate="pairs")
    if usual:
        choice = _small(problem, device, homes) or _first(problem, device, homes, by_alignment)
        _choices[key] = choice
        if len(_choices) > MAX_CHOICES:
            try:
                _choices.popitem(last=False)
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
        if knobs is None and forced.constants_of is not None:
            knobs = forced.constants_of(problem)
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


def _small(problem: Problem, device: Device, homes: tuple[str, str]) -> Choice | None:
    found = kernel_of_small(problem)
    if found is None:
        return None
    kernel, constants = found
    spec = kernel.spec(problem, constants, homes)
    reason = "up to 32 x 32 the order of a sum is the same for every address and in every batch"
    return Choice(kernel, spec, kernel.geometry(problem, device, dict(spec.knobs)), reason)


def _usable(kernel: Kernel, problem: Problem, by_alignment: bool) -> bool:
    return (by_alignment or not kernel.phased) and kernel.accepts(problem) is None


def _geometry(
    row: Row | None, kernel: Kernel, problem: Problem, device: Device, knobs: Mapping[str, int]
) -> Geometry:
    """The launches of a kernel with these constants.

    The kernel raises a ValueError if the constants do not go together; its text then names the
    `row` that they are from, or no row if they are the caller's own.
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
    """The choice by the table alone: the first row that matches and whose kernel accepts."""
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
