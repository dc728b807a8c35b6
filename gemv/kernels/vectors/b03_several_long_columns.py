"""A few long columns and several vectors: each thread owns its rows alone, for all vectors.

Idea
    In the rung of long columns a thread keeps the sums of its rows, and no other thread has a
    share of them. With k vectors it keeps k times as many, and multiplies each vector of A that it
    has loaded with k numbers. No sums meet.

    These k numbers are the same for all threads. So the block brings them to shared memory once,
    for up to 64 columns together, and those of a column are neighbours: one load of 16 bytes is
    the factors of two vectors or more, where a thread had a load for each of them.

    The sums take most registers, which leaves few for loads of A on their way. So A comes by copies
    to shared memory, which take none: a thread has a ring of STAGES places for a few columns each,
    and while it multiplies one stage, its copies for the next ones are on their way. Rings of
    copies mostly need a barrier for each stage, because threads read what others have copied. Here
    a thread copies just what it will read itself, so it waits for its own copies and for nobody
    else. Where loads are narrower than 16 bytes, and on GPUs without such copies, A comes straight
    from memory.

    A tall matrix with 64 columns is what a block of Krylov vectors or of features is, and its
    products with several vectors write k times as much of y.

Picture
    ::

        float32, two vectors x and z:   column 0             column 1            y and w
        rows 0-3     thread 0           * x[0]  * z[0]       * x[1]  * z[1]      16 bytes each
        rows 4-7     thread 1           * x[0]  * z[0]       * x[1]  * z[1]      16 bytes each

        STAGES = 3, two columns in each:    columns 0, 1    columns 2, 3    columns 4, 5
        the ring of thread 0                is multiplied   on its way      on its way

Bytes
    (m*n + k * (len(x) + len(y) * (1 + [beta != 0]))) * itemsize from memory for up to COUNT
    vectors; with more of them A comes again for each COUNT.

Wins
    Over one launch for each vector. On an H200, 64 columns of 1048576 float32 took 61 us with one
    vector, 66 with two, 70 with four and 83 with eight, where torch.mm took 171. With the ring, on
    an H100, eight vectors with 64 columns of 1048576 numbers: bfloat16 took 56.4 us (63.9 before,
    torch.mm 58.7), float64 202.6 (213.6 and 203.9), as much as a plain copy of as many bytes.
    With x in shared memory alone bfloat16 took 58.8. On an H200 two vectors with 65536 x 256
    float32 took 18.4 us, as a plain copy of as many bytes did, and 39.7 with two columns in a stage
    and blocks of 128 threads.

Loses
    To ``several_columns`` where rows alone do not fill the GPU: nothing here divides the columns.
    To matrix products on tensor cores, which have other sums, where memory is fast: on an H200
    eight vectors with 64 columns of 1048576 float64 took 179 us before there were rings, torch.mm
    151.

Sums
    Those of the rung of long columns, for each vector: the columns in order.

Source
    The outer product form of a matrix product with one short side: G. H. Golub and C. F. Van Loan,
    "Matrix Computations", section 1.1.
"""

from __future__ import annotations

from gemv.core.geometry import LOAD_BYTES, ceil_div, one_launch
from gemv.kernels.ends_of_columns import factor_names, inserted
from gemv.kernels.grids import power_above
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.numbers_of_x import x_bytes, x_element_of, x_movers
from gemv.kernels.rings import column_copies
from gemv.kernels.several import ONE, sizes_of_vectors, turns_of_vectors
from gemv.kernels.staging import BLOCK_BYTES, COPIES

