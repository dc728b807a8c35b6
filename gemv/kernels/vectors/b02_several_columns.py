"""One matrix and several vectors, down the columns: A is read once for up to eight of them.

Idea
    As along the rows: a load of A that is in registers is multiplied with the numbers of all k
    vectors before it is dropped. Here a thread has WIDTH neighbouring rows, and a column needs one
    number of each x, which all lanes of the group share: one load moves it to all of them. So x
    costs one load of a single number for each column and each vector, and the partial sums cost
    registers: k times those of the rung of columns.

    For eight vectors, and for four of complex numbers, these loads are as many as the rest has time
    for, and x of all vectors does not stay in the L1 cache. So the block brings x to shared
    memory before the products of a pass: each thread takes a few numbers, which it converts and
    conjugates once for all threads, and those that all vectors have for a column are neighbours.
    Then 16 bytes of shared memory are the factors of four vectors at once, for float32 and shorter
    numbers. A thread loads its numbers for the next stage before it multiplies those of this one,
    so nobody waits for them. There are two places for x in turn, and so one barrier for each stage
    is enough: what is read behind it lies where the next stage does not write. Groups of few
    columns have no next pass: in few blocks, their loads of A and x all go out at once, and nothing
    is staged. Blocks of up to 256 threads stage x for two and four vectors as well, where others
    compute while one waits at its barrier.

    How many blocks a multiprocessor holds is a matter of registers, which the launch bounds divide.
    313 blocks on 264 places are two waves, and the second one leaves most places empty. Three
    blocks for each multiprocessor are one wave, for which fewer loads on their way are a small
    price.

    Numbers of 2 bytes become float32 on their way, and whoever converts a number waits for it. A
    block that has a multiprocessor to itself has nobody who computes meanwhile. There a thread
    keeps what it has loaded as it is in memory, and converts it a pass later, when it stores it. It
    has the numbers of four vectors for one column, which one store of 16 bytes moves. Registers
    are left for one pass to a stage.

    The sums must leave registers for loads of A. A thread of the single product may have several
    pieces of a column; with eight vectors it has fewer of them, and more blocks take the rows.
    But blocks are what the single product splits columns over. So OF_PIECES says what a thread of
    the single product has: columns are split as for its blocks, and splits are added in its order.

    The sums of a vector meet as those of a single product do, in shared memory. It has 32 KB for
    sums, so only some vectors add up at a time. If the matrix is so small that half of the
    multiprocessors would have no block, two blocks have four vectors each for the same rows: the
    second one finds A in the L2 cache.

    Where columns are split over blocks, up to four that began last have a share of the vectors
    each, and add up the sums of all splits: ``gemv/kernels/helpers_of_ends.py`` says when they may.

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
    was staged in shared memory, eight took 75. On an H100 eight vectors with 64 x 1048576 float64
    took 218 us, where torch.mm took 227: 288 before, with two pieces for a thread and x loaded in
    the stage that needs it, and 228 with two pieces and x a stage ahead. On an H100 eight vectors
    with 64 x 1048576 bfloat16 took 62 us, as torch.mm did: 76 where each number was converted as
    it came and stored by itself. 8192 x 8192 took 48 us, where torch.mm took 46: 55 before, with
    the same eight lanes and 512 threads.

Loses
    To matrix products on tensor cores, which add in another order: eight vectors with 8192 x 8192
    bfloat16 took an H200 38.7 us, torch.mm 32.4. 64 % of the instructions are the products, which
    take 16 us at the full rate of the GPU; most others convert numbers and load x. A ring of copies
    for A, as in ``several_long_columns``, gained 3 % there and 16 % at most, and lost up to 50 %
    for other shapes. If one vector gives too few blocks to fill the GPU, so do eight.

Sums
    Those of the rung of columns with the same LANES, threads and splits, for each vector.

Source
    The outer product form of a matrix product with one short side: G. H. Golub and C. F. Van Loan,
    "Matrix Computations", section 1.1.
"""

