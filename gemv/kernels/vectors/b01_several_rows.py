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

    At the end k * ROWS sums are added up over the lanes. As in the rung of columns, two lanes
    halve the sums that both of them have a part of: 12 exchanges for 16 sums of 4 lanes, where a
    butterfly of each has 32.

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

Loses
    To matrix products on tensor cores, which add in another order: eight vectors with 1048576 x 64
    float64 took 185 us, torch.mm 151. With eight vectors the loads of x and the few threads that
    registers leave room for take longer than A, most of all for numbers of 2 bytes: 8192 x 8192
    bfloat16 took 58 us, where A alone takes 33.

Sums
    Those of the rung of rows with the same LANES, width of loads and splits, for each vector.

Source
    Register tiles of matrix products with one short side, as in the kernels of llama.cpp for a few
    tokens at a time. Here the number of vectors decides on the rows of a thread, and on nothing
    that sums depend on.
"""

from __future__ import annotations

from typing import NamedTuple

from gemv.core.geometry import MAX_GRID_Y, ceil_div, one_launch
from gemv.core.shares import shares
from gemv.kernels.grids import partial_sums, power_above
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.wide_tiles import TAKEN_FOR_ROWS, finish_warps, split_rows, tail_of

#: Threads of a grid below which a row gets more of them, by PARTS.
ENOUGH_THREADS = 1 << 17
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


#: By COUNT, for rows that a warp has several of, for longer ones, and for those that are split over
#: blocks. They are the fastest that were tried on an H200 and spill no registers; for 2 and 4
#: vectors not all dtypes and shapes were timed (``benchmarks/results/tiles``).
SHORT = {2: Tile(1, 4, 2, 256, 2), 4: Tile(1, 2, 4, 64, 8), 8: Tile(2, 4, 4, 64, 6)}
LONG = {2: Tile(1, 4, 2, 128, 4), 4: Tile(1, 4, 4, 128, 2), 8: Tile(1, 2, 2, 256, 2)}
SPLIT = {2: Tile(1, 4, 2, 128, 4), 4: Tile(1, 4, 4, 128, 2), 8: Tile(2, 4, 4, 256, 1)}
#: Numbers of 2 bytes have twice as many partial sums for a load of as many bytes.
NARROW_SHORT = {2: Tile(1, 4, 2, 64, 6), 4: Tile(1, 2, 2, 128, 4), 8: Tile(1, 2, 2, 128, 2)}
NARROW_LONG = {2: Tile(1, 2, 4, 128, 4), 4: Tile(1, 2, 2, 128, 4), 8: Tile(4, 4, 8, 128, 3)}
NARROW_SPLIT = {2: Tile(1, 2, 4, 512, 1), 4: Tile(4, 4, 4, 512, 1), 8: Tile(4, 4, 4, 512, 1)}
#: Eight vectors of complex numbers; and of float64, which gain by TURNS.
COMPLEX_SHORT, COMPLEX_SPLIT = Tile(1, 2, 2, 128, 3), Tile(2, 2, 4, 256, 2)
DOUBLE_LONG = Tile(1, 2, 4, 256, 1)
MOST_TURNS = 4


def parts_of(parts, width, precision):
    """Threads that share a lane: one where wide sums of different columns are one sum."""
    return min(parts, width) if partial_sums(width, precision) == width else 1


def turns_of(turns, lanes):
    """Turns that threads take for the lanes of a row: a turn has whole butterflies of 32 lanes."""
    return max(min(turns, lanes // 32), 1)


#: What the kernel calls.
_WORDS = (
    "atomic_inc", "butterfly", "cuda", "fold", "moved", "multiply_add", "natural", "post",
    "quotient", "rounded_down", "row_starts", "stream_some", "stream_tile", "take", "zeros",
)  # fmt: skip
#: The kernel. A line with ``{v}`` stands there once for each vector: a tuple of tuples has no index
#: at run time, so the loop over the vectors is unrolled in the source.
_SOURCE = """
def several_rows(
    rows, cols, cols_per_split, splits, vectors, a, row_stride, x, x_step, incx, y, y_step, incy,
    {alpha}, alpha_step, {beta}, beta_step, scratch, counters,
):
    sums = cuda.shared.array((ALL_ROWS, SLOTS), number)
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
    starts = row_starts(first + group, GROUPS, rows - 1, row_stride, ROWS)
    x_{v} = of_x(moved(x, min(vector + {v}, vectors - 1) * x_step))
    for turn in range(TURNS):
        total_{v} = zeros(zero, SUMS)
        j = begin + (turn * ROW_THREADS + place) * UNIT
        # Passes in which every lane has all of its vectors.
        limit = j + rounded_down(end - begin, PASS)
        if AHEAD and j + PASS <= limit:  # the next pass is on its way while this one is added
            values = stream_tile(a, starts, j, STEP, VECTORS, UNIT)
            while j + 2 * PASS <= limit:
                following = stream_tile(a, starts, j + PASS, STEP, VECTORS, UNIT)
                total_{v} = multiply_add(total_{v}, values, full(x_{v}, j, incx), CONJUGATE)
                values = following
                j += PASS
            total_{v} = multiply_add(total_{v}, values, full(x_{v}, j, incx), CONJUGATE)
            j += PASS
        while not AHEAD and j + PASS <= limit:
            values = stream_tile(a, starts, j, STEP, VECTORS, UNIT)
            total_{v} = multiply_add(total_{v}, values, full(x_{v}, j, incx), CONJUGATE)
            j += PASS
        behind = j - part * UNIT + WIDTH  # of the lane's next vector
        if behind <= end:  # what is left goes out at once, too
            rest = quotient(end - behind, STEP) + 1
            values = stream_some(a, starts, j, STEP, VECTORS, UNIT, rest)
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
        own_{v} = of_lane(total_{v}, tid)
        put(sums, tid, joined({all_own}))
        cuda.syncthreads()  # all sums of these lanes are in place, and neighbours store neighbours
        r = tid // FINISHERS
        c = tid % FINISHERS
        while r - tid // FINISHERS < ALL_ROWS:  # whole warps, which shuffle
            row = min(r, ALL_ROWS - 1)
            (row_sum,) = butterfly((of_warp(sums, row, c),), FINISHERS, 1)
            if TURNS > 1 and turn > 0 and c == 0:
                row_sum = carried[row] + row_sum
            for warp in range(1, WARPS_PER_TURN):
                (more,) = butterfly((of_warp(sums, row, warp * OF_WARP + c),), FINISHERS, 1)
                row_sum += more
            i = first + r % TILE_ROWS
            item = vector + r // TILE_ROWS
            if TURNS > 1 and turn < TURNS - 1:
                if c == 0 and r < ALL_ROWS:
                    carried[row] = row_sum
            elif c == 0 and r < ALL_ROWS and i < rows and item < vectors:
                if SPLIT:
                    post(scratch, (split * vectors + item) * rows + i, row_sum)
                else:
                    at = item * y_step + i * incy
                    finish({alpha}, alpha_step, {beta}, beta_step, row_sum, item, y, at)
            r += THREADS // FINISHERS
        if turn < TURNS - 1:
            cuda.syncthreads()  # they are read, and those of the next lanes may have their place
    if SPLIT and ticket[0] == splits - 1:
        # The last one to begin: all sums are there, or on their way. Each warp takes a row.
        r = tid // 32
        while r < ALL_ROWS:
            i = first + r % TILE_ROWS
            item = vector + r // TILE_ROWS
            row_sum = zero
            for warp in range(SPLIT_WARPS):
                k = warp * 32 + tid % 32
                share = zero
                while k < splits and i < rows and item < vectors:
                    rest = quotient(splits - 1 - k, SPLIT_LANES) + 1
                    at = (k * vectors + item) * rows + i
                    step = SPLIT_LANES * vectors * rows
                    share += fold(take(zero, scratch, at, step, BATCH, rest), 1)[0]
                    k += BATCH * SPLIT_LANES
                (share,) = butterfly((share,), 32, 1)
                row_sum = share if warp == 0 else row_sum + share
            if tid % 32 == 0 and i < rows and item < vectors:
                at = item * y_step + i * incy
                finish({alpha}, alpha_step, {beta}, beta_step, row_sum, item, y, at)
            r += THREADS // 32
