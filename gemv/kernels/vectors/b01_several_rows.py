"""One matrix and several vectors, along the rows: A is read once for up to eight of them.

Idea
    The products of one matrix with k vectors, one after the other, read A k times. But a load of A
    that is in registers can be multiplied with the numbers of all k vectors before it is dropped.
    So a thread has k sets of partial sums where the rung of rows has one, and the loop over A stays
    as it is. The sums of each vector are those of the single product, bit for bit: the same lanes
    add the same products in the same order.

    What k costs is x: each load of A needs k loads of x, from the L1 cache. ROWS rows of a thread
    share them, so that L1 moves k/ROWS times the bytes of A. Registers bound both: a thread has
    k * ROWS sets of partial sums, one sum for each element of a load.

    A lane of a row need not be one thread. With PARTS = 2 two threads share it: each of them loads
    half of a vector and has half of its partial sums, so there is room for twice as many rows.
    Which products are added in which order stays the same: the parts meet as the elements of a
    vector do in one thread, then the lanes as in a butterfly. Lanes that are in different warps now
    meet in shared memory, in the order in which the butterfly would add them.

    Nor does a row need all its lanes at once. With TURNS = 4 the same threads are a quarter of the
    lanes after the other, each for all of its columns, and a block has room for four times as many
    rows. They share what it loads of x, which is more than L1 holds if rows are long.

    Threads that share a lane load A by less than 16 bytes each. Such loads settle in the L1 cache
    as a rule, and A, which comes once, drives out x, which comes again for the next rows. With
    PAST_L1 = 1 they do not settle. With KEPT = 1 the addresses of x and A stay in registers, where
    the compiler would compute them again in each turn of the loop.

    At the end k * ROWS sums are added up over the lanes. As in the rung of columns, two lanes
    halve the sums that both of them have a part of: 12 exchanges for 16 sums of 4 lanes, where a
    butterfly of each has 32.

    Few long rows have their columns split over blocks, and k vectors leave k times as many sums of
    splits. All lanes of a warp take the sums of one row, which are neighbours in memory. If a warp
    of the last block would take several rows, the blocks that began just before it have a share of
    them: ``gemv/kernels/helpers_of_ends.py`` says when they may.

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
    Over one launch for each vector. On an H200, 8192 x 8192 float32 took 60 us with one vector and
    84 with eight, where torch.mm took 131; with the tiles of before 62 with two and 65 with four.
    On an H100 it took 88 us with one and 99 with eight, where torch.mm took 161. Eight vectors of
    float64 took 201 us with 1048576 x 64, torch.mm 202; and 5.4 with 1000 x 1000, torch.mm 9.6:
    there it took 9.4 while a thread had two rows, for each of which all of x was read. 2000 x 2000
    took 14.7 us with four rows of a thread, 23.4 with two that two threads share, and torch.mm
    19.4. Four vectors took 12.9 us with one thread to a lane, 15.5 with two, and torch.mm 19.2.
    On an H200 two vectors took 33.7 us with 333 x 77777 float32, torch.mm 96: 85.6 while a thread
    had four rows and two loads of one number for each, which leaves a third of the GPU without
    blocks.

Loses
    To matrix products on tensor cores, which add in another order: on an H100 eight vectors with
    8192 x 8192 float64 took 197 us, torch.mm 180. With eight vectors the loads of x and the few
    threads that registers leave room for take longer than A, most of all for numbers of 2 bytes:
    8192 x 8192 bfloat16 took 60 us, where A alone takes 44, and torch.mm 48. It took 66 us while A
    drove x out of the L1 cache. Rings of copies for A alone, as in ``several_short_rows``, gained
    nothing there (60 us): once A is there in time, warps wait for loads and conversions of x.

Sums
    Those of the rung of rows with the same LANES, width of loads and splits, for each vector.

Source
    Register tiles of matrix products with one short side, as in the kernels of llama.cpp for a few
    tokens at a time. Here the number of vectors decides on the rows of a thread, and on nothing
    that sums depend on.
"""

from __future__ import annotations

from typing import NamedTuple