from __future__ import annotations

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import ceil_div
from gemv.kernels import ends_of_columns, ends_of_splits
from gemv.kernels.ends_of_columns import SHARED_BYTES, edge_bytes
from gemv.kernels.grids import power_above
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.numbers_of_x import x_bytes, x_element_of, x_movers
from gemv.kernels.several import ONE
from gemv.kernels.units_of_x import x_unit_movers
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
#: Those where numbers of x are staged, in blocks of more threads than the next constant says, and
#: those that some dtypes have registers for then.
STAGED_LOADS, FEWER_LOADS = 16, {DTYPES["b"]: 8, DTYPES["h"]: 4, DTYPES["z"]: 8}
#: Threads of a small block, which stages x for two vectors, for four, and for eight, if its loads
#: have 16 bytes and columns are not split: see :func:`pays_to_stage`.
SMALL_THREADS = 256
#: Its loads of A, but as many as FEW_LOADS for some: see :func:`loads_beside_stages`. us on an
#: H200, before and with these rules: two vectors of 20000 x 1000 float32 22.2 and 20.5, of float64
#: 44.1 and 38.3; four of float32 26.2 and 21.2, of float64 51.5 and 39.2, of complex64 44.5 and
#: 41.1, of float16 17.5 and 12.9, of 87168 x 208 float16 15.6 and 12.2; eight of 131072 x 32
#: float16 13.0 and 9.1, of float32 12.1 and 8.5, of 20000 x 1000 complex64 62.9 and 50.4. For
#: 1500 x 100000 float16 shared memory has room for two loads in each of two passes, which took 287
#: us, or for four in one, which took 141.
LOADS_OF_SMALL = 8
#: Columns of a group up to which fewer than eight vectors of numbers of 2 bytes have FEW_LOADS, and
#: four vectors stage nothing in blocks that are alone on their multiprocessors.
SHORT_COLUMNS = 32
#: Blocks up to which an H200 has a multiprocessor for each.
FEW_BLOCKS = 132
#: A small block whose groups have at most so many columns each, where blocks are few: its loads for
#: eight vectors all go out at once, where staged numbers of x would wait for barriers. With more
#: blocks others compute while one waits. On an H100 eight vectors with 1000 x 1000 and two lanes
#: took 3.8 us so and 5.8 staged for bfloat16 and float16, 4.5 and 4.9 for float32, 8.7 and 9.7 for
#: complex64, 6.8 and 8.6 for float64. With 512 threads, which have half the registers, staging is
#: faster: on an H200 4.3 us for float32, 4.6 without.
SMALL_COLUMNS = 8
#: Lanes and threads of the blocks that bring numbers of 2 bytes by units. Such a block has a
#: multiprocessor to itself: nobody else computes while its threads bring x. With 16 lanes or more,
#: and columns that are split, registers do not suffice.
UNIT_LANES, UNIT_THREADS = 8, 512
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
#: The passes where the block brings x to shared memory, STAGED passes at a time and a stage ahead.
#: There are two places: what is read in one of them is not overwritten before the next barrier.
_STAGED = """
xs = cuda.shared.array(BOTH_STAGES, x_number, alignment=16)
total = zeros(zero, ALL_SUMS)
if WHOLE or last >= 0:
    # Past the edge the last vector is read again; nobody looks at those sums.
    pieces = row_starts(first + mine, PIECE_ROWS, last, 1, PIECES)
    own_x = own_numbers(x, x_step, incx, vector, vectors, tid)
    numbers = numbers_of(own_x, begin, incx, end, tid)  # of the first stage
    start = begin  # the first column of a pass
    at = 0  # where its numbers of x begin in xs
    while start + PASS <= end:
        values = stream_tile(a, pieces, j * col_stride, step, LOADS, WIDTH)
        if STAGED == 1 or at == 0 or at == STAGE:  # while A is on its way
            put_numbers(xs, at, numbers, tid, own_x)
            cuda.syncthreads()  # x of these passes is in place
            numbers = numbers_of(own_x, start + STAGED * PASS, incx, end, tid)
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
            put_numbers(xs, at, numbers, tid, own_x)
            cuda.syncthreads()  # x of what is left is in place
        if j < end:
            total = outer_add(
                total, values, xs, at + group * COUNT, GROUPS * COUNT, COUNT, WIDTH, CONJUGATE
            )
total_{v} = total[{low}:{high}]
"""


