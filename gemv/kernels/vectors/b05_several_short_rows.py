"""One matrix with short rows and several vectors: x stays in registers while rows go by.

Idea
    A lane of a short row has the same few columns in every row. So a thread loads its numbers of x
    once, for all vectors, and keeps them in registers as the numbers that it multiplies with. Then
    it takes tile after tile of rows: a load of A, its products, the sums. In ``several_rows`` each
    block loads and converts x anew, and finds out anew where everything is; for rows of 64 numbers
    of 2 bytes this is about half of its instructions.

    How many numbers of x fit decides the rest. With SHARERS = 2 two threads of a warp are the same
    lane, each for half of the vectors. Both multiply the same numbers of A, and both convert them;
    in turn each has half of x, and ends with fewer sums. With WARPS = 2 two warps divide the
    vectors between them in the same way.

    Registers that are full of x leave few for A, so a thread could not ask for the next rows while
    it multiplies the last ones. Here copies that no thread waits for (compute capability 8.0) bring
    A to shared memory. There is a ring of STAGES stages for each warp, or for WARPS of them. While
    they multiply the rows of one stage, the copies for the next tile of rows are on their way.
    Threads of the same lane divide its copies between them, and each reads all of them back. With a
    ring of its own a warp needs no barrier of the block, and warps run apart.

    STAGES = 0 is for rows whose loads are narrower than 16 bytes, and for few rows, which end
    before a ring pays: each thread loads A itself.

    A thread takes ROWS rows that lie side by side. Where the lanes of a row divide its sums between
    them, each ends with neighbours of one y, and stores them at once.

Picture
    ::

        LANES = 4, SHARERS = 2, bfloat16, 64 columns, 8 vectors: 8 threads a row, 2 loads a thread

        columns            0-7   8-15  16-23 24-31 | 32-39 40-47 48-55 56-63
        vectors 0 to 3     T0    T2    T4    T6    | T0    T2    T4    T6      16 numbers of A,
        vectors 4 to 7     T1    T3    T5    T7    | T1    T3    T5    T7      64 of x, 4 sums

        sums of 4 rows     T0: vector 0   T2: vector 1   T4: vector 2   T6: vector 3, 4 of y each

        A ring with STAGES = 2, in a block that takes every 5th tile of rows

        copies      tile 0   tile 5   tile 10  tile 15       on their way while ...
        products             tile 0   tile 5   tile 10 ...   ... these are added up
        stage       0        1        0        1

Bytes
    (m*n + k * (len(x) + len(y) * (1 + [beta != 0]))) * itemsize from memory for up to COUNT
    vectors; with more of them A comes again for each COUNT.

Wins
    Over ``several_rows``, and over loads of A, where rows are many and short. On an NVIDIA H100
    with eight vectors, 65536 x 1000 bfloat16 took 50 us, 72 by ``several_rows`` and 54 by torch.mm;
    262144 x 256 took 51, without a ring 79, and 53 by torch.mm; 1048576 x 64 took 54, 69 and 57.
    16384 x 2048 took 30 us and 35 by ``several_rows``. Without a ring 1048576 x 110 took 104 us,
    192 by ``several_rows`` and 118 by torch.mm. Four vectors with 262144 x 200 took 41 us, without
    a ring 46, and 47 by torch.mm. Eight with 65536 x 1000 float32 took 93 us, 101 by
    ``several_rows`` and 154 by torch.mm. On an NVIDIA H200, 1048576 x 64 and eight vectors:
    bfloat16 took 47.7 us with eight rows of a thread, 54.1 with four; float64 143.4, 167.3 by
    ``several_rows`` and 149.9 by torch.mm; complex64 144.3, 262.0 and 389.6. Four vectors of
    complex64 took 133.3 us, 167.6 by ``several_rows`` and 369.8 by torch.mm.

Loses
    To ``several_rows`` where a lane has more of x than registers hold, and for float32 where rows
    have fewer lanes than a warp: eight vectors with 262144 x 256 took 97 us with a ring, and 94 by
    ``several_rows``. To loads of A where rows are few: 16384 x 64 bfloat16 took 3.4 us with a ring,
    and 3.0 without. To matrix products on tensor cores, which add in another order: 16384 x 2048
    bfloat16 took torch.mm 26 us.

Sums
    Those of the rung of rows with the same LANES and width of loads, for each vector.

Source
    The outer loop that keeps one operand of a matrix product in registers: K. Goto and R. A. van de
    Geijn, "Anatomy of high-performance matrix multiplication" (2008), with registers for a cache.
"""

