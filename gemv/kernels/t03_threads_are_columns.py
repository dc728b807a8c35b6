"""The textbook's first step: a block for each row and a thread for each column, no loop at all.

Idea
    Both loops of the serial version go at once: block i is row i, thread j is column j. Each
    thread makes one product; a tree in shared memory adds them up. The price is stated by
    ``accepts``: a block has at most 1024 threads, so this kernel refuses more columns.

Picture
    ::

        block i:   a[i,0]*x[0]  a[i,1]*x[1]  a[i,2]*x[2]  a[i,3]*x[3]  a[i,4]*x[4]
                      T0            T1           T2           T3           T4
        half = 3:     T0 += T3      T1 += T4     T2 (5 is odd: the middle one waits)
        half = 2:     T0 += T2      T1
        half = 1:     T0 += T1      -> y[i]

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory; x comes to every block
    again, from L2.

Wins
    In a lecture: the shortest parallel dot product that is right for any number of threads.

Loses
    More than 1024 columns cannot run. One product a thread is too little work: most of a block's
    life is launch, barriers and the idle half of the tree.

Sums
    Pairwise over the columns in an order fixed by their number. Same bits on every run.

Source
    "Matrix-vector product", a CUDA exercise of EPCC, first suggested step: one block a row and as
    many columns as threads.
"""

from gemv.core.geometry import MAX_GRID_X, Geometry, Launch
from gemv.kernels.kernel import Kernel

MAX_THREADS = 1024


def build(spec):
    from gemv.language import cuda, update

    number, zero, op = spec.number, spec.zero, spec.op

    def threads_are_columns(rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy):
        products = cuda.shared.array(MAX_THREADS, number)
        i = cuda.blockIdx.x
        j = cuda.threadIdx.x
        product = zero
        if alpha != 0:
            product = op(a[i * row_stride + j * col_stride]) * x[j * incx]
        products[j] = product
        cuda.syncthreads()  # every product is in place before a neighbour reads it
        count = cols
        while count > 1:
            half = (count + 1) // 2
            if j + half < count:
                products[j] += products[j + half]
            cuda.syncthreads()  # this level is complete before the next one reads it
            count = half
        if j == 0:
            update(alpha, products[0], beta, y, i * incy)

    return (threads_are_columns,)


def accepts(problem):
    if problem.cols > MAX_THREADS:
        return f"a thread for each column needs at most {MAX_THREADS} columns, not {problem.cols}"
    if problem.rows > MAX_GRID_X:
        return f"a block for each row needs at most {MAX_GRID_X} rows, not {problem.rows}"
    return None


def geometry(problem, device, knobs):
    return Geometry((Launch((problem.rows, 1, 1), (problem.cols, 1, 1)),))


KERNEL = Kernel(
    name="threads_are_columns",
    rung=3,
    build=build,
    geometry=geometry,
    tile=lambda knobs: (1, 32),
    depth=lambda problem, geometry, knobs: (problem.cols - 1).bit_length(),
    teaching=True,
    beside=True,
    accepts=accepts,
    doc=__doc__,
)
