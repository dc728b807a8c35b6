"""One launch again: the last block to finish a tile of rows adds up what all the others left.

Idea
    The coalesced tile needs a second launch only to wait until all partial sums are there. A block
    can find out by itself: each one writes its sums to the scratch array, makes them visible to
    the whole GPU with a fence, and draws a number from a counter. Whoever draws the last number
    knows that everything is there, and adds it up: always split 0, 1, 2 ..., whoever came last,
    so the bits stay the same where atomic additions would change them. The counter counts modulo
    the number of splits, so it is zero again for the next call, without a launch to clear it.

Picture
    ::

        block (0, 0)   sums -> scratch[0, rows]   fence   draws 1
        block (0, 2)   sums -> scratch[2, rows]   fence   draws 2    blocks end in any order
        block (0, 1)   sums -> scratch[1, rows]   fence   draws 0
        block (0, 3)   sums -> scratch[3, rows]   fence   draws 3 = the last of 4:
                       adds scratch[0..3, rows] in order, then alpha, beta and y

        without the fence, a number could overtake the sums it announces

Bytes
    (m*n + len(x) * m/tile_rows + 2 * splits*m + len(y) * (1 + [beta != 0])) * itemsize as asked
    for; x and the scratch array come from L2. With one split no scratch array is used.

Wins
    One launch instead of two, and still the same bits. The next rungs are built on it.

Loses
    Two phases in one kernel need more registers, so that two blocks fit on a multiprocessor where
    the tile of two launches fits three: a third fewer bytes in flight, and up to that much less
    bandwidth. The cure is not fewer registers but more bytes for each: wider loads.

Sums
    Each thread over every 32nd (8th) column of its split, the threads of a row in order, then the
    splits by the same two steps. The order depends on shape, storage order and the number of
    multiprocessors, not on which block is last. Same bits on every run.

Source
    Memory fences and atomic counters: S. Collange, "GPU programming: code optimization part 3 and
    advanced features". The scheme is that of the CUDA C++ Programming Guide's example for
    ``__threadfence``, here for a tile of rows at a time and with a fixed order of the sum.
"""

import numpy as np

from gemv.core.geometry import SECTOR_BYTES, ceil_div, one_launch
from gemv.kernels.depths import in_order, of_finishers, of_splits, shared_out
from gemv.kernels.grids import split_columns, tile_shape
from gemv.kernels.kernel import Kernel
from gemv.kernels.work import (
    bytes_of_lines,
    bytes_of_stretches,
    columns_of_splits,
    lines_of_warp,
    work_of,
)


