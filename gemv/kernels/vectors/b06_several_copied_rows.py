"""One matrix and several vectors, along the rows: A comes through a ring of copies of each warp.

Idea
    In ``several_rows`` a load of A goes to registers, and these are taken from when the load
    begins. A thread with the sums of eight vectors has few registers left, so it cannot ask for the
    next numbers of A while it multiplies the last ones: in each pass its warp waits for the memory.

    Here each warp has a ring of STAGES stages in shared memory, a pass of its rows in each. Copies
    fill them that no thread waits for (compute capability 8.0), and which take no registers. While
    a warp multiplies the numbers of one stage, the copies of the next ones are on their way. They
    go on from one tile of rows to the next, because a block takes tile after tile, so the memory is
    busy while sums are added up, too. No other warp reads a ring, so its warp needs no barrier of
    the block, and warps run apart.

    The threads of a lane share its copies: with PARTS = 4 each copies a quarter of the vectors, 16
    bytes at a time, and reads a quarter of each vector back. The lanes of a warp read neighbours,
    which are in different banks.

    Registers then hold a few numbers of A at a time: of AT_ONCE vectors of each row.

Picture
    ::

        STAGES = 3: one warp, two passes of the columns of a tile

        copies    tile 0, 0   tile 0, 1   tile 5, 0   tile 5, 1        on their way while ...
        products                          tile 0, 0   tile 0, 1  ...   ... these are added up
        stage         0           1           2           0

Bytes
    (m*n + k * (len(x) + len(y) * (1 + [beta != 0]))) * itemsize from memory for up to COUNT
    vectors; with more of them A comes again for each COUNT.

Wins
    Not measured yet.

Loses
    Not measured yet.

Sums
    Those of ``several_rows`` with the same LANES, and so of the rung of rows, for each vector.

Source
    Asynchronous copies in stages, as in the kernels for matrix products of NVIDIA's CUTLASS; there
    a block shares its stages.
"""

from __future__ import annotations

from gemv.core.geometry import LOAD_BYTES, MAX_GRID_Y, ceil_div, one_launch
from gemv.kernels import ends_of_rows
from gemv.kernels.ends_of_rows import parts_of, sums_of_block, turns_of
from gemv.kernels.kernel import Kernel, attach, no_twofold, wide_loads_object
from gemv.kernels.rings import across, ring_bytes, row_copies, shares_copies, stage_vectors
from gemv.kernels.staging import BLOCK_BYTES, COPIES
from gemv.kernels.wide_tiles import split_rows

