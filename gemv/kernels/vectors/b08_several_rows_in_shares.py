"""Few long rows and several vectors: blocks share the lanes of a tile of rows, task after task.

Idea
    A hundred rows of a single product are a hundred blocks, one for each, and each of their lanes
    reads every so many columns. Eight vectors want a tile of several rows, which share what is
    loaded of x. That leaves a quarter of the blocks, or less, and most multiprocessors have nothing
    to do. Columns cannot be split over more blocks: the sums would be others than those of the
    single product.

    But the lanes of a row know nothing of each other until the end. ``several_rows`` lets the same
    threads be one part of the lanes after the other (TURNS). Here a *task* is the *share* of one
    warp of lanes in a tile, and different blocks take different tasks. 512 lanes are 16 shares, so
    there are 16 times as many tasks as tiles. Where the single product splits the columns over the
    SPLITS blocks of a cluster (rung 14), each warp of each of them has a share.

    A share has one sum for each row and vector. The block posts them to scratch memory, where
    arriving sums tell by themselves that they are there (``vector_rows`` explains how). The block
    that began the last share of a tile takes all its sums. FINISHERS threads add up those of a row
    and vector, each some of them in order, and meet in a butterfly: as in the single product, which
    has one finisher if it splits no columns.

    There are at most as many blocks as the GPU holds at a time, and each takes task after task. A
    and x come by copies that no thread waits for, into a ring of STAGES stages of VECTORS loads of
    a lane, as in ``several_staged_rows``. The copies of the next task begin while the last one is
    added up.

    A cluster of blocks for each tile, whose sums meet in shared memory, was slower. Of its clusters
    of 16 blocks an H100 ran 14 at a time, as Nsight Compute told. So 16 tiles took two rounds.
    Tasks have no such limit.

Picture
    ::

        128 lanes, two tiles of two rows, three blocks

                    lanes 0-31    lanes 32-63   lanes 64-95   lanes 96-127
        rows 0, 1   block 0       block 1       block 2       block 0       -> block 0 adds up
        rows 2, 3   block 1       block 2       block 0       block 1       -> block 1 adds up

Bytes
    (m*n + k * (len(x) + len(y) * (1 + [beta != 0]))) * itemsize from memory for up to COUNT
    vectors; with more of them A comes again for each COUNT. From the L2 cache x comes once for each
    tile of rows: COUNT / (rows of a tile) times the bytes of A, as absent vectors are copied as the
    last one.

Wins
    Over ``several_rows`` where rows are fewer than would give each multiprocessor a tile, and over
    ``cluster_rows``, which reads A once for each vector, where A is more than a few megabytes.
    Times of eight vectors in us, on an NVIDIA H100:

    =====================  ====  ====================  ========
    A                      here  other kernel          torch.mm
    =====================  ====  ====================  ========
    128 x 131072 bfloat16  18.6  60.4, several_rows    20.0
    256 x 65536 bfloat16   18.5  35.4, several_rows    18.3
    128 x 131072 float32   32.2  46.5, several_rows    82.6
    128 x 65536 float64    31.2  50.1, several_rows    36.8
    128 x 65536 complex64  32.2  49.4, several_rows    81.5
    16 x 524288 bfloat16   16.1  54.1, cluster_rows    21.0
    16 x 262144 float32    14.9  53.2, cluster_rows    96.4
    16 x 131072 float64    17.7  51.7, cluster_rows    26.0
    =====================  ====  ====================  ========

    Of 169 problems with 1 to 256 rows, most of them drawn at random, two to eight vectors took 1.52
    times as long with other kernels in the mean.

Loses
    To ``several_rows`` where that has tiles for most of the multiprocessors: 512 x 32768 bfloat16
    took 22.3 us with eight vectors, and 20.0 there. To torch.mm, which multiplies on tensor cores
    and adds in another order, for 2-byte numbers where tiles do not fill the multiprocessors:
    200 x 100000 took 30.4 us, and 21.8 there.

Sums
    Those of the rung of rows with the same LANES and width of loads, without splits, for each
    vector; or those of ``cluster_rows`` with the same LANES, rows of a block and blocks of a
    cluster.

Source
    A share of the lanes for each task is what ``several_rows`` takes in turns. Blocks that take
    task after task: "persistent threads", K. Gupta, J. Stuart, J. Owens, "A study of persistent
    threads style GPU programming for GPGPU workloads", InPar 2012.
"""

