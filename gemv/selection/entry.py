"""A kernel with its constants, and the choice that it is for a problem."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

from gemv.core.geometry import Device, Geometry
from gemv.core.problem import Problem
from gemv.kernels.grids import GeometryOf
from gemv.kernels.kernel import MOST_PREPARED, Kernel
from gemv.kernels.spec import Spec, describe_homes
from gemv.selection.ranking import MOST_THREADS

#: Makes a named tuple, in half the time that its own constructor takes.
_new = tuple.__new__


class Choice(NamedTuple):
    """A kernel, what it is compiled for, how it is launched, and why."""

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

    @property
    def with_old_y(self) -> Choice:
        """The same for an old y in memory of its own: see :mod:`gemv.kernels.old_y`."""
        return self._replace(spec=dataclasses.replace(self.spec, old_y=True))


def made(
    kernel: Kernel,
    problem: Problem,
    device: Device,
    knobs: Mapping[str, int],
    homes: tuple[str, str],
    literals: tuple[Any, ...],
    reason: str,
) -> Choice:
    """The choice of a kernel with these constants; a ValueError if they do not go together."""
    spec = kernel.spec(problem, knobs, homes, literals)
    return Choice(kernel, spec, _geometry(kernel, problem, device, dict(spec.knobs)), reason)


def _geometry(
    kernel: Kernel, problem: Problem, device: Device, knobs: Mapping[str, int], place: str = ""
) -> Geometry:
    """The launches of a kernel with these constants.

    The kernel raises a ValueError if the constants do not go together; its text then begins with
    `place`, which says where they are from.
    """
    try:
        geometry = kernel.geometry(problem, device, knobs)
    except ValueError as error:
        raise ValueError(f"{place}{error}") from error
    for launch in geometry.launches:
        threads = prod(launch.block)
        if threads > MOST_THREADS:
            raise ValueError(
                f"{place}a block has at most {MOST_THREADS} threads, and the constants of"
                f" {kernel.name} make it {threads}"
            )
    return geometry


class Entry:
    """A kernel with constants, for problems that differ in their sizes alone.

    What it is compiled for, and what of its geometry does not follow from the sizes, is worked out
    for the first of these problems, and again for the first one with other narrow loads, or with
    lines far apart.
    """

    __slots__ = ("apart", "constants", "kernel", "knobs", "made", "place", "reason")

    def __init__(self, kernel: Kernel, knobs: Mapping[str, int], reason: str, place: str) -> None:
        self.kernel, self.knobs, self.reason, self.place = kernel, knobs, reason, place
        self.constants = {**kernel.knobs, **knobs}
        #: What `far_apart` of the kernel gives: an entry with these constants, and when.
        self.apart: tuple[Entry, Callable[[Problem], bool]] | None = None
        others = kernel.far_apart and kernel.far_apart(self.constants)
        if others:
            self.apart = Entry(kernel, others[0], reason, place), others[1]
        #: By the homes of alpha and beta, by `narrow` of the kernel, and by whether A is sparse:
        #: the spec, its knobs, and `prepared` of the kernel.
        self.made: dict[tuple, tuple[Spec, dict[str, int], GeometryOf | None]] = {}

    def choice(self, problem: Problem, device: Device, homes: tuple[str, str]) -> Choice | None:
        """The choice for a problem on the device of all others; None if the kernel refuses it."""
        kernel = self.kernel
        if self.apart is not None and self.apart[1](problem):
            return self.apart[0].choice(problem, device, homes)
        narrow = 1 if kernel.narrow is None else kernel.narrow(problem, self.constants)
        key = (homes, narrow, problem.sparse)
        found = self.made.get(key)
        if found is not None:
            spec, knobs, prepared = found
            if prepared is not None and problem.rows <= MOST_PREPARED:
                return _new(Choice, (kernel, spec, prepared(problem), self.reason))
            if kernel.accepts(problem) is not None:
                return None
            geometry = kernel.geometry(problem, device, knobs)
            return _new(Choice, (kernel, spec, geometry, self.reason))
        if kernel.accepts(problem) is not None:
            return None
        spec = kernel.spec(problem, self.knobs, homes)
        knobs = dict(spec.knobs)
        # The block and what goes together follow from the constants, so this is checked once.
        geometry = _geometry(kernel, problem, device, knobs, self.place)
        prepared = kernel.prepared and kernel.prepared(problem, device, knobs)
        self.made[key] = spec, knobs, prepared
        return Choice(kernel, spec, geometry, self.reason)