def build(spec):
    from gemv import language
    from gemv.language import device, gather, gather_some

    COUNT, LOADS, STAGED = spec["COUNT"], spec["LOADS"], spec["STAGED"]
    lanes, _ = lanes_and_pieces(dict(spec.knobs), spec.widths[0], spec.dtype.itemsize, spec.narrow)
    GROUPS = max(lanes, spec["THREADS_PER_BLOCK"]) // lanes
    STAGE_COLUMNS = STAGED * GROUPS * LOADS
    taken = 2 * x_bytes(STAGE_COLUMNS, COUNT, spec.precision)
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
        movers = x_unit_movers if spec["AS_STORED"] else x_movers
        own_numbers, numbers_of, put_numbers = movers(COUNT, STAGE_COLUMNS, THREADS, spec)
        scope |= {
            "own_numbers": own_numbers,
            "numbers_of": numbers_of, "put_numbers": put_numbers, "STAGED": STAGED,
            "x_number": x_element_of(spec), "ALL_SUMS": COUNT * SUMS,
            "STAGE": STAGE_COLUMNS * COUNT, "BOTH_STAGES": 2 * STAGE_COLUMNS * COUNT,
        }  # fmt: skip
    scope |= {"full": full, "some": some, "LOADS": LOADS, "PASS": GROUPS * LOADS}
    names = {"sums": SUMS, **ends_of_columns.factor_names(spec)}
    parts = {
        "the passes": _STAGED if STAGED else _LOADED,
        "the splits": ends_of_splits.of_columns(spec.helpers),
    }
    source = ends_of_columns.source_of("several_columns", COUNT, scope["CHUNK"], names, parts)
    exec(source, scope)
    return (attach(scope["several_columns"], launch_bounds=(THREADS, spec.min_blocks)),)


def accepts(problem):
    return wide_loads_object(problem, "axpy")


def loads_beside_stages(problem, count, columns, blocks_of_each):
    """Loads of A of a thread in a small block that stages x, for groups of so many columns."""
    if count == 8:
        return FEW_LOADS if problem.dtype.kind == "c" or blocks_of_each > 2 else LOADS_OF_SMALL
    is_short = problem.dtype.itemsize == 2 and columns <= SHORT_COLUMNS
    return FEW_LOADS if is_short or problem.dtype == DTYPES["z"] else LOADS_OF_SMALL


def blocks_by_waves(problem, count, registers, blocks):
    """Two blocks for each multiprocessor, or three where the last ones are done sooner so.

    313 blocks are two waves of 264 places, in the second of which most places are empty. Three
    blocks leave each thread 85 registers, of which sums may have 32, and complex128 was slower so.
    """
    if registers > SUM_REGISTERS // 2 or count < 8 and problem.dtype == DTYPES["z"]:
        return 2
    return min((2, 3), key=lambda each: each * ceil_div(blocks, each * FEW_BLOCKS))


def pays_to_stage(count, columns, blocks):
    """Whether a small block stages x for fewer than eight vectors.

    A block that is alone on its multiprocessor waits for barriers, which many columns outweigh for
    four vectors. Few columns are one pass, for which it does not wait without stages: then it takes
    more than one wave of blocks to gain.
    """
    if blocks <= FEW_BLOCKS:
        return count == 4 and columns > SHORT_COLUMNS
    return columns > SMALL_COLUMNS or blocks > 2 * FEW_BLOCKS


