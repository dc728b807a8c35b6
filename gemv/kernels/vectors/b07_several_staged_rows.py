"""One matrix with long rows and eight vectors: stages of A and of all x come by copies.

Idea
    ``several_rows`` reads x through the L1 cache, again for every few rows. Long rows push x out of
    L1 before it is needed again; and while a warp waits for its numbers of x, it asks for nothing
    of A. ``several_long_rows`` keeps all of x in shared memory, but only 16-bit numbers, and not
    more of them than fit. Here shared memory has a *stage* of both instead: VECTORS loads of each
    lane for all rows of a tile, and the numbers of eight vectors for the same columns. So x may be
    as long as it likes, its numbers may have 8 bytes, and columns may be split over blocks.

    Stages come by copies that no thread waits for (compute capability 8.0), into a ring of STAGES
    of them. While the block multiplies one, the copies for the next ones are on their way. All
    threads of a block share a stage, so there is one barrier for each: behind it all copies of the
    stage have arrived, and nobody reads the one before it any more, whose place the next copies
    take. The copies run on from the end of a tile into the next one, and a block takes tile after
    tile: as many blocks begin as the GPU holds at a time.

    The fewer barriers the better, so a stage is large. What it costs is x, which comes from the L2
    cache once for each tile. A tile of 16 rows reads half as many bytes of x as of A.

    The sums are those of ``several_rows``: PARTS threads share a lane; a row with more lanes than a
    warp is taken in turns, 32 lanes at a time, each for all of its columns. So are the blocks that
    add up the sums of splits.

Picture
    ::

        a ring of 3 stages; VECTORS = 2, two rows to a tile, two vectors x and z, 4 lanes

                     columns 0-15          columns 16-31         ...
        stage        A row 0: L0 L1 L2 L3  L0 L1 L2 L3           the next 32 columns
                     A row 1: L0 L1 L2 L3  L0 L1 L2 L3           go to the next stage
                     x      : L0 L1 L2 L3  L0 L1 L2 L3
                     z      : L0 L1 L2 L3  L0 L1 L2 L3

        the block    stage 0 | barrier | stage 1 | barrier | stage 2 | barrier | stage 0 ...
        copies       stage 2           | stage 0           | stage 1           |

Bytes
    (m*n + k * (len(x) + len(y) * (1 + [beta != 0]))) * itemsize from memory for up to COUNT
    vectors; with more of them A comes again for each COUNT. From the L2 cache x comes once for each
    tile of rows: COUNT / (rows of a tile) times the bytes of A, as absent vectors are copied as the
    last one.

Wins
    Over ``several_rows`` for eight vectors. On an NVIDIA H100, 8192 x 8192 float64 with 256 lanes
    for a row took 185 us, 208 by ``several_rows``, 173 with one vector, and torch.mm 181. Where
    tiles are few, their rows count: 2500 x 2500 complex64 with 32 lanes took 23.1 us in 105 tiles
    of 24 rows, 31.4 in 157 of 16, 60.3 by ``several_rows``, 18.0 with one vector, and torch.mm
    55.5. 12288 x 12288 bfloat16, whose x is too long for ``several_long_rows``, took 129 us (143)
    with 128 lanes; with 16 and 32 it took 107 and 112 (134 and 134), and torch.mm 111. 1024 x 8192
    took 12.1 us (12.4) with 128 lanes, and 9.6 (15.2) with 32.

    On an NVIDIA H200 eight vectors with 8192 x 8192 float32 took 64.7 us, 86.1 by ``several_rows``,
    59.5 with one vector, and torch.mm 129.6; complex64 146.8 (192.0, 116.7 and 337.6). Where
    columns are split, 64 x 1048576 complex64 took 209.6 us, 223.6 by ``several_rows``, and bfloat16
    75.3 us (torch.mm 46.3).

Loses
    To ``several_rows`` where tiles divide badly among the multiprocessors, and a row has two to
    four warps: 4300 x 4300 float64 took 72.8 us, and 62.1 there. And where rows begin within a
    sector of 32 bytes: 3002 x 3002 complex64 took 42.3 us, and 33.3 there.

    To ``several_long_rows`` where that fits: 8192 x 8192 bfloat16 took 66.6 us with 128 lanes, and
    56.3 there. To ``several_short_rows`` for short rows, whose tiles end too soon. To
    ``several_rows`` where columns of float64 are split over blocks: 64 x 1048576 took 255 us, and
    227 there; float32 took an H200 104.3 us, and 92.7 there.

Sums
    Those of the rung of rows with the same LANES, width of loads and splits, for each vector.

Source
    Software pipelines of matrix products, whose operands come to shared memory a few stages ahead:
    NVIDIA, "CUTLASS: efficient GEMM in CUDA", the section on pipelining. Both operands have a stage
    here, too, but one of them is a few vectors.
"""

