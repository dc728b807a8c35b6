"""A few long columns and several vectors: each thread owns its rows alone, for all vectors.

Idea
    In the rung of long columns a thread keeps the sums of its rows, and no other thread has a
    share of them. With k vectors it keeps k times as many, and multiplies each vector of A that it
    has loaded with k numbers. There is nothing else to do: no sums meet.

    A tall matrix with 64 columns is what a block of Krylov vectors or of features is, and its
    products with several vectors write k times as much of y.

Picture
    ::

        float32, two vectors x and z:   column 0             column 1            y and w
        rows 0-3     thread 0           * x[0]  * z[0]       * x[1]  * z[1]      16 bytes each
        rows 4-7     thread 1           * x[0]  * z[0]       * x[1]  * z[1]      16 bytes each

Bytes
    (m*n + k * (len(x) + len(y) * (1 + [beta != 0]))) * itemsize from memory for up to COUNT
    vectors; with more of them A comes again for each COUNT.

Wins
    Over one launch for each vector. On an H200, 64 columns of 1048576 float32 took 61 us with one
    vector, 66 with two, 70 with four and 83 with eight, where torch.mm took 171.

Loses
    To matrix products on tensor cores, which have other sums: eight vectors with 64 columns of
    1048576 float64 took 179 us, torch.mm 151.

Sums
    Those of the rung of long columns, for each vector: the columns in order.

Source
    The outer product form of a matrix product with one short side: G. H. Golub and C. F. Van Loan,
    "Matrix Computations", section 1.1.
"""

from __future__ import annotations

from gemv.core.geometry import LOAD_BYTES, MAX_GRID_Y, ceil_div, one_launch
from gemv.kernels.grids import power_above
from gemv.kernels.kernel import Kernel, attach, wide_loads_object

#: Registers of 4 bytes that a thread has for sums, and bytes of A that it has in flight.
SUM_REGISTERS, FLIGHT_BYTES = 64, 128
#: Columns of A in flight, and those beside eight sets of sums: with more, up to 640 bytes of a
#: thread would be spilled.
MOST_COLUMNS, MOST_OF_EIGHT = 8, 4

#: What the kernel calls.
_WORDS = (
    "axpy_add", "cuda", "moved", "natural", "rounded_down", "row_starts", "stream_some",
    "stream_tile", "zeros",
)  # fmt: skip
#: The kernel. A line with ``{v}`` stands there once for each vector: a tuple of tuples has no index
#: at run time, so the loop over the vectors is unrolled in the source.
_SOURCE = """
def several_long_columns(
    rows, cols, vectors, a, col_stride, x, x_step, incx, y, y_step, incy, {alpha}, alpha_step,
    {beta}, beta_step,
):
    tid = natural(cuda.threadIdx.x)
    vector = natural(cuda.blockIdx.y) * COUNT
    first = natural(cuda.blockIdx.x) * TILE_ROWS
    mine = first + tid * WIDTH
    end = last_column({alpha}, cols)
    x_{v} = of_x(moved(x, min(vector + {v}, vectors - 1) * x_step))
    edge = rows if WHOLE else rounded_down(rows, WIDTH)  # rows from here on fill no vector
    last = edge - WIDTH  # where the last whole vector starts, if there is one
    total_{v} = zeros(zero, SUMS)
    if WHOLE or last >= 0:
        # Past the edge the last vector is read again; nobody stores those sums.
        pieces = row_starts(mine, PIECE_ROWS, last, 1, PIECES)
        j = 0
        while j + COLUMNS <= end:
            values = stream_tile(a, pieces, j * col_stride, col_stride, COLUMNS, WIDTH)
            total_{v} = axpy_add(total_{v}, values, full(x_{v}, j, incx), WIDTH, CONJUGATE)
            j += COLUMNS
        if COLUMNS > 1 and j < end:  # what is left goes out at once, too
            values = stream_some(a, pieces, j * col_stride, col_stride, COLUMNS, WIDTH, end - j)
            some_{v} = some(x_{v}, j, incx, end - j)
            total_{v} = axpy_add(total_{v}, values, some_{v}, WIDTH, CONJUGATE)
    is_full = incy == 1 and first + TILE_ROWS <= rows
    factors = {alpha}, alpha_step, {beta}, beta_step
    keep(vector + {v}, vectors, factors, total_{v}, y, y_step, incy, mine, edge, is_full)
    i = edge + tid
    if not WHOLE and i < rows and first + TILE_ROWS >= rows:
        part_{v} = zero
        for j in range(end):
            number_of_a = op(a[i + j * col_stride])
            part_{v} += number_of_a * x_{v}[j * incx]
        keep_one(vector + {v}, vectors, factors, part_{v}, y, y_step, i * incy)
"""