"""


def _joined(count, length):
    """The source of a function that makes one tuple of `count` tuples."""
    tuples = ", ".join(f"own_{v}" for v in range(count))
    numbers = ", ".join(f"own_{v}[{k}]" for v in range(count) for k in range(length))
    return f"def joined({tuples}):\n    return ({numbers},)"


def _store(held, held_rows, groups, tile_rows):
    """The source of a function that stores `held` sums: so many rows for each of some vectors."""
    places = (k // held_rows * tile_rows + k % held_rows * groups for k in range(held))
    lines = (f"    sums[row + {place}, slot] = values[{k}]" for k, place in enumerate(places))
    return "\n".join(["def store(sums, row, slot, values):", *lines])


def build(spec):
    import numpy as np

    from gemv import language
    from gemv.language import (
        butterfly,
        device,
        fold,
        gather,
        gather_some,
        load_some,
        load_vectors,
        read_only_load,
        scatter_sums,
        update_streaming,
    )

    zero, (WIDTH, X_WIDTH) = spec.zero, spec.widths
    WIDE_X = X_WIDTH > 0
    LANES, ROWS, COUNT, VECTORS = (spec[k] for k in ("LANES", "ROWS", "COUNT", "VECTORS"))
    PARTS = parts_of(spec["PARTS"], WIDTH, spec.precision)
    UNIT = WIDTH // PARTS  # elements of a load
    TURNS = turns_of(spec["TURNS"], LANES)
    ROW_THREADS = LANES // TURNS * PARTS
    THREADS = max(ROW_THREADS, spec["THREADS_PER_BLOCK"])
    GROUPS = THREADS // ROW_THREADS
    TILE_ROWS = GROUPS * ROWS
    WARP_LANES = min(LANES, 32)  # of the rung of rows, whose butterfly they have
    SPREAD = max(WARP_LANES * PARTS // 32, 1)  # warps that these lanes take here
    # Sums of a row in shared memory: one of each such butterfly, or one of each lane.
    EACH_SLOT = PARTS if SPREAD > 1 else WARP_LANES * PARTS
    SLOTS = ROW_THREADS // EACH_SLOT
    FINISHERS = WARP_LANES // SPREAD if SPREAD > 1 else 1
    OF_ROW = partial_sums(WIDTH, spec.precision) // PARTS  # partial sums of a thread for a row
    # The threads of a lane divide its rows between them, then the lanes of a warp divide the sums.
    DIVIDED = ROWS % PARTS == 0
    HELD_ROWS = ROWS // PARTS if DIVIDED else ROWS
    HOLDING = PARTS if DIVIDED else 1  # threads of a lane with sums that no other has
    SHARES = shares(COUNT * HELD_ROWS, 1, EACH_SLOT, PARTS) if SPREAD == 1 else 1
    HELD, SHARERS = COUNT * HELD_ROWS // SHARES, EACH_SLOT // SHARES
    STEP = LANES * WIDTH
    TAIL = tail_of(WIDTH)
    AT_ONCE = min(UNIT, TAIL) if PARTS > 1 else TAIL
    # Warps that share a row when splits are added: as in the rung of rows, with its constants.
    sharing = finish_warps(LANES, spec["OF_ROWS"], spec["OF_THREADS"])
    ALPHAS, BETAS = (home == "pointer" for home in spec.homes)

    written: dict = {}
    exec(_joined(COUNT, HELD_ROWS), written)
    exec(_store(HELD, HELD_ROWS, GROUPS, TILE_ROWS), written)
    joined, store = device(written["joined"]), device(written["store"])

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

    @device
    def of_lane(total, tid):
        """The sums of the rows of a lane, as in a lane that is one thread."""
        if DIVIDED:
            return fold(scatter_sums(total, tid, OF_ROW, PARTS, 1), HELD_ROWS)
        return fold(butterfly(total, PARTS, 1), ROWS)

    @device
    def put(sums, tid, own):
        """Store what a warp has of the sums, each by one of its threads."""
        place = tid % ROW_THREADS
        row = tid // ROW_THREADS + place % HOLDING * (HELD_ROWS * GROUPS)
        if SPREAD > 1:
            if place % PARTS < HOLDING:
                store(sums, row, place // PARTS, own)
        else:
            share = scatter_sums(own, tid, 1, EACH_SLOT, PARTS)
            if place % SHARERS < HOLDING:
                first = place % EACH_SLOT // SHARERS * HELD
                row += first // HELD_ROWS * TILE_ROWS + first % HELD_ROWS * GROUPS
                store(sums, row, place // EACH_SLOT, share)

    @device
    def of_warp(sums, row, slot):
        """The sum of the lanes in one place of SPREAD warps, in the order of a butterfly."""
        if SPREAD == 1:
            return sums[row, slot]
        if SPREAD == 2:
            return sums[row, slot] + sums[row, slot + FINISHERS]
        even, odd = sums[row, slot], sums[row, slot + FINISHERS]
        if SPREAD == 4:
            even += sums[row, slot + 2 * FINISHERS]
            odd += sums[row, slot + 3 * FINISHERS]
        else:
            even += sums[row, slot + 4 * FINISHERS]
            odd += sums[row, slot + 5 * FINISHERS]
            even += sums[row, slot + 2 * FINISHERS] + sums[row, slot + 6 * FINISHERS]
            odd += sums[row, slot + 3 * FINISHERS] + sums[row, slot + 7 * FINISHERS]
        return even + odd

    @device
    def finish(alpha, alpha_step, beta, beta_step, total, item, y, at):
        """Write an element of the y of one vector."""
        own_alpha = read_only_load(alpha, item * alpha_step) if ALPHAS else alpha
        own_beta = read_only_load(beta, item * beta_step) if BETAS else beta
        update_streaming(own_alpha, zero if own_alpha == 0 else total, own_beta, y, at)

    @device
    def all_columns(alpha, begin, end):
        return end

    @device
    def none_if_zero(alpha, begin, end):
        return end if alpha != 0 else begin

    scope = {name: getattr(language, name) for name in _WORDS}
    scope |= {
        "full": full, "some": some, "tail": tail, "of_warp": of_warp, "finish": finish,
        "of_lane": of_lane, "put": put, "joined": joined,
        "uint32": np.uint32,
        "last_column": all_columns if ALPHAS else none_if_zero,
        "of_x": language.conjugated if spec.conjugate_x else language.same,
        "number": spec.number, "zero": zero, "CONJUGATE": int(spec.conj),
        "AHEAD": spec["AHEAD"] > 0,
        "WIDTH": WIDTH, "UNIT": UNIT, "PARTS": PARTS, "ROW_THREADS": ROW_THREADS, "ROWS": ROWS,
        "COUNT": COUNT, "VECTORS": VECTORS, "THREADS": THREADS, "GROUPS": GROUPS,
        "TILE_ROWS": TILE_ROWS, "ALL_ROWS": COUNT * TILE_ROWS, "WARP_LANES": WARP_LANES,
        "SPREAD": SPREAD, "EACH_SLOT": EACH_SLOT, "SLOTS": SLOTS, "FINISHERS": FINISHERS,
        "OF_WARP": FINISHERS * SPREAD if SPREAD > 1 else 1,
        "TURNS": TURNS, "CARRIED": COUNT * TILE_ROWS if TURNS > 1 else 1,
        "WARPS_PER_TURN": LANES // TURNS // WARP_LANES,
        "STEP": STEP, "PASS": VECTORS * STEP, "TAIL": TAIL,
        "AT_ONCE": AT_ONCE, "WHOLE": WIDTH == 1 or spec.whole, "SPLIT": spec["BLOCKS_PER_SM"] > 0,
        "SPLIT_WARPS": sharing, "SPLIT_LANES": 32 * sharing, "BATCH": TAKEN_FOR_ROWS,
        "SUMS": ROWS * OF_ROW,
    }  # fmt: skip
    names = {"alpha": "alpha_pointer" if ALPHAS else "alpha"}
    names["beta"] = "beta_pointer" if BETAS else "beta"
    names["all_own"] = ", ".join(f"own_{v}" for v in range(COUNT))
    lines = [
        line.format(v=v, **names)
        for line in _SOURCE.splitlines()
        for v in (range(COUNT) if "{v}" in line else (0,))
    ]
    exec("\n".join(lines), scope)
    return (attach(scope["several_rows"], launch_bounds=(THREADS, spec.min_blocks)),)


def accepts(problem):
    return wide_loads_object(problem, "dot")


def sums_of_block(lanes, parts, threads, rows):
    """Sums in shared memory, of so many rows a thread: each leaves one for 32 lanes or for each.

    `lanes` are those of a turn.
    """
    slots = lanes if min(lanes, 32) * parts > 32 else ceil_div(lanes, 32)
    return threads // (lanes * parts) * rows * slots


def tile_for(problem, lanes, count, split):
    """The tile for so many vectors, and the turns of a row's lanes."""
    narrow, complex_numbers = problem.dtype.itemsize == 2, problem.dtype.kind == "c"
    if count == 8 and complex_numbers and (split or lanes < 32):
        return (COMPLEX_SPLIT if split else COMPLEX_SHORT), 1
    if lanes < 32:
        return (NARROW_SHORT if narrow else SHORT)[count], 1
    if narrow:
        return (NARROW_SPLIT if split else NARROW_LONG)[count], 1
    if count == 8 and problem.dtype.itemsize == 8 and not complex_numbers:
        return SPLIT[8] if split else DOUBLE_LONG, turns_of(MOST_TURNS, lanes)
    return (SPLIT if split else LONG)[count], 1