from __future__ import annotations

from gemv.core.dtypes import BFLOAT16
from gemv.core.geometry import LOAD_BYTES, ceil_div, one_launch
from gemv.core.shares import shares
from gemv.kernels.ends_of_rows import factor_names, runs_of, source_of
from gemv.kernels.grids import most_blocks, partial_sums, power_above, power_below
from gemv.kernels.kernel import Kernel, attach, no_twofold, wide_loads_object
from gemv.kernels.rings import across, ring_bytes, row_copies, shares_copies, stage_vectors
from gemv.kernels.several import ONE, sizes_of_vectors, turns_of_vectors
from gemv.kernels.staging import BLOCK_BYTES, COPIES

#: The vectors from which on numbers of so many bytes get this kernel.
LEAST_VECTORS = {2: 2, 4: 5, 8: 5}
#: Those of complex64, whose products take four times as long.
LEAST_OF_COMPLEX = 3
#: Registers of 4 bytes that a thread has for numbers of x; and with a ring those where it would
#: have one vector only, or a row has all lanes of a warp.
X_REGISTERS, X_OF_LONG = 64, 128
#: Rows of 8-byte numbers: registers that a vector takes for x, and blocks of a multiprocessor for
#: eight vectors. Others were not timed, or spill registers.
X_OF_EIGHT_BYTES, BLOCKS_OF_EIGHT = 16, 3
#: With a ring the most SHARERS, and the most WARPS by the bytes of a number: more sharers of a warp
#: were slower than more warps, more warps of float32 not timed.
OF_WARP, MOST_WARPS = 2, {2: 4, 4: 2}
#: Bytes of a stage for each warp, stages, and the most rows of a thread.
STAGE_BYTES, STAGES, MOST_ROWS = 4096, 2, 8
#: Rows that a thread reads back from a ring at a time.
AT_ONCE = 2
#: Threads of a grid, with one row each, below which a ring is slower than loads of A.
MANY_THREADS = 1 << 18
#: Without a ring the most SHARERS by the bytes of a number: more of them were slower than
#: ``several_rows`` or not timed.
MOST_SHARERS = {2: 8, 4: 2}
#: There 2-byte numbers have these registers for x if they suffice for all vectors, which is faster
#: although a block less fits on a multiprocessor.
X_OF_ONE, BLOCKS_OF_ONE = 112, 3
#: Registers for a thread's loads of A, and the most rows, without a ring.
A_REGISTERS, MOST_DIRECT_ROWS = 32, 4
#: Threads of a grid below which a thread gets fewer rows.
ENOUGH_THREADS = 1 << 16
#: Threads of a block, and blocks of a multiprocessor.
THREADS_PER_BLOCK, BLOCKS = 128, 4

