"""One matrix with rows of 16-bit numbers and eight vectors: x stays in shared memory.

Idea
    Eight vectors are eight loads of x for each load of A. In ``several_rows`` these come from the
    L1 cache and serve the few rows of a thread: for numbers of 2 bytes they take longer than A.
    ``several_short_rows`` keeps x in registers, which have room for short rows only. Shared memory
    has more: a block that has a multiprocessor for itself may ask for 227 KB, and eight vectors of
    8192 numbers of 2 bytes are 128 KB. So a block copies all of x once. Then it takes tile after
    tile of rows, and asks the memory for nothing but A.

    A block has 48 KB without asking. More than that is *dynamic* shared memory: the machine code
    declares an array without a length, and each launch says how many bytes it is to have.

    A comes by copies that no thread waits for (compute capability 8.0). Each warp has a ring of
    STAGES stages, each with room for AT_ONCE loads of a lane for four rows. While a warp multiplies
    one stage, the copies for the next ones are on their way; they run on from the end of a tile
    into the next one. A ring belongs to one warp, so the block needs no barrier until a tile ends.

    Four threads share a lane, each with 2 of the 8 numbers of a load. A thread multiplies its
    numbers of four rows with those of eight vectors, so it has 4 * 2 * 8 partial sums. At the end
    of a tile the four threads add these up, and each keeps the sums of one row. Thread p begins
    with row p and goes on with p xor 1, p xor 2 and p xor 3: then what it keeps and what it gives
    away always have the same places among its sums. With one order of rows for all threads, the
    sums to give away would have to be picked by comparisons.

    Lanes that are in different warps meet in shared memory. There are two places for their sums, so
    that one barrier for a tile suffices. A row that has more lanes than a warp is taken in turns:
    32 lanes at a time, each for all of its columns.

Picture
    ::

        shared memory of a block with 8192 columns and 512 threads: 16 warps, 4 of them for a row

        x, 128 KB: numbers 0-255 of vectors 0, 1, ..., 7, then 256-511 of vector 0, ...
        16 rings of 4 KB, one for each warp
        sums of 16 rows and 8 vectors for each of 32 lanes, 16 KB, twice

        a lane of 4 threads, and a load of 8 numbers for each of 4 rows r0 ... r3

        numbers      0 1    2 3    4 5    6 7
        thread       T0     T1     T2     T3        keeps the sums of
        takes        r0     r1     r2     r3        <- these rows
                     r1     r0     r3     r2
                     r2     r3     r0     r1
                     r3     r2     r1     r0

Bytes
    (m*n + k * (len(x) + len(y) * (1 + [beta != 0]))) * itemsize from memory for up to COUNT
    vectors; with more of them A comes again for each COUNT. Each block reads x once, which is in
    the L2 cache by then: for 132 blocks and 8192 columns 17 MB.

Wins
    Over ``several_rows`` and ``several_short_rows`` for eight vectors. On an NVIDIA H100 and with
    32 lanes for a row, 8192 x 8192 bfloat16 took 50.4 us, 59.2 by ``several_rows``, and 44.3 with
    one vector; 65536 x 4096 took 190 us (229). With 16 lanes 16384 x 2048 took 27.5 us, 30.4 by
    ``several_short_rows``. With 128 lanes 8192 x 7168 took 57.5 us (75.5), and 28672 x 8192 184 us
    (229). The product alone decides on the lanes. On an NVIDIA H200 four vectors with 8192 x 8192
    took 34.4 us with three stages, 40.5 by ``several_rows``, and torch.mm 33.2.

    A tile has as many rows as leave the busiest multiprocessor the least to do: 3000 x 3000 took an
    H100 12.4 us in 250 tiles of 12 rows, 15.9 in 375 of 8, and torch.mm 11.6.

Loses
    To matrix products on tensor cores, which add in another order: 8192 x 8192 took torch.mm 47.4
    us. To ``several_short_rows`` where a lane has few columns, as the sums of a tile take their
    time: 106 us for 65536 x 2048 with 32 lanes, and 98.9 there. To ``several_rows`` where there are
    few rows for what a block copies of x: 15.4 us for 1024 x 8192, and 12.2 there. Where x leaves
    room for half as many threads only, as for 12288 columns, it took 188 us, and 142 by
    ``several_rows``. Where columns are split over blocks, 64 x 1048576 took 94 us, and 78 by
    ``several_rows``; so the kernel has no splits.

Sums
    Those of the rung of rows with the same LANES, for each vector.

Source
    One operand of a matrix product stays in fast memory while the other one goes by: K. Goto and
    R. A. van de Geijn, "Anatomy of high-performance matrix multiplication" (2008). Here it is the
    narrow one, in memory that a program fills by itself.
"""

