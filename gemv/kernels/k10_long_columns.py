"""A few long columns: every thread owns its rows alone, and stores 16 bytes as it loads them.

Idea
    If A is a few long columns, y is nearly as large as A: with one column, every byte that is read
    is a byte that is written. There are so many rows that no two threads need to share one. A
    thread loads PIECES vectors of WIDTH neighbouring rows in each of COLUMNS columns, all of them
    before it uses the first. It multiplies and adds in registers, and stores whole vectors of y.
    There is no shuffle, no barrier and no shared memory. So a block waits only for its own loads,
    and many small blocks keep the memory busy.

    Such a long y would push other data out of the L2 cache. So its lines are marked as the first
    to be evicted (``st.global.cs``).

    A thread can store vectors where incy is 1 and y is aligned to a vector. The kernel checks both
    when it runs; they are the same for all threads, so no warp diverges. In other cases, and in a
    tile that reaches behind the last row, a thread stores its elements one by one.

Picture
    ::

        float32, PIECES = 2, 128 threads:   column 0       column 1       y
        rows 0-3       thread 0             16 bytes       16 bytes       16 bytes
        rows 4-7       thread 1             16 bytes       16 bytes       16 bytes
        ...
        rows 512-515   thread 0             16 bytes       16 bytes       16 bytes   second piece

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory.

Wins
    Up to about 16 columns of 64 KB and more, stored along columns (or rows of a transposed matrix).
    From 600 KB a column on, up to some hundred columns take about as long as in ``vector_columns``.

Loses
    To ``vector_columns`` (rung 9) as soon as rows alone do not fill the GPU: nothing here divides
    the columns.

Sums
    Each row by its own thread, over the columns in order: the order of the plain loop, whatever
    the shape, the alignment and the GPU. Same bits on every run.

Source
    The axpy form of gemv: G. H. Golub and C. F. Van Loan, "Matrix Computations", section 1.1.
"""

from gemv.core.geometry import LOAD_BYTES, ceil_div, one_launch
from gemv.kernels.grids import loads_for_one
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.list_words import has_plain_edges, words_in_order
from gemv.kernels.work import bytes_of_tiles, lines_of_warp, work_of


def pieces_of_a_thread(knobs, width, itemsize):
    """PIECES, or twice as many of narrower loads; more would not fit the registers."""
    return knobs["PIECES"] * min(loads_for_one(width, itemsize), 2)


def build(spec):
    from gemv.language import (
        axpy_add,
        cuda,
        gather,
        gather_some,
        is_aligned,
        load_back,
        natural,
        rounded_down,
        row_starts,
        store_vectors,
        stream_some,
        stream_tile,
        unrolled,
        update_streaming,
        zeros,
    )

    zero, op = spec.zero, spec.op
    CONJUGATE = int(spec.conj)
    WIDTH = spec.widths[0]
    COLUMNS = spec["COLUMNS"]
    PIECES = pieces_of_a_thread(dict(spec.knobs), WIDTH, spec.dtype.itemsize)
    THREADS = spec["THREADS_PER_BLOCK"]
    PIECE_ROWS = THREADS * WIDTH
    SUMS = PIECES * WIDTH
    WHOLE = WIDTH == 1 or spec.whole  # else some rows fill no vector
    VECTOR_BYTES = min(WIDTH * spec.precision.y.itemsize, LOAD_BYTES)
    scaled_all, blended_all, update_all = unrolled(PIECES, WIDTH)

    def long_columns(rows, cols, alpha, a, col_stride, x, incx, beta, y, incy):
        tid = natural(cuda.threadIdx.x)
        first = cuda.blockIdx.x * (PIECES * PIECE_ROWS)
        mine = first + tid * WIDTH
        if alpha == 0:
            cols = 0
        edge = rows if WHOLE else rounded_down(rows, WIDTH)  # rows from here on fill no vector
        last = edge - WIDTH  # where the last whole vector starts, if there is one
        total = zeros(zero, SUMS)
        if WHOLE or last >= 0:
            # Past the edge the last vector is read again; no thread stores its sums.
            pieces = row_starts(mine, PIECE_ROWS, last, 1, PIECES)
            j = 0
            while j + COLUMNS <= cols:
                values = stream_tile(a, pieces, j * col_stride, col_stride, COLUMNS, WIDTH)
                factors = gather(x, j, 1, COLUMNS, incx, 1)
                total = axpy_add(total, values, factors, WIDTH, CONJUGATE)
                j += COLUMNS
            if COLUMNS > 1 and j < cols:  # the remaining columns are loaded together, too
                values = stream_some(
                    a, pieces, j * col_stride, col_stride, COLUMNS, WIDTH, cols - j
                )
                factors = gather_some(x, j, 1, COLUMNS, incx, 1, cols - j)
                total = axpy_add(total, values, factors, WIDTH, CONJUGATE)
        if incy == 1 and first + PIECES * PIECE_ROWS <= rows and is_aligned(y, VECTOR_BYTES):
            if beta == 0:
                store_vectors(y, mine, PIECE_ROWS, scaled_all(alpha, total), WIDTH)
            else:
                old = load_back(y, mine, PIECE_ROWS, PIECES, WIDTH)
                store_vectors(y, mine, PIECE_ROWS, blended_all(alpha, total, beta, old), WIDTH)
        else:
            update_all(alpha, total, beta, y, mine, PIECE_ROWS, edge, incy)
            i = edge + tid
            if not WHOLE and i < rows and first + PIECES * PIECE_ROWS >= rows:
                part = zero
                for j in range(cols):
                    part += op(a[i + j * col_stride]) * x[j * incx]
                update_streaming(alpha, part, beta, y, i * incy)

    return (attach(long_columns, launch_bounds=(THREADS, spec.min_blocks)),)