from gemv.core.geometry import LOAD_BYTES, ceil_div
from gemv.core.splits import row_by_row
from gemv.kernels import ends_of_rows, ends_of_splits
from gemv.kernels.ends_of_rows import launch_of, of_one, parts_of, sums_of_block, tile, turns_of
from gemv.kernels.grids import power_above
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.several import ONE, sizes_of_vectors
from gemv.kernels.wide_tiles import tail_of

#: Threads of a grid below which a row gets more of them, by PARTS.
ENOUGH_THREADS = 1 << 17
#: But if a tile has these bytes of A on their way, it is left as it is: 16 KB for each
#: multiprocessor of an H100. More threads read more often what they share of x: four vectors with
#: 2000 x 2000 float64 took it 15.6 us with two threads to a lane, and 12.9 with one.
ENOUGH_BYTES = 1 << 21
#: Bytes of shared memory for sums.
SUMS_BYTES = 32 << 10
#: The most threads that a row gets for the sake of PARTS.
MOST_THREADS_OF_ROW = 512


class Tile(NamedTuple):
    """Constants that sums do not depend on; MIN_BLOCKS are for so many threads."""

    PARTS: int
    ROWS: int
    VECTORS: int
    THREADS_PER_BLOCK: int
    MIN_BLOCKS: int
    PAST_L1: int = 0
    KEPT: int = 0


#: By COUNT, for rows that a warp has several of, for longer ones, and for those that are split over
#: blocks. They are among the fastest that were tried on an H200 or an H100, and spill no
#: registers; not all dtypes and shapes were timed (``benchmarks/results/tiles``).
SHORT = {2: Tile(1, 4, 2, 256, 2), 4: Tile(1, 2, 4, 64, 8), 8: Tile(2, 4, 4, 64, 6, 1)}
LONG = {2: Tile(1, 4, 2, 128, 4), 4: Tile(1, 4, 4, 128, 2), 8: Tile(1, 2, 2, 256, 2, 1, 1)}
SPLIT = {2: Tile(1, 4, 2, 128, 4), 4: Tile(1, 4, 4, 128, 2), 8: Tile(2, 4, 4, 256, 1)}
#: Numbers of 2 bytes have twice as many partial sums for a load of as many bytes.
NARROW_SHORT = {2: Tile(1, 4, 2, 64, 6), 4: Tile(1, 2, 2, 128, 4), 8: Tile(1, 2, 2, 128, 2)}
NARROW_LONG = {2: Tile(1, 2, 4, 128, 4), 4: Tile(1, 2, 2, 128, 4), 8: Tile(4, 4, 4, 128, 4, 1, 1)}
NARROW_SPLIT = {
    2: Tile(1, 2, 4, 512, 1), 4: Tile(4, 4, 4, 512, 1, 1, 1), 8: Tile(2, 4, 2, 256, 1, 1, 1),
}  # fmt: skip
#: Four and eight vectors of complex numbers; and eight of float64, which gain by TURNS.
COMPLEX_SHORT = {4: Tile(1, 2, 4, 64, 6), 8: Tile(1, 2, 2, 128, 3)}
COMPLEX_LONG, COMPLEX_SPLIT = Tile(1, 2, 2, 128, 4, 0, 1), Tile(2, 2, 4, 256, 2)
#: Eight vectors of float32 and complex64 with fewer rows than these, by the character of the dtype.
FEW, FEW_ROWS = Tile(1, 4, 2, 128, 2), {"f": 4096, "F": 1200}
DOUBLE_SHORT, DOUBLE_LONG = Tile(2, 4, 4, 128, 4, 1), Tile(1, 2, 4, 256, 1)
MOST_TURNS = 4
#: The same for rows with up to 256 lanes: what counts is how often x is read. Loads of less than 16
#: bytes were timed with so many lanes of all rows at most. More threads take a row only where the
#: grid has fewer threads than these.
DOUBLE_FEW, MOST_LANES_OF_FEW, LANES_OF_FEW = Tile(1, 4, 2, 128, 2), 1 << 17, 256
ENOUGH_OF_FEW = 1 << 14
#: Eight vectors of numbers of 2 bytes whose rows have more lanes than a warp: so many turns that a
#: row has 128 threads. All lanes at once would be 512 threads, with 128 registers each: too few.
NARROW_TURNS = Tile(4, 4, 4, 128, 3, 1, 1)
#: Lanes of a row from which on eight vectors of numbers of 2 bytes have the tile of longer rows.
NARROW_LANES = 16
#: Rows of several warps that are not split, by the bytes of a number and of a load and by COUNT: up
#: to so many rows have a tile; with None, that of any matrix. A load of one number brings few
#: bytes, and few rows have few blocks, so a thread has more loads on their way. us on an H200,
#: before and with these tiles: two vectors of float32 333 x 77777 85.6 and 33.7, of float64 98.5
#: and 52.0; four of bfloat16 256 x 65536 16.7 and 12.8; eight of float32 700 x 15001 36.3 and 24.7,
#: 9999 x 9973 170 and 122; 800 x 5001 float32 13.0 and 7.0 with two, 13.8 and 10.3 with eight. No A
#: of fewer bytes than these was timed.
LEAST_LANES, LEAST_BYTES, ANY_ROWS = 64, 15 << 20, 1 << 62
OF_LONG_ROWS = {
    (2, 16, 2): ((264, Tile(1, 1, 4, 128, 4)),),
    (2, 16, 4): ((264, Tile(1, 1, 4, 128, 4)),),
    (4, 16, 4): ((400, Tile(1, 2, 8, 128, 2)),),
    (4, 16, 8): ((400, Tile(1, 2, 4, 128, 2)),),
    (4, 4, 2): ((900, Tile(1, 1, 8, 128, 4)), (ANY_ROWS, Tile(1, 2, 8, 128, 2))),
    (4, 4, 4): ((500, Tile(1, 1, 8, 128, 4)), (900, Tile(1, 2, 8, 128, 2))),
    (4, 4, 8): ((900, Tile(1, 2, 4, 128, 4)), (ANY_ROWS, Tile(1, 4, 4, 128, 2))),
    (8, 8, 2): ((400, Tile(1, 1, 8, 128, 4)), (ANY_ROWS, Tile(1, 2, 4, 128, 4))),
    (8, 8, 4): ((400, Tile(1, 1, 4, 128, 4)), (900, Tile(1, 2, 4, 128, 4))),
    (8, 8, 8): ((600, None), (ANY_ROWS, Tile(1, 4, 4, 128, 2))),
}
#: Loads of a lane that are on their way at a time where a warp takes a row and has more than one
#: pass of them: 1900 x 2400 bfloat16 took an H100 9.1 us with four, and 7.8 with two.
LOADS_OF_PASSES = 2
#: Threads of a row with so few registers each that fewer loads of a lane are in flight, by the
#: bytes of a number. Where all lanes of a row are so many, the same by COUNT, for few rows, and
#: four vectors have half the rows: else up to 984 bytes of a thread are spilled.
FULL_BLOCK, LOADS_OF_FULL_BLOCK = 512, {2: 2, 8: 4, 16: 4}
LOADS_OF_MANY_LANES = {2: 4, 4: 4, 8: 1}


