"""What one launch of a kernel does, in counts: what a formula needs that turns work into seconds.

Each kernel that selection may choose counts its own work, beside its ``geometry``. All count the
same things in the same units, so that one formula compares any two of them. There is nothing here
but integer arithmetic of a fixed number of steps, whatever the size of the matrix.
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

    "The most" is the largest number of any thread, each count for itself. Where a count depends on
    addresses that a :class:`~gemv.core.problem.Problem` does not tell, it is the largest that they
    allow.

    Attributes
    ----------
    blocks : int
        Blocks of the grid.
    threads : int
        Threads of a block.
    splits : int
        Blocks that share a tile of rows; 1 for none.
    bytes : int
        Bytes of A that blocks load, in whole sectors of 32 bytes: each block's part of a line of A
        counts all sectors that it touches. So a sector counts again where two blocks or two lines
        share it, and not where lanes past the edge read the last vector again. See
        :func:`bytes_of_lines` for what is exact.
    written : int
        Bytes of y that are stored.
    scratch : int
        Bytes of partial sums that splits leave for the block that adds them up.
    passes : int
        The most times that a thread waits for elements of A one after the other. What is left
        behind full passes is one more, and elements that fill no vector at the end of each row are
        as many as the kernel loads one after the other.
    edge_passes : int
        Further waits, each for one element of A, in the few blocks that have the edge of A: rows,
        or ends of the whole matrix, that fill no vector. The most of any thread.
    flight : int
        Bytes of A that a thread has in flight in a full pass.
    loads : int
        The most load instructions for A that a thread executes in its passes. A load that is
        masked out is none.
    x_loads : int
        The same for x. A vector of x is one; two where it is put together from its neighbours; as
        many as it has elements where these are loaded one by one.
    multiply_adds : int
        The most fused multiply-adds of real numbers that a thread executes in its passes, with
        those of zeros in place of elements that are not there. A complex one is four; wider sums
        count the same.
    busy_threads : int
        Threads of all blocks that load elements of A in passes; where nobody does, at the edge.
    end_steps : int
        Steps one after the other from the last product of a full block to its y or its partial
        sums: a step of shuffles, a barrier, and a number from shared memory that is added to the
        one before are one each.
    collects : int
        Rounds of partial sums that a thread of the last block takes one after the other; 0 without
        splits.
    shared_bytes : int
        Bytes of shared memory that a block declares.
    warp_lines : int
        Lines of 128 bytes of the cache that one load of A by a full warp touches, where each piece
        of a line of A begins with one of them; fewer where the pieces lie side by side. The L1
        cache looks up one after the other.
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
) -> Work:
    """A kernel's counts with those that follow from problem and geometry alike for all kernels.

    `products` are multiply-adds of elements, `sums_shared` elements of shared arrays. Each block
    with shared sums also has a ticket of 4 bytes.
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
        shared_bytes=sums_shared * sum_bytes + 4 if sums_shared else 0,
        warp_lines=warp_lines,
    )


def lines_of_warp(
    problem: Problem, threads: int, lanes: int, vector_bytes: int, apart: int = 1
) -> int:
    """:attr:`Work.warp_lines` where `lanes` threads load neighbouring vectors of a line of A.

    A warp has several such groups, if they are smaller; their lines are `apart` from each other.
    """
    of_warp = min(threads, 32)
    along = min(lanes, of_warp)
    groups, reach = of_warp // along, along * vector_bytes
    step = problem.col_stride if problem.access == "axpy" else problem.row_stride
    pitch = abs(step) * problem.dtype.itemsize * apart
    close = ceil_div((groups - 1) * pitch + reach, CACHE_LINE_BYTES)
    return min(groups * ceil_div(reach, CACHE_LINE_BYTES), close)


def steps_of_tree(parties: int) -> int:
    """Steps in which a power of two of parties add up in pairs."""
    steps = 0
    while parties > 1:
        parties //= 2
        steps += 1
    return steps


def columns_of_splits(problem: Problem, geometry: Geometry) -> tuple[int, int]:
    """Columns of the first split, which no other exceeds, and of the last."""
    splits, most = geometry.sizes["splits"], geometry.sizes["cols_per_split"]
    if splits == 1:
        return problem.cols, problem.cols
    return most, problem.cols - (splits - 1) * most


def rounds_of_warps(rows: int, tile_rows: int, warps: int, splits: int, batch: int) -> int:
    """Rounds of `batch` sums a thread where whole warps take those of a row, one or several each.

    `rows` are those that the tile of `tile_rows` really has.
    """
    of_a_row = max(warps // tile_rows, 1)
    return ceil_div(rows, warps // of_a_row) * rounds_of_finishers(splits, 32 * of_a_row, batch)


def rounds_of_finishers(splits: int, finishers: int, batch: int) -> int:
    """Rounds of `batch` sums a thread in which `finishers` threads take those of a row."""
    return ceil_div(splits, finishers * batch)


def bytes_of_lines(problem: Problem, cuts: int = 0, pitch: int = 0) -> int:
    """Bytes of the lines of A in whole sectors, each line by itself.

    Each line is cut `cuts` times, `pitch` bytes apart, into the parts of different blocks. A cut
    within a sector counts it twice.

    Addresses of lines modulo 32 repeat after at most 16 lines. Whole periods are exact; of the
    lines that are left each counts as the worst of a period. An address that is known to be a
    multiple of 16 is taken for one of 32, which arrays of their own have; otherwise lines begin as
    late in a sector as their known alignment allows.
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
    """:func:`bytes_of_lines` for columns cut into tiles of rows, whose vectors do not overlap."""
    width, size = problem.widths[0], problem.dtype.itemsize
    edge = problem.rows // width * width
    if 0 < edge == (tiles - 1) * tile_rows < problem.rows:
        # The last tile has only rows that fill no vector, and reads the vector before them as well.
        again = problem.cols * SECTOR_BYTES
        return bytes_of_lines(problem, tiles - 2, tile_rows * size) + again
    return bytes_of_lines(problem, tiles - 1, tile_rows * size)


def bytes_of_stretches(
    count: int, nbytes: int, apart: int, aligned: int, cuts: int = 0, pitch: int = 0
) -> int:
    """:func:`bytes_of_lines` for `count` stretches of `nbytes`, `apart` bytes from each other.

    `aligned`, a power of two up to 16, divides their addresses.
    """
    cycle = SECTOR_BYTES  # of `period` stretches one begins in each `cycle` bytes of a sector
    while apart % cycle:
        cycle //= 2
    period = SECTOR_BYTES // cycle
    # Where it begins there.
    past = 0 if aligned >= min(cycle, LOAD_BYTES) else cycle - aligned
    # Hermite's identity adds up floor((past + k*cycle + nbytes - 1) / 32) for k below the period.
    whole = period + (past + nbytes - 1) // cycle
    worst = 1 + (SECTOR_BYTES - cycle + past + nbytes - 1) // SECTOR_BYTES
    sectors = count // period * whole + count % period * worst
    # One in a period begins with a sector, if any does, and is cut between sectors.
    clean = count // period if past == 0 and pitch % SECTOR_BYTES == 0 else 0
    return SECTOR_BYTES * (sectors + cuts * (count - clean))