from __future__ import annotations

from typing import NamedTuple

from gemv.core.geometry import LOAD_BYTES, ceil_div, one_launch
from gemv.kernels import ends_of_rows, stages_of_rows
from gemv.kernels.busiest import MULTIPROCESSORS
from gemv.kernels.ends_of_rows import parts_of, sums_of_block
from gemv.kernels.grids import columns_of_split, finishing, most_blocks
from gemv.kernels.kernel import Kernel, attach, no_twofold, wide_loads_object
from gemv.kernels.several import ONE, sizes_of_vectors, turns_of_vectors
from gemv.kernels.staging import BLOCK_BYTES, COPIES, MOST_BLOCK_BYTES

#: Lanes of a warp, whose sums meet by a butterfly: the lanes of a share.
WARP = 32
#: The number that a block has drawn, and what aligns it.
TICKET_BYTES = 16


class Tile(NamedTuple):
    """Constants that sums do not depend on."""

    PARTS: int
    ROWS: int
    VECTORS: int
    STAGES: int
    THREADS_PER_BLOCK: int
    MIN_BLOCKS: int = 1


#: The vectors of a block.
COUNTS = (2, 4, 8)
#: By COUNT and the bytes of a number, tiles of up to 32 rows, the largest first. They are among the
#: fastest that were tried on an H100, 2 to 12 for each problem, and spill no registers.
TILES = {
    (8, 2): (Tile(4, 8, 2, 4, 256), Tile(4, 4, 2, 6, 256, 2), Tile(4, 4, 2, 4, 128, 3)),
    (8, 4): (
        Tile(4, 8, 2, 4, 512), Tile(2, 4, 2, 6, 256), Tile(2, 4, 2, 6, 128, 2),
        Tile(2, 4, 2, 4, 64, 4),
    ),
    (8, 8): (Tile(1, 4, 2, 4, 128, 2), Tile(2, 4, 2, 6, 128, 2), Tile(2, 4, 2, 4, 64, 3)),
    (4, 2): (Tile(4, 8, 2, 4, 256, 2), Tile(4, 4, 2, 6, 256, 2), Tile(4, 4, 2, 4, 128, 4)),
    (4, 4): (Tile(2, 4, 2, 4, 256, 2), Tile(2, 4, 2, 6, 128, 2), Tile(2, 4, 2, 4, 64, 4)),
    (4, 8): (Tile(1, 4, 2, 3, 128, 3), Tile(2, 4, 2, 4, 128, 3), Tile(2, 4, 2, 4, 64, 4)),
    (2, 2): (Tile(4, 8, 4, 3, 256, 2), Tile(4, 8, 2, 4, 128, 4), Tile(4, 4, 2, 4, 128, 4)),
    (2, 4): (Tile(2, 4, 4, 3, 256, 2), Tile(2, 4, 2, 4, 128, 4), Tile(2, 4, 2, 4, 64, 6)),
    (2, 8): (Tile(1, 4, 2, 4, 128, 3), Tile(2, 4, 2, 4, 128, 4), Tile(2, 4, 2, 4, 64, 6)),
}  # fmt: skip
#: The same for rows that are split over the blocks of a cluster, where other tiles are faster or
#: have been timed.
SPLIT_TILES = TILES | {
    (8, 2): (Tile(4, 8, 2, 6, 256), *TILES[8, 2][1:]),
    (2, 8): TILES[2, 8][1:],
}
#: Rows up to which the smallest tile is considered.
FEWEST_ROWS = 4
#: Rows that are not split: by the bytes of a number, the vectors from which on the kernel is used;
#: by COUNT as well, the least lanes, and the most rows with which it was the faster one.
LEAST_VECTORS = {2: 3, 4: 2, 8: 2}
LEAST_LANES = {
    (8, 2): 256, (8, 4): 256, (8, 8): 256, (4, 2): 256, (4, 4): 512, (4, 8): 512, (2, 4): 512,
    (2, 8): 512,
}  # fmt: skip
MOST_ROWS = {
    (8, 2): 256, (8, 4): 256, (8, 8): 256, (4, 2): 144, (4, 4): 224, (4, 8): 256, (2, 4): 160,
    (2, 8): 160,
}  # fmt: skip
#: Up to so many rows, and for eight vectors of 2-byte numbers, A has at least so many bytes;
#: otherwise so many.
FEW_ROWS, LEAST_BYTES, LEAST_BYTES_OF_MANY = 64, 1 << 18, 8 << 20
#: Of all that the multiprocessors could copy of float32, the least part that has to be rows of A.
LEAST_FILL = 0.7
#: Rows that are split over the blocks of a cluster: the most of them, and the least bytes of A for
#: two vectors, and by the bytes of a number for as many vectors as a block has. With less, A is
#: read once for each vector, from the L2 cache.
MOST_SPLIT_ROWS, LEAST_FOR_TWO = 320, 8 << 20
LEAST_SPLIT_BYTES = {2: 3 << 19, 4: 5 << 19, 8: 5 << 19}
#: Bytes that a multiprocessor copies while a thread waits for sums that it has asked for; and what
#: a tile takes longer whose threads load numbers of 8 bytes one by one.
BYTES_OF_TRIP, ONE_BY_ONE = 16 << 10, 1.25
#: Bytes of sums that a thread has on their way where it finishes rows.
TAKEN_BYTES = 256

