"""One answer to the exercise of `thread_per_row`."""

from gemv.core.geometry import Geometry, Launch, ceil_div
from gemv.kernels.kernel import Kernel
from gemv.language import cuda, update

THREADS = 32


def build(spec):
    zero, op = spec.zero, spec.op

    def two_rows(rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy):
        if alpha == 0:
            cols = 0
        half = (rows + 1) // 2
        for i in range(cuda.grid(1), half, cuda.gridsize(1)):
            k = i + half  # neighbouring threads still have neighbouring rows
            second = k < rows
            total_i = zero
            total_k = zero
            for j in range(cols):
                xj = x[j * incx]
                total_i += op(a[i * row_stride + j * col_stride]) * xj
                if second:
                    total_k += op(a[k * row_stride + j * col_stride]) * xj
            update(alpha, total_i, beta, y, i * incy)
            if second:
                update(alpha, total_k, beta, y, k * incy)

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
