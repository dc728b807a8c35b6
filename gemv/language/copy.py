"""The kernel that copies a vector of any stride to a contiguous one; no rung of the ladder."""

from gemv.language.vocabulary import cuda


def copy(rows, x, incx, y):
    for i in range(cuda.grid(1), rows, cuda.gridsize(1)):
        y[i] = x[i * incx]
