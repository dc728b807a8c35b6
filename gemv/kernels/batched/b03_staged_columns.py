"""Columns of many matrices through a ring of stages: each thread has whole rows of the sum.

Idea
    In ``vector_columns`` (rung 9) the columns of a row are shared by GROUPS groups of threads,
    because a single product has to spread over the GPU. Group g adds up columns g, g + GROUPS,
    ... Then the groups of a warp meet by shuffles, and warps in shared memory. In a batch the
    items are many, and A may come to shared memory as in ``staged_rows``, by asynchronous
    copies of 16 bytes wherever columns begin. There any thread can read any number, so one
    thread can add up a row alone, in the order in which the groups would have.

    A thread has one sum for each group. It goes through its row GROUPS columns at a time, and
    adds column k of them to sum k: so many loads from shared memory that do not wait for each
    other. In the end it folds the sums of each TOGETHER groups, which share a warp in rung 9,
    in halves, as shuffles do, and adds up the results of the warps in their order. Nothing is
    exchanged between threads.

    Neighbouring threads have neighbouring rows, so they read neighbouring numbers of a column,
    which lie in different banks wherever the column begins. The number of x that belongs to a
    column is the same for all of them. It is converted once, when it comes to shared memory,
    and one load brings 16 bytes of such numbers.

    A chunk is some times GROUPS columns. If a block has all rows of an item, that is one
    stretch of memory. Of large items a block has a part of the rows only; then its part of each
    column is a line of its own, copied with the few elements around it that share 16 bytes.

Picture
    ::

        GROUPS = 8, TOGETHER = 4 (8 lanes to a group, 64 threads, in rung 9), 20 columns

        column    0  1  2  3  4  5  6  7 | 8  9 10 11 12 13 14 15 |16 17 18 19
        warp      0  0  0  0  1  1  1  1 | 0  0  0  0  1  1  1  1 | 0  0  0  0     in rung 9
        sum       0  1  2  3  4  5  6  7 | 0  1  2  3  4  5  6  7 | 0  1  2  3     of a thread here

        y       = ((0 + 2) + (1 + 3)) + ((4 + 6) + (5 + 7))

Bytes
    items * (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize, and up to 30 bytes for each
    line, which are in the same sectors as its first and its last element.

Wins
    Over ``vector_columns`` for batches of a few hundred short rows and columns, whose columns
    are no multiples of 16 bytes.

Loses
    To ``vector_columns`` where its loads have 8 bytes or more (but on an H200 34,435 items of
    33 x 33 float64 took 80 us here, and 145 by loads of one number), or where columns are so long
    that a block has a part of them and its loads have more than 2 bytes: here each number takes a
    load from shared memory of its own, besides the copy. 448 x 95 float32, transposed, took an H100
    76 us here, and 56 by loads.

Sums
    Those of ``vector_columns`` with the same LANES, threads and width of loads, where columns
    are not split over blocks. Same bits on every run, in each batch and alone.

Source
    Sums for the places of a tree, which one thread adds up: the pairwise summation of N. J.
    Higham, "Accuracy and Stability of Numerical Algorithms", section 4.1.
"""

from __future__ import annotations

import numpy as np

from gemv.core.geometry import LOAD_BYTES, MAX_GRID_X, ceil_div, one_launch
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
from gemv.kernels.wide_tiles import lanes_and_pieces_of

#: Bytes of a chunk, stages, and chunks of a block that has no room for a ring.
CHUNK_BYTES, STAGES = 17408, 2
#: The most threads of a block that has all rows.
MOST_THREADS = 256
#: Those of a block that has a part of the rows, and those that copy its part of a column, which is
#: a line of up to 18 vectors. us on an H100 for 136 MB, with up to 128 and up to 256 threads, of
#: which 8 and 16 copy a line: bfloat16 329 x 147 58 and 62, 501 x 55 55 and 67. Larger numbers, and
#: 2-byte numbers of which a load brings two, are loaded as fast, or faster.
THREADS_OF_PARTS, LINE_THREADS = 128, 8
#: The same where a chunk is a column of each of 64 groups: 293 x 293 59, and 64 with up to 128.
THREADS_OF_LONG_PARTS, LONG_GROUPS = 160, 64
#: Registers for the sums of a thread.
WORDS = 64
#: Threads of a block that gets chunks of half as many bytes, so that there are more blocks.
FEW_THREADS = 64


