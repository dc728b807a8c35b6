"""One warp takes one row: the sum travels from register to register, with no barrier at all.

Idea
    The 32 lanes of a warp can read each other's registers. In a butterfly, lane L exchanges its
    sum with lane L xor 16, then 8, 4, 2, 1; after five steps every lane holds the whole sum. No
    shared memory, no block barrier: the eight warps of a block never wait for each other.

Picture
    ::

        column      0  1 ... 31 | 32 33 ... 63 | ...        block b, 8 warps: rows 8b .. 8b+7
        row 8b+w    L0 L1 ... L31  L0 L1 ... L31  ...       warp w = row 8b+w

        xor 16      L0 <-> L16   L1 <-> L17   ...           5 exchanges, then lane 0
        xor 8       L0 <-> L8    L1 <-> L9    ...           writes y[8b+w]
        ...
        xor 1       L0 <-> L1    L2 <-> L3    ...

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory; x comes to each block
    again, from L1 and L2.

Wins
    A stored along rows, against a block a row: five shuffles take the place of eight barriers, at
    512 x 512 as at 8192 x 8192.

Loses
    Few long rows: a row is one warp's work, and 32 loads at a time cannot fill the memory. Fewer
    than 32 columns: the other lanes idle. A stored along columns.

Sums
    Each lane over every 32nd column, then the butterfly, which adds in the same order in every
    lane up to exchange of operands. Same bits on every run.

Source
    Warp shuffles: S. Collange, "GPU programming: code optimization part 3 and advanced features".
    A complex number travels as two reals, because shuffles move 32 or 64 bits.
"""

from gemv.core.geometry import Geometry, Launch, ceil_div
from gemv.kernels.depths import in_halves, shared_out
from gemv.kernels.kernel import Kernel, no_twofold


def build(spec):
    from gemv.language import cuda, update

    zero, op, shfl_xor = spec.zero, spec.op, spec.shfl_xor
    WARPS_PER_BLOCK = spec["WARPS_PER_BLOCK"]

    def warp_per_row(rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy):
        lane = cuda.threadIdx.x
        if alpha == 0:
            cols = 0
        first = cuda.blockIdx.x * WARPS_PER_BLOCK + cuda.threadIdx.y
        # i is the same for all lanes of a warp, so they stay together up to each shuffle.
        for i in range(first, rows, cuda.gridDim.x * WARPS_PER_BLOCK):
            total = zero
            for j in range(lane, cols, 32):
                total += op(a[i * row_stride + j * col_stride]) * x[j * incx]
            total += shfl_xor(total, 16)
            total += shfl_xor(total, 8)
            total += shfl_xor(total, 4)
            total += shfl_xor(total, 2)
            total += shfl_xor(total, 1)
            if lane == 0:
                update(alpha, total, beta, y, i * incy)

    return (warp_per_row,)


def geometry(problem, device, knobs):
    warps = knobs["WARPS_PER_BLOCK"]
    blocks = min(ceil_div(problem.rows, warps), knobs["MAX_BLOCKS"])
    return Geometry((Launch((blocks, 1, 1), (32, warps, 1)),))


def depth(problem, geometry, knobs):
    return int(in_halves(shared_out(problem.cols, 32) - 1))


KERNEL = Kernel(
    name="warp_per_row",
    rung=6,
    accepts=no_twofold,
    build=build,
    geometry=geometry,
    tile=lambda knobs: (knobs["WARPS_PER_BLOCK"], 32),
    depth=depth,
    teaching=True,
    knobs={"WARPS_PER_BLOCK": 8, "MAX_BLOCKS": 1 << 20},
    small_knobs={"WARPS_PER_BLOCK": 2, "MAX_BLOCKS": 2},
    doc=__doc__,
)
