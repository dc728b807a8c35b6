"""Kernels that several vectors can share a read of A with, and where a product alone needs one.

Several vectors have the sums of the product alone, bit for bit. So the kernel of the product alone
decides whether one read of A can serve several vectors: another kernel has to have its sums. Those
that read rows or columns by loads of one width have such a kernel beside them (:data:`SEVERAL`).
Rows in clusters have one for up to 320 rows. Clusters for columns have none, nor have kernels that
begin wherever a line begins, and then A is read once for each vector. From the L2 cache that takes
little time if A is a few megabytes. But 4 vectors with 8192 x 8192 float64, whose product alone was
computed in clusters, took an NVIDIA H100 695 us, and 175 with one read of A.

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

Few columns of many rows are a case apart. A block of ``vector_columns`` adds up the sums of its
columns at its end, and for eight vectors these are more bytes than it has read of A. 1048576 x 64
took an H100 161 us in bfloat16, 164 in float32 and 426 in complex64. By ``long_columns``, where a
thread has its rows for itself, it was 57, 105 and 209. A product alone gains as well, if there are
threads enough: of 163 such problems with times of both, that kernel was the faster one in all but
six, and there it took less than 1 % more. A thread has as many rows as a load has elements, so
87168 x 208 float16 has 10896 threads. They keep fewer bytes on their way than the memory wants: it
took an H200 15.0 us, and 10.2 by ``vector_columns``. 65536 x 256 float32 has 16384 threads, and the
time of cuBLAS, 19.2 us.

The same holds for a smaller A with up to 16 columns of 2-byte numbers, or up to 32 of others. us on
an H200 by ``vector_columns`` and by ``long_columns``: 131072 x 16 float16 3.3 and 3.2 alone, 8.5
and 5.9 with eight vectors; 131072 x 32 float32 6.05 and 6.02, 12.2 and 7.9. But 131072 x 32 float16
took 4.2 and 4.5 alone.

Of the launches that vectors can share, some leave eight vectors much less to do than others, while
a product alone takes as long. :func:`shares_well` knows them, by times in us on an H200:

==========================  ===========================================  ============  ============
A                           launch of a product alone                    alone         eight vectors
==========================  ===========================================  ============  ============
float64 F, 1048576 x 64     ``vector_columns``, 32 lanes, 256 threads    124.6         247.3
..                          ``long_columns``                             124.2         144.3
float64 F, 8192 x 8192      ``vector_columns``, 32 lanes, 256 threads    122.6         143.8
..                          ``vector_columns``, 32 lanes, 512 threads    120.5         123.9
float64 F, 64 x 1048576     ``vector_columns``, 8 lanes, 2 blocks        119.4         182.7
..                          ``vector_columns``, 32 lanes, 2 blocks       125.3         218.4
..                          ``vector_columns``, 32 lanes, 1 block        120.9         167.7
..                          ``vector_columns``, 16 lanes, 1 block        119.1         147.2
bfloat16 C, 64 x 1048576    ``vector_rows``, 32 lanes, 4 blocks          33.0          75.3
..                          ``vector_rows``, 32 lanes, 2 blocks          32.7          65.2
==========================  ===========================================  ============  ============

And on an H100:

==========================  ===========================================  ============  ============
A                           launch of a product alone                    alone         eight vectors
==========================  ===========================================  ============  ============
bfloat16 F, 8192 x 8192     ``vector_columns``, 32 lanes, 256 threads    45.3          60.8
..                          ``vector_columns``, 8 lanes, 512 threads     45.0          47.9
bfloat16 F, 16384 x 16384   ``vector_columns``, 32 lanes, 256 threads    176.9         218.6
..                          ``vector_columns``, 8 lanes, 512 threads     178.7         186.2
..                          ``vector_columns``, 16 lanes, 512 threads    173.2         181.0
bfloat16 F, 16384 x 2048    ``vector_columns``, 8 lanes, 256 threads     23.1          26.3
..                          ``vector_columns``, 8 lanes, 512 threads     24.4          28.1
..                          ``vector_columns``, 16 lanes, 512 threads    23.2          26.7
bfloat16 F, 3000 x 70000    ``vector_columns``, 16 lanes, 2 blocks       151.2         147.3
..                          ``vector_columns``, 8 lanes, 512, split      152.4         172.6
bfloat16 F, 8192 x 4096     ``vector_columns``, 32 lanes, 2 blocks       24.2          30.9
..                          ``vector_columns``, 8 lanes, 512 threads     23.5          25.5
bfloat16 F, 4096 x 16384    ``vector_columns``, 8 lanes, 512 threads     46.3          59.1
..                          ``vector_columns``, 16 lanes, 2 blocks       45.5          49.5
bfloat16 C, 128 x 524288    ``vector_rows``, 512 lanes                   45.9          210.0
..                          ``vector_rows``, 256 lanes, 1 block          48.3          452.5
..                          ``vector_rows``, 32 lanes, 4 blocks          47.2          65.5
bfloat16 C, 256 x 262144    ``vector_rows``, 512 lanes                   45.0          113.4
..                          ``vector_rows``, 32 lanes, 2 blocks          47.9          95.2
..                          ``vector_rows``, 32 lanes, 4 blocks          47.1          65.9
float32 C, 128 x 262144     ``vector_rows``, 512 lanes                   45.5          100.0
..                          ``vector_rows``, 32 lanes, 4 blocks          47.0          56.3
float64 C, 128 x 131072     ``vector_rows``, 512 lanes                   45.8          131.8
..                          ``vector_rows``, 32 lanes, 4 blocks          47.0          58.2
complex64 C, 128 x 131072   ``vector_rows``, 512 lanes                   45.9          109.8
..                          ``vector_rows``, 32 lanes, 2 blocks          47.4          82.2
..                          ``vector_rows``, 32 lanes, 4 blocks          46.9          57.2
==========================  ===========================================  ============  ============

Blocks are those of each multiprocessor that columns are split for. Columns of 2-byte numbers that
are not split need rows for 80 blocks: with 8 lanes, 4096 rows are enough for 64. Complex64 has the
rule of float64, since its loads have as many elements and its sums as many registers. It was timed
on an H100 alone: with 32 lanes, 8192 x 8192 took 206 us for eight vectors by 256 threads and 181 by
512, and a product alone 177 and 173. The rule does not decide alone: 8192 x 8192 float64 keeps 256
threads, as 512 are expected to take a product alone more than 2.5 % longer. Few long rows are the
exception: they gain so much that a product alone may take 5 % longer (:func:`favour`).

Few long rows that are not split share well, too, where ``several_rows_in_shares`` takes them: eight
vectors of 100 x 100000 float64 took an H100 43.2 us, and 69.6 where rows are split for 4 blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

from gemv.core.geometry import LOAD_BYTES, MAY_BE_HOT
from gemv.core.problem import Problem
from gemv.kernels import get
from gemv.kernels.kernel import Kernel

#: Kernels that read a matrix once for several vectors, by the kernel whose sums they have; the
#: first one that has constants for the problem is taken.
SEVERAL = {
    "vector_rows": (
        "several_long_rows",
        "several_short_rows",
        "several_rows_in_shares",
        "several_staged_rows",
        "several_rows",
    ),
    "cluster_rows": ("several_rows_in_shares",),
    "vector_columns": ("several_columns",),
    "long_columns": ("several_long_columns",),
    "small_matrix": ("several_small",),
}
#: The factor of the least time up to which a launch that shares well is preferred, and the one for
#: few rows.
FAVOUR, FAVOUR_OF_FEW = 1.025, 1.05
#: The most rows that are few: of 2-byte numbers, and of others.
_FEW_SHORT, _FEW = 256, 128
#: Rows: most lanes, which few rows have; blocks that these are split for where there are up to so
#: many of 2-byte numbers, and otherwise.
_MOST_LANES, _BLOCKS_OF_FEWEST, _FEWEST, _BLOCKS_OF_FEW = 32, 2, 64, 4
#: The kernel for few rows that are not split alone, and the vectors that launches are judged by.
_IN_SHARES, _VECTORS = "several_rows_in_shares", 8
#: Columns: threads of a block, and least lanes for 8-byte numbers.
_THREADS, _LEAST_LANES = 512, 16
#: Columns of 2-byte numbers: lanes; least blocks that the rows are enough for if columns are not
#: split; otherwise threads, and blocks of each multiprocessor.
_LANES_OF_SHORT, _LEAST_BLOCKS, _SPLIT = (8, 16), 80, (256, 2)
#: Lines that are many.
_MANY_LINES = 1024
#: Least rows, least loads of a column, and most columns of a tall A, whose columns one thread adds
#: up; and most columns of a small one, with numbers of 2 bytes and with others.
_TALL_ROWS, _TALL_LOADS, _TALL_COLUMNS, _FEW_COLUMNS = 1 << 16, 16 << 10, 256, (16, 32)
#: Kernels with one beside them that takes few rows only.
_FOR_FEW = ("cluster_rows",)
#: Kernels whose loads have 16 bytes wherever lines begin, and the one for the shortest columns.
_ANYWHERE, _SHORT = ("phased_rows", "phased_columns"), "short_columns"


def shares_badly(kernel: Kernel, problem: Problem) -> bool:
    """Whether several vectors would take much longer with a large A, for too small a gain.

    They would read A once for each of them, or move more sums than numbers of A.
    """
    size = problem.dtype.itemsize
    if problem.access == "strided" or problem.splits_elements:
        return False  # no kernel reads it once for several vectors
    is_large = problem.rows * problem.cols * size > MAY_BE_HOT
    if kernel.name == "vector_columns":
        width = problem.widths[0]
        is_tall = problem.rows >= max(_TALL_ROWS, _TALL_LOADS * width)
        most = _TALL_COLUMNS if is_large else _FEW_COLUMNS[size > 2]
        return is_tall and problem.cols <= most and width * size == LOAD_BYTES
    if not is_large:
        return False
    if kernel.name in _FOR_FEW:
        return True
    anywhere = kernel.name in _ANYWHERE and size * problem.widths[0] == 2
    return kernel.name not in SEVERAL and kernel.name != _SHORT and not anywhere


def shares_well(kernel: Kernel, knobs: Mapping[str, int], blocks: int, problem: Problem) -> bool:
    """Whether a launch leaves eight vectors less to do than others, of a large A.

    `blocks` are those of each multiprocessor for which columns are split, 0 if they are not.
    """
    size = problem.dtype.itemsize
    if problem.rows * problem.cols * size <= MAY_BE_HOT or problem.widths[0] * size != LOAD_BYTES:
        return False
    if kernel.name == "vector_rows":
        return _rows_share_well(knobs, blocks, problem)
    if kernel.name == "vector_columns":
        return _columns_share_well(knobs, blocks, problem)
    return size == 8 and kernel.name == "long_columns"


def _rows_share_well(knobs: Mapping[str, int], blocks: int, problem: Problem) -> bool:
    lanes = knobs["LANES"]
    if _are_few(problem):
        if not blocks and _in_shares(problem, knobs):
            return True
        fewest = problem.dtype.itemsize == 2 and problem.rows <= _FEWEST
        wanted = _BLOCKS_OF_FEWEST if fewest else _BLOCKS_OF_FEW
        return lanes == _MOST_LANES and blocks == wanted
    if problem.dtype.itemsize != 2 or problem.rows < _MANY_LINES:
        return False
    return problem.whole and lanes <= _MOST_LANES and not blocks


def _in_shares(problem: Problem, knobs: Mapping[str, int]) -> bool:
    """Whether blocks take shares of rows for eight vectors, where no row is split alone."""
    kernel = get(_IN_SHARES)
    assert kernel.for_vectors is not None
    return kernel.accepts(problem) is None and bool(kernel.for_vectors(problem, knobs, _VECTORS))


def _columns_share_well(knobs: Mapping[str, int], blocks: int, problem: Problem) -> bool:
    lanes, threads = knobs["LANES"], knobs["THREADS_PER_BLOCK"]
    if problem.cols < _MANY_LINES:
        return False
    if problem.dtype.itemsize == 8:
        return threads == _THREADS and lanes >= _LEAST_LANES and blocks <= 1
    if problem.dtype.itemsize != 2 or lanes not in _LANES_OF_SHORT:
        return False
    if problem.rows >= _LEAST_BLOCKS * lanes * problem.widths[0]:
        return (threads, blocks) == (_THREADS, 0)
    return problem.rows >= _MANY_LINES and (threads, blocks) == _SPLIT


def favour(problem: Problem) -> float:
    """The factor of the least time up to which a launch that shares well is preferred."""
    return FAVOUR_OF_FEW if problem.access == "dot" and _are_few(problem) else FAVOUR


def _are_few(problem: Problem) -> bool:
    """Whether rows are so few that eight vectors leave multiprocessors idle, unless split."""
    return problem.rows <= (_FEW_SHORT if problem.dtype.itemsize == 2 else _FEW)
