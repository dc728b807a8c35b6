"""One matrix and several vectors, along the rows: A is read once for up to eight of them.

Idea
    The products of one matrix with k vectors, one after the other, read A k times. But a vector of
    A that is in registers can be multiplied with the numbers of all k vectors before it is dropped.
    So a thread has k sets of partial sums where the rung of rows has one, and the loop over A stays
    as it is. The sums of each vector are those of the single product, bit for bit: the same lanes
    add the same products in the same order.

    What k costs is x: each load of A needs k loads of x, from the L1 cache. ROWS rows of a thread
    share them, so that L1 moves k/ROWS times the bytes of A. Registers bound both: k * ROWS sets of
    16 bytes of sums, of which a thread has room for 16.

Picture
    ::

        LANES = 8, two vectors x and z: a lane has 4 columns of a row, 4 of x and 4 of z

        columns      0-3  4-7  ...  28-31 | 32-35 ...
        row 0        L0   L1   ...  L7    | L0    ...     * x -> 4 sums of L0,  8 lanes -> y[0]
                                                          * z -> 4 sums of L0,  8 lanes -> w[0]

Bytes
    (m*n + k * (len(x) + len(y) * (1 + [beta != 0]))) * itemsize from memory for up to COUNT
    vectors; with more of them A comes again for each COUNT.

Wins
    Over one launch for each vector. On an H200, eight vectors with 4096 x 4096 float32 took 0.62 of
    the time of torch.mm.

Loses
    To matrix products on tensor cores, which have other sums: eight vectors with 4096 x 4096
    bfloat16 took 1.8 times as long as torch.mm. Columns that are
    split over blocks are left to single products.

Sums
    Those of the rung of rows with the same LANES and loads, for each vector.

Source
    Register tiles of matrix products with one short side: as in the kernels of llama.cpp for a few
    tokens at a time, which also choose their geometry without a look at the number of vectors, so
    that results do not change with it.
"""

from __future__ import annotations

from gemv.core.geometry import MAX_GRID_Y, ceil_div, one_launch
from gemv.kernels.grids import loads_of, partial_sums
from gemv.kernels.kernel import Kernel, attach, wide_loads_object

#: Sets of partial sums of 16 bytes that a thread has registers for.
MOST_SETS = 16


def tail_of(width):
    """As of the rung of rows: columns behind the last vector that are read at once."""
    return width - 1 if 1 < width <= 4 else 1


#: What the kernel calls.
_WORDS = (
    "butterfly", "cuda", "fold", "moved", "multiply_add", "natural", "quotient", "rounded_down",
    "row_starts", "stream_some", "stream_tile", "update_streaming", "zeros",
)  # fmt: skip
#: The kernel. A line with ``{v}`` stands there once for each vector: a tuple of tuples has no index
#: at run time, so the loop over the vectors is unrolled in the source.
_SOURCE = """
def several_rows(
    rows, cols, vectors, a, row_stride, x, x_step, incx, y, y_step, incy, {alpha}, alpha_step,
    {beta}, beta_step,
):
    sums = cuda.shared.array((ALL_ROWS, WARPS_PER_ROW), number)
    tid = natural(cuda.threadIdx.x)
    lane = tid % LANES
    group = tid // LANES
    end = last_column({alpha}, cols)
    vector = natural(cuda.blockIdx.y) * COUNT
    first = natural(cuda.blockIdx.x) * TILE_ROWS
    starts = row_starts(first + group, GROUPS, rows - 1, row_stride, ROWS)
    x_{v} = of_x(moved(x, min(vector + {v}, vectors - 1) * x_step))
    total_{v} = zeros(zero, SUMS)
    j = lane * WIDTH
    # Passes in which every lane has all of its vectors.
    limit = j + rounded_down(end, PASS)
    while j + PASS <= limit:
        values = stream_tile(a, starts, j, STEP, VECTORS, WIDTH)
        total_{v} = multiply_add(total_{v}, values, full(x_{v}, j, incx), CONJUGATE)
        j += PASS
    if j + WIDTH <= end:  # what is left goes out at once, too
        rest = quotient(end - WIDTH - j, STEP) + 1
        values = stream_some(a, starts, j, STEP, VECTORS, WIDTH, rest)
        total_{v} = multiply_add(total_{v}, values, some(x_{v}, j, incx, rest), CONJUGATE)
        j += rest * STEP
    while not WHOLE and j < end:  # one lane has the columns behind the last whole vector
        values = stream_some(a, starts, j, 1, TAIL, 1, end - j)
        total_{v} = multiply_add(total_{v}, values, tail(x_{v}, j, incx, end - j), CONJUGATE)
        j = end if TAIL == WIDTH - 1 else j + TAIL
    row_{v} = butterfly(fold(total_{v}, ROWS), WARP_LANES, 1)
    if lane % WARP_LANES == 0:
        warp = lane // WARP_LANES
        put(sums, {v} * TILE_ROWS + group, warp, row_{v})
    cuda.syncthreads()  # all sums are in place, and neighbours store neighbours
    r = tid
    while r < ALL_ROWS:
        i = first + r % TILE_ROWS
        item = vector + r // TILE_ROWS
        if i < rows and item < vectors:
            row_sum = sums[r, 0]
            for warp in range(1, WARPS_PER_ROW):
                row_sum += sums[r, warp]
            own_alpha = alpha_of({alpha}, item, alpha_step)
            own_beta = beta_of({beta}, item, beta_step)
            if own_alpha == 0:
                row_sum = zero
            update_streaming(own_alpha, row_sum, own_beta, y, item * y_step + i * incy)
        r += THREADS
"""