#: What the kernel calls.
_WORDS = (
    "atomic_inc", "copies_commit", "copies_wait", "cuda", "moved", "multiply_add", "natural",
    "quotient", "short", "staged_tile", "zeros",
)  # fmt: skip
#: The kernel: see :func:`gemv.kernels.ends_of_rows.source_of`.
_SOURCE = """
def several_copied_rows(
    rows, cols, cols_per_split, splits, tiles, vectors, a, row_stride, x, x_step, incx, y, y_step,
    incy, {alpha}, alpha_step, {beta}, beta_step, scratch, counters,
):
    ring = cuda.shared.array(RING_BYTES, uint8, alignment=16)
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
    tile = natural(cuda.blockIdx.x)
    first = tile * TILE_ROWS
    if SPLIT and tid == 0:
        tile_of_turn = cuda.blockIdx.z * cuda.gridDim.x + cuda.blockIdx.x
        ticket[0] = atomic_inc(counters, tile_of_turn, splits - 1)
    x_{v} = pinned(of_x(moved(x, min(vector + {v}, vectors - 1) * x_step)))
    passes = short(quotient(end - begin + (PASS - 1), PASS))  # of a turn
    whole = short(quotient(end - begin, PASS))  # those in which every lane has all of its vectors
    # Where the warp has its ring, this thread its place in a stage, and the vectors it copies.
    own = tid // 32 * RING + tid % 32 // PARTS * WIDTH
    mine = short(own + part * UNIT)
    theirs = short(own + (part // ACROSS * VECTORS + part % ACROSS) * COPIED)
    line = group + part // ACROSS * GROUPS
    column = begin + place // PARTS * WIDTH + part % ACROSS * STEP
    # The copies that are next: their tile, turn, pass, stage and first element.
    ahead = short(tile), short(0), short(0), short(0), (first + line) * row_stride + column
    stage = short(0)
    for _ in range(AHEAD if passes > 0 else 0):
        ahead = copied(
            ring, a, row_stride, rows, end, tiles, passes, whole, column, line, theirs, ahead
        )
    while tile < tiles:
        first = tile * TILE_ROWS
        for turn in range(TURNS):
            total_{v} = zeros(zero, SUMS)
            j = begin + (turn * ROW_THREADS + place) * UNIT
            for turn_pass in range(passes):
                copies_wait(PENDING)
                # What this warp has copied is there, and all its lanes have left the stage before.
                cuda.syncwarp()
                ahead = copied(
                    ring, a, row_stride, rows, end, tiles, passes, whole, column, line, theirs,
                    ahead,
                )
                at = mine + stage
                if turn_pass < whole:
                    the full
                else:
                    left = end - (j - part * UNIT) - WIDTH
                    rest = quotient(left, STEP) + 1 if left >= 0 else 0
                    the rest
                j += PASS
                stage = short(stage + STAGE) if stage + STAGE < RING else 0
            the ending
        cuda.syncthreads()  # the sums are read, and those of the next tile may have their place
        tile += cuda.gridDim.x
    the splits
"""
#: The products of some vectors of a stage.
_FULL = """
values = staged_tile(ring, a, PLACES, at + <s> * LOADED, COPIED, AT_ONCE, UNIT)
total_{v} = multiply_add(total_{v}, values, full(x_{v}, j + <s> * LOADS_STEP, incx), CONJUGATE)
"""
_REST = """
values = staged_tile(ring, a, PLACES, at + <s> * LOADED, COPIED, AT_ONCE, UNIT)
more = rest - <s> * AT_ONCE  # vectors that the lane still has
factors_{v} = some(x_{v}, j + <s> * LOADS_STEP, incx, more)
total_{v} = multiply_add(total_{v}, values, factors_{v}, CONJUGATE)
"""