#: What the kernel calls.
_WORDS = (
    "atomic_inc", "butterfly", "copies_wait", "cuda", "kept", "moved", "multiply_add", "natural",
    "pieces_of", "post", "row_starts", "scatter_sums", "short", "staged_tile",
    "take_rows", "zeros",
)  # fmt: skip
#: The kernel: see :func:`gemv.kernels.ends_of_rows.source_of`.
_SOURCE = """
def several_rows_in_shares(
    rows, cols, cols_per_split, tasks, vectors, a, row_stride, x, x_step, y, y_step, incy,
    {alpha}, alpha_step, {beta}, beta_step, scratch, counters,
):
    pool = cuda.shared.array(0, uint8, alignment=16)  # the ring, as long as the launch says
    sums = cuda.shared.array(ALL_SUMS, number, alignment=16)
    ticket = cuda.shared.array(1, uint32)
    tid = natural(cuda.threadIdx.x)
    place = tid % ROW_THREADS
    group = tid // ROW_THREADS
    part = place % PARTS
    lane = place // PARTS
    last = last_column({alpha}, 0, cols)
    vector = natural(cuda.blockIdx.z) * COUNT
    task = natural(cuda.blockIdx.x)
    mover = natural(cuda.gridDim.x)
    # What the thread copies: the vectors of its lane in every PARTS-th row, and some of x.
    own_item = vector + tid // TURN_LANES % COUNT
    x_starts = kept(row_starts(own_item, ITEMS_APART, vectors - 1, x_step, COPIED_ITEMS))
    a_column = lane * WIDTH
    x_column = tid % TURN_LANES * WIDTH + tid // OF_X_LOAD * STEP
    own_a = moved(a, a_column)
    own_x = moved(x, x_column)
    read_x = of_x(x)  # what the numbers in a stage of x are read as: conjugates, if need be
    theirs = short((group * TURN_LANES + lane) * WIDTH + part * COPIED)
    theirs_x = short(A_STAGE + tid * WIDTH)
    mine = short((group * TURN_LANES + lane) * WIDTH + part * UNIT)
    mine_x = short(A_STAGE + lane * WIDTH + part * UNIT)
    shape = rows, row_stride, group + part * GROUPS, tasks, mover
    order = last, cols_per_split, a_column, x_column
    places = theirs, theirs_x
    starts = starts_of(shape, task)
    ahead = task, begin_of(order, task), short(0)
    stage = short(0)
    for _ in range(STAGES - 1):
        starts, ahead = copied(pool, own_a, own_x, starts, x_starts, places, shape, order, ahead)
    while task < tasks:
        tile = task // SHARES
        share = task % SHARES
        tile_of_turn = natural(cuda.blockIdx.z) * (tasks // SHARES) + tile
        drawn = uint32(0)
        if tid == 0:
            drawn = atomic_inc(counters, tile_of_turn, SHARES - 1)
        total_{v} = zeros(zero, SUMS)
        left = stages_of(order, task)
        while left > 0:
            copies_wait(PENDING)
            cuda.syncthreads()  # the stage is there for all, and all have left the one before
            starts, ahead = copied(
                pool, own_a, own_x, starts, x_starts, places, shape, order, ahead
            )
            here = short(mine + stage)
            here_x = short(mine_x + stage)
            the steps
            stage = short(stage + STAGE) if stage + STAGE < RING else short(0)
            left = short(left - 1)
        # All have read the sums and the number of the task before: they met at a stage since.
        own_{v} = of_lane(total_{v}, tid)
        put(sums, tid, joined({all_own}))
        if tid == 0:
            ticket[0] = drawn
        cuda.syncthreads()  # all sums of these lanes are in place
        first = tile * TILE_ROWS
        sums_of_tile = moved(scratch, tile_of_turn * (SHARES * ALL_ROWS))
        r = tid // MEETING
        c = tid % MEETING
        while r - tid // MEETING < ALL_ROWS:  # whole warps, which shuffle
            (own_sum,) = butterfly((of_warp(sums, min(r, ALL_ROWS - 1), c),), MEETING, 1)
            i = first + r % TILE_ROWS
            if c == 0 and r < ALL_ROWS and i < rows and vector + r // TILE_ROWS < vectors:
                post(sums_of_tile, place_of(r, share), own_sum)
            r += THREADS // MEETING
        if ticket[0] == SHARES - 1:
            # The last share of the tile to begin: whole blocks take this branch.
            q = tid // FINISHERS
            c = tid % FINISHERS
            while q - tid // FINISHERS < ALL_ROWS // TAKEN:
                i = first + q % TILE_ROWS
                item = vector + q // TILE_ROWS * TAKEN
                own_sums = zeros(zero, TAKEN)
                if q < ALL_ROWS // TAKEN and i < rows and item < vectors:
                    at = place_of(q // TILE_ROWS * TAKEN * TILE_ROWS + q % TILE_ROWS, c)
                    own_sums = in_order(
                        take_rows(
                            zero, sums_of_tile, at, APART, OF_FINISHER, OF_FINISHER,
                            TILE_ROWS * FINISHERS, TAKEN, vectors - item,
                        )
                    )
                (row_sum,) = scatter_sums(own_sums, tid, 1, FINISHERS, 1)
                item += c // HOLDERS  # the vector whose sum this lane has
                if q < ALL_ROWS // TAKEN and c % HOLDERS == 0 and i < rows and item < vectors:
                    factors = {alpha}, alpha_step, {beta}, beta_step
                    # Factors may be read ahead of the comparison, so they are those of a vector.
                    own = min(item, vectors - 1)
                    finish(factors, row_sum, own, y, item * y_step + i * incy)
                q += THREADS // FINISHERS
        task += mover
"""