#: Registers of 4 bytes that a thread has for sums, and bytes of A that it has in flight.
SUM_REGISTERS, FLIGHT_BYTES = 64, 128
#: Columns of A in flight, and those beside eight sets of sums, which leave no registers for more.
MOST_COLUMNS, MOST_OF_EIGHT = 8, 4
#: Stages of a ring, the vectors of a thread in each of them, and the threads of a block.
STAGES, STAGE_VECTORS, THREADS_PER_BLOCK, BLOCKS = 3, 4, 128, 4
#: Loads of a column below which threads are few. Then a block is one or two warps, which spreads
#: them evenly, and has a ring of more columns, which keeps as many bytes on their way: columns,
#: stages and threads, for eight vectors and for fewer.
ENOUGH_LOADS, RING_OF_EIGHT, RING_OF_FEWER = 1 << 17, (8, 3, 64), (8, 4, 32)
#: Columns whose numbers of x are in shared memory at a time.
CHUNK_COLUMNS = 64

#: What the kernel calls.
_WORDS = (
    "copies_wait", "cuda", "moved", "natural", "outer_add", "rounded_down", "row_starts",
    "short", "staged_tile", "stream_some", "stream_tile", "zeros",
)  # fmt: skip
#: The kernel. A line with ``{v}`` stands there once for each vector: a tuple of tuples has no index
#: at run time, so the loop over the vectors is unrolled in the source.
_SOURCE = """
def several_long_columns(
    rows, cols, vectors, a, col_stride, x, x_step, incx, y, y_step, incy, {alpha}, alpha_step,
    {beta}, beta_step,
):
    xs = cuda.shared.array(CHUNK_NUMBERS, x_number, alignment=16)
    tid = natural(cuda.threadIdx.x)
    vector = natural(cuda.blockIdx.y) * COUNT
    first = natural(cuda.blockIdx.x) * TILE_ROWS
    mine = first + tid * WIDTH
    end = last_column({alpha}, cols)
    edge = rows if WHOLE else rounded_down(rows, WIDTH)  # rows from here on fill no vector
    last = edge - WIDTH  # where the last whole vector starts, if there is one
    total = zeros(zero, ALL_SUMS)
    if WHOLE or last >= 0:
        # Past the edge the last vector is read again; nobody stores those sums.
        pieces = row_starts(mine, PIECE_ROWS, last, 1, PIECES)
        own_x = own_numbers(x, x_step, incx, vector, vectors, tid)
        the start
        j = 0
        while j < end:
            if j > 0:
                cuda.syncthreads()  # x of the columns before has been read
            put_numbers(xs, 0, numbers_of(own_x, j, incx, end, tid), tid, own_x)
            cuda.syncthreads()  # x of these columns is in place
            at = 0  # where the numbers of column j begin in xs
            behind = min(end, j + CHUNK_COLUMNS)
            the columns
    total_{v} = total[{low}:{high}]
    is_full = incy == 1 and first + TILE_ROWS <= rows
    factors = {alpha}, alpha_step, {beta}, beta_step
    keep(vector + {v}, vectors, factors, total_{v}, y, y_step, incy, mine, edge, is_full)
    i = edge + tid
    if not WHOLE and i < rows and first + TILE_ROWS >= rows:
        x_{v} = of_x(moved(x, min(vector + {v}, vectors - 1) * x_step))
        part_{v} = zero
        for j in range(end):
            number_of_a = op(a[i + j * col_stride])
            part_{v} += number_of_a * x_{v}[j * incx]
        keep_one(vector + {v}, vectors, factors, part_{v}, y, y_step, i * incy)
"""
#: The columns of a chunk straight from memory.
_LOADED = """
while j + COLUMNS <= behind:
    values = stream_tile(a, pieces, j * col_stride, col_stride, COLUMNS, WIDTH)
    total = outer_add(total, values, xs, at, COUNT, COUNT, WIDTH, CONJUGATE)
    j += COLUMNS
    at += COLUMNS * COUNT
if COLUMNS > 1 and j < behind:  # what is left of all columns goes out at once, too
    values = stream_some(a, pieces, j * col_stride, col_stride, COLUMNS, WIDTH, behind - j)
    total = outer_add(total, values, xs, at, COUNT, COUNT, WIDTH, CONJUGATE)
    j += COLUMNS
"""
#: What begins the copies of the first stages.
_FIRST_COPIES = """
ring = cuda.shared.array(RING_BYTES, uint8, alignment=16)
stage = short(0)
ahead = 0, stage  # the column and the stage of the copies that are next
for _ in range(STAGES - 1):
    ahead = copied(ring, a, pieces, tid, col_stride, end, ahead)
"""
#: The columns of a chunk from the ring, COLUMNS at a time. Behind the last column are zeros.
_COPIED = """
while j < behind:
    copies_wait(PENDING)  # no barrier: a thread reads what it has copied itself
    ahead = copied(ring, a, pieces, tid, col_stride, end, ahead)
    the products
    stage = short(stage + STAGE) if stage + STAGE < RING else 0
    j += COLUMNS
    at += COLUMNS * COUNT
"""
_PRODUCT = """
place = tid * WIDTH + stage + <k> * COPIED
values = staged_tile(ring, a, PLACES, place, COPIED, 1, WIDTH)
total = outer_add(total, values, xs, at + <k> * COUNT, COUNT, COUNT, WIDTH, CONJUGATE)
"""