def build(spec):
    import numpy as np

    from gemv import language
    from gemv.language import (
        copies_commit,
        cuda,
        device,
        gather,
        gather_some,
        load_some,
        load_vectors,
        short,
    )

    WIDTH, X_WIDTH = spec.widths
    WIDE_X = X_WIDTH > 0
    LANES, VECTORS, ROWS = spec["LANES"], spec["VECTORS"], spec["ROWS"]
    AHEAD = spec["STAGES"] - 1
    AT_ONCE = spec["AT_ONCE"]
    scope = ends_of_rows.names_of(spec)
    UNIT, PARTS, TURNS, GROUPS = (scope[k] for k in ("UNIT", "PARTS", "TURNS", "GROUPS"))
    TILE_ROWS = scope["TILE_ROWS"]
    STEP = LANES * WIDTH
    PASS = VECTORS * STEP
    TURN_COLUMNS = LANES // TURNS * WIDTH
    COPIED = 32 // PARTS * WIDTH  # elements of a row that a warp has of one of its lanes' vectors
    STAGE = stage_vectors(ROWS, VECTORS, PARTS) * WIDTH
    RING = spec["STAGES"] * STAGE

    @device
    def full(x, j, incx):
        """The numbers of x for some vectors of a pass."""
        if WIDE_X:
            return load_vectors(x, j, STEP, AT_ONCE, UNIT)
        return gather(x, j, STEP, AT_ONCE, incx, UNIT)

    @device
    def some(x, j, incx, rest):
        if WIDE_X:
            return load_some(x, j, STEP, AT_ONCE, UNIT, rest)
        return gather_some(x, j, STEP, AT_ONCE, incx, UNIT, rest)

    all_copies, some_copies = row_copies(ROWS, VECTORS, PARTS, STEP, GROUPS, COPIED)

    @device
    def copied(ring, a, stride, rows, end, tiles, passes, whole, first, line, theirs, ahead):
        """Begin the copies of a stage, if there is one; what is next behind it."""
        tile, turn, turn_pass, stage, at = ahead
        if tile < tiles:
            i = tile * TILE_ROWS + line
            if turn_pass < whole and tile * TILE_ROWS + TILE_ROWS <= rows:
                all_copies(ring, theirs + stage, a, at, GROUPS * stride)
            else:
                room = end - WIDTH - first - turn * TURN_COLUMNS - turn_pass * PASS
                some_copies(ring, theirs + stage, a, at, GROUPS * stride, room, rows - i)
            stage = short(stage + STAGE) if stage + STAGE < RING else 0
            turn_pass = short(turn_pass + 1)
            at += PASS
            if turn_pass == passes:
                turn_pass = 0
                turn = short(turn + 1)
                if turn == TURNS:
                    turn = 0
                    tile = short(tile + cuda.gridDim.x)
                at = (tile * TILE_ROWS + line) * stride + first + turn * TURN_COLUMNS
        copies_commit()
        return tile, turn, turn_pass, stage, at

    scope |= {name: getattr(language, name) for name in _WORDS}
    scope |= {
        "pinned": language.kept if spec["KEPT"] else language.same,
        "full": full, "some": some, "copied": copied, "uint32": np.uint32, "uint8": np.uint8,
        "STEP": STEP, "PASS": PASS, "AHEAD": AHEAD, "PENDING": AHEAD - 1, "AT_ONCE": AT_ONCE,
        "COPIED": COPIED,
        "STAGE": STAGE, "RING": RING,
        "RING_BYTES": scope["THREADS"] // 32 * RING * spec.dtype.itemsize,
        "ACROSS": across(VECTORS, PARTS), "VECTORS": VECTORS, "LOADED": AT_ONCE * COPIED,
        "LOADS_STEP": AT_ONCE * STEP,
        "PLACES": tuple(r * VECTORS * COPIED for r in range(ROWS)),
    }  # fmt: skip
    steps = range(VECTORS // AT_ONCE)
    more = {
        "ending": ends_of_rows.ending_of(scope), "splits": ends_of_rows.SPLITS,
        "full": "".join(_FULL.replace("<s>", str(s)) for s in steps).replace("\n\n", "\n"),
        "rest": "".join(_REST.replace("<s>", str(s)) for s in steps).replace("\n\n", "\n"),
    }  # fmt: skip
    names = ends_of_rows.factor_names(spec)
    exec(ends_of_rows.source_of(_SOURCE, spec["COUNT"], names, more), scope)
    bounds = scope["THREADS"], spec["MIN_BLOCKS"]
    return (attach(scope["several_copied_rows"], launch_bounds=bounds),)


def accepts(problem):
    if not problem.whole:
        return "some columns fill no vector"
    if problem.widths[0] * problem.dtype.itemsize != LOAD_BYTES:
        return "some vectors of A are not at multiples of 16 bytes"
    return no_twofold(problem) or wide_loads_object(problem, "dot")


def constants_for(problem, knobs, vectors):
    return None


def geometry(problem, device, knobs):
    return _geometry(problem, device, knobs, 1, 0, 0, 0, 0)


def of_batch(problem, batch, device, knobs):
    """The launch for vectors that share the matrix."""
    (vectors,), steps = batch.shape, (own[0] for own in batch.strides[1:])
    return _geometry(problem, device, knobs, vectors, *steps)


def most_blocks(device, knobs):
    """Blocks that the GPU holds at a time."""
    return device.multiprocessors * knobs["MIN_BLOCKS"]


def _geometry(problem, device, knobs, vectors, x_step, y_step, alpha_step, beta_step):
    lacks = device.lacks(COPIES)
    if lacks:
        raise ValueError(f"several_copied_rows: copies to shared memory: {lacks}")
    parts = parts_of(knobs["PARTS"], problem.widths[0], problem.precision)
    turns_of_row = turns_of(knobs["TURNS"], knobs["LANES"])
    row_threads = knobs["LANES"] // turns_of_row * parts
    threads = max(row_threads, knobs["THREADS_PER_BLOCK"])
    loads, rows = knobs["VECTORS"], knobs["ROWS"]
    if (
        parts != knobs["PARTS"]
        or not shares_copies(rows, loads, parts)
        or loads % knobs["AT_ONCE"]
        or threads % 32
    ):
        raise ValueError(
            f"several_copied_rows: PARTS must be at most {problem.widths[0]} and share the copies"
            f" of {rows} rows and {loads} vectors, VECTORS be a multiple of AT_ONCE, and"
            f" THREADS_PER_BLOCK whole warps, got {knobs['PARTS']}, {knobs['AT_ONCE']} and"
            f" {threads}"
        )
    tile_sums = threads // row_threads * rows * knobs["COUNT"]
    sums = sums_of_block(knobs["LANES"] // turns_of_row, parts, threads, rows * knobs["COUNT"])
    sums += tile_sums if turns_of_row > 1 else 1
    nbytes = ring_bytes(knobs["STAGES"], rows, loads, parts, threads)
    nbytes += sums * problem.precision.sums.itemsize + 4
    if knobs["STAGES"] < 2 or nbytes > BLOCK_BYTES:
        raise ValueError(
            f"several_copied_rows: STAGES must be 2 or more, and rings and sums take at most"
            f" {BLOCK_BYTES} bytes, got {knobs['STAGES']} and {nbytes}"
        )
    tiles = ceil_div(problem.rows, threads // row_threads * rows)
    turns = ceil_div(vectors, knobs["COUNT"])
    if turns > MAX_GRID_Y:
        raise ValueError(
            f"several_copied_rows: {vectors} vectors are more than a grid has blocks for"
        )
    sizes = {
        "splits": 1, "cols_per_split": problem.cols, "tiles": tiles, "vectors": vectors,
        "x_step": x_step, "y_step": y_step, "alpha_step": alpha_step, "beta_step": beta_step,
    }  # fmt: skip
    if not knobs["BLOCKS_PER_SM"]:
        blocks = min(tiles, most_blocks(device, knobs))
        return one_launch((blocks, 1, turns), (threads, 1, 1), sizes)
    of = {"OF_ROWS": "ROWS", "OF_VECTORS": "VECTORS", "OF_THREADS": "THREADS_PER_BLOCK"}
    own = {name: knobs[of_name] for of_name, name in of.items()}
    alone = split_rows(problem, device, {**knobs, **own})(problem)
    sizes |= alone.sizes
    splits = sizes["splits"]
    return one_launch(
        (tiles, splits, turns), (threads, 1, 1), sizes, splits * vectors * problem.rows,
        tiles * turns, posts=True,
    )  # fmt: skip


def tile(knobs):
    row_threads = knobs["LANES"] // turns_of(knobs["TURNS"], knobs["LANES"]) * knobs["PARTS"]
    threads = max(row_threads, knobs["THREADS_PER_BLOCK"])
    return threads // row_threads * knobs["ROWS"], 4 * knobs["LANES"]


KERNEL = Kernel(
    name="several_copied_rows",
    rung=6,
    build=build,
    geometry=geometry,
    of_batch=of_batch,
    for_vectors=constants_for,
    tile=tile,
    beside=True,
    wide=True,
    accepts=accepts,
    capability=COPIES,
    knobs={
        "LANES": 32, "PARTS": 4, "TURNS": 1, "ROWS": 4, "VECTORS": 4, "AT_ONCE": 1, "COUNT": 8,
        "STAGES": 3, "THREADS_PER_BLOCK": 128, "MIN_BLOCKS": 4, "BLOCKS_PER_SM": 0, "OF_ROWS": 1,
        "OF_VECTORS": 1, "OF_THREADS": 32, "KEPT": 1,
    },
    small_knobs={
        "LANES": 8, "PARTS": 2, "TURNS": 1, "ROWS": 2, "VECTORS": 1, "AT_ONCE": 1, "COUNT": 2,
        "STAGES": 2, "THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1, "BLOCKS_PER_SM": 0, "OF_ROWS": 1,
        "OF_VECTORS": 1, "OF_THREADS": 32, "KEPT": 1,
    },
    doc=__doc__,
)  # fmt: skip
