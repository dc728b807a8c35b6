"""One matrix and several vectors, down the columns: A is read once for up to eight of them.

Idea
    As along the rows: a load of A that is in registers is multiplied with the numbers of all k
    vectors before it is dropped. Here a thread has WIDTH neighbouring rows, and a column needs one
    number of each x, which all lanes of the group share: one load moves it to all of them. So x
    costs one load of a single number for each column and each vector, and the partial sums cost
    registers: k times those of the rung of columns.

    For eight vectors, and for four of complex numbers, these loads are as many as the rest has time
    for, and x of all vectors does not stay in the L1 cache. So the block copies x to shared
    memory before the products of a pass: each thread takes a column, converts and conjugates the
    numbers of all vectors, and stores them side by side. Then 16 bytes of shared memory are the
    factors of four vectors at once, for float32 and shorter numbers. A is asked for before x, so
    that x is staged while A is on its way. There are two places for x in turn, and so one barrier
    for each stage is enough: what is read behind it lies where the next stage does not write.
    A small matrix has no next pass: its loads of A and x all go out at once, and nothing is staged.

    The sums of a vector meet as those of a single product do, in shared memory. It has 32 KB for
    sums, so only some vectors add up at a time. Columns that are split over blocks stay so, with
    the same splits.

Picture
    ::

        LANES = 2, four rows to a lane, two vectors x and z

                     column 0   1   2   3
        rows 0-3     L0         L2  ...         * x[0] -> 4 sums of L0    * z[0] -> 4 more
        rows 4-7     L1         L3  ...         * x[0] -> 4 sums of L1    * z[0] -> 4 more

Bytes
    (m*n + k * (len(x) + len(y) * (1 + [beta != 0]))) * itemsize from memory for up to COUNT
    vectors; with more of them A comes again for each COUNT. Each block reads the numbers of x for
    its columns again, from the L2 cache: k / (rows of a tile) times the bytes of A.

Wins
    Over one launch for each vector. On an H200, 8192 x 8192 float32 down the columns took 61 us
    with one vector, 63 with two, 65 with four and 68 with eight, where torch.mm took 119. Before x
    was staged in shared memory, eight took 75.

Loses
    To matrix products on tensor cores, which add in another order: eight vectors with 8192 x 8192
    float64 took 142 us, torch.mm 133; on an H100 64 x 1048576 bfloat16 took 73 us, torch.mm 63. If
    one vector gives too few blocks to fill the GPU, so do eight.

Sums
    Those of the rung of columns with the same LANES, threads and splits, for each vector.

Source
    The outer product form of a matrix product with one short side: G. H. Golub and C. F. Van Loan,
    "Matrix Computations", section 1.1.
"""

from __future__ import annotations

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import LOAD_BYTES, ceil_div
from gemv.kernels import ends_of_columns
from gemv.kernels.ends_of_columns import SHARED_BYTES, edge_bytes
from gemv.kernels.grids import power_above
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.wide_tiles import (
    finishers_of_columns,
    lanes_and_pieces,
    lanes_and_pieces_of,
    narrow_loads,
)

#: Registers of 4 bytes that a thread has for sums.
SUM_REGISTERS = 64
#: Loads of A that a thread has in flight, and those where sums take all registers.
LOADS, FEW_LOADS = 16, 4
#: Those where numbers of x are staged, which take no registers; and those of numbers of 2 bytes.
STAGED_LOADS, NARROW_LOADS = 16, {DTYPES["b"]: 8, DTYPES["h"]: 4}
#: Blocks up to which an H200 has a multiprocessor for each.
FEW_BLOCKS = 132
#: A block of at most so many threads whose groups have at most so many columns each: its loads all
#: go out at once, where staged numbers of x would wait for barriers. On an H100 eight vectors with
#: 1000 x 1000 and two lanes took 3.8 us so and 5.8 staged for bfloat16 and float16, 4.5 and 4.9 for
#: float32, 8.7 and 9.7 for complex64, 6.8 and 8.6 for float64. With 512 threads, which have half
#: the registers, staging is faster: on an H200 4.3 us for float32, 4.6 without.
SMALL_THREADS, SMALL_COLUMNS = 256, 8
#: Bytes of shared memory for numbers of x.
STAGE_BYTES = 32 << 10

