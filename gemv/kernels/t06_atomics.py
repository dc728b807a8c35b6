"""The counter-example: every thread adds its share atomically, so two runs differ in last bits.

Idea
    An atomic addition cannot be interrupted, so threads need no tree and blocks need no scratch
    array: all threads of a block add to one number in shared memory, then one thread a block adds
    that to y[i]. It is short and it is correct. But additions happen in the order in which threads
    arrive, floating-point addition is not associative, and so the last bits of y change from run
    to run. That is why no kernel that the package selects uses a floating-point atomic.

    beta is the trap of the tiles again, and here it needs a kernel that runs first: y has to be
    scaled before the first block adds to it.

Picture
    ::

        first kernel     y[i] := beta * y[i]

        second kernel    columns of split 0     | columns of split 1     | ...
        row i            T0 T1 ... T255 T0 ...  | T0 T1 ... T255 T0 ...  |
                          \\  |      /             \\  |      /
                         shared sum (atomic)      shared sum (atomic)
                                   \\               /
                                    y[i] (atomic)           who comes first differs each time

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0]) + 2 * splits*m) * itemsize; the additions to y are
    done by L2, next to the memory, and nothing travels back.

Wins
    Few rows with very many columns, against the kernels that give a row to one block or one warp.

Loses
    Reproducibility; and a queue of 256 additions to one address takes longer than a tree of eight
    levels: the shorter the rows, the more it is all that one sees.

Sums
    In order of arrival: bits may change from run to run. A complex number is added as two reals,
    because the hardware has no atomic addition for a pair.

Source
    Global and shared memory atomics: S. Collange, "GPU programming: code optimization part 3 and
    advanced features".
"""

from gemv.core.dtypes import dtype_name
from gemv.core.geometry import Geometry, Launch, ceil_div
from gemv.kernels.depths import in_order, shared_out
from gemv.kernels.grids import split_columns
from gemv.kernels.kernel import Kernel


def build(spec):
    from gemv.language import atomic_add, cuda, update

    zero, op = spec.zero, spec.op
    real = spec.zero.real.dtype.type
    COMPLEX = spec.dtype.kind == "c"
    THREADS_PER_BLOCK = spec["THREADS_PER_BLOCK"]

    def scale(rows, beta, y, incy):
        for i in range(cuda.grid(1), rows, cuda.gridsize(1)):
            update(zero, zero, beta, y, i * incy)

    def add(rows, cols, cols_per_split, alpha, a, row_stride, col_stride, x, incx, y, incy):
        parts = cuda.shared.array(2, real)
        tid = cuda.threadIdx.x
        start = cuda.blockIdx.y * cols_per_split
        end = min(cols, start + cols_per_split)
        if alpha == 0:
            rows = 0  # y is scaled already, and there is nothing to add
        for i in range(cuda.blockIdx.x, rows, cuda.gridDim.x):
            if tid < 2:
                parts[tid] = 0
            cuda.syncthreads()  # the sum is zero before the first thread adds
            total = zero
            for j in range(start + tid, end, THREADS_PER_BLOCK):
                total += op(a[i * row_stride + j * col_stride]) * x[j * incx]
            cuda.atomic.add(parts, 0, total.real)
            if COMPLEX:
                cuda.atomic.add(parts, 1, total.imag)
            cuda.syncthreads()  # the last thread has added
            if tid == 0:
                if COMPLEX:
                    atomic_add(y, i * incy, alpha * complex(parts[0], parts[1]))
                else:
                    atomic_add(y, i * incy, alpha * parts[0])
            cuda.syncthreads()  # thread 0 has read the imaginary part, which thread 1 clears

    return (scale, add)


def accepts(problem):
    if problem.precision.sums != problem.y_dtype:
        return f"each addition to a y of {dtype_name(problem.y_dtype)} would be rounded"
    return None


def geometry(problem, device, knobs):
    threads, most = knobs["THREADS_PER_BLOCK"], knobs["MAX_BLOCKS"]
    splits, cols_per_split = split_columns(problem.cols, threads, problem.rows, threads, device)
    return Geometry(
        (
            Launch((min(ceil_div(problem.rows, threads), most), 1, 1), (threads, 1, 1)),
            Launch((min(problem.rows, most), splits, 1), (threads, 1, 1)),
        ),
        sizes={"cols_per_split": cols_per_split},
    )


def depth(problem, geometry, knobs):
    # In the worst order the thread with most products is first, and so is the block with most.
    threads, splits = knobs["THREADS_PER_BLOCK"], geometry.launches[1].grid[1]
    products = shared_out(min(geometry.sizes["cols_per_split"], problem.cols), threads)
    return int(in_order(products - 1)) + splits - 1


KERNEL = Kernel(
    name="atomics",
    rung=6,
    build=build,
    geometry=geometry,
    tile=lambda knobs: (1, knobs["THREADS_PER_BLOCK"]),
    depth=depth,
    knobs={"THREADS_PER_BLOCK": 256, "MAX_BLOCKS": 1 << 20},
    small_knobs={"THREADS_PER_BLOCK": 8, "MAX_BLOCKS": 2},
    teaching=True,
    beside=True,
    same_bits=False,
    accepts=accepts,
    doc=__doc__,
)