from __future__ import annotations

from gemv.core.geometry import LOAD_BYTES, SECTOR_BYTES, ceil_div
from gemv.core.splits import row_by_row
from gemv.kernels import ends_of_rows, ends_of_splits, stages_of_rows
from gemv.kernels.busiest import MULTIPROCESSORS, of_busiest
from gemv.kernels.ends_of_rows import launch_of, of_one, parts_of, sums_of_block, tile, turns_of
from gemv.kernels.grids import most_blocks
from gemv.kernels.kernel import Kernel, attach, no_twofold, wide_loads_object
from gemv.kernels.several import ONE, sizes_of_vectors
from gemv.kernels.staging import COPIES, MOST_BLOCK_BYTES

#: The vectors from which on the kernel is used, and those of a block.
LEAST_VECTORS, COUNT = 5, 8
#: Rows of 8-byte numbers by so many lanes have stages for 3 vectors and more. 4 vectors with
#: 8192 x 8192 and 512 lanes took an H100 282 us in float64 and 276 in complex64 by
#: ``several_rows``; 8 vectors by this kernel, which does as much for 4, took 185 and 190.
WIDE_LANES, LEAST_OF_WIDE = 512, 3
#: Rows of 2-byte numbers: lanes of a row, columns for each of up to 32 of them, and such lanes of
#: all rows, below which other kernels are used.
LEAST_LANES, LANE_COLUMNS, MANY_LANES = 16, 80, 1 << 15
#: The ticket, what is known of other helpers, and what aligns both.
TICKET_BYTES = 32
#: Rows that are split over blocks, below which nothing was timed and a tile is mostly empty.
SPLIT_ROWS = 64
#: Blocks from which on there are enough for large ones: one for each multiprocessor.
MANY_BLOCKS = MULTIPROCESSORS
#: Rows of other numbers, by the character of the dtype: the least of them that have 32 lanes, up to
#: 128, and more. Then the least bytes of x of eight vectors. With fewer ``several_rows`` is used.
LEAST_ROWS = {"f": (1500, 4096, 1500), "d": (1000, 8192, 1500), "F": (1000, 1200, 1200)}
LEAST_X_BYTES = 30 << 10
#: A large A has so many rows and bytes of x. Then stages are also for 3 and 4 vectors; and where
#: two rows share a sector, for float32 and 512 lanes. 4996 x 4996 float32 took 46 us, and 44 by
#: ``several_rows``. Others were not timed with fewer rows.
LARGE_ROWS, LARGE_X_BYTES = 4096, 1 << 18
#: Constants for rows of 2-byte numbers: with fewer lanes than a warp, with more, and for few tiles.
#: Then for rows of other numbers that are split over blocks. No other numbers were faster here
#: without spilling registers.
_NAMES = ("PARTS", "ROWS", "VECTORS", "STAGES", "THREADS_PER_BLOCK", "MIN_BLOCKS")
FEW_LANES, MANY, FEW_TILES = (4, 4, 4, 3, 256, 2), (4, 4, 4, 3, 512, 1), (4, 4, 2, 4, 256, 2)
LARGE = (1, 4, 2, 4, 256, 1)
#: Rows of other numbers that are not split: the rows of a thread, and for each of them the loads of
#: a lane in a stage and the stages: the first is taken, or the one with fewer loads past the last
#: column. Numbers of 4 bytes have the last one.
RINGS = {4: ((2, 4),), 3: ((2, 4),), 2: ((4, 3), (2, 4))}