from __future__ import annotations

from typing import NamedTuple

from gemv.core.geometry import LOAD_BYTES, Geometry, Launch, ceil_div
from gemv.kernels.busiest import of_busiest
from gemv.kernels.ends_of_rows import factor_names, source_of
from gemv.kernels.grids import most_blocks
from gemv.kernels.kernel import Kernel, attach, no_twofold, wide_loads_object
from gemv.kernels.several import ONE, sizes_of_vectors, turns_of_vectors
from gemv.kernels.staging import COPIES, MOST_BLOCK_BYTES

#: Threads that share a lane, and rows of a thread: each of these threads keeps the sums of one.
PARTS = 4
#: Shared memory of a multiprocessor, of which the system takes some for each block.
PROCESSOR_BYTES, OF_BLOCK = 228 << 10, 1 << 10
#: Numbers of a load. Others, and numbers of other sizes, were not timed.
WIDTH, ITEM_BYTES = 8, 2
#: The vectors of a block; 5 to 8 vectors have a block for 8, and 3 were not timed.
COUNT = 8
#: Lanes of all rows, up to 32 of each, below which other kernels are used.
MANY_LANES = 1 << 16


class Limits(NamedTuple):
    """What a block for some number of vectors is made for; others were slower, or not timed.

    Attributes
    ----------
    lanes, columns : int
        Least lanes of a row, and least columns for each of up to 32 of them.
    tiles : tuple
        Threads of a block and blocks of a multiprocessor: the first for which x fits is taken.
    rings : tuple
        Loads of a lane in a stage, and stages: the first is taken, or the one with fewer loads past
        the last column.
    """

    lanes: int
    columns: int
    tiles: tuple[tuple[int, int], ...]
    rings: tuple[tuple[int, int], ...]


#: Threads and blocks as in :class:`Limits`, for eight vectors and whole warps of a row, where the
#: busiest multiprocessor is done sooner so. There is room for it where there is for one of these.
BETWEEN = (384, 1)
#: By the vectors of a block.
LIMITS = {
    4: Limits(32, 128, ((512, 1),), ((4, 3),)),
    COUNT: Limits(16, 80, ((256, 2), (512, 1)), ((4, 2), (2, 4))),
}