def build(spec):
    import numpy as np

    from gemv import language
    from gemv.language import (
        copies_commit,
        device,
        is_aligned,
        load_back,
        moved,
        read_only_load,
        short,
        store_vectors,
        unrolled,
        update_streaming,
        zeros,
    )

    zero, WIDTH = spec.zero, spec.widths[0]
    names = ("COLUMNS", "COUNT", "PIECES", "STAGES", "CHUNK_COLUMNS", "THREADS_PER_BLOCK")
    COLUMNS, COUNT, PIECES, STAGES, CHUNK_COLUMNS, THREADS = (spec[name] for name in names)
    PIECE_ROWS = THREADS * WIDTH
    SUMS = PIECES * WIDTH
    VECTOR_BYTES = min(WIDTH * spec.precision.y.itemsize, LOAD_BYTES)
    scaled_all, blended_all, update_all = unrolled(PIECES, WIDTH)
    ALPHAS, BETAS = (home == "pointer" for home in spec.homes)
    COPIED = THREADS * WIDTH  # elements that all threads copy of a column, for a piece
    STAGE = PIECES * COLUMNS * COPIED
    RING = STAGES * STAGE
    all_copies, some_copies = column_copies(COLUMNS, PIECES, COPIED)

    @device
    def copied(ring, a, pieces, tid, col_stride, end, ahead):
        """Begin the copies of a stage, if there is one; what is next behind it."""
        j, stage = ahead
        place = tid * WIDTH + stage
        if j + COLUMNS <= end:
            all_copies(ring, place, a, pieces, j * col_stride, col_stride)
        elif j < end:
            some_copies(ring, place, a, pieces, j * col_stride, col_stride, end - j)
        copies_commit()
        return j + COLUMNS, short(stage + STAGE) if stage + STAGE < RING else short(0)

    @device
    def own_factors(factors, item):
        alpha, alpha_step, beta, beta_step = factors
        own_alpha = read_only_load(alpha, item * alpha_step) if ALPHAS else alpha
        own_beta = read_only_load(beta, item * beta_step) if BETAS else beta
        return own_alpha, own_beta

    @device
    def keep(item, vectors, factors, total, y, y_step, incy, mine, edge, is_full):
        """Store what a thread has of the y of one vector."""
        if item < vectors:
            own_alpha, own_beta = own_factors(factors, item)
            if ALPHAS and own_alpha == 0:
                total = zeros(zero, SUMS)
            own = moved(y, item * y_step)
            if is_full and is_aligned(own, VECTOR_BYTES):
                if own_beta == 0:
                    store_vectors(own, mine, PIECE_ROWS, scaled_all(own_alpha, total), WIDTH)
                else:
                    old = load_back(own, mine, PIECE_ROWS, PIECES, WIDTH)
                    blended = blended_all(own_alpha, total, own_beta, old)
                    store_vectors(own, mine, PIECE_ROWS, blended, WIDTH)
            else:
                update_all(own_alpha, total, own_beta, own, mine, PIECE_ROWS, edge, incy)

    @device
    def keep_one(item, vectors, factors, total, y, y_step, at):
        """Store one element of the y of one vector."""
        if item < vectors:
            own_alpha, own_beta = own_factors(factors, item)
            part = zero if own_alpha == 0 else total
            update_streaming(own_alpha, part, own_beta, y, item * y_step + at)

    @device
    def all_columns(alpha, cols):
        return cols

    @device
    def none_if_zero(alpha, cols):
        return cols if alpha != 0 else 0

    own_numbers, numbers_of, put_numbers = x_movers(COUNT, CHUNK_COLUMNS, THREADS, spec)
    scope = {name: getattr(language, name) for name in _WORDS}
    scope |= {
        "copied": copied, "keep": keep, "keep_one": keep_one, "op": spec.op,
        "own_numbers": own_numbers, "numbers_of": numbers_of, "put_numbers": put_numbers,
        "x_number": x_element_of(spec),
        "last_column": all_columns if ALPHAS else none_if_zero,
        "of_x": language.conjugated if spec.conjugate_x else language.same,
        "zero": zero, "CONJUGATE": int(spec.conj), "WIDTH": WIDTH, "COLUMNS": COLUMNS,
        "COUNT": COUNT, "PIECES": PIECES, "PIECE_ROWS": PIECE_ROWS,
        "TILE_ROWS": PIECES * PIECE_ROWS, "ALL_SUMS": COUNT * SUMS,
        "WHOLE": WIDTH == 1 or spec.whole,
        "CHUNK_COLUMNS": CHUNK_COLUMNS, "CHUNK_NUMBERS": CHUNK_COLUMNS * COUNT,
        "RING_BYTES": RING * spec.dtype.itemsize, "STAGES": STAGES, "STAGE": STAGE, "RING": RING,
        "PENDING": max(STAGES - 2, 0), "COPIED": COPIED, "uint8": np.uint8,
        "PLACES": tuple(p * COLUMNS * COPIED for p in range(PIECES)),
    }  # fmt: skip
    products = "".join(_PRODUCT.replace("<k>", str(k)) for k in range(COLUMNS))
    places = {
        "the start": _FIRST_COPIES if STAGES else "",
        "the columns": _COPIED if STAGES else _LOADED,
        "the products": products.replace("\n\n", "\n"),
    }
    source = _SOURCE
    for place, part in places.items():
        source = inserted(source, place, part)
    words = factor_names(spec)
    lines = [
        line.format(v=v, low=v * SUMS, high=(v + 1) * SUMS, **words)
        for line in source.splitlines()
        for v in (range(COUNT) if "{v}" in line else (0,))
    ]
    exec("\n".join(lines), scope)
    return (attach(scope["several_long_columns"], launch_bounds=(THREADS, spec.min_blocks)),)


