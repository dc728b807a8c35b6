"""Counts of what one launch of a kernel does, for a formula that turns them into seconds.

Each kernel that selection may choose has a function ``work``, which counts its work. All kernels
count the same things in the same units, so one formula compares any two of them. The counts are
integer arithmetic, and take as long for a small matrix as for a large one.
"""

from __future__ import annotations

from typing import NamedTuple

from gemv.core.geometry import (
    CACHE_LINE_BYTES,
    LOAD_BYTES,
    SECTOR_BYTES,
    Geometry,
    ceil_div,
)
from gemv.core.problem import Problem


class Work(NamedTuple):
    """The work of one launch on one problem with alpha other than zero.

    A count of "the most" is the largest of any thread; two such counts may be of different threads.
    If a count depends on addresses that a :class:`~gemv.core.problem.Problem` does not have, it is
    the largest count for any such addresses.

    Attributes
    ----------
    blocks : int
        Blocks of the grid.
    threads : int
        Threads of a block.
    splits : int
        Blocks that share a tile of rows; 1 if the columns are not split. They pass their sums
        through global memory, or through shared memory if they are a cluster.
    bytes : int
        Bytes of A that blocks load, in whole sectors of 32 bytes. Each block counts all sectors of
        its part of each line of A (a row for dot kernels, a column for axpy kernels). So a sector
        that two blocks or two lines share counts twice. Lanes past the edge that read the last
        vector again do not count. :func:`bytes_of_lines` says where the count is exact.
    written : int
        Bytes of y that are stored.
    scratch : int
        Bytes of partial sums that splits store for the block that adds them up.
    passes : int
        The most passes of a thread. In a *pass* a thread issues several loads of A together and
        waits for them. The remainder behind the full passes counts as one pass. Elements behind the
        last vector of each row count as many passes as the kernel has waits for them.
    edge_passes : int
        The most waits of a thread, in addition to its passes, for single elements at the edge of A:
        rows that fill no vector, or elements at both ends of the matrix. Few blocks have any.
    flight : int
        Bytes of A that a thread has in flight in a full pass.
    loads : int
        The most load instructions for A that a thread executes in its passes. Loads that are masked
        out do not count.
    x_loads : int
        The most load instructions for x that a thread executes in its passes. A vector of x counts
        one. It counts two if the thread makes it from two neighbouring vectors, and the number of
        its elements if they are loaded one by one.
    multiply_adds : int
        The most fused multiply-adds of real numbers that a thread executes in its passes, including
        those with zeros in place of elements past the edge. A complex multiply-add counts four.
        Sums in a wider dtype count the same.
    busy_threads : int
        Threads of all blocks that load elements of A in passes; if there are none, threads that
        load elements at the edge.
    end_steps : int
        Steps in sequence from the last product of a full block to its y or its partial sums. Each
        step of shuffles, each barrier, and each addition of a number from shared memory counts one.
    collects : int
        Rounds in sequence in which a thread of the last block loads partial sums from global
        memory; 0 without splits, and in a cluster.
    shared_bytes : int
        Bytes of shared memory that a block declares.
    warp_lines : int
        Cache lines of 128 bytes that one load of A by a full warp touches, if each group of threads
        that shares a line of A begins at the start of a cache line. Groups that lie side by side in
        memory share cache lines. The L1 cache looks up these cache lines one after the other.
    cluster : int
        Blocks of a cluster; 1 without clusters. Its `splits` send their sums to each other's shared
        memory. To wait for them is one of the `end_steps`, as a barrier is.
    """

    blocks: int
    threads: int
    splits: int
    bytes: int
    written: int
    scratch: int
    passes: int
    edge_passes: int
    flight: int
    loads: int
    x_loads: int
    multiply_adds: int
    busy_threads: int
    end_steps: int
    collects: int
    shared_bytes: int
    warp_lines: int
    cluster: int = 1


def work_of(
    problem: Problem,
    geometry: Geometry,
    *,
    bytes: int,
    passes: int,
    flight: int,
    loads: int,
    x_loads: int,
    products: int,
    busy_threads: int,
    warp_lines: int,
    edge_passes: int = 0,
    end_steps: int = 0,
    collects: int = 0,
    sums_shared: int = 0,
    cluster: int = 0,
) -> Work:
    """The Work of a kernel: its own counts, and those that follow from problem and geometry.

    `products` is the number of multiply-adds of elements, which may be complex. `sums_shared` is
    the number of elements of the shared arrays. A block with such arrays also has a ticket of 4
    bytes, or a counter of 8 in a cluster. `cluster` is 0 for a kernel without clusters.
    """
    launch, precision = geometry.launches[0], problem.precision
    sum_bytes = precision.sums.itemsize
    return Work(
        blocks=launch.grid[0] * launch.grid[1],
        threads=launch.block[0] * launch.block[1],
        splits=launch.grid[1],
        bytes=bytes,
        written=problem.rows * precision.y.itemsize,
        scratch=geometry.scratch * sum_bytes,
        passes=passes,
        edge_passes=edge_passes,
        flight=flight,
        loads=loads,
        x_loads=x_loads,
        multiply_adds=products * (4 if problem.dtype.kind == "c" else 1),
        busy_threads=busy_threads,
        end_steps=end_steps,
        collects=collects if launch.grid[1] > 1 else 0,
        shared_bytes=sums_shared * sum_bytes + (8 if cluster else 4) if sums_shared else 0,
        warp_lines=warp_lines,
        cluster=max(cluster, 1),
    )