#: What the kernel calls.
_WORDS = (
    "butterfly", "copies_commit", "copies_wait", "cuda", "fold", "moved", "multiply_add", "natural",
    "pieces_of", "put_unit", "short", "staged_tile", "zeros",
)  # fmt: skip
#: The kernel: see :func:`gemv.kernels.ends_of_rows.source_of`.
_SOURCE = """
def several_long_rows(
    rows, cols, tiles, vectors, a, row_stride, x, x_step, y, y_step, incy,
    {alpha}, alpha_step, {beta}, beta_step,
):
    # The same memory twice: bytes of x and of the rings, and the sums behind them.
    pool = cuda.shared.array(0, uint8, alignment=16)
    sums = cuda.shared.array(0, number, alignment=16)
    tid = natural(cuda.threadIdx.x)
    place = tid % ROW_THREADS
    part = place % PARTS
    lane = place // PARTS
    group_row = tid // ROW_THREADS * PARTS + part  # the row of a tile that the thread keeps
    vector = natural(cuda.blockIdx.y) * COUNT
    tile = natural(cuda.blockIdx.x)
    step = natural(cuda.gridDim.x)
    own_tiles = (tiles - 1 - tile) // step + 1 if reads({alpha}) else 0
    if reads({alpha}):
        settle(pool, x, x_step, vector, vectors, cols, tid)
    copies_commit()
    ring = tid // 32 * RING + RINGS_AT
    theirs = ring + part * COPIED + lane % WARP_LANES * WIDTH
    mine = ring + lane % WARP_LANES * WIDTH + part * UNIT
    shape = rows, row_stride, cols, group_row, lane * WIDTH
    order = tile, step, own_tiles
    ahead = first_place(a, shape, order, short(own_tiles * CHUNKS_OF_TILE))
    freed = short(0)  # where the stage begins that the next copies go to
    for _ in range(AHEAD):
        ahead = copied(pool, a, shape, order, theirs + freed, ahead)
        freed = short(freed + STAGE)
    copies_wait(AHEAD)
    cuda.syncthreads()  # all of x is there
    own_x = lane * WIDTH + part * UNIT
    loads_end = OF_TURN if own_tiles > 0 else 0
    places = part * COPIED, (part ^ 1) * COPIED, (part ^ 2) * COPIED, (part ^ 3) * COPIED
    factors = {alpha}, alpha_step, {beta}, beta_step
    stage = short(0)
    buffer = short(SUMS_AT)
    r = tid // FINISHERS  # of the sums of a tile, the one that this thread helps to add up
    while tile < tiles:
        before = zero
        for turn in range(TURNS):
            total_{v} = zeros(zero, ALL)
            at_x = short(own_x + turn * X_OF_STEP)
            end_x = short(at_x + loads_end)
            while at_x < end_x:
                copies_wait(PENDING)
                cuda.syncwarp()  # the stage is there for all, and all have left the one before
                ahead = copied(pool, a, shape, order, theirs + freed, ahead)
                freed = stage
                the steps
                at_x = short(at_x + AT_ONCE * X_OF_LOAD)
                stage = short(stage + STAGE) if stage + STAGE < RING else short(0)
            own_{v} = of_lane(total_{v}, tid)
            held = ({all_own},)
            at = buffer + group_row * PITCH + lane * COUNT
            the stores
            cuda.syncthreads()  # the sums of all lanes are there; those of before have been read
            at = buffer + r // COUNT * PITCH + tid % FINISHERS * COUNT + r % COUNT
            (row_sum,) = butterfly(fold(of_lanes(sums, at), 1), FINISHERS, 1)
            if TURNS > 1 and turn > 0:
                row_sum = before + row_sum
            before = row_sum
            buffer = short(2 * SUMS_AT + SUMS - buffer)
        i = tile * TILE_ROWS + r // COUNT
        item = vector + r % COUNT
        if tid % FINISHERS == 0 and i < rows and item < vectors:
            finish(factors, before, item, y, item * y_step + i * incy)
        tile += step
"""
#: One load of a lane for four rows, which is multiplied with the numbers of all vectors.
_STEP = """
values = staged_tile(pool, a, places, mine + stage + <s> * OF_LOAD, 0, 1, UNIT)
numbers = staged_tile(pool, x, (0,), at_x + <s> * X_OF_LOAD, X_OF_VECTOR, COUNT, UNIT)
total_{v} = multiply_add(total_{v}, values, pieces_of(numbers, {v}, 1, UNIT), 0)
"""