def build(spec):
    import numpy as np

    from gemv import language
    from gemv.language import copies_commit, device, quotient, row_starts, short

    LANES, SPLITS, FINISHERS = (spec[k] for k in ("LANES", "SPLITS", "FINISHERS"))
    WARPS = LANES // WARP
    SHARES = SPLITS * WARPS
    # The lanes of a share are what the lanes of a turn are elsewhere.
    scope = ends_of_rows.names_of(ends_of_rows.unsplit(spec, WARPS))
    scope |= stages_of_rows.names_of(spec, scope, WARP)
    TILE_ROWS, ALL_ROWS, SHARE_COLUMNS = (
        scope[k] for k in ("TILE_ROWS", "ALL_ROWS", "TURN_COLUMNS")
    )
    OF_STAGE, LAST, STAGE, RING = (scope[k] for k in ("OF_STAGE", "LAST", "STAGE", "RING"))
    COPIED_ROWS, COPIED_APART = scope["COPIED_ROWS"], scope["COPIED_APART"]
    whole_stage, some_stage = scope["whole_stage"], scope["some_stage"]
    OF_FINISHER = SHARES // FINISHERS
    TAKEN = taken_at_once(spec["COUNT"], SHARES, FINISHERS, spec.precision.sums)
    own: dict = {}
    exec(_in_order(TAKEN, OF_FINISHER), own)

    @device
    def starts_of(shape, task):
        """Where the rows of a task's tile begin that the thread copies."""
        rows, row_stride, row, tasks, mover = shape
        first = task // SHARES * TILE_ROWS + row
        return row_starts(first, COPIED_APART, rows - 1, row_stride, COPIED_ROWS)

    @device
    def begin_of(order, task):
        """The first column of a task's share."""
        last, cols_per_split, a_column, x_column = order
        share = task % SHARES
        return share // WARPS * cols_per_split + share % WARPS * SHARE_COLUMNS

    @device
    def end_of(order, task):
        """The column behind the last one of a task's share."""
        last, cols_per_split, a_column, x_column = order
        if SPLITS == 1:
            return last
        return min(last, (task % SHARES // WARPS + 1) * cols_per_split)

    @device
    def stages_of(order, task):
        """The stages of a task: one of zeros if it has no columns, as its sums are zeros then."""
        begin, end = begin_of(order, task), end_of(order, task)
        return short(quotient(end - begin + (OF_STAGE - 1), OF_STAGE)) if end > begin else short(1)

    @device
    def place_of(row, share):
        """Where in scratch memory the sum of a share is: FINISHERS of a row are neighbours."""
        return (share // FINISHERS * ALL_ROWS + row) * FINISHERS + share % FINISHERS

    @device
    def copied(pool, own_a, own_x, starts, x_starts, places, shape, order, ahead):
        """Begin the copies of a stage, if there is one; what is next behind it."""
        task, j, stage = ahead
        last, cols_per_split, a_column, x_column = order
        theirs, theirs_x = places
        if task < shape[3]:
            end = end_of(order, task)
            there, x_there = theirs + stage, theirs_x + stage
            if j + LAST <= end:
                whole_stage(pool, own_a, own_x, starts, x_starts, there, x_there, j, 0, 0)
            else:
                room, x_room = end - j - a_column, end - j - x_column
                some_stage(pool, own_a, own_x, starts, x_starts, there, x_there, j, room, x_room)
            j += OF_STAGE
            if j >= end:
                task += shape[4]
                j = begin_of(order, task)
                starts = starts_of(shape, task)
            stage = short(stage + STAGE) if stage + STAGE < RING else short(0)
        copies_commit()
        return starts, (task, j, stage)

    scope |= {name: getattr(language, name) for name in _WORDS}
    scope |= {
        "copied": copied, "starts_of": starts_of, "begin_of": begin_of, "stages_of": stages_of,
        "place_of": place_of, "in_order": device(own["in_order"]), "uint8": np.uint8,
        "uint32": np.uint32, "SHARES": SHARES, "MEETING": scope["FINISHERS"],
        "FINISHERS": FINISHERS, "OF_FINISHER": OF_FINISHER, "TAKEN": TAKEN,
        "HOLDERS": FINISHERS // TAKEN, "APART": ALL_ROWS * FINISHERS,
    }  # fmt: skip
    more = {"steps": stages_of_rows.steps_of(spec["VECTORS"])}
    names = ends_of_rows.factor_names(spec)
    exec(ends_of_rows.source_of(_SOURCE, spec["COUNT"], names, more), scope)
    bounds = scope["THREADS"], spec.min_blocks
    return (attach(scope["several_rows_in_shares"], launch_bounds=bounds),)


def taken_at_once(count, shares, finishers, number):
    """Vectors whose sums a thread takes at once: a power of two, one for each finisher at most."""
    taken = min(count, finishers)
    while taken > 1 and taken * (shares // finishers) * number.itemsize > TAKEN_BYTES:
        taken //= 2
    return taken


def _in_order(taken, each):
    """The source of a function that adds up `each` sums one after the other, for each vector."""
    sums = [" + ".join(f"found[{v * each + k}]" for k in range(each)) for v in range(taken)]
    return f"def in_order(found):\n    return ({', '.join(sums)},)"


def accepts(problem):
    if problem.widths[0] * problem.dtype.itemsize != LOAD_BYTES or len(set(problem.widths)) > 1:
        return "A and x must be loaded by 16 bytes"
    if not problem.whole:
        return "some columns fill no vector"
    return no_twofold(problem) or wide_loads_object(problem, "dot")


def _shape(problem, knobs):
    """Threads that share a lane, and threads and rows of a block."""
    parts = parts_of(knobs["PARTS"], problem.widths[0], problem.precision)
    threads = max(WARP * parts, knobs["THREADS_PER_BLOCK"])
    return parts, threads, threads // (WARP * parts) * knobs["ROWS"]


def tile(knobs):
    threads_of_row = WARP * knobs["PARTS"]
    threads = max(threads_of_row, knobs["THREADS_PER_BLOCK"])
    return threads // threads_of_row * knobs["ROWS"], 4 * knobs["LANES"]


def ring_bytes(problem, knobs):
    """Bytes of shared memory that a launch asks for: STAGES of A and of x."""
    lines = _shape(problem, knobs)[2] + knobs["COUNT"]
    return knobs["STAGES"] * knobs["VECTORS"] * WARP * lines * LOAD_BYTES


def sums_bytes(problem, knobs):
    """Bytes of shared memory for the sums of a block's lanes."""
    parts, threads, _ = _shape(problem, knobs)
    sums = sums_of_block(WARP, parts, threads, knobs["ROWS"] * knobs["COUNT"])
    return sums * problem.precision.sums.itemsize + TICKET_BYTES


def shares_of(knobs):
    """The shares of a row: one for each warp of its lanes, in each of its splits."""
    return knobs["SPLITS"] * (knobs["LANES"] // WARP)


def constants_for(problem, knobs, vectors):
    """The constants for so many vectors, from those of the single product; None without any.

    Then another kernel takes them, or A is read once for each vector.
    """
    count = next((each for each in COUNTS if vectors <= each), COUNTS[-1])
    tiles = TILES.get((count, problem.dtype.itemsize))
    if tiles is None or accepts(problem) or problem.accumulate != "plain":
        return None
    lanes, splits, finishers = knobs["LANES"], knobs.get("CLUSTER", 1), 1
    if splits > 1:
        if lanes < WARP or not _gains_by_splits(problem, count, vectors):
            return None
        threads = max(lanes, knobs["THREADS_PER_BLOCK"])
        tile_rows, slots = threads // lanes * knobs["ROWS"], splits * (lanes // WARP)
        _, finishers = finishing(tile_rows, threads, slots, splits)
        tiles = SPLIT_TILES[count, problem.dtype.itemsize]
    else:
        few = vectors < LEAST_VECTORS[problem.dtype.itemsize]
        if few or knobs["BLOCKS_PER_SM"] or not _gains(problem, lanes, count):
            return None
        tiles = tiles[:1] if problem.dtype.itemsize == 8 else tiles  # smaller ones took longer
    found = {"LANES": lanes, "SPLITS": splits, "FINISHERS": finishers, "COUNT": count}
    if problem.rows > FEWEST_ROWS:
        tiles = tiles[:-1] or tiles
    # Of equals the tile with fewer rows, whose end takes less time.
    made = min(
        ({**found, **each._asdict()} for each in reversed(tiles)),
        key=lambda each: _cost(problem, each),
    )
    fills = splits > 1 or problem.dtype.itemsize != 4 or _fill(problem, made) >= LEAST_FILL
    return made if fills else None


def _gains(problem, lanes, count):
    """Whether rows that are not split are few, and A is large enough."""
    size, rows = problem.dtype.itemsize, problem.rows
    if rows > MOST_ROWS[count, size] or lanes < LEAST_LANES[count, size]:
        return False
    few = rows <= FEW_ROWS or (count, size) == (8, 2)
    return rows * problem.cols * size >= (LEAST_BYTES if few else LEAST_BYTES_OF_MANY)


def _gains_by_splits(problem, count, vectors):
    """Whether rows that are split over a cluster are few, and A is large enough."""
    size = problem.dtype.itemsize
    nbytes = problem.rows * problem.cols * size
    # What vectors that are not there cost is paid, too.
    copied = ceil_div(vectors, count) * count
    least = LEAST_SPLIT_BYTES[size] * (copied / vectors) ** 2 if count > 2 else LEAST_FOR_TWO
    return nbytes >= least and problem.rows <= MOST_SPLIT_ROWS


def _tasks(problem, knobs):
    """The tasks of the busiest multiprocessor."""
    tasks = ceil_div(problem.rows, _shape(problem, knobs)[2]) * shares_of(knobs)
    return ceil_div(tasks, MULTIPROCESSORS)


def _fill(problem, knobs):
    """What there is of A, as a part of what all multiprocessors could copy in the same time."""
    room = _tasks(problem, knobs) * _shape(problem, knobs)[2] * MULTIPROCESSORS
    return problem.rows * shares_of(knobs) / room


def _cost(problem, knobs):
    """What the busiest multiprocessor does, in bytes that it copies."""
    parts, threads, tile_rows = _shape(problem, knobs)
    size, shares, finishers = problem.dtype.itemsize, shares_of(knobs), knobs["FINISHERS"]
    lines = _tasks(problem, knobs) * (tile_rows + knobs["COUNT"])
    copied = lines * ceil_div(problem.cols, shares) * size
    taken = taken_at_once(knobs["COUNT"], shares, finishers, problem.precision.sums)
    trips = ceil_div(tile_rows * knobs["COUNT"] // taken, threads // finishers)
    return copied * (ONE_BY_ONE if size == 8 and parts > 1 else 1) + trips * BYTES_OF_TRIP


def geometry(problem, device, knobs, batch=ONE):
    name, lanes = "several_rows_in_shares", knobs["LANES"]
    lacks = device.lacks(COPIES, MOST_BLOCK_BYTES)
    if lacks:
        raise ValueError(f"{name}: a ring of copies: {lacks}")
    parts, threads, tile_rows = _shape(problem, knobs)
    if lanes % WARP or threads % (WARP * parts):
        raise ValueError(
            f"{name}: LANES must be whole warps, and the threads of a block a multiple of those of"
            f" a row, got {lanes}, and {threads} and {WARP * parts}"
        )
    of_x = knobs["COUNT"] * WARP
    if knobs["COUNT"] & (knobs["COUNT"] - 1):
        raise ValueError(f"{name}: COUNT must be a power of two, got {knobs['COUNT']}")
    if (
        knobs["ROWS"] % parts
        or knobs["VECTORS"] * of_x % threads
        or (threads % of_x and of_x % threads)
    ):
        raise ValueError(
            f"{name}: ROWS must be a multiple of PARTS, the threads of a block one or a part of"
            f" {WARP} times COUNT, and VECTORS times that one of the threads, got"
            f" {knobs['ROWS']} and {parts}, {threads} and {of_x}, and {knobs['VECTORS']}"
        )
    if knobs["STAGES"] < 2:
        raise ValueError(f"{name}: STAGES must be 2 or more, got {knobs['STAGES']}")
    shares, finishers = shares_of(knobs), knobs["FINISHERS"]
    if not 1 <= finishers <= WARP or finishers & (finishers - 1) or shares % finishers:
        raise ValueError(
            f"{name}: FINISHERS must be a power of two up to {WARP}, and the shares of a row a"
            f" multiple of it, got {finishers} and {shares}"
        )
    turns = turns_of_vectors(name, batch.items, knobs["COUNT"])
    own, shared = sums_bytes(problem, knobs), ring_bytes(problem, knobs)
    if own > BLOCK_BYTES or own + shared > MOST_BLOCK_BYTES:
        raise ValueError(
            f"{name}: {own} bytes of shared memory for sums and {shared} for the ring are more than"
            f" {BLOCK_BYTES}, or together more than the {MOST_BLOCK_BYTES} that a block may ask for"
        )
    tiles, columns = ceil_div(problem.rows, tile_rows), problem.cols
    if knobs["SPLITS"] > 1:
        columns = columns_of_split(problem, knobs["SPLITS"])
    sizes = {
        "splits": knobs["SPLITS"], "cols_per_split": columns, "tasks": tiles * shares,
        **sizes_of_vectors(batch),
    }  # fmt: skip
    blocks = min(tiles * shares, most_blocks(device, knobs))  # they take task after task
    sums = tiles * turns * knobs["COUNT"] * tile_rows * shares
    found = one_launch((blocks, 1, turns), (threads, 1, 1), sizes, sums, tiles * turns, posts=True)
    return found._replace(launches=(found.launches[0]._replace(shared=shared),))


KERNEL = Kernel(
    name="several_rows_in_shares",
    rung=8,
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
    # SPLITS and FINISHERS are those of the single product, and 1 if it splits no columns.
    knobs={
        "LANES": 512, "SPLITS": 1, "FINISHERS": 1, "PARTS": 4, "ROWS": 8, "VECTORS": 2,
        "COUNT": 8, "THREADS_PER_BLOCK": 256, "MIN_BLOCKS": 1, "STAGES": 6,
    },
    small_knobs={
        "LANES": 64, "SPLITS": 1, "FINISHERS": 1, "PARTS": 1, "ROWS": 1, "VECTORS": 1,
        "COUNT": 2, "THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1, "STAGES": 3,
    },
    doc=__doc__,
)  # fmt: skip