#: A thread copies some of one vector, and `own_x` is where that begins.
ONE_VECTOR = (0,)
#: What the kernel calls.
_WORDS = (
    "atomic_inc", "copies_wait", "cuda", "moved", "multiply_add", "natural", "pieces_of",
    "quotient", "short", "staged_tile", "zeros",
)  # fmt: skip
#: The kernel: see :func:`gemv.kernels.ends_of_rows.source_of`.
_SOURCE = """
def several_staged_rows(
    rows, cols, tiles, cols_per_split, splits, vectors, a, row_stride, x, x_step, y, y_step, incy,
    {alpha}, alpha_step, {beta}, beta_step, scratch, counters,
):
    pool = cuda.shared.array(0, uint8, alignment=16)  # the ring, as long as the launch says
    sums = cuda.shared.array(ALL_SUMS, number, alignment=16)
    carried = cuda.shared.array(CARRIED, number)
    ticket = cuda.shared.array(1, uint32)
    tid = natural(cuda.threadIdx.x)
    place = tid % ROW_THREADS
    group = tid // ROW_THREADS
    part = place % PARTS
    lane = place // PARTS
    split = natural(cuda.blockIdx.y)
    begin = split * cols_per_split if SPLIT else 0
    end = last_column({alpha}, begin, min(cols, begin + cols_per_split) if SPLIT else cols)
    vector = natural(cuda.blockIdx.z) * COUNT
    if SPLIT and tid == 0:
        tile_of_turn = cuda.blockIdx.z * cuda.gridDim.x + cuda.blockIdx.x
        ticket[0] = atomic_inc(counters, tile_of_turn, splits - 1)
    # What the thread copies: the vectors of its lane in every PARTS-th row, and some of x.
    tile = natural(cuda.blockIdx.x)
    mover = natural(cuda.gridDim.x)
    item = min(vector + tid // TURN_LANES % COUNT, vectors - 1)
    x_column = tid % TURN_LANES * WIDTH + tid // OF_X_LOAD * STEP
    own_x = moved(x, item * x_step + x_column)
    read_x = of_x(x)  # what the numbers in a stage of x are read as: conjugates, if need be
    own_a = moved(a, lane * WIDTH)
    theirs = short((group * TURN_LANES + lane) * WIDTH + part * COPIED)
    theirs_x = short(A_STAGE + tid * WIDTH)
    mine = short((group * TURN_LANES + lane) * WIDTH + part * UNIT)
    mine_x = short(A_STAGE + lane * WIDTH + part * UNIT)
    stages = quotient(end - begin + (OF_STAGE - 1), OF_STAGE) if end > begin else 0
    shape = rows, row_stride, group + part * GROUPS, tiles, mover
    order = begin, end, lane * WIDTH, x_column
    places = theirs, theirs_x
    starts = starts_of(shape, tile)
    ahead = tile, short(0), begin, short(0)
    stage = short(0)
    for _ in range(STAGES - 1):
        starts, ahead = copied(pool, own_a, own_x, starts, places, shape, order, ahead)
    first = tile * TILE_ROWS
    while tile < tiles:
        first = tile * TILE_ROWS
        # Sums of the tile before are read by all at the first barrier for a stage. Without stages
        # all sums are zeros.
        for turn in range(TURNS):
            total_{v} = zeros(zero, SUMS)
            left = short(stages)
            while left > 0:
                copies_wait(PENDING)
                cuda.syncthreads()  # the stage is there for all, and all have left the one before
                starts, ahead = copied(pool, own_a, own_x, starts, places, shape, order, ahead)
                here = short(mine + stage)
                here_x = short(mine_x + stage)
                the steps
                stage = short(stage + STAGE) if stage + STAGE < RING else short(0)
                left = short(left - 1)
            the ending
        tile += mover
    the splits
"""