def build(spec):
    from gemv.language import (
        conjugated,
        copies_commit,
        copies_wait,
        cuda,
        device,
        elements_past,
        fold,
        load_units,
        moved,
        multiply_add,
        rolled,
        same,
        short,
        staged_some,
        staged_tile,
        update_streaming,
        zeros,
    )

    number, zero = spec.number, spec.zero
    CONJUGATE = int(spec.conj)
    GROUPS, TOGETHER, WHOLE = spec["GROUPS"], spec["TOGETHER"], spec["WHOLE"] > 0
    THREADS, POOL, STAGES = spec["THREADS_PER_BLOCK"], spec["POOL_BYTES"], spec["STAGES"]
    WARPS = GROUPS // TOGETHER  # of rung 9
    LINE_THREADS = THREADS if WHOLE else min(spec["LINE_THREADS"], THREADS)
    LINES = THREADS // LINE_THREADS  # that are copied at a time
    X_COLUMNS, UNIT = spec["X_COLUMNS"], min(LOAD_BYTES // spec.precision.sums.itemsize, GROUPS)
    AHEAD, PENDING = STAGES - 1, STAGES - 2
    alpha_of, beta_of = factor_readers(spec)
    copy_lines = line_copier(spec, LINE_THREADS)
    of_x = conjugated if spec.conjugate_x else same

    written: dict = {
        "load_units": load_units,
        "multiply_add": multiply_add,
        "staged_some": staged_some,
    }
    exec(_written(GROUPS, TOGETHER, UNIT, CONJUGATE), written)
    for name in ("numbers_of_x", "last_columns", "in_order"):
        written[name] = device(written[name])
    numbers_of_x, last_columns = written["numbers_of_x"], written["last_columns"]
    in_order = written["in_order"]

    def staged_columns(
        rows, cols, items, tiles, tile_rows, chunk_columns, stage, column_pitch, a, a_step,
        col_stride, x, x_step, incx, y, y_step, incy, alpha, alpha_step, beta, beta_step,
    ):  # fmt: skip
        pool = cuda.shared.array(POOL, np.uint8, alignment=16)
        xs = cuda.shared.array(X_COLUMNS, number, alignment=16)
        tid = short(cuda.threadIdx.x)
        block, tiles = short(cuda.blockIdx.x), short(tiles)
        item = block // tiles
        first = (block - item * tiles) * tile_rows
        count = short(min(tile_rows, rows - first))
        own_alpha = alpha_of(alpha, item, alpha_step)
        own_beta = beta_of(beta, item, beta_step)
        before = item * a_step + first
        end = (items - 1) * a_step + (cols - 1) * col_stride + rows - before  # of the batch
        own_a = moved(a, before)
        own_x = of_x(moved(x, item * x_step))
        own_y = moved(y, item * y_step + first * incy)
        col_stride, column_pitch = short(col_stride), short(column_pitch)
        chunk_columns, stage = short(chunk_columns), short(stage)
        cols = short(cols) if own_alpha != 0 else 0  # where alpha is 0, nothing is read
        start = (short(min(tid, count - 1)),)
        total = zeros(zero, GROUPS)
        turn, copied, free = 0, 0, 0  # columns that are copied or on their way, the next stage
        done, slot = 0, 0  # columns that are added up, and the stage of the next ones
        while done < cols:
            if turn >= AHEAD:
                copies_wait(PENDING)
                # The chunk has come for all threads, and all of them have left the one before.
                cuda.syncthreads()
            if copied < cols:
                begin, columns = (
                    short(copied * col_stride),
                    short(min(chunk_columns, cols - copied)),
                )
                place = short(free * stage + elements_past(own_a, begin, LOAD_BYTES))
                if WHOLE:
                    length = short((columns - 1) * col_stride + count)
                    copy_lines(pool, place, own_a, begin, 1, 0, 0, length, -before, end, 0, tid, 1)
                else:
                    copy_lines(
                        pool, place, own_a, begin, columns, col_stride, column_pitch, count,
                        -before, end, tid // LINE_THREADS, tid % LINE_THREADS, LINES,
                    )  # fmt: skip
            copies_commit()
            copied = short(copied + chunk_columns)
            free = free + 1 if free + 1 < STAGES else 0
            turn += 1
            if turn == AHEAD:  # all stages but one are on their way
                j = tid
                while j < X_COLUMNS:
                    xs[j] = own_x[j * incx] if j < cols else zero
                    j = short(j + THREADS)
                    rolled()
            if turn <= AHEAD:
                continue
            at = elements_past(own_a, short(done * col_stride), LOAD_BYTES)
            at = short(slot * stage + at)
            limit = short(min(done + chunk_columns, cols))
            while done + GROUPS <= limit:
                values = staged_tile(pool, own_a, start, at, column_pitch, GROUPS, 1)
                total = multiply_add(total, values, numbers_of_x(xs, done), CONJUGATE)
                at = short(at + GROUPS * column_pitch)
                done = short(done + GROUPS)
                rolled()
            if done < limit:  # the last columns of the item, fewer than groups
                total = last_columns(total, pool, own_a, start, at, column_pitch, xs, done, cols)
                done = limit
            slot = slot + 1 if slot + 1 < STAGES else 0
        if tid < count:
            row_sum = in_order(fold(total, WARPS))
            update_streaming(own_alpha, row_sum, own_beta, own_y, tid * incy)

    return (finished(staged_columns, spec, THREADS),)


def _written(groups, together, unit, conjugate):
    """The source of functions on tuples of one number for each group, which take no loops."""
    units = (f"load_units(xs, j + {k}, {unit})" for k in range(0, groups, unit))
    lines = ["def numbers_of_x(xs, j):", f"    return {' + '.join(units)}"]
    lines += ["def last_columns(total, pool, a, start, at, pitch, xs, j, cols):"]
    lines += ["    factors = numbers_of_x(xs, j)", "    left = cols - j"]
    for k in range(0, groups, together):
        own, value = (
            f"{k}:{k + together}",
            f"start, at + {k} * pitch, pitch, {together}, 1, left - {k}",
        )
        lines += [f"    part = total[{own}]", f"    if left > {k}:"]
        lines += [f"        values = staged_some(pool, a, {value})"]
        lines += [f"        part = multiply_add(part, values, factors[{own}], {conjugate})"]
        lines += ["    sums = part" if k == 0 else "    sums = sums + part"]
    lines += ["    return sums"]
    parts = " + ".join(f"parts[{k}]" for k in range(groups // together))
    return "\n".join([*lines, "def in_order(parts):", f"    return {parts}"])


def accepts(problem):
    return wide_loads_object(problem, "axpy") or lines_object(problem)


def column_step(problem):
    """Elements from column to column in memory."""
    return problem.col_stride if problem.cols > 1 else problem.rows


def even_rows(problem, most):
    """Rows of a block, at most so many in whole vectors, so that all blocks have about as many."""
    vector = LOAD_BYTES // problem.dtype.itemsize
    tiles = ceil_div(problem.rows, max(most // vector, 1) * vector)
    return ceil_div(ceil_div(problem.rows, tiles), vector) * vector


def pitch_of(problem, knobs, tile_rows):
    """From column to column in a stage: each begins at the same place modulo 16 as in memory.

    Where a block has a part of the rows, vectors of a column must not lie on those of another.
    """
    step, vector = column_step(problem), LOAD_BYTES // problem.dtype.itemsize
    if knobs["WHOLE"]:
        return step
    pitch = tile_rows + 2 * (vector - 1)
    return pitch + (step - pitch) % vector


def stage_bytes(problem, knobs, tile_rows, columns):
    """Bytes of a stage for so many columns, wherever the first one begins modulo 16 bytes."""
    elements = (columns - 1) * pitch_of(problem, knobs, tile_rows) + tile_rows
    return vectors_of(elements * problem.dtype.itemsize) + LOAD_BYTES


def for_items(problem, knobs):
    """Constants for a batch with the sums of ``vector_columns`` and its `knobs`; None if none fit.

    Blocks have all rows if there are not too many, and if a stage has room for a column of each
    group. A stage for all columns needs no other one.
    """
    lanes, _ = lanes_and_pieces_of(problem, knobs)
    groups = max(lanes, knobs["THREADS_PER_BLOCK"]) // lanes
    size, sums = problem.dtype.itemsize, problem.precision.sums.itemsize
    if groups * ceil_div(sums, 4) > WORDS:
        return None
    found = {"GROUPS": groups, "TOGETHER": max(32 // lanes, 1), "STAGES": STAGES, "WHOLE": 1}
    turns = ceil_div(problem.cols, groups)
    x_bytes = turns * groups * sums

    def needed(tile_rows, turns):
        return stage_bytes(problem, found, tile_rows, min(turns * groups, problem.cols))

    tile_rows, chunk_bytes, room = problem.rows, CHUNK_BYTES, (POOL_BYTES - x_bytes) // STAGES
    if tile_rows > MOST_THREADS or needed(tile_rows, 1) > room:
        if size > 2 or problem.widths[0] > 1:
            return None
        found["WHOLE"] = 0
        most = THREADS_OF_PARTS
        if groups >= LONG_GROUPS:
            most, chunk_bytes = THREADS_OF_LONG_PARTS, room
        most = min(ceil_div(tile_rows, 32) * 32, most)
        while most > 32 and needed(even_rows(problem, most), 1) > chunk_bytes:
            most -= 32
        tile_rows = even_rows(problem, most)
    elif tile_rows <= FEW_THREADS and needed(tile_rows, 1) <= chunk_bytes // 2:
        chunk_bytes //= 2
    chunk = 1
    while chunk < turns and needed(tile_rows, chunk + 1) <= chunk_bytes:
        chunk += 1
    pool = min(STAGES, ceil_div(turns, chunk)) * needed(tile_rows, chunk)
    if pool + x_bytes > POOL_BYTES:
        return None
    threads = ceil_div(tile_rows, 32) * 32
    pool = ceil_div(pool, 512) * 512
    # A sum for each group, about as many numbers that are loaded, and a few more: 32 groups of
    # float32 compile to 64 to 76 registers, 64 groups to 128.
    registers = max(64, 2 * groups * ceil_div(sums, 4) + 8)
    blocks = min(PROCESSOR_BYTES // (pool + x_bytes + 1024), REGISTERS // (threads * registers))
    return found | {
        "THREADS_PER_BLOCK": threads, "LINE_THREADS": LINE_THREADS, "POOL_BYTES": pool,
        "X_COLUMNS": turns * groups, "MIN_BLOCKS": max(1, blocks),
    }  # fmt: skip


def geometry(problem, device, knobs, batch=ONE):
    threads, line_threads = knobs["THREADS_PER_BLOCK"], knobs["LINE_THREADS"]
    groups, together, cols = knobs["GROUPS"], knobs["TOGETHER"], problem.cols
    check_copies(
        "staged_columns", device, knobs, knobs["X_COLUMNS"] * problem.precision.sums.itemsize
    )
    if threads % 32 or threads % min(line_threads, threads) or groups % together or (
        groups & (groups - 1) or together & (together - 1)
    ):  # fmt: skip
        raise ValueError(
            "staged_columns: THREADS_PER_BLOCK must be whole warps and a multiple of LINE_THREADS,"
            " GROUPS and TOGETHER powers of two, and GROUPS a multiple of TOGETHER, got"
            f" {threads}, {line_threads}, {groups} and {together}"
        )
    turns = ceil_div(cols, groups)
    if turns * groups > knobs["X_COLUMNS"]:
        raise ValueError(
            f"staged_columns: {cols} columns for {groups} GROUPS are more than X_COLUMNS ="
            f" {knobs['X_COLUMNS']}"
        )
    tile_rows = problem.rows if knobs["WHOLE"] else even_rows(problem, threads)
    pool, stages = knobs["POOL_BYTES"], knobs["STAGES"]

    def needed(turns):
        return stage_bytes(problem, knobs, tile_rows, min(turns * groups, cols))

    # All columns, if there is room for them at once; else a stage is one of a ring.
    chunk = turns
    if needed(turns) > pool:
        while chunk > 0 and needed(chunk) > pool // min(stages, ceil_div(turns, chunk)):
            chunk -= 1
    if tile_rows > threads or chunk == 0:
        raise ValueError(
            f"staged_columns: {groups} columns of {tile_rows} rows do not fit into a stage of"
            f" POOL_BYTES = {pool}, or {tile_rows} rows into {threads} threads"
        )
    tiles = ceil_div(problem.rows, tile_rows)
    blocks = batch.items * tiles
    if blocks > MAX_GRID_X:
        raise ValueError(f"staged_columns: {blocks} blocks, and a grid has at most {MAX_GRID_X}")
    sizes = {
        "items": batch.items, "tiles": tiles, "tile_rows": tile_rows,
        "chunk_columns": chunk * groups, "stage": needed(chunk) // problem.dtype.itemsize,
        "column_pitch": pitch_of(problem, knobs, tile_rows),
        **steps_of(batch),
    }  # fmt: skip
    return one_launch((blocks, 1, 1), (threads, 1, 1), sizes)


def tile(knobs):
    return knobs["THREADS_PER_BLOCK"], knobs["GROUPS"]


KERNEL = Kernel(
    name="staged_columns",
    rung=3,
    build=build,
    geometry=geometry,
    of_batch=geometry,
    for_items=for_items,
    tile=tile,
    beside=True,
    wide=True,
    accepts=accepts,
    capability=COPIES,
    # GROUPS and TOGETHER follow from LANES and threads of vector_columns, and fix the order of
    # sums. WHOLE says that a block has all rows.
    knobs={
        "GROUPS": 32, "TOGETHER": 8, "WHOLE": 0, "THREADS_PER_BLOCK": 128, "LINE_THREADS": 16,
        "STAGES": 2, "POOL_BYTES": 36 << 10, "X_COLUMNS": 256, "MIN_BLOCKS": 3,
    },
    small_knobs={
        "GROUPS": 8, "TOGETHER": 4, "WHOLE": 0, "THREADS_PER_BLOCK": 32, "LINE_THREADS": 8,
        "STAGES": 2, "POOL_BYTES": 8192, "X_COLUMNS": 64, "MIN_BLOCKS": 1,
    },
    doc=__doc__,
)  # fmt: skip
