"""Read x once for two rows

All rows are multiplied with the same x. A thread that takes two rows at a time can read `x[j]` into
a register once and use it twice, and it has two loads of A on the way at once. Mind the last row
when their number is odd. Which two rows? With A stored along columns, neighbouring threads should
still read neighbouring elements, so that a request of a warp touches one line.
"""

from gemv.core.geometry import Geometry, Launch, ceil_div
from gemv.kernels.kernel import Kernel
from gemv.language import cuda, update

THREADS = 32


def build(spec):
    zero, op = spec.zero, spec.op

    def two_rows(rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy):
        if alpha == 0:
            cols = 0
        for i in range(cuda.grid(1), rows, cuda.gridsize(1)):
            total = zero
            for j in range(cols):
                total += op(a[i * row_stride + j * col_stride]) * x[j * incx]
            update(alpha, total, beta, y, i * incy)

    return (two_rows,)


def geometry(problem, device, knobs):
    return Geometry((Launch((ceil_div(problem.rows, 2 * THREADS), 1, 1), (THREADS, 1, 1)),))


KERNEL = Kernel("two_rows", 2, build, geometry, tile=lambda knobs: (THREADS, 1), doc=__doc__)


def goal(look):
    """Half as many reads of x, and one line for each request where A is stored along columns."""
    rows, cols = 40, 6
    reads = len(look(rows, cols).of("x"))
    if reads > rows * cols // 2:
        return f"x is read {reads} times for {rows} rows of {cols}; {rows * cols // 2} would do"
    lines = look(2 * THREADS, 4, order="F").lines()
    if lines > 1:
        return (
            f"with A stored along columns, a request of a warp touches {lines:g} lines instead of"
            " one: neighbouring threads have to take neighbouring rows"
        )
