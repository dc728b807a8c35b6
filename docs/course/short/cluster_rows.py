"""The blocks of a cluster share a row, and send their sums into the memory of the first of them.

The rung has wide loads, and several rows for a cluster. These rows are dealt out over its blocks:
the sums of a row meet in the block that got the row, so that no block adds up all of them.
"""

import numpy as np

from gemv.core.geometry import Geometry, Launch, ceil_div
from gemv.kernels.kernel import Kernel, attach
from gemv.language import (
    butterfly,
    cluster_arrive,
    cluster_expect,
    cluster_post,
    cluster_rank,
    cluster_take,
    cluster_wait,
    cuda,
    update,
)

CLUSTER = 4


def build(spec):
    number, zero, op = spec.number, spec.zero, spec.op

    def shared_row(rows, cols, cols_per_split, alpha, a, row_stride, x, incx, beta, y, incy):
        sums = cuda.shared.array((1, CLUSTER), number)  # a slot for each block
        box = cuda.shared.array(1, np.uint64)
        i, rank, lane = cuda.blockIdx.x, cluster_rank(), cuda.threadIdx.x
        if lane == 0:  # the first block says how many sums it waits for
            cluster_expect(box, sums, CLUSTER if rank == 0 else 0)
        cluster_arrive()
        end = min(cols, (rank + 1) * cols_per_split) if alpha != 0 else 0
        total = zero
        for j in range(rank * cols_per_split + lane, end, 32):
            total += op(a[i * row_stride + j]) * x[j * incx]
        part = butterfly((total,), 32, 1)
        cluster_wait()  # the first block expects the sums
        if lane == 0:
            cluster_post(box, sums, rank, 0, part, 1, 1, 1, 1)
        if rank == 0:
            cluster_take(box)  # all sums are there
            if lane == 0:
                total = sums[0, 0]
                for k in range(1, CLUSTER):
                    total += sums[0, k]
                update(alpha, total, beta, y, i * incy)

    return (attach(shared_row, cluster=CLUSTER),)


def geometry(problem, device, knobs):
    return Geometry(
        (Launch((problem.rows, CLUSTER, 1), (32, 1, 1)),),
        sizes={"cols_per_split": ceil_div(problem.cols, CLUSTER)},
    )


def accepts(problem):
    return None if problem.access == "dot" else "this is for memory along the sum"


KERNEL = Kernel(
    "shared_row", 14, build, geometry, tile=lambda knobs: (1, 32 * CLUSTER), accepts=accepts,
    doc=__doc__,
)  # fmt: skip