def build(spec):
    import numpy as np

    from gemv import language
    from gemv.language import copies_commit, device, row_starts, short

    scope = ends_of_rows.names_of(spec)
    TURNS, TILE_ROWS = scope["TURNS"], scope["TILE_ROWS"]
    scope |= stages_of_rows.names_of(spec, scope, spec["LANES"] // TURNS)
    COPIED_ROWS, COPIED_APART = scope["COPIED_ROWS"], scope["COPIED_APART"]
    OF_STAGE, LAST, STAGE, RING, TURN_COLUMNS = (
        scope[k] for k in ("OF_STAGE", "LAST", "STAGE", "RING", "TURN_COLUMNS")
    )
    whole_stage, some_stage = scope["whole_stage"], scope["some_stage"]

    @device
    def starts_of(shape, tile):
        """Where the rows of a tile begin that the thread copies."""
        rows, row_stride, row, tiles, mover = shape
        return row_starts(tile * TILE_ROWS + row, COPIED_APART, rows - 1, row_stride, COPIED_ROWS)

    @device
    def copied(pool, own_a, own_x, starts, places, shape, order, ahead):
        """Begin the copies of a stage, if there is one; what is next behind it."""
        tile, turn, j, stage = ahead
        begin, end, a_column, x_column = order
        theirs, theirs_x = places
        if tile < shape[3] and j < end:
            at = j + turn * TURN_COLUMNS
            there, x_there = theirs + stage, theirs_x + stage
            if at + LAST <= end:
                whole_stage(pool, own_a, own_x, starts, ONE_VECTOR, there, x_there, at, 0, 0)
            else:
                room, x_room = end - at - a_column, end - at - x_column
                some_stage(pool, own_a, own_x, starts, ONE_VECTOR, there, x_there, at, room, x_room)
            j += OF_STAGE
            if j >= end:
                j = begin
                turn = short(turn + 1)
                if turn == TURNS:
                    turn = short(0)
                    tile += shape[4]
                    starts = starts_of(shape, tile)
            stage = short(stage + STAGE) if stage + STAGE < RING else short(0)
        copies_commit()
        return starts, (tile, turn, j, stage)

    scope |= {name: getattr(language, name) for name in _WORDS}
    scope |= {
        "copied": copied, "starts_of": starts_of, "uint8": np.uint8, "uint32": np.uint32,
    }  # fmt: skip
    more = {
        "ending": ends_of_rows.ending_of(scope), "splits": ends_of_splits.of_rows(spec.helpers),
        "steps": stages_of_rows.steps_of(spec["VECTORS"]),
    }  # fmt: skip
    names = ends_of_rows.factor_names(spec)
    source = ends_of_rows.source_of(_SOURCE, spec["COUNT"], names, more)
    exec(source, scope)
    return (
        attach(scope["several_staged_rows"], launch_bounds=(scope["THREADS"], spec.min_blocks)),
    )


def accepts(problem):
    if problem.widths[0] * problem.dtype.itemsize != LOAD_BYTES or len(set(problem.widths)) > 1:
        return "A and x must be loaded by 16 bytes"
    if not problem.whole:
        return "some columns fill no vector"
    return no_twofold(problem) or wide_loads_object(problem, "dot")


def _shape(problem, knobs):
    """Lanes of a turn, threads of a row and of a block, and rows of a tile."""
    parts = parts_of(knobs["PARTS"], problem.widths[0], problem.precision)
    lanes = knobs["LANES"] // turns_of(knobs["TURNS"], knobs["LANES"])
    threads = max(lanes * parts, knobs["THREADS_PER_BLOCK"])
    return lanes, parts, threads, threads // (lanes * parts) * knobs["ROWS"]


def ring_bytes(problem, knobs):
    """Bytes of shared memory that a launch asks for: STAGES of A and of x."""
    lanes, _, _, tile_rows = _shape(problem, knobs)
    return knobs["STAGES"] * knobs["VECTORS"] * lanes * (tile_rows + knobs["COUNT"]) * LOAD_BYTES


def large_for(problem, lanes, vectors):
    """The constants for rows of 4- or 8-byte numbers that are not split; None where there are none.

    Each block takes as many tiles as another one, or one less. So the rows of a thread are those
    with which the busiest multiprocessor is done soonest; of equals, the most. 5120 rows are 160
    tiles of 32, so some blocks have two of them and 64 rows, or 214 tiles of 24, and 48 rows: in
    complex64 and with 5120 columns they took an H100 107 us and 83.
    """
    size, rows = problem.dtype.itemsize, problem.rows
    least, x_bytes = LEAST_ROWS.get(problem.dtype.char), COUNT * problem.cols * size
    if lanes < 32 or least is None or x_bytes < LEAST_X_BYTES:
        return None
    if rows < least[(lanes > 32) + (lanes > 128)]:
        return None
    if rows < LARGE_ROWS or x_bytes < LARGE_X_BYTES or (size == 8 and lanes < WIDE_LANES):
        # Copies pass the L1 cache, so a sector that two rows share comes twice.
        if problem.row_stride * size % SECTOR_BYTES:
            return None
    if vectors < LEAST_VECTORS and (rows < LARGE_ROWS or x_bytes < LARGE_X_BYTES):
        return None
    parts, _, _, _, threads, blocks = LARGE
    groups = threads // 32

    of_thread = min(RINGS, key=lambda each: of_busiest(rows, groups * each))
    steps = ceil_div(problem.cols, lanes * problem.widths[0])
    rings = RINGS[of_thread] if size == 8 else RINGS[of_thread][-1:]
    loads, stages = min(rings, key=lambda ring: ceil_div(steps, ring[0]) * ring[0])
    return parts, of_thread, loads, stages, threads, blocks


def constants_for(problem, knobs, vectors):
    """The constants for so many vectors, from those of the rung of rows; None where there are none.

    Then another kernel takes them.
    """
    lanes, split = knobs["LANES"], knobs["BLOCKS_PER_SM"]
    turn_lanes, size = min(lanes, 32), problem.dtype.itemsize
    is_wide = size == 8 and not split and lanes >= WIDE_LANES
    least = LEAST_OF_WIDE if is_wide else LEAST_VECTORS
    if vectors < least or accepts(problem) or problem.accumulate != "plain":
        return None
    if size == 2:
        few = lanes < LEAST_LANES or problem.cols < turn_lanes * LANE_COLUMNS
        if few or not split and problem.rows * turn_lanes < MANY_LANES:
            return None
        if split and (lanes < 32 or problem.rows < SPLIT_ROWS):
            return None
        of_tile = MANY[_NAMES.index("THREADS_PER_BLOCK")] // turn_lanes
        made = FEW_LANES if lanes < 32 else MANY
        if not split and lanes >= 32 and ceil_div(problem.rows, of_tile) < MANY_BLOCKS:
            made = FEW_TILES
    elif split:
        if problem.dtype.kind != "c" or lanes < 32 or problem.rows < SPLIT_ROWS:
            return None
        made = LARGE
    else:
        made = large_for(problem, lanes, vectors)
        if made is None:
            return None
    found = dict(zip(_NAMES, made, strict=True))
    found |= {"LANES": lanes, "TURNS": max(1, lanes // 32), "COUNT": COUNT, "BLOCKS_PER_SM": split}
    if split:
        found |= of_one(knobs)
    return found


def geometry(problem, device, knobs, batch=ONE):
    lacks = device.lacks(COPIES, MOST_BLOCK_BYTES)
    if lacks:
        raise ValueError(f"several_staged_rows: a ring of copies: {lacks}")
    lanes, parts, threads, tile_rows = _shape(problem, knobs)
    of_x = knobs["COUNT"] * lanes
    if knobs["ROWS"] % parts or knobs["VECTORS"] * of_x % threads or threads % of_x:
        raise ValueError(
            "several_staged_rows: ROWS must be a multiple of PARTS, the threads of a block one of"
            " COUNT times the lanes of a turn, and VECTORS times that one of the threads, got"
            f" {knobs['ROWS']} and {parts}, {threads} and {of_x}, and {knobs['VECTORS']}"
        )
    if knobs["STAGES"] < 2:
        raise ValueError(f"several_staged_rows: STAGES must be 2 or more, got {knobs['STAGES']}")
    sums = sums_of_block(lanes, parts, threads, knobs["ROWS"] * knobs["COUNT"])
    shared = ring_bytes(problem, knobs)
    carried = knobs["COUNT"] * tile_rows if knobs["TURNS"] > 1 else 1
    nbytes = shared + (sums + carried) * problem.precision.sums.itemsize + TICKET_BYTES
    if nbytes > MOST_BLOCK_BYTES:
        raise ValueError(
            f"several_staged_rows: {nbytes} bytes of shared memory are more than the"
            f" {MOST_BLOCK_BYTES} that a block may ask for"
        )
    tiles = ceil_div(problem.rows, tile_rows)
    sizes = {"tiles": tiles, **sizes_of_vectors(batch)}
    most = most_blocks(device, knobs)  # they take tile after tile
    found = launch_of(
        "several_staged_rows", problem, device, knobs, tile_rows, threads, most, sizes
    )
    return found._replace(launches=(found.launches[0]._replace(shared=shared),))


KERNEL = Kernel(
    name="several_staged_rows",
    rung=7,
    build=build,
    geometry=geometry,
    of_batch=geometry,
    for_vectors=constants_for,
    tile=tile,
    beside=True,
    wide=True,
    steps_of_sums=row_by_row,
    accepts=accepts,
    capability=COPIES,
    block_bytes=MOST_BLOCK_BYTES,
    knobs={
        "LANES": 32, "PARTS": 4, "TURNS": 1, "ROWS": 4, "VECTORS": 4, "COUNT": 8,
        "THREADS_PER_BLOCK": 512, "MIN_BLOCKS": 1, "BLOCKS_PER_SM": 0, "OF_ROWS": 1,
        "OF_VECTORS": 1, "OF_THREADS": 32, "STAGES": 3,
    },
    small_knobs={
        "LANES": 8, "PARTS": 1, "TURNS": 1, "ROWS": 1, "VECTORS": 2, "COUNT": 2,
        "THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1, "BLOCKS_PER_SM": 0, "OF_ROWS": 1,
        "OF_VECTORS": 1, "OF_THREADS": 32, "STAGES": 3,
    },
    doc=__doc__,
)  # fmt: skip