#: What the kernel calls.
_WORDS = (
    "axpy_add", "gather", "gather_some", "outer_add", "row_starts", "stream_some", "stream_tile",
    "zeros",
)  # fmt: skip
#: The passes where a thread loads numbers of x for itself.
_LOADED = """
# Passes in which every group has all of its columns.
limit = j + rounded_down(end - begin, PASS)
total_{v} = zeros(zero, SUMS)
if WHOLE or last >= 0:
    # Past the edge the last vector is read again; nobody looks at those sums.
    pieces = row_starts(first + mine, PIECE_ROWS, last, 1, PIECES)
    while j + PASS <= limit:
        values = stream_tile(a, pieces, j * col_stride, step, LOADS, WIDTH)
        total_{v} = axpy_add(total_{v}, values, full(x_{v}, j, incx), WIDTH, CONJUGATE)
        j += PASS
    if j < end:  # what is left goes out at once, too
        rest = quotient(end - 1 - j, GROUPS) + 1
        values = stream_some(a, pieces, j * col_stride, step, LOADS, WIDTH, rest)
        total_{v} = axpy_add(total_{v}, values, some(x_{v}, j, incx, rest), WIDTH, CONJUGATE)
"""
#: The passes where the block copies x to shared memory, STAGED passes at a time. There are two
#: places for these: what is read in one of them is not overwritten before the next barrier.
_STAGED = """
xs = cuda.shared.array(BOTH_STAGES, x_number, alignment=16)
total = zeros(zero, ALL_SUMS)
if WHOLE or last >= 0:
    # Past the edge the last vector is read again; nobody looks at those sums.
    pieces = row_starts(first + mine, PIECE_ROWS, last, 1, PIECES)
    start = begin  # the first column of a pass
    at = 0  # where its numbers of x begin in xs
    while start + PASS <= end:
        values = stream_tile(a, pieces, j * col_stride, step, LOADS, WIDTH)
        if STAGED == 1 or at == 0 or at == STAGE:  # while A is on its way
            stage
            cuda.syncthreads()  # x of these passes is in place
        total = outer_add(
            total, values, xs, at + group * COUNT, GROUPS * COUNT, COUNT, WIDTH, CONJUGATE
        )
        at = at + PASS * COUNT if at + PASS * COUNT < BOTH_STAGES else 0
        start += PASS
        j += PASS
    if start < end:  # what is left goes out at once, too
        rest = quotient(end - 1 - j, GROUPS) + 1
        values = stream_some(a, pieces, j * col_stride, step, LOADS, WIDTH, rest)
        if STAGED == 1 or at == 0 or at == STAGE:
            stage
            cuda.syncthreads()  # x of what is left is in place
        if j < end:
            total = outer_add(
                total, values, xs, at + group * COUNT, GROUPS * COUNT, COUNT, WIDTH, CONJUGATE
            )
total_{v} = total[{low}:{high}]
"""
#: How the block copies x: all numbers of a column together, and zeros behind the last column.
_STAGE = """
for k in range(TURNS):
    c = tid + k * THREADS
    if STAGE_COLUMNS % THREADS == 0 or c < STAGE_COLUMNS:
        left = end - start - c
        number_{v} = gather_some(x_{v}, start + c, 1, 1, incx, 1, left)[0]
        keep(xs, at + c * COUNT, ({all_numbers},))
"""


def _keep(count, unit):
    """The source of a function that stores the numbers of a column, `unit` of them at a time."""
    stores = (f"    put_unit(xs, at + {k}, values, {k}, {unit})" for k in range(0, count, unit))
    return "\n".join(["def keep(xs, at, values):", *stores])


