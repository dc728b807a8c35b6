"""One thread takes one row: the first parallel gemv, since the sums do not depend on each other.

Idea
    The loop over rows disappears: thread i computes y[i] alone. A grid has a limited number of
    blocks, so each thread strides on by the size of the grid until the rows run out; no launch,
    however small, can leave a row undone.

Picture
    ::

        column     0   1   2  ...                A stored along columns (Fortran):
        row 0      T0> T0> T0> ...   y0          at every step the warp reads a[0..31, j],
        row 1      T1> T1> T1> ...   y1          32 neighbours: 1 line, 4 sectors in float32
        row 2      T2> T2> T2> ...   y2
        ...                                      A stored along rows (C): 32 addresses in
        row 31     T31>T31>T31> ...  y31         32 lines, so 32 sectors of 32 bytes

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize when neighbouring threads read
    neighbours. All threads of a warp read the same x[j], which the hardware fetches once and
    broadcasts.

Wins
    Very many short rows, a million of 64 elements say: no communication between threads at all,
    and even for A stored along rows a sector that a thread fetched is still in L1 when it wants the
    next element.

Loses
    Fewer rows than the GPU has room for threads: 8192 rows are 8192 threads where 270,000 would
    fit on 132 multiprocessors. A stored along rows that are long: each load touches 32 lines,
    moves a sector of each and uses one element of it. The sector has left L1 before its next
    element is wanted.

Sums
    Left to right over the columns, as in the serial kernel. Same bits on every run.

Source
    "Matrix-vector product", a CUDA exercise of EPCC: elimination of the loop over rows. Broadcast
    reads: Sanders and Kandrot, "CUDA by Example", chapter 6.
"""

from gemv.core.geometry import Geometry, Launch, ceil_div
from gemv.kernels.kernel import Kernel


def build(spec):
    from gemv.language import cuda, update

    zero, op = spec.zero, spec.op

    def thread_per_row(rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy):
        if alpha == 0:
            cols = 0
        for i in range(cuda.grid(1), rows, cuda.gridsize(1)):
            total = zero
            for j in range(cols):
                total += op(a[i * row_stride + j * col_stride]) * x[j * incx]
            update(alpha, total, beta, y, i * incy)

    return (thread_per_row,)


def geometry(problem, device, knobs):
    threads = knobs["THREADS_PER_BLOCK"]
    blocks = min(ceil_div(problem.rows, threads), knobs["MAX_BLOCKS"])
    return Geometry((Launch((blocks, 1, 1), (threads, 1, 1)),))


KERNEL = Kernel(
    name="thread_per_row",
    rung=2,
    build=build,
    geometry=geometry,
    tile=lambda knobs: (knobs["THREADS_PER_BLOCK"], 1),
    # Small blocks spread a modest number of rows over more multiprocessors.
    teaching=True,
    knobs={"THREADS_PER_BLOCK": 64, "MAX_BLOCKS": 1 << 20},
    small_knobs={"THREADS_PER_BLOCK": 4, "MAX_BLOCKS": 2},
    doc=__doc__,
)
