"""Problems of a given size in the words of a selection table."""

from __future__ import annotations

from gemv.core.dtypes import DTYPES
from gemv.measure.inputs import make_problem


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