def build(spec):
    from gemv import language
    from gemv.language import device, gather, gather_some, load_some, load_vectors, read_only_load

    WIDTH, X_WIDTH = spec.widths
    WIDE_X = X_WIDTH > 0
    LANES, ROWS, COUNT = spec["LANES"], spec["ROWS"], spec["COUNT"]
    VECTORS = loads_of(spec["VECTORS"], WIDTH, spec.dtype.itemsize)
    THREADS = max(LANES, spec["THREADS_PER_BLOCK"])
    GROUPS = THREADS // LANES
    TILE_ROWS = GROUPS * ROWS
    WARP_LANES = min(LANES, 32)
    STEP = LANES * WIDTH
    TAIL = tail_of(WIDTH)
    SECOND, THIRD, FOURTH = (min(k, ROWS - 1) for k in (1, 2, 3))
    ALPHAS, BETAS = (home == "pointer" for home in spec.homes)

    @device
    def full(x, j, incx):
        """The numbers of x for a full pass."""
        if WIDE_X:
            return load_vectors(x, j, STEP, VECTORS, WIDTH)
        return gather(x, j, STEP, VECTORS, incx, WIDTH)

    @device
    def some(x, j, incx, rest):
        if WIDE_X:
            return load_some(x, j, STEP, VECTORS, WIDTH, rest)
        return gather_some(x, j, STEP, VECTORS, incx, WIDTH, rest)

    @device
    def tail(x, j, incx, rest):
        return gather_some(x, j, 1, TAIL, incx, 1, rest)

    @device
    def put(sums, row, warp, values):
        """Store the sums of a lane's rows."""
        sums[row, warp] = values[0]
        if ROWS > 1:
            sums[row + GROUPS, warp] = values[SECOND]
        if ROWS > 2:
            sums[row + 2 * GROUPS, warp] = values[THIRD]
        if ROWS > 3:
            sums[row + 3 * GROUPS, warp] = values[FOURTH]

    @device
    def factor_of(factor, item, step):
        return read_only_load(factor, item * step)

    @device
    def itself(factor, item, step):
        return factor

    @device
    def all_columns(alpha, cols):
        return cols

    @device
    def none_if_zero(alpha, cols):
        return cols if alpha != 0 else 0

    scope = {name: getattr(language, name) for name in _WORDS}
    scope |= {
        "full": full, "some": some, "tail": tail, "put": put,
        "last_column": all_columns if ALPHAS else none_if_zero,
        "alpha_of": factor_of if ALPHAS else itself,
        "beta_of": factor_of if BETAS else itself,
        "of_x": language.conjugated if spec.conjugate_x else language.same,
        "number": spec.number, "zero": spec.zero, "CONJUGATE": int(spec.conj),
        "WIDTH": WIDTH, "LANES": LANES, "ROWS": ROWS, "COUNT": COUNT, "VECTORS": VECTORS,
        "THREADS": THREADS, "GROUPS": GROUPS, "TILE_ROWS": TILE_ROWS,
        "ALL_ROWS": COUNT * TILE_ROWS, "WARP_LANES": WARP_LANES,
        "WARPS_PER_ROW": LANES // WARP_LANES, "STEP": STEP, "PASS": VECTORS * STEP, "TAIL": TAIL,
        "WHOLE": WIDTH == 1 or spec.whole,
        "SUMS": ROWS * partial_sums(WIDTH, spec.precision),
    }  # fmt: skip
    names = {"alpha": "alpha_pointer" if ALPHAS else "alpha"}
    names["beta"] = "beta_pointer" if BETAS else "beta"
    lines = [
        line.format(v=v, **names)
        for line in _SOURCE.splitlines()
        for v in (range(COUNT) if "{v}" in line else (0,))
    ]
    exec("\n".join(lines), scope)
    return (attach(scope["several_rows"], launch_bounds=(THREADS, spec.min_blocks)),)


