"""Problems of a given size, and the constants that selection chooses among."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gemv.core.dtypes import DTYPES
from gemv.kernels import REGISTRY
from gemv.measure.inputs import make_problem
from gemv.selection.machine import Constants, code_of, machines


class Tuned(NamedTuple):
    """A kernel with constants that a machine's file has, and what they are for.

    `letters` are the dtypes for which the code was compiled and needs no local memory.
    """

    kernel: str
    knobs: Mapping[str, int]
    access: str
    accumulate: str
    letters: str

    @property
    def name(self):
        values = "-".join(f"{name}={value}" for name, value in self.knobs.items())
        return f"{self.kernel}-{self.accumulate}-{values}"


def tuned():
    """All constants of all machines: those of portfolios, and those of exceptions."""
    found = []
    for machine in machines():
        for each in machine.constants:
            access = access_of_kernel(each.kernel)
            letters = "".join(
                letter
                for letter in "sdczhb"
                if is_compiled(each, letter)
                and each.registers.get(
                    code_of(whole_vectors(access, letter), each.kernel, each.knobs)
                )
                != 0
            )
            found.append(Tuned(each.kernel.name, each.knobs, access, "plain", letters))
        for row in machine.exceptions:
            access = row.conditions.get("access") or access_of_kernel(REGISTRY[row.kernel])
            accumulate = row.conditions.get("accumulate", "plain")
            found.append(Tuned(row.kernel, row.knobs, access, accumulate, row.letters))
    return found


def is_compiled(constants: Constants, letter: str) -> bool:
    """Whether the file knows code of these constants for a dtype; no problem gets any other."""
    return any(code[0] == letter for code in constants.registers)


def access_of_kernel(kernel):
    """The access that a kernel is for; "dot" for one that is for both."""
    refuses = kernel.accepts(whole_vectors("dot", "s"))
    return "axpy" if refuses else "dot"


def whole_vectors(access, letter):
    """A problem whose lines are aligned and whole vectors."""
    return problem_of(access, 16, 16, letter).at(256, 256)


def problem_of(access, rows, cols, dtype="s"):
    order = "F" if access == "axpy" else "C"
    return make_problem(rows, cols, DTYPES[dtype], order, "N")


def problem_with(
    access, line_bytes, lines, dtype="s", load_bytes=16, lda_alignment=None, accumulate="plain"
):
    """A problem of so many lines of at most so many bytes along the unit stride."""
    size = DTYPES[dtype].itemsize
    length = max(line_bytes // size, 1)
    rows, cols = (length, lines) if access == "axpy" else (lines, length)
    problem = problem_of(access, rows, cols, dtype)
    if access == "strided":
        problem = problem._replace(row_stride=3 * cols, col_stride=2)
    if access == "axpy" and length == 1:  # without a gap memory would run along the sum
        problem = problem._replace(col_stride=2)
    if lda_alignment is not None:
        lda = (-(-length * size // 128) * 128 + lda_alignment) // size
        problem = problem._replace(**{"col_stride" if access == "axpy" else "row_stride": lda})
    return problem.aligned(load_bytes, load_bytes)._replace(accumulate=accumulate)