#: What the kernel calls.
_WORDS = (
    "cuda", "fold", "kept", "moved", "multiply_add", "natural", "quotient", "row_starts",
    "scatter_sums", "zeros", "copies_wait", "staged_tile", "short",
)  # fmt: skip
#: The kernel: see :func:`gemv.kernels.ends_of_rows.source_of`.
_SOURCE = """
def several_short_rows(
    rows, cols, tiles, vectors, a, row_stride, x, x_step, incx, y, y_step, incy,
    {alpha}, alpha_step, {beta}, beta_step,
):
    ring = cuda.shared.array(RING_BYTES, uint8, alignment=16)
    tid = natural(cuda.threadIdx.x)
    place = tid % ROW_THREADS
    warp = tid // 32
    team = warp // WARPS
    group = team * GROUPS + tid % 32 // ROW_THREADS
    sharer = warp % WARPS * SHARERS + place % SHARERS
    vector = natural(cuda.blockIdx.y) * COUNT + sharer * EACH
    j = place // SHARERS * WIDTH
    count = quotient(cols - j + (STEP - 1), STEP) if reads({alpha}) else 0  # loads of a row
    own_x_{v} = of_x(moved(x, min(vector + {v}, vectors - 1) * x_step))
    x_{v} = kept(numbers(own_x_{v}, j, incx, count))
    share = place // SHARERS // HOLDERS
    item = vector + share * HELD // ROWS
    stores = place // SHARERS % HOLDERS == 0
    factors = {alpha}, alpha_step, {beta}, beta_step
    tile = natural(cuda.blockIdx.x)
    own = share * HELD % ROWS + group * ROWS  # the first row that the thread has a sum of
    mine = short(team * RING + tid % 32 // SHARERS * WIDTH)
    theirs = short(mine + (sharer // ACROSS * LOADS + sharer % ACROSS) * COPIED)
    line = group * ROWS + sharer // ACROSS
    column = j + sharer % ACROSS * STEP
    room = cols - WIDTH - column
    ahead = short(tile), short(0)  # the copies that are next
    stage = short(0)
    for _ in range(AHEAD if reads({alpha}) else 0):
        ahead = copied(ring, a, row_stride, rows, tiles, line, column, room, theirs, ahead)
    while tile < (tiles if reads({alpha}) else 0):
        if AHEAD > 0:
            copies_wait(PENDING)
            # What the warps of a ring have copied is there, and they have left the stage before.
            if WARPS > 1:
                cuda.syncthreads()
            else:
                cuda.syncwarp()
            ahead = copied(ring, a, row_stride, rows, tiles, line, column, room, theirs, ahead)
        the sums
        stage = short(stage + STAGE) if stage + STAGE < RING else 0
        held = scatter_sums(joined({all_totals}), tid, 1, ROW_THREADS, SHARERS)
        if stores:
            keep(held, factors, item, vectors, y, y_step, tile * TILE_ROWS + own, rows, incy)
        tile += cuda.gridDim.x
    while tile < tiles:  # alpha is 0
        if stores:
            nothing = zeros(zero, HELD)
            keep(nothing, factors, item, vectors, y, y_step, tile * TILE_ROWS + own, rows, incy)
        tile += cuda.gridDim.x
"""
#: The sums of some rows, from a ring of copies and from A itself.
_FROM_RING = """
values = staged_tile(ring, a, PLACES, mine + stage + <s> * SOME, COPIED, LOADS, WIDTH)
total_{v}_<s> = fold(multiply_add(zeros(zero, SUMS), values, x_{v}, CONJUGATE), OF_PART)
"""
_FROM_MEMORY = """
starts = row_starts(tile * TILE_ROWS + group * ROWS, 1, rows - 1, row_stride, ROWS)
values = matrix(a, starts, j, count)
total_{v}_0 = fold(multiply_add(zeros(zero, SUMS), values, x_{v}, CONJUGATE), ROWS)
"""


