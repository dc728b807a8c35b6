"""Kernels that several vectors can share a read of A with, and where a product alone needs one.

Several vectors have the sums of the product alone, bit for bit. So the kernel of the product alone
decides whether one read of A can serve several vectors: another kernel has to have its sums. Those
that read rows or columns by loads of one width have such a kernel beside them (:data:`SEVERAL`).
Clusters, and kernels that begin wherever a line begins, have none, and then A is read once for each
vector. From the L2 cache that takes little time. But 4 vectors with 8192 x 8192 float64, whose
product alone was computed in clusters, took an NVIDIA H100 695 us, and 175 with one read of A.

So a matrix that the L2 cache does not hold gets a kernel with another one beside it. What that
costs a product alone is told by all launches that campaigns on an H200 and on an H100 have timed
(``benchmarks/results/fit``): the best that vectors can share, compared with the best of all. With
loads of 4 bytes or more it is 0.3 % and 0.4 % in the mean of 675 problems, less than 3 % in 95 % of
them, and 6 % and 10 % at most. There are two exceptions, where several vectors read A several
times:

- Where lines of 2-byte numbers begin anywhere, loads have 2 bytes, and it would cost 14 % in the
  mean on an H200, and 5 % on an H100. There kernels that find multiples of 16 bytes are compared.
- Columns of a few elements are loaded as one stretch of memory by a kernel of their own. Others
  take up to twice as long, because most of their threads have nothing to load.
"""

from __future__ import annotations

from collections.abc import Mapping

from gemv.core.geometry import LOAD_BYTES
from gemv.core.problem import Problem
from gemv.kernels.kernel import Kernel

#: Kernels that read a matrix once for several vectors, by the kernel whose sums they have; the
#: first one that has constants for the problem is taken.
SEVERAL = {
    "vector_rows": (
        "several_long_rows",
        "several_short_rows",
        "several_staged_rows",
        "several_rows",
    ),
    "vector_columns": ("several_columns",),
    "long_columns": ("several_long_columns",),
    "small_matrix": ("several_small",),
}
#: An A of at most so many bytes may be in the L2 cache, when it is read again.
MAY_BE_HOT = 24 << 20
#: Lanes of a row up to which eight vectors of 2-byte numbers share A well, and the factor of the
#: least time up to which such a launch is preferred.
FAVOURED_LANES, FAVOUR = 32, 1.025
#: Kernels whose loads have 16 bytes wherever lines begin, and the one for the shortest columns.
_ANYWHERE, _SHORT = ("phased_rows", "phased_columns"), "short_columns"


def rereads(kernel: Kernel, problem: Problem) -> bool:
    """Whether several vectors would read a large A once for each of them, for too small a gain."""
    size = problem.dtype.itemsize
    return (
        kernel.name not in SEVERAL
        and kernel.name != _SHORT
        and problem.rows * problem.cols * size > MAY_BE_HOT
        # Else no kernel reads it once for several vectors.
        and problem.access != "strided"
        and not problem.splits_elements
        and not (kernel.name in _ANYWHERE and size * problem.widths[0] == 2)
    )


def shares_well(kernel: Kernel, knobs: Mapping[str, int], blocks: int, problem: Problem) -> bool:
    """Whether a launch leaves eight vectors less to do than others, of a large A by rows.

    `blocks` are those of each multiprocessor for which columns are split, 0 if they are not.
    """
    size = problem.dtype.itemsize
    return (
        size == 2
        and kernel.name == "vector_rows"
        and not blocks
        and knobs["LANES"] <= FAVOURED_LANES
        and problem.whole
        and problem.widths[0] * size == LOAD_BYTES
        and MAY_BE_HOT < problem.rows * problem.cols * size
    )
