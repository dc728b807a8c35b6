"""Rows of many matrices through a ring of stages in shared memory, copied as memory likes it.

Idea
    In a batch, ``vector_rows`` (rung 8) computes an item with the code of a single product. Its
    loads are as wide as the address of a row allows: packed rows of 129 float32 are read by
    loads of 4 bytes. All bytes in flight are on their way to registers, so a thread cannot ask
    for the next rows before it has added up the last ones, and where blocks end and begin
    nothing is in flight at all.

    Here the way of the bytes and the order of the sums are two things. Packed rows are a
    stretch of memory, wherever they begin and end. A block copies it by *asynchronous* copies
    of 16 bytes (compute capability 8.0), which pass registers by and which no thread waits for.
    The stretch keeps its place modulo 16 bytes: it starts at the multiple of 16 before its
    first element, and the elements that come along belong to the rows before and behind, or are
    not used.

    A *chunk* is a few rows. Shared memory has room for STAGES chunks, the stages of a ring:
    while a block adds up one, the copies of the next ones are on their way. A thread counts its
    copies in groups, one for each chunk, and waits until the oldest group is complete. The
    barrier behind that wait says two things: the copies of all other threads have come, too,
    and everybody has left the chunk before, whose stage is free for the next copies.

    Then lanes add up rows in the order of ``vector_rows``, with the same LANES and the same
    vectors, so an item has the bits of the single product. Loads from shared memory are as wide
    as those of that kernel. A load of 4 bytes or fewer costs a warp hardly more here than one
    of 16 bytes, but lanes of one warp should read from different banks. LANES lanes read
    neighbours; the groups of a warp read rows that lie LANES apart, which begin in different
    banks where a row is an odd number of vectors.

    The numbers of x go to shared memory as well, once for all rows of a block.

Picture
    ::

        STAGES = 3, chunks of 16 rows

        copies    chunk 0  chunk 1  chunk 2  chunk 3  chunk 4          on their way while ...
        sums                        chunk 0  chunk 1  chunk 2  ...     ... these are added up
        stage        0        1        2        0        1

        memory    ... . r0 r0 r0 | r0 r0 r1 r1 | r1 r1 r1 r2 | ...     | is a multiple of 16 bytes
        stage       | . r0 r0 r0 | r0 r0 r1 r1 | r1 r1 r1 r2 | ...     the same places modulo 16

Bytes
    items * (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize, and up to 30 bytes for each
    chunk, which are in the same sectors as its first and its last element.

Wins
    Over ``vector_rows`` for batches of a few hundred rows and columns whose rows are no
    multiples of 16 bytes.

Loses
    To ``small_items`` where an item is smaller than a chunk, and to ``vector_rows`` where its
    loads have 8 bytes or more (but on an H200 34,435 items of 33 x 33 float64 took 86 us here, and
    128 by loads of one number), or rows are so long that narrow ones fill the memory's queue as
    well (float32 from 7 loads of a lane on, on an H100): here each number of A goes through shared
    memory.

Sums
    Those of ``vector_rows`` with the same LANES and width of loads, where the columns of a row
    are not split over blocks. Same bits on every run, in each batch and alone.

Source
    Asynchronous copies and groups of them: the chapter on asynchronous data copies of NVIDIA's
    "CUDA C++ Programming Guide". A ring of stages is a queue of fixed length, as D. E. Knuth
    describes it in "The Art of Computer Programming", section 2.2.2.
"""

from __future__ import annotations

import numpy as np

from gemv.core.geometry import LOAD_BYTES, MAX_GRID_X, ceil_div, one_launch
from gemv.kernels.grids import partial_sums
from gemv.kernels.kernel import Kernel, wide_loads_object
from gemv.kernels.several import ONE, steps_of
from gemv.kernels.staging import (
    COPIES,
    POOL_BYTES,
    PROCESSOR_BYTES,
    REGISTERS,
    check_copies,
    factor_readers,
    finished,
    line_copier,
    lines_object,
    vectors_of,
)