def _sizes(knobs):
    """Lanes of a turn, the elements of x and of a ring's stage, and the sums of a tile and a row.

    Between the sums of rows are some bytes, so that lanes of different rows meet other banks.
    """
    lanes, warps = min(knobs["LANES"], 32), knobs["THREADS_PER_BLOCK"] // 32
    of_x = knobs["LOADS"] * knobs["LANES"] * WIDTH * knobs["COUNT"]
    stage = knobs["AT_ONCE"] * PARTS * (32 // PARTS) * WIDTH
    pitch = knobs["COUNT"] * lanes + 4
    return lanes, of_x, warps * knobs["STAGES"] * stage, stage, 32 * warps // lanes * pitch, pitch


def shared_bytes(knobs):
    """Bytes of shared memory of a block: x, rings, and twice the sums of a tile in float32."""
    _, of_x, of_rings, _, of_sums, _ = _sizes(knobs)
    return (of_x + of_rings) * ITEM_BYTES + 2 * of_sums * 4


def build(spec):
    import numpy as np

    from gemv import language
    from gemv.language import (
        add_each,
        copies_commit,
        copy_async,
        copy_or_zeros,
        device,
        fold,
        moved,
        pieces_of,
        read_only_load,
        short,
        sums_of_lane,
        update_streaming,
    )

    LANES, LOADS, COUNT, AT_ONCE, STAGES, THREADS = (
        spec[name] for name in ("LANES", "LOADS", "COUNT", "AT_ONCE", "STAGES", "THREADS_PER_BLOCK")
    )
    TURN_LANES, OF_X, RINGS, STAGE, SUMS, PITCH = _sizes(dict(spec.knobs))
    TURNS, UNIT, FULL = LANES // TURN_LANES, WIDTH // PARTS, spec["FULL"] > 0
    FINISHERS = TURN_LANES // COUNT  # threads that add up one of a tile's sums
    TILE_ROWS = THREADS // TURN_LANES
    TURN_COLUMNS, STEP = TURN_LANES * WIDTH, LANES * WIDTH
    ALL = PARTS * UNIT  # partial sums of a thread for a vector
    HALF = ALL // 2
    WARP_LANES = 32 // PARTS
    COPIED = WARP_LANES * WIDTH  # elements of a row in a load of a warp
    OF_LOAD, X_OF_STEP = PARTS * COPIED, COUNT * TURN_COLUMNS
    CHUNKS = LOADS // AT_ONCE  # stages that a turn takes
    ALL_X = LOADS * TURNS * COUNT * TURN_LANES
    ALPHAS, BETAS = (home == "pointer" for home in spec.homes)
    zero = spec.zero

    @device
    def settle(pool, x, x_step, vector, vectors, cols, tid):
        """Begin to copy the thread's share of x; a vector that is not there is the last one."""
        g = tid
        while g < ALL_X:
            column = g // (COUNT * TURN_LANES) * TURN_COLUMNS + g % TURN_LANES * WIDTH
            item = min(vector + g // TURN_LANES % COUNT, vectors - 1)
            copy_or_zeros(pool, g * WIDTH, moved(x, item * x_step), column, column < cols)
            g += THREADS

    @device
    def first_place(a, shape, order, left):
        """Where the copies of a turn begin, if so many stages are left; its column, and `left`."""
        rows, row_stride, cols, row, column = shape
        first, step, own_tiles = order
        turn = own_tiles * TURNS - left // CHUNKS
        i = min((first + turn // TURNS * step) * TILE_ROWS + row, rows - 1)
        j = column + turn % TURNS * TURN_COLUMNS
        return moved(a, i * row_stride + j), short(j), left

    @device
    def copy_whole(pool, place, a, at, present):
        copy_async(pool, place, a, at)

    copy = copy_whole if FULL else copy_or_zeros

    @device
    def copied(pool, a, shape, order, place, ahead):
        """Begin the copies of a stage, if there is one; what comes behind it."""
        own, j, left = ahead
        if left > 0:
            for s in range(AT_ONCE):
                copy(pool, place + s * OF_LOAD, own, s * STEP, j + s * STEP < shape[2])
            own, j = moved(own, AT_ONCE * STEP), short(j + AT_ONCE * STEP)
            left = short(left - 1)
            if left % CHUNKS == 0:
                own, j, left = first_place(a, shape, order, left)
        copies_commit()
        return own, j, left

    @device
    def of_lane(total, tid):
        """The sum of the thread's own row: two threads of a lane exchange halves of their sums."""
        other = sums_of_lane(pieces_of(total, HALF, HALF, 1), tid % 32 ^ 2)
        half = add_each(pieces_of(total, 0, HALF, 1), other)
        other = sums_of_lane(pieces_of(half, UNIT, UNIT, 1), tid % 32 ^ 1)
        return fold(add_each(pieces_of(half, 0, UNIT, 1), other), 1)[0]

    @device
    def finish(factors, total, item, y, at):
        """Write an element of the y of one vector."""
        alpha, alpha_step, beta, beta_step = factors
        own_alpha = read_only_load(alpha, item * alpha_step) if ALPHAS else alpha
        own_beta = read_only_load(beta, item * beta_step) if BETAS else beta
        update_streaming(own_alpha, zero if own_alpha == 0 else total, own_beta, y, at)

    @device
    def always(alpha):
        return True

    @device
    def unless_zero(alpha):
        return alpha != 0

    scope = {name: getattr(language, name) for name in _WORDS}
    scope |= {
        "settle": settle, "first_place": first_place, "copied": copied, "of_lane": of_lane,
        "finish": finish, "reads": always if ALPHAS else unless_zero, "number": spec.number,
        "zero": zero, "uint8": np.uint8, "PARTS": PARTS, "UNIT": UNIT, "WIDTH": WIDTH,
        "COUNT": COUNT, "ROW_THREADS": TURN_LANES * PARTS, "TURNS": TURNS, "TILE_ROWS": TILE_ROWS,
        "WARP_LANES": WARP_LANES, "COPIED": COPIED, "OF_LOAD": OF_LOAD, "STAGE": STAGE,
        "RING": STAGES * STAGE, "RINGS_AT": OF_X, "AHEAD": STAGES - 1, "PENDING": STAGES - 2,
        "AT_ONCE": AT_ONCE, "ALL": ALL, "CHUNKS_OF_TILE": TURNS * CHUNKS,
        "X_OF_VECTOR": TURN_COLUMNS, "X_OF_STEP": X_OF_STEP, "X_OF_LOAD": TURNS * X_OF_STEP,
        "OF_TURN": LOADS * TURNS * X_OF_STEP, "FINISHERS": FINISHERS, "PITCH": PITCH,
        "SUMS": SUMS, "SUMS_AT": (OF_X + RINGS) * ITEM_BYTES // 4,
    }  # fmt: skip
    exec(_of_lanes(COUNT, FINISHERS * COUNT), scope)
    scope["of_lanes"] = device(scope["of_lanes"])
    steps = (_STEP.strip("\n").replace("<s>", str(s)) for s in range(AT_ONCE))
    each = min(COUNT, LOAD_BYTES // 4)
    stores = (f"put_unit(sums, at + {v}, held, {v}, {each})" for v in range(0, COUNT, each))
    more = {"steps": "\n".join(steps), "stores": "\n".join(stores)}
    exec(source_of(_SOURCE, COUNT, factor_names(spec), more), scope)
    return (attach(scope["several_long_rows"], launch_bounds=(THREADS, spec["MIN_BLOCKS"])),)


def _of_lanes(count: int, apart: int) -> str:
    """The source of a function that reads `count` sums of shared memory."""
    numbers = ", ".join(f"sums[at + {k * apart}]" for k in range(count))
    return f"def of_lanes(sums, at):\n    return ({numbers},)"


def accepts(problem):
    if problem.dtype.itemsize != ITEM_BYTES or problem.widths != (WIDTH, WIDTH):
        return "A and x must be numbers of 2 bytes, loaded by 16 bytes"
    if not problem.whole:
        return "some columns fill no vector"
    if problem.accumulate != "plain":
        return f"accumulate={problem.accumulate!r}: sums are plain ones here"
    return no_twofold(problem) or wide_loads_object(problem, "dot")


def constants_for(problem, knobs, vectors):
    """The constants for so many vectors, from those of the rung of rows; None where there are none.

    Then another kernel takes them.
    """
    lanes = knobs["LANES"]
    turn_lanes = min(lanes, 32)
    count = 4 if vectors == 4 else COUNT
    limits = LIMITS[count]
    if (
        vectors < 4
        or knobs["BLOCKS_PER_SM"]
        or lanes < limits.lanes
        or problem.cols < turn_lanes * limits.columns
        or problem.rows * turn_lanes < MANY_LANES
        or accepts(problem)
    ):
        return None
    steps = ceil_div(problem.cols, lanes * WIDTH)
    loads, at_once, stages = min(
        ((ceil_div(steps, each) * each, each, stages) for each, stages in limits.rings),
        key=lambda ring: ring[0],
    )

    def with_tile(threads, blocks):
        return {
            "LANES": lanes, "LOADS": loads, "FULL": int(loads * lanes * WIDTH == problem.cols),
            "COUNT": count, "THREADS_PER_BLOCK": threads, "MIN_BLOCKS": blocks, "STAGES": stages,
            "AT_ONCE": at_once,
        }  # fmt: skip

    def busiest(own):
        of_tile = own["THREADS_PER_BLOCK"] // turn_lanes
        return of_busiest(problem.rows, of_tile, own["MIN_BLOCKS"])

    for tile_ in limits.tiles:
        own = with_tile(*tile_)
        nbytes = shared_bytes(own)
        if nbytes <= MOST_BLOCK_BYTES and tile_[1] * (nbytes + OF_BLOCK) <= PROCESSOR_BYTES:
            between = lanes >= 32 and count == COUNT
            return min([own, with_tile(*BETWEEN)] if between else [own], key=busiest)
    return None


def geometry(problem, device, knobs, batch=ONE):
    lacks = device.lacks(COPIES, MOST_BLOCK_BYTES)
    if lacks:
        raise ValueError(f"several_long_rows: x in shared memory: {lacks}")
    lanes, count, loads, threads = (
        knobs[name] for name in ("LANES", "COUNT", "LOADS", "THREADS_PER_BLOCK")
    )
    turn_lanes = min(lanes, 32)
    if (
        turn_lanes % count
        or lanes % turn_lanes
        or threads % max(turn_lanes * PARTS, 32)
        or turn_lanes * PARTS < 32
    ):
        raise ValueError(
            "several_long_rows: LANES must be 8, 16 or a multiple of 32 and of COUNT, and"
            f" THREADS_PER_BLOCK a multiple of {PARTS} threads for each of up to 32 lanes, got"
            f" {lanes}, {count} and {threads}"
        )
    if knobs["STAGES"] < 2 or loads % knobs["AT_ONCE"]:
        raise ValueError(
            "several_long_rows: STAGES must be 2 or more, and LOADS a multiple of AT_ONCE, got"
            f" {knobs['STAGES']}, {loads} and {knobs['AT_ONCE']}"
        )
    most = lanes * loads * WIDTH
    if problem.cols > most or (knobs["FULL"] and problem.cols < most):
        raise ValueError(
            f"several_long_rows: {lanes} lanes with {loads} loads of {WIDTH} take"
            f" {'' if knobs['FULL'] else 'up to '}{most} columns, not {problem.cols}"
        )
    shared = shared_bytes(knobs)
    if shared > MOST_BLOCK_BYTES:
        raise ValueError(
            f"several_long_rows: {shared} bytes of shared memory are more than the"
            f" {MOST_BLOCK_BYTES} that a block may ask for"
        )
    turns = turns_of_vectors("several_long_rows", batch.items, count)
    tiles = ceil_div(problem.rows, threads // turn_lanes)
    sizes = {"tiles": tiles, **sizes_of_vectors(batch)}
    # With more blocks x would be copied more often.
    grid = (min(tiles, most_blocks(device, knobs)), turns, 1)
    return Geometry((Launch(grid, (threads, 1, 1), shared),), sizes)


def tile(knobs):
    lanes = min(knobs["LANES"], 32)
    return knobs["THREADS_PER_BLOCK"] // lanes, knobs["LANES"] * WIDTH * knobs["AT_ONCE"]


KERNEL = Kernel(
    name="several_long_rows",
    rung=6,
    build=build,
    geometry=geometry,
    of_batch=geometry,
    for_vectors=constants_for,
    tile=tile,
    beside=True,
    wide=True,
    accepts=accepts,
    capability=COPIES,
    block_bytes=MOST_BLOCK_BYTES,
    knobs={
        "LANES": 32, "LOADS": 8, "FULL": 0, "COUNT": COUNT, "THREADS_PER_BLOCK": 256,
        "MIN_BLOCKS": 1, "STAGES": 2, "AT_ONCE": 4,
    },
    small_knobs={
        "LANES": 8, "LOADS": 2, "FULL": 0, "COUNT": 4, "THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1,
        "STAGES": 2, "AT_ONCE": 1,
    },
    doc=__doc__,
)  # fmt: skip