#: What the kernel calls.
_WORDS = (
    "atomic_inc", "cuda", "moved", "multiply_add", "natural", "quotient", "rounded_down",
    "row_starts", "stream_some", "zeros",
)  # fmt: skip
#: The kernel: see :func:`gemv.kernels.ends_of_rows.source_of`.
_SOURCE = """
def several_rows(
    rows, cols, cols_per_split, splits, vectors, a, row_stride, x, x_step, incx, y, y_step, incy,
    {alpha}, alpha_step, {beta}, beta_step, scratch, counters,
):
    sums = cuda.shared.array(ALL_SUMS, number, alignment=16)
    carried = cuda.shared.array(CARRIED, number)
    ticket = cuda.shared.array(1, uint32)
    tid = natural(cuda.threadIdx.x)
    place = tid % ROW_THREADS
    group = tid // ROW_THREADS
    part = place % PARTS
    split = natural(cuda.blockIdx.y)
    begin = split * cols_per_split if SPLIT else 0
    end = last_column({alpha}, begin, min(cols, begin + cols_per_split) if SPLIT else cols)
    vector = natural(cuda.blockIdx.z) * COUNT
    first = natural(cuda.blockIdx.x) * TILE_ROWS
    if SPLIT and tid == 0:
        tile_of_turn = cuda.blockIdx.z * cuda.gridDim.x + cuda.blockIdx.x
        ticket[0] = atomic_inc(counters, tile_of_turn, splits - 1)
    starts = pinned(row_starts(first + group, GROUPS, rows - 1, row_stride, ROWS))
    x_{v} = pinned(of_x(moved(x, min(vector + {v}, vectors - 1) * x_step)))
    for turn in range(TURNS):
        total_{v} = zeros(zero, SUMS)
        j = begin + (turn * ROW_THREADS + place) * UNIT
        # Passes in which every lane has all of its vectors.
        limit = j + rounded_down(end - begin, PASS)
        while j + PASS <= limit:
            values = tile_of(a, starts, j, STEP, VECTORS, UNIT)
            total_{v} = multiply_add(total_{v}, values, full(x_{v}, j, incx), CONJUGATE)
            j += PASS
        behind = j - part * UNIT + WIDTH  # of the lane's next vector
        if behind <= end:  # what is left goes out at once, too
            rest = quotient(end - behind, STEP) + 1
            values = some_of(a, starts, j, STEP, VECTORS, UNIT, rest)
            total_{v} = multiply_add(total_{v}, values, some(x_{v}, j, incx, rest), CONJUGATE)
            j += rest * STEP
        # One lane has the columns behind the last whole vector.
        if not WHOLE and TAIL > 1 and j < end:
            values = stream_some(a, starts, j, 1, AT_ONCE, 1, end - j)
            total_{v} = multiply_add(total_{v}, values, tail(x_{v}, j, incx, end - j), CONJUGATE)
        while not WHOLE and TAIL == 1 and part == 0 and j < end:
            values = stream_some(a, starts, j, 1, 1, 1, end - j)
            total_{v} = multiply_add(total_{v}, values, tail(x_{v}, j, incx, end - j), CONJUGATE)
            j += 1
        the ending
    the splits
"""