def build(spec):
    from gemv.language import atomic_inc, cuda, update

    number, zero, op = spec.number, spec.zero, spec.op
    BLOCK_X = spec["BLOCK_X"]
    DOWN_THE_COLUMNS = spec.access == "axpy"
    TILE_ROWS, LANES = tile_shape(spec.access, BLOCK_X, spec["BLOCK_Y"])
    PITCH = LANES + 1

    def last_block(
        rows, cols, cols_per_split, splits, alpha, a, row_stride, col_stride, x, incx, beta, y,
        incy, scratch, counters,
    ):  # fmt: skip
        sums = cuda.shared.array((TILE_ROWS, PITCH), number)
        ticket = cuda.shared.array(1, np.uint32)
        tx = cuda.threadIdx.x
        ty = cuda.threadIdx.y
        tid = ty * BLOCK_X + tx
        if DOWN_THE_COLUMNS:
            r, lane = tx, ty
        else:
            r, lane = ty, tx
        split = cuda.blockIdx.y
        end = min(cols, (split + 1) * cols_per_split)
        if alpha == 0:
            end = 0
        a_step = LANES * col_stride
        x_step = LANES * incx
        for tile in range(cuda.blockIdx.x, (rows + TILE_ROWS - 1) // TILE_ROWS, cuda.gridDim.x):
            i = tile * TILE_ROWS + r
            total = zero
            if i < rows:
                j = split * cols_per_split + lane
                at = i * row_stride + j * col_stride
                at_x = j * incx
                while j < end:  # steps of a constant size: no multiplication in the loop
                    total += op(a[at]) * x[at_x]
                    j += LANES
                    at += a_step
                    at_x += x_step
            sums[r, lane] = total
            cuda.syncthreads()  # all sums are in place; threads past the edge came along

            i = tile * TILE_ROWS + tid
            mine = tid < TILE_ROWS and i < rows  # this thread finishes row i
            total = zero
            if mine:
                for k in range(LANES):
                    total += sums[tid, k]
            if splits == 1:
                if mine:
                    update(alpha, total, beta, y, i * incy)
            else:
                if mine:
                    scratch[split * rows + i] = total
                    cuda.threadfence()  # visible to all blocks before the number is drawn
                cuda.syncthreads()  # all sums of this block are fenced
                if tid == 0:
                    ticket[0] = atomic_inc(counters, tile, splits - 1)
                cuda.syncthreads()  # the number is known to all threads
                if ticket[0] == splits - 1:
                    # Orders the reads of scratch behind the number that promised them.
                    cuda.threadfence()
                    i = tile * TILE_ROWS + r
                    total = zero
                    if i < rows:
                        for k in range(lane, splits, LANES):
                            total += scratch[k * rows + i]
                    sums[r, lane] = total
                    cuda.syncthreads()  # whole blocks take this branch: ticket is shared
                    if mine:
                        total = zero
                        for k in range(LANES):
                            total += sums[tid, k]
                        update(alpha, total, beta, y, (tile * TILE_ROWS + tid) * incy)
            cuda.syncthreads()  # sums of others have been read before these overwrite them

    return (last_block,)


def geometry(problem, device, knobs):
    block_x, block_y = knobs["BLOCK_X"], knobs["BLOCK_Y"]
    tile_rows, lanes = tile_shape(problem.access, block_x, block_y)
    row_tiles = ceil_div(problem.rows, tile_rows)
    splits, cols_per_split = split_columns(
        problem.cols, lanes, row_tiles, block_x * block_y, device
    )
    return one_launch(
        (min(row_tiles, knobs["MAX_BLOCKS"]), splits, 1),
        (block_x, block_y, 1),
        sizes={"splits": splits, "cols_per_split": cols_per_split},
        scratch=splits * problem.rows if splits > 1 else 0,
        counters=row_tiles if splits > 1 else 0,
    )


def work(problem, geometry, knobs):
    tile_rows, lanes = tile_shape(problem.access, knobs["BLOCK_X"], knobs["BLOCK_Y"])
    (grid_x, splits, _), _, _ = geometry.launches[0]
    first, last = columns_of_splits(problem, geometry)
    row_tiles = ceil_div(problem.rows, tile_rows)
    turns = ceil_div(row_tiles, grid_x)  # tiles of a block
    passes = turns * ceil_div(first, lanes)
    # A lane adds up its splits as it added up its columns: a number and a barrier each.
    end_steps = lanes + 1 + (2 if splits > 1 else 0)
    beside = 1 if problem.access == "strided" else knobs["BLOCK_X"]  # threads along memory
    return work_of(
        problem,
        geometry,
        bytes=_bytes(problem, row_tiles, tile_rows, splits, first),
        passes=passes,
        flight=problem.dtype.itemsize,
        loads=passes,
        x_loads=passes,
        products=passes,
        busy_threads=min(problem.rows, grid_x * tile_rows)
        * ((splits - 1) * min(lanes, first) + min(lanes, last)),
        warp_lines=lines_of_warp(problem, 32, beside, problem.dtype.itemsize),
        end_steps=turns * end_steps,
        collects=turns * ceil_div(splits, lanes),
        sums_shared=tile_rows * (lanes + 1),
    )


def _bytes(problem, row_tiles, tile_rows, splits, cols_per_split):
    """Of A, in whole sectors; of lines without a unit stride no more than these are."""
    size = problem.dtype.itemsize
    if problem.access == "axpy":
        return bytes_of_lines(problem, row_tiles - 1, tile_rows * size)
    if problem.access == "dot":
        return bytes_of_lines(problem, splits - 1, cols_per_split * size)
    aligned = min(problem.a_alignment or size, size)
    elements = problem.rows * problem.cols
    apart = SECTOR_BYTES if aligned < size else 0  # an element may lie in two sectors
    each = bytes_of_stretches(elements, size, apart, aligned)
    reach = ((problem.cols - 1) * abs(problem.col_stride) + 1) * size
    rows = bytes_of_stretches(problem.rows, reach, aligned, aligned, splits - 1, 1)
    return min(each, rows)


def depth(problem, geometry, knobs):
    _, lanes = tile_shape(problem.access, knobs["BLOCK_X"], knobs["BLOCK_Y"])

    def in_block(columns):
        return in_order(shared_out(columns, lanes) - 1)

    return int(in_order(of_finishers(of_splits(problem, geometry, in_block), lanes, 1)))


def repeats(problem, knobs):
    tile_rows, _ = tile_shape(problem.access, knobs["BLOCK_X"], knobs["BLOCK_Y"])
    if ceil_div(problem.rows, tile_rows) > knobs["MAX_BLOCKS"]:
        return None  # a block takes several tiles, as many apart as there are blocks
    return 1, tile_rows


KERNEL = Kernel(
    name="last_block",
    rung=7,
    build=build,
    geometry=geometry,
    tile=lambda knobs: (knobs["BLOCK_Y"], knobs["BLOCK_X"]),
    repeats=repeats,
    splits_apart=True,
    depth=depth,
    work=work,
    knobs={"BLOCK_X": 32, "BLOCK_Y": 8, "MAX_BLOCKS": 1 << 20},
    small_knobs={"BLOCK_X": 8, "BLOCK_Y": 2, "MAX_BLOCKS": 2},
    doc=__doc__,
)