def lines_of_warp(
    problem: Problem, threads: int, lanes: int, vector_bytes: int, apart: int = 1
) -> int:
    """:attr:`Work.warp_lines` where `lanes` threads load neighbouring vectors of a line of A.

    If `lanes` is less than a warp, the warp has several such groups. The line of A of one group is
    `apart` lines after that of the group before.
    """
    of_warp = min(threads, 32)
    along = min(lanes, of_warp)
    groups, reach = of_warp // along, along * vector_bytes
    step = problem.col_stride if problem.access == "axpy" else problem.row_stride
    pitch = abs(step) * problem.dtype.itemsize * apart
    close = ceil_div((groups - 1) * pitch + reach, CACHE_LINE_BYTES)
    return min(groups * ceil_div(reach, CACHE_LINE_BYTES), close)


def steps_of_tree(parties: int) -> int:
    """Steps in which `parties` partial sums, a power of two, become one by adding pairs."""
    steps = 0
    while parties > 1:
        parties //= 2
        steps += 1
    return steps


def columns_of_splits(problem: Problem, geometry: Geometry) -> tuple[int, int]:
    """The number of columns of the first split, which is the largest, and of the last split."""
    splits, most = geometry.sizes["splits"], geometry.sizes["cols_per_split"]
    if splits == 1:
        return problem.cols, problem.cols
    return most, problem.cols - (splits - 1) * most


def rounds_of_warps(rows: int, tile_rows: int, warps: int, splits: int, batch: int) -> int:
    """Rounds of `batch` sums per thread, where one warp or several add up the splits of a row.

    `rows` is the number of rows of y in a tile of `tile_rows`.
    """
    of_a_row = max(warps // tile_rows, 1)
    return ceil_div(rows, warps // of_a_row) * rounds_of_finishers(splits, 32 * of_a_row, batch)


def rounds_of_finishers(splits: int, finishers: int, batch: int) -> int:
    """Rounds of `batch` sums per thread, where `finishers` threads add up the splits of a row."""
    return ceil_div(splits, finishers * batch)


def bytes_of_lines(problem: Problem, cuts: int = 0, pitch: int = 0) -> int:
    """Bytes of the lines of A in whole sectors, counted for each line separately.

    Each line is cut `cuts` times, at distances of `pitch` bytes, into the parts of different
    blocks. A sector with a cut inside counts twice.

    Addresses of lines modulo 32 repeat after at most 16 lines, the period. The count is exact for
    whole periods. Each remaining line counts as many sectors as the worst line of a period. An
    address that is known to be a multiple of 16 counts as a multiple of 32, because newly allocated
    arrays begin at one. Otherwise lines begin as late in a sector as their known alignment allows.
    """
    size = problem.dtype.itemsize
    step = problem.col_stride if problem.access == "axpy" else problem.row_stride
    return bytes_of_stretches(
        problem.lines,
        problem.line_bytes,
        step * size if problem.lines > 1 else 0,
        problem.a_alignment or min(size, LOAD_BYTES),
        cuts,
        pitch,
    )


def bytes_of_tiles(problem: Problem, tiles: int, tile_rows: int) -> int:
    """:func:`bytes_of_lines` for columns cut into tiles of rows that have no vector in common."""
    width, size = problem.widths[0], problem.dtype.itemsize
    edge = problem.rows // width * width
    if 0 < edge == (tiles - 1) * tile_rows < problem.rows:
        # All rows of the last tile are behind the last vector, and it also reads that vector.
        again = problem.cols * SECTOR_BYTES
        return bytes_of_lines(problem, tiles - 2, tile_rows * size) + again
    return bytes_of_lines(problem, tiles - 1, tile_rows * size)


def bytes_of_stretches(
    count: int, nbytes: int, apart: int, aligned: int, cuts: int = 0, pitch: int = 0
) -> int:
    """:func:`bytes_of_lines` for `count` stretches of `nbytes`, which begin `apart` bytes apart.

    `aligned`, a power of two up to 16, divides their addresses.
    """
    cycle = SECTOR_BYTES  # of `period` stretches, one begins in each `cycle` bytes of a sector
    while apart % cycle:
        cycle //= 2
    period = SECTOR_BYTES // cycle
    # The offset within these `cycle` bytes at which it begins.
    past = 0 if aligned >= min(cycle, LOAD_BYTES) else cycle - aligned
    # Hermite's identity adds up floor((past + k*cycle + nbytes - 1) / 32) for k below the period.
    whole = period + (past + nbytes - 1) // cycle
    worst = 1 + (SECTOR_BYTES - cycle + past + nbytes - 1) // SECTOR_BYTES
    sectors = count // period * whole + count % period * worst
    # If any stretch begins at the start of a sector, one in each period does. Cuts at multiples of
    # a sector do not cut its sectors.
    clean = count // period if past == 0 and pitch % SECTOR_BYTES == 0 else 0
    return SECTOR_BYTES * (sectors + cuts * (count - clean))