def build(spec):
    import numpy as np

    from gemv import language
    from gemv.language import device, gather, gather_some, load_some, load_vectors

    WIDTH, X_WIDTH = spec.widths
    WIDE_X = X_WIDTH > 0
    LANES, VECTORS = spec["LANES"], spec["VECTORS"]
    scope = ends_of_rows.names_of(spec)
    UNIT = scope["UNIT"]  # elements of a load
    PAST_L1 = spec["PAST_L1"] > 0
    STEP = LANES * WIDTH
    TAIL = tail_of(WIDTH)
    AT_ONCE = min(UNIT, TAIL) if scope["PARTS"] > 1 else TAIL

    @device
    def full(x, j, incx):
        """The numbers of x for a full pass."""
        if WIDE_X:
            return load_vectors(x, j, STEP, VECTORS, UNIT)
        return gather(x, j, STEP, VECTORS, incx, UNIT)

    @device
    def some(x, j, incx, rest):
        if WIDE_X:
            return load_some(x, j, STEP, VECTORS, UNIT, rest)
        return gather_some(x, j, STEP, VECTORS, incx, UNIT, rest)

    @device
    def tail(x, j, incx, rest):
        return gather_some(x, j, 1, AT_ONCE, incx, 1, rest)

    scope |= {name: getattr(language, name) for name in _WORDS}
    scope |= {
        "tile_of": language.pass_tile if PAST_L1 else language.stream_tile,
        "some_of": language.pass_some if PAST_L1 else language.stream_some,
        "pinned": language.kept if spec["KEPT"] else language.same,
        "full": full, "some": some, "tail": tail, "uint32": np.uint32, "VECTORS": VECTORS,
        "STEP": STEP, "PASS": VECTORS * STEP, "TAIL": TAIL, "AT_ONCE": AT_ONCE,
        "WHOLE": WIDTH == 1 or spec.whole,
    }  # fmt: skip
    more = {"ending": ends_of_rows.ending_of(scope), "splits": ends_of_splits.of_rows(spec.helpers)}
    names = ends_of_rows.factor_names(spec)
    exec(ends_of_rows.source_of(_SOURCE, spec["COUNT"], names, more), scope)
    return (attach(scope["several_rows"], launch_bounds=(scope["THREADS"], spec.min_blocks)),)


def accepts(problem):
    return wide_loads_object(problem, "dot")