def accepts(problem):
    return wide_loads_object(problem, "axpy")


def prepared(problem, device, knobs):
    threads, width = knobs["THREADS_PER_BLOCK"], problem.widths[0]
    if threads < LOAD_BYTES // 2:  # the most elements of a load
        raise ValueError(
            f"long_columns: THREADS_PER_BLOCK must be {LOAD_BYTES // 2} or more, because each of"
            f" the rows that fill no vector has a thread of its own, got {threads}"
        )
    tile_rows = threads * pieces_of_a_thread(knobs, width, problem.dtype.itemsize) * width
    return lambda problem: one_launch((ceil_div(problem.rows, tile_rows), 1, 1), (threads, 1, 1))


def geometry(problem, device, knobs):
    return prepared(problem, device, knobs)(problem)


def work(problem, geometry, knobs):
    width, size, cols = problem.widths[0], problem.dtype.itemsize, problem.cols
    (tiles, _, _), (threads, _, _), _ = geometry.launches[0]
    columns, pieces = knobs["COLUMNS"], pieces_of_a_thread(knobs, width, size)
    some = 1 if problem.rows >= width else 0  # 0: no row is in a whole vector
    passes = some * ceil_div(cols, columns)
    return work_of(
        problem,
        geometry,
        bytes=bytes_of_tiles(problem, tiles, threads * pieces * width),
        passes=passes,
        edge_passes=min(problem.rows % width, 1) * cols,
        flight=pieces * columns * width * size,
        loads=some * pieces * cols,
        x_loads=some * cols,
        products=passes * pieces * columns * width,
        busy_threads=tiles * threads if some else problem.rows,
        warp_lines=lines_of_warp(problem, threads, threads, width * size),
    )


def in_lists(problem, knobs):
    """The kernel that computes columns of many lengths in one launch."""
    return ("list_in_order", words_in_order(problem, 1)) if has_plain_edges(problem) else None


def repeats(problem, knobs):
    width = problem.widths[0]
    if problem.rows < width:
        return None  # `rows` in a table is larger, so it would not show that no vector is whole
    pieces = pieces_of_a_thread(knobs, width, problem.dtype.itemsize)
    return 1, knobs["THREADS_PER_BLOCK"] * pieces * width


def tile(knobs):
    return 4 * knobs["THREADS_PER_BLOCK"] * knobs["PIECES"], knobs["COLUMNS"]


KERNEL = Kernel(
    name="long_columns",
    rung=10,
    build=build,
    geometry=geometry,
    prepared=prepared,
    tile=tile,
    repeats=repeats,
    in_lists=in_lists,
    work=work,
    wide=True,
    accepts=accepts,
    # At least 8 threads: each of up to 7 rows that fill no vector has one.
    knobs={"PIECES": 4, "COLUMNS": 1, "THREADS_PER_BLOCK": 128, "MIN_BLOCKS": 4},
    small_knobs={"PIECES": 2, "COLUMNS": 2, "THREADS_PER_BLOCK": 8, "MIN_BLOCKS": 1},
    doc=__doc__,
)