#: Bytes of a chunk, stages, and chunks of a block.
CHUNK_BYTES, STAGES, CHUNKS = 17408, 2, 4
#: What a row costs, by the threads of a block and by ROWS. More rows share a number of x that is
#: loaded; larger blocks begin and end less often. Fitted to 26 batches on an NVIDIA H100, with 11
#: to 20 sets of constants each: the choice takes 1.0 % longer than the best of these in the mean,
#: and 5.2 % at most. The rule before it took 6.5 % longer, and 37 % at most.
COSTS = {
    (128, 8): 0.85, (64, 8): 0.9, (128, 4): 0.91, (64, 4): 1.04, (128, 2): 1.11, (32, 4): 1.15,
    (64, 2): 1.26, (32, 2): 1.3, (64, 1): 1.5,
}  # fmt: skip
#: Bytes of a chunk for each thread, below which a multiprocessor has room for more bytes than its
#: blocks bring. 49 x 49 float16 takes 79 us with 128 threads, and 60 with 32.
THREAD_BYTES = 100
#: Bytes of the largest item for blocks of one warp. 67 x 39 bfloat16, 5 KB, takes 58 us with these
#: and 64 with two warps; 73 x 79, 12 KB, 65 and 55.
FEW_BYTES = 6 << 10
#: Registers for what a thread has loaded of A.
WORDS = 32


