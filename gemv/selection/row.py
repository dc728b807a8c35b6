"""One exception of a machine: conditions on a problem, the kernel that it gets, and why."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import gcd
from typing import Any, NamedTuple

from gemv.core.dtypes import PREFIXES
from gemv.core.geometry import CACHE_LINE_BYTES
from gemv.core.problem import Problem

#: The numbers that a row can state a range of, in the order of :func:`numbers`.
RANGES = ("line_bytes", "lines", "element_bytes", "load_bytes", "lda_alignment")
#: The fields of a row that state a condition.
CONDITIONS = (
    "access",
    "dtype",
    "accumulate",
    *(f"{name}_{end}" for name in RANGES for end in ("min", "max")),
)
#: Every letter of a dtype: a row without a dtype is for all of them.
LETTERS = "".join(PREFIXES.values())


class Row(NamedTuple):
    """One exception of a machine.

    Attributes
    ----------
    kernel : str
        Name of the kernel.
    reason : str
        Why: what was measured.
    values : tuple
        What it states for each of :data:`CONDITIONS`; None where a problem may have any value.
    knobs : mapping of str to int
        Constants of the kernel, where they are not its own.
    figure : str or None
        How the measurement went.
    source : str
        File of the machine.
    number : int
        Place of the row in it, from 1 on.
    """

    kernel: str
    reason: str
    values: tuple
    knobs: Mapping[str, int]
    figure: str | None
    source: str
    number: int

    @property
    def place(self) -> str:
        """Its file and number, for error texts."""
        return f"machine {self.source}, row {self.number}"

    @property
    def conditions(self) -> dict[str, Any]:
        """The conditions by name, as the file has them."""
        stated = zip(CONDITIONS, self.values, strict=True)
        return {name: value for name, value in stated if value is not None}

    @property
    def letters(self) -> str:
        """Letters of the dtypes that it is for."""
        return self.values[1] or LETTERS

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Least and greatest value of each of :data:`RANGES`."""
        ends = zip(self.values[3::2], self.values[4::2], strict=True)
        return tuple([(least or 0, greatest or sys.maxsize) for least, greatest in ends])

    def is_for(self, access: str, accumulate: str) -> bool:
        """Whether its conditions allow problems with that access and way of adding up."""
        own_access, _, own_accumulate = self.values[:3]
        return own_access in (None, access) and own_accumulate in (None, accumulate)

    def can_match(self, problem: Problem) -> bool:
        """Whether its conditions allow problems like `problem`, whatever their sizes and strides.

        What is left to ask is whether line_bytes, lines and lda_alignment are in their ranges.
        """
        found = numbers(problem, problem.access, problem.widths[0])
        return (
            self.is_for(problem.access, problem.accumulate)
            and PREFIXES[problem.dtype] in self.letters
            and all(
                low <= number <= high
                for number, (low, high) in list(zip(found, self.ranges, strict=True))[2:4]
            )
        )

    def matches(self, problem: Problem) -> bool:
        """Whether `problem` fulfils all conditions."""
        if not self.is_for(problem.access, problem.accumulate):
            return False
        found = numbers(problem, problem.access, problem.widths[0])
        return PREFIXES[problem.dtype] in self.letters and all(
            low <= number <= high for number, (low, high) in zip(found, self.ranges, strict=True)
        )


def numbers(problem: Problem, access: str, width: int) -> tuple[int, int, int, int, int]:
    """The numbers of a problem that rows state :data:`RANGES` of.

    The caller knows the access of the problem and the width of its loads, and passes them.
    """
    size = problem.dtype.itemsize
    if access == "axpy":
        line, lines, step = problem.rows * size, problem.cols, problem.col_stride
    else:
        line, lines, step = problem.cols * size, problem.rows, problem.row_stride
    # Loads of one element do not depend on where lines begin: narrow ones, those of complex128, and
    # all loads where a choice by alignment is not wanted.
    aligned = width == 1 or lines == 1
    lda_alignment = CACHE_LINE_BYTES if aligned else gcd(CACHE_LINE_BYTES, step * size)
    return line, lines, size, width * size, lda_alignment