def x_number_of(precision):
    """The dtype of a staged number of x: that in which a thread would have it in a register."""
    if precision.data == DTYPES["h"]:  # whose products float32 holds exactly
        return DTYPES["s"]
    return precision.sums


def stages(precision):
    """Whether numbers of x can be staged: not where a sum is two numbers."""
    return precision.sums.fields is None


def stage_bytes(count, columns, precision):
    """Bytes of both places for the numbers of so many columns."""
    return 2 * columns * count * x_number_of(precision).itemsize


def build(spec):
    from gemv import language
    from gemv.language import device, gather, gather_some, put_unit

    COUNT, LOADS = spec["COUNT"], spec["LOADS"]
    # A number of two is one number for A and two for its sums: nothing moves those of x.
    STAGED = spec["STAGED"] if stages(spec.precision) else 0
    lanes, _ = lanes_and_pieces(dict(spec.knobs), spec.widths[0], spec.dtype.itemsize, spec.narrow)
    GROUPS = max(lanes, spec["THREADS_PER_BLOCK"]) // lanes
    STAGE_COLUMNS = STAGED * GROUPS * LOADS
    taken = stage_bytes(COUNT, STAGE_COLUMNS, spec.precision) if STAGED else 0
    scope = ends_of_columns.names_of(spec, taken)
    SUMS, THREADS = scope["SUMS"], scope["THREADS"]

    @device
    def full(x, j, incx):
        """The numbers of x for a full pass."""
        return gather(x, j, GROUPS, LOADS, incx, 1)

    @device
    def some(x, j, incx, rest):
        return gather_some(x, j, GROUPS, LOADS, incx, 1, rest)

    scope |= {name: getattr(language, name) for name in _WORDS}
    if STAGED:
        x_number = x_number_of(spec.precision)
        written = {"put_unit": put_unit}
        exec(_keep(COUNT, min(COUNT, LOAD_BYTES // x_number.itemsize)), written)
        scope |= {
            "keep": device(written["keep"]), "x_number": x_number.type, "STAGED": STAGED,
            "ALL_SUMS": COUNT * SUMS, "STAGE_COLUMNS": STAGE_COLUMNS,
            "STAGE": STAGE_COLUMNS * COUNT, "BOTH_STAGES": 2 * STAGE_COLUMNS * COUNT,
            "TURNS": ceil_div(STAGE_COLUMNS, THREADS),
        }  # fmt: skip
    scope |= {"full": full, "some": some, "LOADS": LOADS, "PASS": GROUPS * LOADS}
    numbers = ", ".join(f"number_{v}" for v in range(COUNT))
    names = {"sums": SUMS, "all_numbers": numbers, **ends_of_columns.factor_names(spec)}
    parts = {"the passes": _STAGED if STAGED else _LOADED, "stage": _STAGE}
    source = ends_of_columns.source_of("several_columns", COUNT, scope["CHUNK"], names, parts)
    exec(source, scope)
    return (attach(scope["several_columns"], launch_bounds=(THREADS, spec.min_blocks)),)


def accepts(problem):
    return wide_loads_object(problem, "axpy")


def constants_for(problem, knobs, vectors):
    """The constants for so many vectors, with the sums of the rung of columns."""
    width = problem.widths[0]
    lanes, pieces = lanes_and_pieces_of(problem, knobs)
    of_vector = pieces * width * problem.precision.sums.itemsize // 4
    count = 2
    while count < 8 and count < vectors and 2 * count * of_vector <= SUM_REGISTERS:
        count *= 2
    loads = LOADS if count * of_vector < SUM_REGISTERS else FEW_LOADS
    threads = max(lanes, knobs["THREADS_PER_BLOCK"])
    own = power_above(ceil_div(problem.cols * lanes, threads))
    turns = ceil_div(vectors, count)
    blocks = ceil_div(problem.rows, pieces * lanes * width) * turns
    # Then a multiprocessor has one block, which may have all registers.
    is_alone = (
        blocks <= FEW_BLOCKS
        if not knobs["BLOCKS_PER_SM"]
        else (knobs["BLOCKS_PER_SM"] * turns == 1)
    )
    of_sums = ("LANES", "PIECES", "COLUMNS", "THREADS_PER_BLOCK", "BLOCKS_PER_SM")
    kept = {name: knobs[name] for name in of_sums} | {"COUNT": count}
    is_small = threads <= SMALL_THREADS and own <= SMALL_COLUMNS and not knobs["BLOCKS_PER_SM"]
    if count == 8 and is_small and stages(problem.precision):
        # Numbers of x take twice the registers where sums are float64: half the loads, two blocks.
        halves = 2 if problem.precision.sums in (DTYPES["d"], DTYPES["z"]) else 1
        loads = max(1, min(SMALL_COLUMNS // halves, own) // pieces)
        return {**kept, "LOADS": loads, "MIN_BLOCKS": halves, "STAGED": 0}
    loads = max(1, min(loads // pieces, own))
    staged = 0
    narrow = problem.dtype.itemsize == 2
    many = count == 8 or count * of_vector >= SUM_REGISTERS
    if stages(problem.precision) and (many or (count == 4 and problem.dtype.kind == "c")):
        tile_rows, groups = pieces * lanes * width, threads // lanes
        shares = max(min(groups, threads // 32), finishers_of_columns(threads, tile_rows))
        room = SHARED_BYTES - edge_bytes(count, threads, width, problem.precision)
        room -= shares * tile_rows * problem.precision.sums.itemsize  # of one vector at least
        most = min(STAGE_BYTES, room) // stage_bytes(count, groups, problem.precision)
        if most > 0:
            # Numbers of 2 bytes have no registers for more loads, and gain by two passes at a time.
            wanted = min(NARROW_LOADS.get(problem.dtype, STAGED_LOADS), most // (1 + narrow))
            if count * of_vector >= SUM_REGISTERS and not narrow:
                wanted //= 2  # else 144 bytes of a thread with two pieces of float32 are spilled
            loads = max(1, min(wanted // pieces, own))
            loads = 1 << loads.bit_length() - 1
            staged = max(1, min(2, most // loads))
    return {
        **kept,
        "LOADS": loads,
        "MIN_BLOCKS": 1 if (is_alone and not staged) or threads > 256 else 2,
        "STAGED": staged,
    }


def geometry(problem, device, knobs):
    return ends_of_columns.geometry_of("several_columns", problem, device, knobs, 1, (0, 0, 0, 0))


def of_batch(problem, batch, device, knobs):
    """The launch for vectors that share the matrix."""
    (vectors,), steps = batch.shape, tuple(own[0] for own in batch.strides[1:])
    return ends_of_columns.geometry_of("several_columns", problem, device, knobs, vectors, steps)


def tile(knobs):
    threads = max(knobs["LANES"], knobs["THREADS_PER_BLOCK"])
    return 4 * knobs["LANES"] * knobs["PIECES"], threads // knobs["LANES"] * knobs["COLUMNS"]


KERNEL = Kernel(
    name="several_columns",
    rung=2,
    build=build,
    geometry=geometry,
    of_batch=of_batch,
    for_vectors=constants_for,
    tile=tile,
    beside=True,
    wide=True,
    narrow=narrow_loads,
    accepts=accepts,
    knobs={
        "LANES": 8, "PIECES": 1, "COLUMNS": 4, "THREADS_PER_BLOCK": 256, "BLOCKS_PER_SM": 0,
        "COUNT": 4, "LOADS": 4, "MIN_BLOCKS": 1, "STAGED": 0,
    },
    small_knobs={
        "LANES": 2, "PIECES": 1, "COLUMNS": 2, "THREADS_PER_BLOCK": 32, "BLOCKS_PER_SM": 1,
        "COUNT": 2, "LOADS": 1, "MIN_BLOCKS": 1, "STAGED": 0,
    },
    doc=__doc__,
)  # fmt: skip