def build(spec):
    from gemv.language import (
        conjugated,
        copies_commit,
        copies_wait,
        copy_one,
        cuda,
        device,
        elements_past,
        fold,
        moved,
        multiply_add,
        rolled,
        same,
        scatter_sums,
        short,
        staged_tile,
        update_streaming,
        zeros,
    )

    number, zero = spec.number, spec.zero
    CONJUGATE = int(spec.conj)
    WIDTH = spec.widths[0]
    LANES, ROWS, VECTORS = spec["LANES"], spec["ROWS"], spec["VECTORS"]
    THREADS, POOL = max(LANES, spec["THREADS_PER_BLOCK"]), spec["POOL_BYTES"]
    STAGES = spec["STAGES"]
    AHEAD, PENDING = STAGES - 1, STAGES - 2
    TILE_ROWS = THREADS // LANES * ROWS
    WARP_LANES = min(LANES, 32)
    WARP_GROUPS = 32 // WARP_LANES
    WARPS_PER_ROW = warps_per_row(LANES)
    # Groups of a warp take rows so far apart that they begin in different banks.
    APART = min(LANES, TILE_ROWS // WARP_GROUPS)
    STEP = LANES * WIDTH
    CHUNK_ROWS, SUM_ROWS = spec["CHUNK_ROWS"], 2 * spec["CHUNK_ROWS"]
    SHARERS = WARP_LANES // ROWS  # lanes of a warp that end with the sum of the same row
    SUMS = ROWS * partial_sums(WIDTH, spec.precision)
    alpha_of, beta_of = factor_readers(spec)
    copy_lines = line_copier(spec, THREADS)
    of_x = conjugated if spec.conjugate_x else same

    @device
    def first_row(tid):
        """Of a tile, the first of the ROWS neighbours that this thread takes part in."""
        if LANES >= 32:
            return tid // LANES * ROWS
        slot = tid // 32 * ROWS
        mine = slot // APART * (APART * WARP_GROUPS) + slot % APART
        return mine + tid % 32 // LANES * APART

    @device
    def one(start, stride):
        return (start,)

    @device
    def two(start, stride):
        return (start, short(start + stride))

    @device
    def four(start, stride):
        return two(start, stride) + two(short(start + 2 * stride), stride)

    @device
    def eight(start, stride):
        return four(start, stride) + four(short(start + 4 * stride), stride)

    # Where ROWS rows of a chunk begin. Behind its last one there is no row, but a stage has room
    # for it; what is read there is not used.
    rows_from = {1: one, 2: two, 4: four, 8: eight}[ROWS]

    @device
    def finish(sums, half, count, alpha, beta, y, incy, tid):
        """Write the y of a chunk's rows, from the sums of each warp."""
        r = tid
        while r < count:
            total = sums[half + r, 0]
            for warp in range(1, WARPS_PER_ROW):
                total += sums[half + r, warp]
            update_streaming(alpha, total, beta, y, r * incy)
            r = short(r + THREADS)
            rolled()

    def staged_rows(
        rows, cols, items, tiles, tile_rows, chunk_rows, stage, stages_at, steps, a, a_step,
        row_stride, x, x_step, incx, y, y_step, incy, alpha, alpha_step, beta, beta_step,
    ):  # fmt: skip
        pool = cuda.shared.array(POOL, np.uint8, alignment=16)  # x, then the stages
        sums = cuda.shared.array((SUM_ROWS, WARPS_PER_ROW), number)  # of one chunk and the next
        tid = short(cuda.threadIdx.x)
        lane = tid % LANES
        mine = first_row(tid)
        block, tiles = short(cuda.blockIdx.x), short(tiles)
        item = block // tiles
        first = (block - item * tiles) * tile_rows
        count = short(min(tile_rows, rows - first))
        own_alpha = alpha_of(alpha, item, alpha_step)
        own_beta = beta_of(beta, item, beta_step)
        before = item * a_step + first * row_stride
        end = (items - 1) * a_step + (rows - 1) * row_stride + cols - before  # of the batch
        own_a = moved(a, before)
        own_x = of_x(moved(x, item * x_step))
        own_y = moved(y, item * y_step + first * incy)
        chunk_rows, row_stride = short(chunk_rows), short(row_stride)
        stage, stages_at = short(stage), short(stages_at)
        cols = short(cols) if own_alpha != 0 else 0  # where alpha is 0, nothing is read
        steps = short(steps) if own_alpha != 0 else 0
        own_columns = (lane * WIDTH,)
        turn, copied, free = 0, 0, 0  # rows that are copied or on their way, and the next stage
        done, slot, half = 0, 0, 0  # rows that are added up, and the stage of the next ones
        while done < count:
            if turn >= AHEAD:
                copies_wait(PENDING)
                # The chunk has come for all threads, and all of them have left the one before.
                cuda.syncthreads()
            if copied < count and cols > 0:
                begin = short(copied * row_stride)
                length = short((min(chunk_rows, count - copied) - 1) * row_stride + cols)
                place = short(stages_at + free * stage + elements_past(own_a, begin, LOAD_BYTES))
                copy_lines(pool, place, own_a, begin, 1, 0, 0, length, -before, end, 0, tid, 1)
            copies_commit()
            copied = short(copied + chunk_rows)
            free = free + 1 if free + 1 < STAGES else 0
            turn += 1
            if turn == AHEAD:  # all stages but one are on their way
                j = tid
                while j < cols:
                    copy_one(pool, j, own_x, j * incx)
                    j = short(j + THREADS)
                    rolled()
            if turn <= AHEAD:
                continue
            if done > 0:  # the sums of the chunk before are in place, behind this barrier
                y_before = moved(own_y, (done - chunk_rows) * incy)
                other = CHUNK_ROWS - half
                finish(sums, other, chunk_rows, own_alpha, own_beta, y_before, incy, tid)
            here = short(min(chunk_rows, count - done))
            at = elements_past(own_a, short(done * row_stride), LOAD_BYTES)
            at = short(stages_at + slot * stage + at + lane * WIDTH)
            r = mine
            while r < here + mine:  # the same for a whole block, whose lanes add up together
                starts = rows_from(short(r * row_stride), row_stride)
                total = zeros(zero, SUMS)
                j, left = 0, steps
                while left >= VECTORS:
                    values = staged_tile(pool, own_a, starts, at + j, STEP, VECTORS, WIDTH)
                    factors = staged_tile(pool, own_x, own_columns, j, STEP, VECTORS, WIDTH)
                    total = multiply_add(total, values, factors, CONJUGATE)
                    j = short(j + VECTORS * STEP)
                    left = short(left - VECTORS)
                    rolled()
                while left > 0:
                    values = staged_tile(pool, own_a, starts, at + j, STEP, 1, WIDTH)
                    factors = staged_tile(pool, own_x, own_columns, j, STEP, 1, WIDTH)
                    total = multiply_add(total, values, factors, CONJUGATE)
                    j = short(j + STEP)
                    left = short(left - 1)
                    rolled()
                if j + lane * WIDTH < cols:  # columns that not all lanes have one of
                    values = staged_tile(pool, own_a, starts, at + j, STEP, 1, WIDTH)
                    factors = staged_tile(pool, own_x, own_columns, j, STEP, 1, WIDTH)
                    total = multiply_add(total, values, factors, CONJUGATE)
                own = scatter_sums(fold(total, ROWS), tid, 1, WARP_LANES, 1)
                if lane % SHARERS == 0:
                    row = r + lane % WARP_LANES // SHARERS
                    sums[half + row, lane // WARP_LANES] = own[0]
                r = short(r + TILE_ROWS)
                rolled()
            done = short(done + chunk_rows)
            slot = slot + 1 if slot + 1 < STAGES else 0
            half = CHUNK_ROWS - half
        cuda.syncthreads()  # the sums of the last chunk are in place
        y_before = moved(own_y, (done - chunk_rows) * incy)
        rest = short(count + chunk_rows - done)
        finish(sums, CHUNK_ROWS - half, rest, own_alpha, own_beta, y_before, incy, tid)

    return (finished(staged_rows, spec, THREADS),)


def accepts(problem):
    return wide_loads_object(problem, "dot") or lines_object(problem)


def warps_per_row(lanes):
    """Warps that each have a part of a row."""
    return ceil_div(lanes, 32)


def line_step(problem):
    """Elements from row to row in memory."""
    return problem.row_stride if problem.rows > 1 else problem.cols


def stage_bytes(problem, rows):
    """Bytes of a stage for so many rows, wherever the first one begins modulo 16 bytes."""
    elements = (rows - 1) * line_step(problem) + problem.cols
    return vectors_of(elements * problem.dtype.itemsize) + LOAD_BYTES


def for_items(problem, knobs):
    """Constants for a batch with the sums of ``vector_rows`` and its `knobs`; None if none fit.

    Those with the least cost of all rows that an item's blocks add up. Rows behind the last one
    count, too: 67 rows are 128 in tiles of 64, and 72 in tiles of 8.
    """
    lanes, size = knobs["LANES"], problem.dtype.itemsize
    x_bytes = vectors_of(problem.cols * size)
    room = min(CHUNK_BYTES, (POOL_BYTES - x_bytes) // STAGES)
    best, least = None, 0.0
    for (threads, rows), cost in COSTS.items():
        threads_here = max(lanes, threads)
        tile_rows = threads_here // lanes * rows
        chunk = _chunk_rows(problem, tile_rows, room)
        if rows > min(lanes, 32) or chunk == 0 or (
            threads == 32 and problem.rows * problem.cols * size > FEW_BYTES
        ):  # fmt: skip
            continue
        nbytes = min(chunk, problem.rows) * problem.cols * size
        idle = max(1.0, THREAD_BYTES * threads_here / nbytes)
        cost *= idle * _added_up(problem.rows, chunk, tile_rows)
        if best is None or cost < least:
            best, least = (threads_here, rows, chunk), cost
    if best is None:
        return None
    threads, rows, chunk = best
    width, words = problem.widths[0], ceil_div(problem.precision.sums.itemsize, 4)
    pool = x_bytes + min(STAGES, ceil_div(problem.rows, chunk)) * stage_bytes(problem, chunk)
    pool = ceil_div(pool, 512) * 512
    if pool > POOL_BYTES:
        return None
    registers = 80 if rows * width * words <= 4 else 96
    blocks = min(PROCESSOR_BYTES // (pool + 2048), REGISTERS // (threads * registers))
    loads = min(8, WORDS // (rows * width * words), problem.cols // (lanes * width))
    return {
        "LANES": lanes, "ROWS": rows, "VECTORS": max(1, loads), "THREADS_PER_BLOCK": threads,
        "STAGES": STAGES, "POOL_BYTES": pool, "CHUNK_ROWS": chunk, "MIN_BLOCKS": max(1, blocks),
    }  # fmt: skip


def _chunk_rows(problem, tile_rows, room):
    """Rows of a chunk, which are tiles: as many as fit into `room` bytes, and chunks of a size."""
    fit = room // (tile_rows * line_step(problem) * problem.dtype.itemsize)
    tiles = ceil_div(problem.rows, tile_rows)
    return ceil_div(tiles, ceil_div(tiles, fit)) * tile_rows if fit else 0


def _added_up(rows, chunk, tile_rows):
    """Rows that are added up for an item, with those behind the last one."""
    left = rows % chunk
    return rows - left + ceil_div(left, tile_rows) * tile_rows


def geometry(problem, device, knobs, batch=ONE):
    lanes, rows, chunk = knobs["LANES"], knobs["ROWS"], knobs["CHUNK_ROWS"]
    threads, size = max(lanes, knobs["THREADS_PER_BLOCK"]), problem.dtype.itemsize
    sums = 2 * chunk * warps_per_row(lanes) * problem.precision.sums.itemsize
    check_copies("staged_rows", device, knobs, sums)
    tile_rows = threads // lanes * rows
    if rows not in (1, 2, 4, 8) or rows > min(lanes, 32) or lanes & (lanes - 1) or (
        threads & (threads - 1) or threads < 32 or chunk % tile_rows
    ):  # fmt: skip
        raise ValueError(
            "staged_rows: ROWS must be 1, 2, 4 or 8 and at most LANES, LANES and THREADS_PER_BLOCK"
            " powers of two, whole warps together, and CHUNK_ROWS a multiple of the rows of a tile,"
            f" got {rows}, {lanes}, {threads} and {chunk}"
        )
    stage, x_bytes = stage_bytes(problem, chunk), vectors_of(problem.cols * size)
    stages = (knobs["POOL_BYTES"] - x_bytes) // stage
    if stages < 1:
        raise ValueError(
            f"staged_rows: {chunk} rows of {problem.cols} and x do not fit into POOL_BYTES"
        )
    # Without room for all stages no stage is used again, so a block has as many chunks.
    chunks = ceil_div(problem.rows, chunk)
    most = CHUNKS if stages >= knobs["STAGES"] else stages
    # All blocks of an item have as many chunks, or one fewer.
    block_rows = ceil_div(chunks, ceil_div(chunks, most)) * chunk
    tiles = ceil_div(problem.rows, block_rows)
    blocks = batch.items * tiles
    if blocks > MAX_GRID_X:
        raise ValueError(f"staged_rows: {blocks} blocks, and a grid has at most {MAX_GRID_X}")
    sizes = {
        "items": batch.items, "tiles": tiles, "tile_rows": block_rows, "chunk_rows": chunk,
        "stage": stage // size, "stages_at": x_bytes // size,
        "steps": problem.cols // (lanes * problem.widths[0]),
        **steps_of(batch),
    }  # fmt: skip
    return one_launch((blocks, 1, 1), (threads, 1, 1), sizes)


def tile(knobs):
    threads = max(knobs["LANES"], knobs["THREADS_PER_BLOCK"])
    return threads // knobs["LANES"] * knobs["ROWS"], 4 * knobs["LANES"]


KERNEL = Kernel(
    name="staged_rows",
    rung=2,
    build=build,
    geometry=geometry,
    of_batch=geometry,
    for_items=for_items,
    tile=tile,
    beside=True,
    wide=True,
    accepts=accepts,
    capability=COPIES,
    # LANES is that of vector_rows, and fixes the order of sums.
    knobs={
        "LANES": 32, "ROWS": 2, "VECTORS": 4, "THREADS_PER_BLOCK": 128, "STAGES": 4,
        "POOL_BYTES": 36 << 10, "CHUNK_ROWS": 16, "MIN_BLOCKS": 4,
    },
    small_knobs={
        "LANES": 8, "ROWS": 2, "VECTORS": 2, "THREADS_PER_BLOCK": 32, "STAGES": 2,
        "POOL_BYTES": 4096, "CHUNK_ROWS": 8, "MIN_BLOCKS": 1,
    },
    doc=__doc__,
)  # fmt: skip