def constants_for(problem, knobs, vectors):
    """The constants for so many vectors, with the sums of the rung of columns."""
    width, precision = problem.widths[0], problem.precision
    lanes, loads_of_one = lanes_and_pieces_of(problem, {**knobs, "PIECES": 1})
    of_piece = loads_of_one * width * precision.sums.itemsize // 4
    threads, is_split = max(lanes, knobs["THREADS_PER_BLOCK"]), knobs["BLOCKS_PER_SM"] > 0
    own = power_above(ceil_div(problem.cols * lanes, threads))
    count = 2
    while count < 8 and count < vectors and 2 * count * of_piece <= SUM_REGISTERS:
        count *= 2
    pieces = knobs["PIECES"]
    while pieces > 1 and count * pieces * of_piece >= SUM_REGISTERS:
        pieces //= 2  # more blocks take the rows, and the splits stay
    blocks = ceil_div(problem.rows, pieces * loads_of_one * lanes * width)
    if count == 8 and not is_split and 2 * blocks <= FEW_BLOCKS:
        count = 4  # two blocks take the same rows, at the same time
    blocks *= ceil_div(vectors, count)
    if is_split:
        blocks = knobs["BLOCKS_PER_SM"] * ceil_div(vectors, count) * knobs["PIECES"] // pieces
    # Then a multiprocessor has one block, which may have all registers.
    is_alone = blocks <= (1 if is_split else FEW_BLOCKS)
    of_vector, at_once = pieces * of_piece, pieces * loads_of_one
    found = {
        **{name: knobs[name] for name in ("LANES", "COLUMNS", "BLOCKS_PER_SM")},
        "THREADS_PER_BLOCK": knobs["THREADS_PER_BLOCK"], "COUNT": count, "PIECES": pieces,
        "OF_PIECES": knobs["PIECES"] if is_split else pieces,
    }  # fmt: skip
    narrow, is_plain = problem.dtype.itemsize == 2, problem.accumulate == "plain"
    is_small = threads <= SMALL_THREADS and own <= SMALL_COLUMNS and not is_split
    if count == 8 and is_small and (blocks <= FEW_BLOCKS or not is_plain):
        # Numbers of x take twice the registers where sums are float64: half the loads, two blocks.
        halves = 2 if precision.sums in (DTYPES["d"], DTYPES["z"]) else 1
        loads = max(1, min(SMALL_COLUMNS // halves, own) // at_once)
        return {**found, "LOADS": loads, "MIN_BLOCKS": halves, "STAGED": 0, "AS_STORED": 0}
    loads = LOADS if count * of_vector < SUM_REGISTERS else FEW_LOADS
    has_half = threads > SMALL_THREADS or not is_alone  # of the registers that a thread can have
    if has_half and (count == 4 and width > 2 or problem.dtype == DTYPES["z"]):
        loads = min(loads, LOADS // 2)  # else up to 136 bytes of a thread are spilled
    loads = max(1, min(loads // at_once, own))
    staged = 0
    many = count == 8 or count * of_vector >= SUM_REGISTERS
    by_units = narrow and precision.sums == DTYPES["s"]
    by_units = by_units and count >= 4 and (lanes, threads) == (UNIT_LANES, UNIT_THREADS)
    # Narrower loads were slower so, and wide sums were not timed.
    in_small_blocks = threads <= SMALL_THREADS and not is_split and loads_of_one == 1 and is_plain
    have_few = in_small_blocks and count < 8 and pays_to_stage(count, own, blocks)
    blocks_of_each = 1 if threads > SMALL_THREADS else 2
    if many or by_units or have_few or (count == 4 and problem.dtype.kind == "c"):
        tile_rows, groups = at_once * lanes * width, threads // lanes
        alone = tile_rows * found["OF_PIECES"] // pieces
        shares = max(min(groups, threads // 32), finishers_of_columns(threads, alone))
        room = SHARED_BYTES - edge_bytes(count, threads, width, precision)
        room -= shares * tile_rows * precision.sums.itemsize  # of one vector at least
        most = min(STAGE_BYTES, room) // (2 * x_bytes(groups, count, precision))
        if most > 0:
            # Numbers of 2 bytes have no registers for more loads, and large blocks gain by two
            # passes at a time, unless they come by units. Small ones have more loads in one pass.
            in_two = narrow and not by_units and threads > SMALL_THREADS
            wanted = FEWER_LOADS.get(problem.dtype, STAGED_LOADS)
            if by_units:
                wanted = FEW_LOADS
            elif in_small_blocks:
                blocks_of_each = blocks_by_waves(problem, count, count * of_vector, blocks)
                wanted = loads_beside_stages(problem, count, own, blocks_of_each)
            elif narrow and threads <= SMALL_THREADS:
                wanted = LOADS_OF_SMALL
            loads = max(1, min(min(wanted, most // (1 + in_two)) // at_once, own))
            loads = 1 << loads.bit_length() - 1
            staged = 2 if in_two and loads <= FEW_LOADS and 2 * loads <= most else 1
    return {
        **found,
        "LOADS": loads,
        "MIN_BLOCKS": 1 if is_alone and not staged else blocks_of_each,
        "STAGED": staged,
        "AS_STORED": int(by_units and staged > 0),
    }


def geometry(problem, device, knobs, batch=ONE):
    return ends_of_columns.geometry_of("several_columns", problem, device, knobs, batch)


def tile(knobs):
    threads = max(knobs["LANES"], knobs["THREADS_PER_BLOCK"])
    return 4 * knobs["LANES"] * knobs["PIECES"], threads // knobs["LANES"] * knobs["COLUMNS"]


KERNEL = Kernel(
    name="several_columns",
    rung=2,
    build=build,
    geometry=geometry,
    of_batch=geometry,
    for_vectors=constants_for,
    tile=tile,
    beside=True,
    wide=True,
    narrow=narrow_loads,
    accepts=accepts,
    knobs={
        "LANES": 8, "PIECES": 1, "COLUMNS": 4, "THREADS_PER_BLOCK": 256, "BLOCKS_PER_SM": 0,
        "COUNT": 4, "LOADS": 4, "MIN_BLOCKS": 1, "STAGED": 0, "OF_PIECES": 1, "AS_STORED": 0,
    },
    small_knobs={
        "LANES": 2, "PIECES": 1, "COLUMNS": 2, "THREADS_PER_BLOCK": 32, "BLOCKS_PER_SM": 1,
        "COUNT": 2, "LOADS": 1, "MIN_BLOCKS": 1, "STAGED": 0, "OF_PIECES": 1, "AS_STORED": 0,
    },
    doc=__doc__,
)  # fmt: skip