def build(spec):
    import numpy as np

    from gemv import language
    from gemv.language import (
        copies_commit,
        cuda,
        device,
        gather_some,
        load_some,
        moved,
        short,
        stream_some,
        stream_tile,
    )

    WIDTH, X_WIDTH = spec.widths
    WIDE_X = X_WIDTH > 0
    names = ("LANES", "LOADS", "ROWS", "COUNT", "SHARERS", "WARPS", "THREADS_PER_BLOCK")
    LANES, LOADS, ROWS, COUNT, SHARERS, WARPS, THREADS = (spec[name] for name in names)
    FULL = spec["FULL"] > 0
    ALL_SHARERS = SHARERS * WARPS
    EACH = COUNT // ALL_SHARERS  # vectors of a thread
    STEP, ROW_THREADS = LANES * WIDTH, LANES * SHARERS
    SHARES = shares(EACH * ROWS, 1, ROW_THREADS, SHARERS)
    HELD = EACH * ROWS // SHARES
    # Neighbours of y that one store takes.
    RUN = max(1, min(HELD, ROWS, LOAD_BYTES // spec.precision.y.itemsize))
    ALPHAS = spec.homes[0] == "pointer"
    finish_run = runs_of(spec, RUN)["finish_run"]

    @device
    def matrix(a, starts, j, count):
        if FULL:
            return stream_tile(a, starts, j, STEP, LOADS, WIDTH)
        return stream_some(a, starts, j, STEP, LOADS, WIDTH, count)

    @device
    def numbers(x, j, incx, count):
        if WIDE_X:
            return load_some(x, j, STEP, LOADS, WIDTH, count)
        return gather_some(x, j, STEP, LOADS, incx, WIDTH, count)

    @device
    def always(alpha):
        return True

    @device
    def unless_zero(alpha):
        return alpha != 0

    AHEAD = max(spec["STAGES"] - 1, 0)
    OF_PART = (AT_ONCE if ROWS % AT_ONCE == 0 else 1) if AHEAD else ROWS
    PARTS = ROWS // OF_PART
    TEAMS, GROUPS = THREADS // 32 // WARPS, 32 // ROW_THREADS
    TILE_ROWS = TEAMS * GROUPS * ROWS
    COPIED = 32 // SHARERS * WIDTH
    STAGE = stage_vectors(ROWS, LOADS, SHARERS) * WIDTH
    RING = spec["STAGES"] * STAGE
    inner_copies, edge_copies = row_copies(ROWS, LOADS, ALL_SHARERS, STEP, COPIED, FULL)

    @device
    def copied(ring, a, stride, rows, tiles, line, column, room, theirs, ahead):
        """Begin the copies of a tile, if there is one; what is next behind it."""
        tile, stage = ahead
        if tile < tiles:
            i = tile * TILE_ROWS + line
            at = i * stride + column
            if tile * TILE_ROWS + TILE_ROWS <= rows:
                inner_copies(ring, theirs + stage, a, at, stride, room)
            else:
                edge_copies(ring, theirs + stage, a, at, stride, room, rows - i)
            stage = short(stage + STAGE) if stage + STAGE < RING else 0
            tile = short(tile + cuda.gridDim.x)
        copies_commit()
        return tile, stage

    written: dict = {}
    exec(_joined(EACH, PARTS, OF_PART), written)
    scope = {name: getattr(language, name) for name in _WORDS}
    scope |= {
        "matrix": matrix, "numbers": numbers, "reads": always if ALPHAS else unless_zero,
        "of_x": language.conjugated if spec.conjugate_x else language.same,
        "joined": device(written["joined"]), "zero": spec.zero, "CONJUGATE": int(spec.conj),
        "WIDTH": WIDTH, "STEP": STEP, "ROWS": ROWS, "COUNT": COUNT, "EACH": EACH,
        "SHARERS": SHARERS, "ROW_THREADS": ROW_THREADS, "HELD": HELD, "HOLDERS": LANES // SHARES,
        "TILE_ROWS": TILE_ROWS,
        "WARPS": WARPS, "GROUPS": GROUPS,
        "SUMS": OF_PART * partial_sums(WIDTH, spec.precision), "OF_PART": OF_PART,
        "SOME": OF_PART * LOADS * COPIED,
        "finish_run": finish_run, "moved": moved, "copied": copied, "AHEAD": AHEAD,
        "PENDING": max(AHEAD - 1, 0), "STAGE": STAGE, "RING": RING, "COPIED": COPIED,
        "RING_BYTES": max(TEAMS * RING * spec.dtype.itemsize, 16), "LOADS": LOADS,
        "ACROSS": across(LOADS, ALL_SHARERS), "uint8": np.uint8,
        "PLACES": tuple(r * LOADS * COPIED for r in range(OF_PART)),
    }  # fmt: skip
    exec(_keep(HELD, ROWS, RUN), scope)
    scope["keep"] = device(scope["keep"])
    totals = ", ".join(f"total_{v}_{s}" for v in range(EACH) for s in range(PARTS))
    words = {**factor_names(spec), "all_totals": totals}
    from_ring = "".join(_FROM_RING.strip("\n").replace("<s>", str(s)) + "\n" for s in range(PARTS))
    more = {"sums": from_ring if AHEAD else _FROM_MEMORY}
    exec(source_of(_SOURCE, EACH, words, more), scope)
    return (attach(scope["several_short_rows"], launch_bounds=(THREADS, spec["MIN_BLOCKS"])),)


def _joined(each: int, parts: int, rows: int) -> str:
    """The source of a function that makes one tuple of the sums of `each` vectors, in parts."""
    names = [f"total_{v}_{s}" for v in range(each) for s in range(parts)]
    numbers = ", ".join(f"{name}[{r}]" for name in names for r in range(rows))
    return f"def joined({', '.join(names)}):\n    return ({numbers},)"


def _keep(held: int, rows: int, run: int) -> str:
    """The source of a function that finishes `held` sums, `run` neighbours of a y at a time."""
    lines = ["def keep(held, factors, item, vectors, y, y_step, i, rows, incy):"]
    for first in range(0, held, run):
        own = ", ".join(f"held[{first + r}]" for r in range(run))
        v, row = divmod(first, rows)
        lines += [
            f"    if item + {v} < vectors:",
            f"        own = moved(y, (item + {v}) * y_step)",
            f"        finish_run(factors, ({own},), item + {v}, own, i + {row}, rows, incy)",
        ]
    return "\n".join(lines)


def accepts(problem):
    if not problem.whole:
        return "some columns fill no vector"
    return no_twofold(problem) or wide_loads_object(problem, "dot")


def constants_for(problem, knobs, vectors):
    """The constants for so many vectors, from those of the rung of rows; None where there are none.

    Then ``several_rows`` takes them.
    """
    size = problem.dtype.itemsize
    least = LEAST_VECTORS.get(size, vectors + 1)
    if size == 8 and problem.dtype.kind == "c":
        least = LEAST_OF_COMPLEX
    if (
        vectors < least
        or problem.precision.sums.itemsize > max(size, 4)
        or knobs["BLOCKS_PER_SM"]
        or accepts(problem)
    ):
        return None
    own = None
    if problem.widths[0] * size == LOAD_BYTES:
        if size == 8:
            return ringed_eight_bytes(problem, knobs["LANES"], vectors)
        own = ringed(problem, knobs["LANES"], vectors)
    return (own or direct(problem, knobs["LANES"], vectors)) if size < 8 else None


def _common(problem, lanes, vectors):
    """The constants that all ways of bringing A have, and the registers of x for a vector."""
    width, count = problem.widths[0], 2
    while count < 8 and count < vectors:
        count *= 2
    loads = ceil_div(problem.cols, lanes * width)
    common = {
        "LANES": lanes, "LOADS": loads, "FULL": int(loads * lanes * width == problem.cols),
        "COUNT": count, "THREADS_PER_BLOCK": THREADS_PER_BLOCK,
    }  # fmt: skip
    return common, loads * width * problem.precision.sums.itemsize // 4


def ringed(problem, lanes, vectors):
    """Constants with a ring; None if x does not fit, or rows are few.

    Sums depend on nothing but `lanes`.
    """
    common, of_vector = _common(problem, lanes, vectors)
    count, size = common["COUNT"], problem.dtype.itemsize
    if lanes > 32 or of_vector > X_OF_LONG:
        return None
    each = power_below(max(X_REGISTERS // of_vector, 1))
    if each == 1 or (size > 2 and lanes == 32):
        each = power_below(X_OF_LONG // of_vector)
    each = min(each, count)
    long_rows = each * of_vector > X_REGISTERS
    sharers = count // each
    in_warp = min(sharers, 32 // lanes, OF_WARP)
    warps = sharers // in_warp
    if (
        problem.rows * lanes * sharers < MANY_THREADS
        or warps > MOST_WARPS[size]
        or (size > 2 and lanes < 32 and sharers > MOST_SHARERS[size])
    ):
        return None
    rows, loads = MOST_ROWS if each <= 2 else MOST_ROWS // 2, common["LOADS"]
    if problem.dtype == BFLOAT16 and each == 4 and sharers > 1:
        rows = MOST_ROWS  # float16 spills registers with so many
    while (
        rows > 1
        and shares_copies(rows // 2, loads, sharers)
        and ring_bytes(1, rows, loads, in_warp, 1) > warps * STAGE_BYTES
    ):
        rows //= 2
    threads = 32 * warps if long_rows and warps > 1 else THREADS_PER_BLOCK
    if ring_bytes(STAGES, rows, loads, in_warp, threads // 32 // warps) > BLOCK_BYTES:
        return None
    return common | {
        "SHARERS": in_warp, "WARPS": warps, "ROWS": rows, "STAGES": STAGES,
        "THREADS_PER_BLOCK": threads,
        "MIN_BLOCKS": THREADS_PER_BLOCK * BLOCKS // threads // (2 if long_rows else 1),
    }  # fmt: skip


def ringed_eight_bytes(problem, lanes, vectors):
    """Constants with a ring for numbers of 8 bytes; None if others were not timed."""
    common, of_vector = _common(problem, lanes, vectors)
    if (
        of_vector != X_OF_EIGHT_BYTES
        or lanes * OF_WARP > 32
        or problem.rows * lanes * OF_WARP < MANY_THREADS
    ):
        return None
    return common | {
        "SHARERS": OF_WARP, "WARPS": 1, "ROWS": MOST_ROWS // 2, "STAGES": STAGES,
        "MIN_BLOCKS": BLOCKS_OF_EIGHT if common["COUNT"] == 8 else BLOCKS,
    }  # fmt: skip


def direct(problem, lanes, vectors):
    """Constants without a ring; None if x and A do not fit."""
    common, of_vector = _common(problem, lanes, vectors)
    of_x = common["COUNT"] * of_vector
    of_row = common["LOADS"] * ceil_div(problem.widths[0] * problem.dtype.itemsize, 4)
    sharers, blocks = power_above(ceil_div(of_x, X_REGISTERS)), BLOCKS
    if problem.dtype.itemsize == 2 and X_REGISTERS < of_x <= X_OF_ONE:
        sharers, blocks = 1, BLOCKS_OF_ONE
    if (
        sharers > min(common["COUNT"], MOST_SHARERS[problem.dtype.itemsize])
        or lanes * sharers > 32
        or of_row > A_REGISTERS
    ):
        return None
    rows = MOST_DIRECT_ROWS
    while rows > 1 and (
        rows * of_row > A_REGISTERS or problem.rows * lanes * sharers < ENOUGH_THREADS * rows
    ):
        rows //= 2
    return common | {
        "SHARERS": sharers, "WARPS": 1, "ROWS": rows, "MIN_BLOCKS": blocks, "STAGES": 0,
    }  # fmt: skip


def geometry(problem, device, knobs, batch=ONE):
    lanes, width, loads = knobs["LANES"], problem.widths[0], knobs["LOADS"]
    threads, row_threads = knobs["THREADS_PER_BLOCK"], lanes * knobs["SHARERS"]
    warps, stages, rows = knobs["WARPS"], knobs["STAGES"], knobs["ROWS"]
    sharers = knobs["SHARERS"] * warps
    if row_threads > 32 or threads % (32 * warps) or knobs["COUNT"] % sharers:
        raise ValueError(
            "several_short_rows: LANES * SHARERS must be at most 32, THREADS_PER_BLOCK a multiple"
            " of 32 * WARPS and COUNT one of SHARERS * WARPS, got"
            f" {lanes}, {knobs['SHARERS']}, {threads}, {warps} and {knobs['COUNT']}"
        )
    if not stages and warps > 1:
        raise ValueError(f"several_short_rows: without STAGES, WARPS must be 1, got {warps}")
    if stages:
        lacks = device.lacks(COPIES)
        if lacks:
            raise ValueError(f"several_short_rows: copies to shared memory: {lacks}")
        nbytes = ring_bytes(stages, rows, loads, knobs["SHARERS"], threads // 32 // warps)
        if (
            stages < 2
            or width * problem.dtype.itemsize != LOAD_BYTES
            or not shares_copies(rows, loads, sharers)
            or nbytes > BLOCK_BYTES
        ):
            raise ValueError(
                "several_short_rows: STAGES must be 0, or 2 or more for loads of 16 bytes,"
                f" {sharers} sharers share the copies of ROWS rows evenly, and rings take at most"
                f" {BLOCK_BYTES} bytes, got {stages}, {rows} and {nbytes}"
            )
    step = lanes * width
    least = knobs["FULL"] and step * loads or stages and step * (loads - 1) + 1
    if not least <= problem.cols <= step * loads:
        raise ValueError(
            f"several_short_rows: {lanes} lanes with {loads} loads of {width} take"
            f" {least} to {step * loads} columns, not {problem.cols}"
        )
    turns = turns_of_vectors("several_short_rows", batch.items, knobs["COUNT"])
    tiles = ceil_div(problem.rows, threads // (row_threads * warps) * rows)
    # With more blocks x would be loaded more often.
    blocks = min(tiles, most_blocks(device, knobs))
    sizes = {"tiles": tiles, **sizes_of_vectors(batch)}
    return one_launch((blocks, turns, 1), (threads, 1, 1), sizes)


def tile(knobs):
    row_threads = knobs["LANES"] * knobs["SHARERS"] * knobs["WARPS"]
    return knobs["THREADS_PER_BLOCK"] // row_threads * knobs["ROWS"], 4 * knobs["LANES"]


KERNEL = Kernel(
    name="several_short_rows",
    rung=5,
    build=build,
    geometry=geometry,
    of_batch=geometry,
    for_vectors=constants_for,
    tile=tile,
    beside=True,
    wide=True,
    accepts=accepts,
    capability=COPIES,
    knobs={
        "LANES": 4, "LOADS": 2, "FULL": 0, "SHARERS": 2, "WARPS": 1, "ROWS": 4, "COUNT": 8,
        "THREADS_PER_BLOCK": 128, "MIN_BLOCKS": 4, "STAGES": 2,
    },
    small_knobs={
        "LANES": 4, "LOADS": 2, "FULL": 0, "SHARERS": 1, "WARPS": 1, "ROWS": 2, "COUNT": 2,
        "THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1, "STAGES": 3,
    },
    doc=__doc__,
)  # fmt: skip