def build(spec):
    from gemv import language
    from gemv.language import (
        device,
        gather,
        gather_some,
        is_aligned,
        load_back,
        moved,
        read_only_load,
        store_vectors,
        unrolled,
        update_streaming,
        zeros,
    )

    zero, WIDTH = spec.zero, spec.widths[0]
    COLUMNS, COUNT, PIECES = spec["COLUMNS"], spec["COUNT"], spec["PIECES"]
    THREADS = spec["THREADS_PER_BLOCK"]
    PIECE_ROWS = THREADS * WIDTH
    SUMS = PIECES * WIDTH
    VECTOR_BYTES = min(WIDTH * spec.precision.y.itemsize, LOAD_BYTES)
    scaled_all, blended_all, update_all = unrolled(PIECES, WIDTH)
    ALPHAS, BETAS = (home == "pointer" for home in spec.homes)

    @device
    def full(x, j, incx):
        """The numbers of x for a full pass."""
        return gather(x, j, 1, COLUMNS, incx, 1)

    @device
    def some(x, j, incx, rest):
        return gather_some(x, j, 1, COLUMNS, incx, 1, rest)

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

    scope = {name: getattr(language, name) for name in _WORDS}
    scope |= {
        "full": full, "some": some, "keep": keep, "keep_one": keep_one, "op": spec.op,
        "last_column": all_columns if ALPHAS else none_if_zero,
        "of_x": language.conjugated if spec.conjugate_x else language.same,
        "zero": zero, "CONJUGATE": int(spec.conj), "WIDTH": WIDTH, "COLUMNS": COLUMNS,
        "COUNT": COUNT, "PIECES": PIECES, "PIECE_ROWS": PIECE_ROWS,
        "TILE_ROWS": PIECES * PIECE_ROWS, "SUMS": SUMS, "WHOLE": WIDTH == 1 or spec.whole,
    }  # fmt: skip
    names = {"alpha": "alpha_pointer" if ALPHAS else "alpha"}
    names["beta"] = "beta_pointer" if BETAS else "beta"
    lines = [
        line.format(v=v, **names)
        for line in _SOURCE.splitlines()
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
    pieces = 2 if 2 * count * of_vector <= SUM_REGISTERS // 2 else 1
    own = power_above(problem.cols)
    most = MOST_OF_EIGHT if count == 8 else MOST_COLUMNS
    return {
        "PIECES": pieces,
        "COLUMNS": max(1, min(FLIGHT_BYTES // (pieces * width * size), own, most)),
        "COUNT": count,
        "THREADS_PER_BLOCK": 128,
        "MIN_BLOCKS": 4,
    }


def geometry(problem, device, knobs):
    return _geometry(problem, knobs, 1, 0, 0, 0, 0)


def of_batch(problem, batch, device, knobs):
    """The launch for vectors that share the matrix."""
    (vectors,), steps = batch.shape, (own[0] for own in batch.strides[1:])
    return _geometry(problem, knobs, vectors, *steps)


def _geometry(problem, knobs, vectors, x_step, y_step, alpha_step, beta_step):
    threads = knobs["THREADS_PER_BLOCK"]
    tiles = ceil_div(problem.rows, threads * knobs["PIECES"] * problem.widths[0])
    turns = ceil_div(vectors, knobs["COUNT"])
    if turns > MAX_GRID_Y:
        raise ValueError(
            f"several_long_columns: {vectors} vectors are more than a grid has blocks for"
        )
    sizes = {
        "vectors": vectors, "x_step": x_step, "y_step": y_step,
        "alpha_step": alpha_step, "beta_step": beta_step,
    }  # fmt: skip
    return one_launch((tiles, turns, 1), (threads, 1, 1), sizes)


def tile(knobs):
    return 4 * knobs["THREADS_PER_BLOCK"] * knobs["PIECES"], knobs["COLUMNS"]


KERNEL = Kernel(
    name="several_long_columns",
    rung=3,
    build=build,
    geometry=geometry,
    of_batch=of_batch,
    for_vectors=constants_for,
    tile=tile,
    beside=True,
    wide=True,
    accepts=accepts,
    knobs={"PIECES": 1, "COLUMNS": 4, "COUNT": 4, "THREADS_PER_BLOCK": 128, "MIN_BLOCKS": 4},
    small_knobs={"PIECES": 2, "COLUMNS": 2, "COUNT": 2, "THREADS_PER_BLOCK": 8, "MIN_BLOCKS": 1},
    doc=__doc__,
)