def accepts(problem):
    return wide_loads_object(problem, "dot")


def constants_for(problem, knobs, vectors):
    """The constants for so many vectors, from those of the rung of rows; its LANES stay."""
    words = 2 if problem.dtype.itemsize == 2 else 1  # of 16 bytes, that sums of a row take
    count = 2
    while count < 8 and count < vectors:
        count *= 2
    rows = max(1, min(4, MOST_SETS // (count * words), 2 if count < 8 else 4))
    many = count * words >= 8
    # Eight vectors take registers that leave room for 3 blocks of 128 threads; with fewer, larger
    # blocks share more of x in the L1 cache.
    threads = max(knobs["LANES"], 128 if many else 256)
    loads = 4 if many else 8
    own = ceil_div(problem.cols, knobs["LANES"] * problem.widths[0])
    return {
        "LANES": knobs["LANES"],
        "ROWS": rows,
        "COUNT": count,
        "VECTORS": max(1, min(knobs["VECTORS"], loads // rows, own)),
        "THREADS_PER_BLOCK": threads,
        "MIN_BLOCKS": 2 if threads <= 256 else 1,
    }


def geometry(problem, device, knobs):
    return _geometry(problem, knobs, 1, 0, 0, 0, 0)


def of_batch(problem, batch, device, knobs):
    """The launch for vectors that share the matrix."""
    (vectors,), steps = batch.shape, (own[0] for own in batch.strides[1:])
    return _geometry(problem, knobs, vectors, *steps)


def _geometry(problem, knobs, vectors, x_step, y_step, alpha_step, beta_step):
    threads = max(knobs["LANES"], knobs["THREADS_PER_BLOCK"])
    tiles = ceil_div(problem.rows, threads // knobs["LANES"] * knobs["ROWS"])
    turns = ceil_div(vectors, knobs["COUNT"])
    if turns > MAX_GRID_Y:
        raise ValueError(f"several_rows: {vectors} vectors are more than a grid has blocks for")
    sizes = {
        "vectors": vectors, "x_step": x_step, "y_step": y_step,
        "alpha_step": alpha_step, "beta_step": beta_step,
    }  # fmt: skip
    return one_launch((tiles, turns, 1), (threads, 1, 1), sizes)


def tile(knobs):
    threads = max(knobs["LANES"], knobs["THREADS_PER_BLOCK"])
    return threads // knobs["LANES"] * knobs["ROWS"], 4 * knobs["LANES"]


KERNEL = Kernel(
    name="several_rows",
    rung=1,
    build=build,
    geometry=geometry,
    of_batch=of_batch,
    for_vectors=constants_for,
    tile=tile,
    beside=True,
    wide=True,
    accepts=accepts,
    knobs={
        "LANES": 32, "ROWS": 1, "VECTORS": 4, "COUNT": 4, "THREADS_PER_BLOCK": 128, "MIN_BLOCKS": 2,
    },
    small_knobs={
        "LANES": 8, "ROWS": 1, "VECTORS": 1, "COUNT": 2, "THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1,
    },
    doc=__doc__,
)  # fmt: skip
