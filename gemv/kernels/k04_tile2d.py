"""A square of threads on a tile of A, and the columns of one row spread over several blocks.

Idea
    One block a row leaves most of the GPU idle when rows are few. So cut the matrix both ways: a
    block of 16 x 16 threads takes 16 rows of a range of columns. Its partial sums meet in a
    two-dimensional shared array, and those of different blocks in a scratch array in memory.

    The trap is beta. Several blocks now share y[i], so none of them may write
    ``alpha*part + beta*y[i]``: beta*y would be added once for every block. Letting only the first
    block apply beta does not help either, because blocks run in any order and another one may
    have added its part before. Here beta is applied exactly once, by a second kernel that runs
    when all partial sums are there: two launches on one stream are the simplest barrier for a
    whole grid.

Picture
    ::

                   columns of split 0   |  columns of split 1   |  ...
        16 rows    block (0, 0)         |  block (0, 1)         |     -> scratch[split, row]
        16 rows    block (1, 0)         |  block (1, 1)         |
                                                                       second kernel: thread i
        block:     thread (tx, ty) adds row tx, every 16th column      adds scratch[:, i], then
                   from ty on; sums[tx, ty] is a 16 x 16 array         alpha, beta and y[i]

Bytes
    (m*n + len(x) * m/16 + 2 * splits*m + len(y) * (1 + [beta != 0])) * itemsize as asked for; x
    and the scratch array come from L2.

Wins
    Few rows with many columns, and A stored along columns, against the kernel with one block a
    row.

Loses
    Two faults are left in on purpose, as one meets them when writing A[i, j] down naively, i with
    threadIdx.x. For A stored along rows, neighbouring threads read a whole row apart. And
    neighbouring threads use sums[tx, ty] with a pitch of 16 numbers, so in float32 the 32 threads
    of a warp fall on 4 of the 32 banks. The next rung repairs both.

Sums
    Each thread over every 16th column of its split, a tree over the 16 threads, then the splits
    from first to last. The order depends on the shape and the number of multiprocessors. Same
    bits on every run.

Source
    "Matrix-vector product", a CUDA exercise of EPCC: columns over several blocks, a
    two-dimensional shared array, blockDim.x == blockDim.y, and its question what beta complicates.
"""

from gemv.core.geometry import Geometry, Launch, ceil_div
from gemv.kernels.depths import in_halves, in_order, of_splits, shared_out
from gemv.kernels.grids import split_columns
from gemv.kernels.kernel import Kernel


def build(spec):
    from gemv.language import cuda, update

    number, zero, op = spec.number, spec.zero, spec.op
    TILE = spec["TILE"]
    THREADS_COMBINE = spec["THREADS_COMBINE"]

    def partial_sums(
        rows, cols, cols_per_split, alpha, a, row_stride, col_stride, x, incx, scratch
    ):
        sums = cuda.shared.array((TILE, TILE), number)
        tx = cuda.threadIdx.x
        ty = cuda.threadIdx.y
        split = cuda.blockIdx.y
        end = min(cols, (split + 1) * cols_per_split)
        if alpha == 0:
            end = 0
        for row0 in range(cuda.blockIdx.x * TILE, rows, cuda.gridDim.x * TILE):
            i = row0 + tx
            total = zero
            if i < rows:  # the last tile may hang over the edge
                for j in range(split * cols_per_split + ty, end, TILE):
                    total += op(a[i * row_stride + j * col_stride]) * x[j * incx]
            sums[tx, ty] = total
            cuda.syncthreads()  # all sums are in place; threads past the edge came along
            half = TILE // 2
            while half > 0:
                if ty < half:
                    sums[tx, ty] += sums[tx, ty + half]
                cuda.syncthreads()
                half //= 2
            if ty == 0 and i < rows:
                scratch[split * rows + i] = sums[tx, 0]
            # The next tile needs no barrier here: a thread with ty == 0 alone overwrites the sum
            # that it has read, and all others were read before the last barrier of the tree.

    def combine(rows, splits, alpha, scratch, beta, y, incy):
        first = cuda.blockIdx.x * THREADS_COMBINE + cuda.threadIdx.x
        for i in range(first, rows, cuda.gridDim.x * THREADS_COMBINE):
            total = zero
            for split in range(splits):
                total += scratch[split * rows + i]
            update(alpha, total, beta, y, i * incy)

    return (partial_sums, combine)


def geometry(problem, device, knobs):
    tile, threads = knobs["TILE"], knobs["THREADS_COMBINE"]
    most = knobs["MAX_BLOCKS"]
    row_tiles = ceil_div(problem.rows, tile)
    splits, cols_per_split = split_columns(problem.cols, tile, row_tiles, tile * tile, device)
    return Geometry(
        (
            Launch((min(row_tiles, most), splits, 1), (tile, tile, 1)),
            Launch((min(ceil_div(problem.rows, threads), most), 1, 1), (threads, 1, 1)),
        ),
        sizes={"splits": splits, "cols_per_split": cols_per_split},
        scratch=splits * problem.rows,
    )


def depth(problem, geometry, knobs):
    def in_block(columns):
        return in_halves(shared_out(columns, knobs["TILE"]) - 1)

    return int(in_order(of_splits(problem, geometry, in_block)))


KERNEL = Kernel(
    name="tile2d",
    rung=4,
    build=build,
    geometry=geometry,
    tile=lambda knobs: (knobs["TILE"], knobs["TILE"]),
    depth=depth,
    # A power of two, so that the tree halves evenly.
    teaching=True,
    knobs={"TILE": 16, "THREADS_COMBINE": 128, "MAX_BLOCKS": 1 << 20},
    small_knobs={"TILE": 4, "THREADS_COMBINE": 4, "MAX_BLOCKS": 2},
    doc=__doc__,
)