def accepts(problem):
    return wide_loads_object(problem, "axpy")


def constants_for(problem, knobs, vectors):
    """The constants for so many vectors; sums depend on none of them."""
    width, size = problem.widths[0], problem.dtype.itemsize
    of_vector = width * problem.precision.sums.itemsize // 4
    count = 2
    while count < 8 and count < vectors and 2 * count * of_vector <= SUM_REGISTERS:
        count *= 2
    # Eight vectors leave no registers for a second vector of A. Four of bfloat16 took an H200
    # 42.6 us with one of them and 36.2 with two (1048576 x 64).
    pieces = 2 if 2 * count * of_vector <= SUM_REGISTERS // (1 + (count == 8)) else 1
    own, columns = power_above(problem.cols), STAGE_VECTORS // pieces
    found = {
        "PIECES": pieces, "COUNT": count, "THREADS_PER_BLOCK": THREADS_PER_BLOCK,
        "MIN_BLOCKS": BLOCKS, "CHUNK_COLUMNS": min(CHUNK_COLUMNS, own),
    }  # fmt: skip
    if width * size < LOAD_BYTES or problem.cols <= columns:
        return without_copies(problem, {**found, "COLUMNS": 0})
    more, stages, threads = RING_OF_EIGHT if count == 8 else RING_OF_FEWER
    if problem.cols > more and ceil_div(problem.rows, width) < ENOUGH_LOADS:
        return {**found, "PIECES": 1, "COLUMNS": more, "STAGES": stages,
                "THREADS_PER_BLOCK": threads}  # fmt: skip
    return {**found, "COLUMNS": columns, "STAGES": STAGES}