def constants_for(problem, knobs, vectors):
    """The constants for so many vectors, from those of the rung of rows; its LANES stay."""
    width, size, lanes = problem.widths[0], problem.dtype.itemsize, knobs["LANES"]
    count = 2
    while count < 8 and count < vectors:
        count *= 2
    split = knobs["BLOCKS_PER_SM"] > 0
    tile_, turns = tile_for(problem, lanes, count, split)
    parts, rows, loads, threads, blocks = tile_
    while (
        not split
        and 2 * parts <= max(1, width * size // max(4, size))
        and 2 * lanes * parts <= MOST_THREADS_OF_ROW
        and problem.rows * (lanes // turns) * parts < ENOUGH_THREADS * rows
    ):
        if turns > 1:
            turns //= 2
        else:
            parts, loads = 2 * parts, 2 * loads
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
    found = {
        "LANES": lanes,
        "PARTS": parts,
        "TURNS": turns,
        "ROWS": rows,
        "COUNT": count,
        "VECTORS": max(1, min(loads, own)),
        "THREADS_PER_BLOCK": threads,
        "MIN_BLOCKS": max(1, tile_.THREADS_PER_BLOCK * blocks // threads),
        "AHEAD": 0,
        "BLOCKS_PER_SM": knobs["BLOCKS_PER_SM"],
    }
    if split:
        of = {"ROWS": "OF_ROWS", "VECTORS": "OF_VECTORS", "THREADS_PER_BLOCK": "OF_THREADS"}
        found |= {own_name: knobs[name] for name, own_name in of.items()}
    return found


def geometry(problem, device, knobs):
    return _geometry(problem, device, knobs, 1, 0, 0, 0, 0)


def of_batch(problem, batch, device, knobs):
    """The launch for vectors that share the matrix."""
    (vectors,), steps = batch.shape, (own[0] for own in batch.strides[1:])
    return _geometry(problem, device, knobs, vectors, *steps)


def _geometry(problem, device, knobs, vectors, x_step, y_step, alpha_step, beta_step):
    parts = parts_of(knobs["PARTS"], problem.widths[0], problem.precision)
    row_threads = knobs["LANES"] // turns_of(knobs["TURNS"], knobs["LANES"]) * parts
    threads = max(row_threads, knobs["THREADS_PER_BLOCK"])
    tiles = ceil_div(problem.rows, threads // row_threads * knobs["ROWS"])
    turns = ceil_div(vectors, knobs["COUNT"])
    if turns > MAX_GRID_Y:
        raise ValueError(f"several_rows: {vectors} vectors are more than a grid has blocks for")
    sizes = {
        "splits": 1, "cols_per_split": problem.cols, "vectors": vectors, "x_step": x_step,
        "y_step": y_step, "alpha_step": alpha_step, "beta_step": beta_step,
    }  # fmt: skip
    if not knobs["BLOCKS_PER_SM"]:
        return one_launch((tiles, 1, turns), (threads, 1, 1), sizes)
    of = {"OF_ROWS": "ROWS", "OF_VECTORS": "VECTORS", "OF_THREADS": "THREADS_PER_BLOCK"}
    own = {name: knobs[of_name] for of_name, name in of.items()}
    alone = split_rows(problem, device, {**knobs, **own})
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
        "LANES": 32, "PARTS": 1, "TURNS": 1, "ROWS": 1, "VECTORS": 4, "COUNT": 4,
        "THREADS_PER_BLOCK": 128, "MIN_BLOCKS": 2, "AHEAD": 0, "BLOCKS_PER_SM": 0, "OF_ROWS": 1,
        "OF_VECTORS": 1, "OF_THREADS": 32,
    },
    small_knobs={
        "LANES": 8, "PARTS": 1, "TURNS": 1, "ROWS": 1, "VECTORS": 1, "COUNT": 2,
        "THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1, "AHEAD": 1, "BLOCKS_PER_SM": 0, "OF_ROWS": 1,
        "OF_VECTORS": 1, "OF_THREADS": 32,
    },
    doc=__doc__,
)  # fmt: skip
