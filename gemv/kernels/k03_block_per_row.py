"""One block takes one row: its threads share the sum and add it up in shared memory.

Idea
    Lift the limit "threads = columns": a thread adds every 256th product of the row in a register
    and only then the 256 partial sums meet in shared memory, where a tree halves their number
    eight times. The loop costs nothing and the tree is paid once a row instead of once a product.

Picture
    ::

        column     0  1 ... 255 | 256 257 ... 511 | 512 ...        block i = row i
        row i      T0 T1 ... T255  T0  T1 ... T255  T0  ...        each T keeps its own sum

        shared     [T0 T1 ...... T127 | T128 ............ T255]    128 add the right half
                   [T0 ... T63 | T64 ... T127]                     64 add the right half
                   ...                                             1: y[i]

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory; each block reads x again,
    from L2 as long as x fits there.

Wins
    A stored along rows (neighbouring threads read neighbouring columns) and rows of some thousand
    elements, at least a few rows for each multiprocessor.

Loses
    Short rows: with 100 columns most threads have nothing to add but go through eight barriers.
    Few rows: with 16 rows, 16 multiprocessors work and the others watch. A stored along columns:
    neighbouring threads read a whole column apart.

Sums
    Each thread left to right over every 256th column, then the tree. The order depends on the
    number of columns alone. Same bits on every run.

Source
    "Matrix-vector product", a CUDA exercise of EPCC: the loop over columns comes back. Barriers
    outside of divergent branches: S. Collange, "GPU programming: code optimization part 3".
"""

from gemv.core.geometry import Geometry, Launch
from gemv.kernels.depths import in_halves, shared_out
from gemv.kernels.kernel import Kernel


def build(spec):
    from gemv.language import cuda, update

    number, zero, op = spec.number, spec.zero, spec.op
    THREADS_PER_BLOCK = spec["THREADS_PER_BLOCK"]

    def block_per_row(rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy):
        sums = cuda.shared.array(THREADS_PER_BLOCK, number)
        tid = cuda.threadIdx.x
        if alpha == 0:
            cols = 0
        for i in range(cuda.blockIdx.x, rows, cuda.gridDim.x):
            total = zero
            for j in range(tid, cols, THREADS_PER_BLOCK):
                total += op(a[i * row_stride + j * col_stride]) * x[j * incx]
            sums[tid] = total
            cuda.syncthreads()  # all sums are in place before the tree reads them
            half = THREADS_PER_BLOCK // 2
            while half > 0:
                if tid < half:
                    sums[tid] += sums[tid + half]
                cuda.syncthreads()  # outside the branch: every thread must come to a barrier
                half //= 2
            if tid == 0:
                update(alpha, sums[0], beta, y, i * incy)
            # The next row needs no barrier here: thread 0 alone overwrites sums[0], after it has
            # read it, and all other sums were read before the last barrier of the tree.

    return (block_per_row,)


def geometry(problem, device, knobs):
    blocks = min(problem.rows, knobs["MAX_BLOCKS"])
    return Geometry((Launch((blocks, 1, 1), (knobs["THREADS_PER_BLOCK"], 1, 1)),))


def depth(problem, geometry, knobs):
    return int(in_halves(shared_out(problem.cols, knobs["THREADS_PER_BLOCK"]) - 1))


KERNEL = Kernel(
    name="block_per_row",
    rung=3,
    build=build,
    geometry=geometry,
    tile=lambda knobs: (1, knobs["THREADS_PER_BLOCK"]),
    depth=depth,
    # A power of two, so that the tree halves evenly.
    teaching=True,
    knobs={"THREADS_PER_BLOCK": 256, "MAX_BLOCKS": 1 << 20},
    small_knobs={"THREADS_PER_BLOCK": 8, "MAX_BLOCKS": 3},
    doc=__doc__,
)