def loads_whole(problem):
    """Whether A and x are loaded by 16 bytes, for plain sums of numbers of up to 8 bytes."""
    size, widths = problem.dtype.itemsize, problem.widths
    plain = problem.accumulate == "plain" and size <= 8
    return plain and widths[0] * size == LOAD_BYTES and len(set(widths)) == 1


def has_enough(problem, lanes, tile_):
    """Whether enough bytes of A are on their way with the threads that a tile gives a row."""
    nbytes = problem.rows * lanes * tile_.VECTORS * LOAD_BYTES
    # Rows of several warps share what they load of x. H100, 300 x 3000 float32: 5.2 us, not 8.1.
    enough = ENOUGH_BYTES // 2 if tile_ is FEW and lanes > 32 else ENOUGH_BYTES
    return lanes >= 32 and loads_whole(problem) and nbytes >= enough


def tile_for(problem, lanes, count, split):
    """The tile for so many vectors, and the turns of a row's lanes."""
    narrow, complex_numbers = problem.dtype.itemsize == 2, problem.dtype.kind == "c"
    if (
        count == 8
        and not split
        and lanes <= LANES_OF_FEW
        and problem.rows < FEW_ROWS.get(problem.dtype.char, 0)
        and has_enough(problem, lanes, FEW)
    ):
        return FEW, 1
    if (
        count == 4
        and narrow
        and lanes == 32
        and not split
        and has_enough(problem, lanes, NARROW_LONG[8])
        and not has_enough(problem, lanes, NARROW_LONG[4])
    ):
        return NARROW_LONG[8], 1  # more loads at a time, and four rows of a thread share x
    if count == 8 and complex_numbers and split:
        return COMPLEX_SPLIT, 1
    if count == 8 and complex_numbers and lanes >= 32:  # and no row has more than 128 threads
        return COMPLEX_LONG, max(1, lanes // COMPLEX_LONG.THREADS_PER_BLOCK)
    if complex_numbers and lanes < 32 and not split and count in COMPLEX_SHORT:
        return COMPLEX_SHORT[count], 1
    is_double = problem.dtype.itemsize == 8 and not complex_numbers
    if count == 8 and is_double and lanes < 32 and not split:
        return DOUBLE_SHORT, 1
    if lanes < (NARROW_LANES if narrow and count == 8 and not split else 32):
        return (NARROW_SHORT if narrow else SHORT)[count], 1
    if narrow and count == 8 and lanes > 32 and not split:
        return NARROW_TURNS, lanes // 32
    if narrow:
        return (NARROW_SPLIT if split else NARROW_LONG)[count], 1
    if count == 8 and is_double:
        few = problem.rows * lanes <= MOST_LANES_OF_FEW or loads_whole(problem)
        if few and not split and lanes <= LANES_OF_FEW:
            return DOUBLE_FEW, 1
        return SPLIT[8] if split else DOUBLE_LONG, turns_of(MOST_TURNS, lanes)
    return (SPLIT if split else LONG)[count], 1


def of_long_rows(problem, lanes, count):
    """The tile of rows of several warps that are few, or loaded number by number; None if not."""
    size, width = problem.dtype.itemsize, problem.widths[0]
    are_long = lanes >= LEAST_LANES and problem.rows * problem.cols * size >= LEAST_BYTES
    if not are_long or problem.accumulate != "plain":
        return None
    found = OF_LONG_ROWS.get((size, size * width, count), ())
    tile_ = next((each for most, each in found if problem.rows <= most), None)
    if tile_ and lanes >= FULL_BLOCK and size * width == LOAD_BYTES:
        return tile_._replace(VECTORS=LOADS_OF_MANY_LANES[count])
    return tile_


def constants_for(problem, knobs, vectors):
    """The constants for so many vectors, from those of the rung of rows; its LANES stay."""
    width, size, lanes = problem.widths[0], problem.dtype.itemsize, knobs["LANES"]
    count = 2
    while count < 8 and count < vectors:
        count *= 2
    split = knobs["BLOCKS_PER_SM"] > 0
    own_tile = None if split else of_long_rows(problem, lanes, count)
    tile_, most_turns = (own_tile, 1) if own_tile else tile_for(problem, lanes, count, split)
    turns = most_turns
    parts, rows, loads, threads, blocks, past_l1, kept = tile_
    if lanes >= FULL_BLOCK and count == 4 and not (split or own_tile):
        rows = max(1, rows // 2)
    most_parts = max(1, width * size // max(4, size))
    enough = ENOUGH_OF_FEW if tile_ is DOUBLE_FEW else ENOUGH_THREADS
    sharing = count == 4 or tile_ in (FEW, COMPLEX_LONG)
    while (
        not (split or own_tile)
        and not (sharing and turns == 1 and has_enough(problem, lanes, tile_))
        and (turns > 1 or 2 * parts <= most_parts)
        and 2 * (lanes // turns) * parts <= MOST_THREADS_OF_ROW
        and problem.rows * (lanes // turns) * parts < enough * rows
    ):
        if turns > 1:
            turns //= 2
        else:
            parts, loads = 2 * parts, 2 * loads
    if (
        not split
        and (parts, turns) != (tile_.PARTS, most_turns)
        and lanes // turns * parts >= FULL_BLOCK
    ):
        loads = min(loads, LOADS_OF_FULL_BLOCK.get(size, loads))
    if parts > parts_of(parts, width, problem.precision):  # one thread has the sums of a lane
        parts, rows, loads = 1, max(rows // parts, 1), max(loads // parts, 1)
    row_threads, number = lanes // turns * parts, problem.precision.sums.itemsize
    threads = max(row_threads, threads)
    while sums_of_block(lanes // turns, parts, threads, rows * count) * number > SUMS_BYTES:
        if threads > max(row_threads, 64):
            threads //= 2
        elif rows > 1:
            rows //= 2
        else:
            parts, row_threads = parts // 2, row_threads // 2
            threads = max(row_threads, 64)
    own = power_above(ceil_div(problem.cols, lanes * width))
    if count == 8 and lanes == 32 and own > loads and size == 2 and loads_whole(problem):
        loads = min(loads, LOADS_OF_PASSES)
    found = {
        "LANES": lanes,
        "PARTS": parts,
        "TURNS": turns,
        "ROWS": rows,
        "COUNT": count,
        "VECTORS": max(1, min(loads, own)),
        "THREADS_PER_BLOCK": threads,
        "MIN_BLOCKS": max(1, tile_.THREADS_PER_BLOCK * blocks // threads),
        "BLOCKS_PER_SM": knobs["BLOCKS_PER_SM"],
        # Loads at any address meet the same sectors again, which L1 keeps for them.
        "PAST_L1": past_l1 if width * size == LOAD_BYTES else 0,
        "KEPT": kept,
    }
    if split:
        found |= of_one(knobs)
    return found


def geometry(problem, device, knobs, batch=ONE):
    parts = parts_of(knobs["PARTS"], problem.widths[0], problem.precision)
    row_threads = knobs["LANES"] // turns_of(knobs["TURNS"], knobs["LANES"]) * parts
    threads = max(row_threads, knobs["THREADS_PER_BLOCK"])
    tile_rows = threads // row_threads * knobs["ROWS"]
    return launch_of(
        "several_rows", problem, device, knobs, tile_rows, threads, problem.rows,
        sizes_of_vectors(batch),
    )  # fmt: skip


KERNEL = Kernel(
    name="several_rows",
    rung=1,
    build=build,
    geometry=geometry,
    of_batch=geometry,
    for_vectors=constants_for,
    tile=tile,
    beside=True,
    wide=True,
    steps_of_sums=row_by_row,
    accepts=accepts,
    knobs={
        "LANES": 32, "PARTS": 1, "TURNS": 1, "ROWS": 1, "VECTORS": 4, "COUNT": 4,
        "THREADS_PER_BLOCK": 128, "MIN_BLOCKS": 2, "BLOCKS_PER_SM": 0, "OF_ROWS": 1,
        "OF_VECTORS": 1, "OF_THREADS": 32, "PAST_L1": 0, "KEPT": 0,
    },
    small_knobs={
        "LANES": 8, "PARTS": 1, "TURNS": 1, "ROWS": 1, "VECTORS": 1, "COUNT": 2,
        "THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1, "BLOCKS_PER_SM": 0, "OF_ROWS": 1,
        "OF_VECTORS": 1, "OF_THREADS": 32, "PAST_L1": 1, "KEPT": 1,
    },
    doc=__doc__,
)  # fmt: skip