def without_copies(problem, knobs):
    """The same constants where no ring can be, or is of use."""
    flight = FLIGHT_BYTES // (knobs["PIECES"] * problem.widths[0] * problem.dtype.itemsize)
    most = MOST_OF_EIGHT if knobs["COUNT"] == 8 else MOST_COLUMNS
    return {**knobs, "COLUMNS": max(1, min(flight, power_above(problem.cols), most)), "STAGES": 0}


def geometry(problem, device, knobs, batch=ONE):
    threads, pieces, stages = (knobs[name] for name in ("THREADS_PER_BLOCK", "PIECES", "STAGES"))
    count, columns, chunk = (knobs[name] for name in ("COUNT", "COLUMNS", "CHUNK_COLUMNS"))
    if threads % count or chunk % columns:
        raise ValueError(
            "several_long_columns: THREADS_PER_BLOCK must be a multiple of COUNT and CHUNK_COLUMNS"
            f" one of COLUMNS, got {threads}, {count}, {chunk} and {columns}"
        )
    nbytes = x_bytes(chunk, count, problem.precision)
    nbytes += stages * columns * pieces * threads * LOAD_BYTES
    if stages:
        lacks = device.lacks(COPIES)
        if lacks:
            raise ValueError(f"several_long_columns: copies to shared memory: {lacks}")
        if stages < 2 or problem.widths[0] * problem.dtype.itemsize != LOAD_BYTES:
            raise ValueError(
                "several_long_columns: STAGES must be 0, or 2 or more for loads of 16 bytes,"
                f" got {stages}"
            )
    if nbytes > BLOCK_BYTES:
        raise ValueError(
            f"several_long_columns: x and a ring take at most {BLOCK_BYTES} bytes, not {nbytes}"
        )
    tiles = ceil_div(problem.rows, threads * pieces * problem.widths[0])
    turns = turns_of_vectors("several_long_columns", batch.items, count)
    return one_launch((tiles, turns, 1), (threads, 1, 1), sizes_of_vectors(batch))


def tile(knobs):
    return 4 * knobs["THREADS_PER_BLOCK"] * knobs["PIECES"], knobs["COLUMNS"]


KERNEL = Kernel(
    name="several_long_columns",
    rung=3,
    build=build,
    geometry=geometry,
    of_batch=geometry,
    for_vectors=constants_for,
    without_copies=without_copies,
    tile=tile,
    beside=True,
    wide=True,
    accepts=accepts,
    knobs={
        "PIECES": 1, "COLUMNS": 4, "COUNT": 4, "THREADS_PER_BLOCK": 128, "MIN_BLOCKS": 4,
        "STAGES": 0, "CHUNK_COLUMNS": 64,
    },
    small_knobs={
        "PIECES": 2, "COLUMNS": 2, "COUNT": 2, "THREADS_PER_BLOCK": 8, "MIN_BLOCKS": 1,
        "STAGES": 2, "CHUNK_COLUMNS": 4,
    },
    doc=__doc__,
)  # fmt: skip
