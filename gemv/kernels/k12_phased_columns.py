"""Wide loads down columns that begin anywhere: a warp takes columns of one phase.

Idea
    Where A is stored by columns, a thread keeps a piece of y in registers and adds pieces of
    columns to it, each piece one 16-byte load. If columns do not begin at multiples of 16 bytes,
    aligned 16-byte loads begin at different rows in different columns. But the address of a column
    modulo 16, its *phase*, repeats after 16 / gcd(16, lda * itemsize) columns. So a warp takes only
    columns of one phase, which are that far apart. In all of them its lanes load the same rows. The
    first of these rows is up to a vector before the first row of the tile.

    The shift matters again when the sums are done: each warp adds its sums to the elements of
    shared memory that belong to its rows. From there on the kernel works like ``vector_columns``
    (rung 9). Each warp reads one vector of rows more than the tile has, so that its loads cover the
    tile in every phase.

    A vector at the end of a column also contains the elements behind the column, and a vector at
    the beginning those before it. No thread uses the sums of such elements. They belong to a
    neighbouring column or to the gap between two columns, so it is safe to load them. Only before
    the first columns and behind the last ones they could lie outside of A, and there elements are
    loaded one by one.

Picture
    ::

        float32, lda 9: 4 phases, | is a multiple of 16 bytes; a tile of rows 4 to 7

        column 0    |0 1 2 3|4 5 6 7|8            warp 0: columns 0, 4, 8, ...   reads rows 4-11
        column 1     0 1 2|3 4 5 6|7 8            warp 1: columns 1, 5, 9, ...   reads rows 3-10
        column 2     0 1|2 3 4 5|6 7 8            warp 2: columns 2, 6, 10, ...  reads rows 2-9
        column 3     0|1 2 3 4|5 6 7 8|           warp 3: columns 3, 7, 11, ...  reads rows 1-8

        shared      each warp puts its sum of row 4 into the column of row 4; one thread for each
                    row adds the warps in order

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory. Neighbouring tiles of rows
    both read one vector of each column, the second time from the L2 cache. x comes from L1 or L2,
    once for each tile. Bytes between two columns are read where they share 16 aligned bytes with an
    end of a column.

Wins
    Columns that do not begin at multiples of 16 bytes: an odd lda, and views without the first
    rows. The smaller the elements, the more it gains.

Loses
    To ``vector_columns`` and ``long_columns`` (rungs 9 and 10) where all columns are aligned: they
    read no vector twice, and need no warp for each phase. Also where A has only a few columns.

Sums
    Each thread sums over every GROUPS-th column of its split. Then come a butterfly over the groups
    of a warp, the warps of the block in order, and the splits. The order is fixed by shape, the
    addresses of columns modulo 16 bytes, the machine's file (the constants for a GPU,
    ``docs/machine.md``) and the number of multiprocessors. Same bits on every run.

Source
    The axpy form of gemv: G. H. Golub and C. F. Van Loan, "Matrix Computations", section 1.1; the
    phases are arithmetic modulo 16.
"""

import numpy as np

from gemv.core.geometry import LOAD_BYTES, SECTOR_BYTES, SHARED_SUM_BYTES, ceil_div
from gemv.core.problem import phases_of
from gemv.core.shares import share_of_lane
from gemv.kernels.depths import in_halves, in_order, of_finishers, of_splits, shared_out
from gemv.kernels.grids import split_evenly
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.wide_tiles import finishers_of_columns
from gemv.kernels.work import (
    bytes_of_lines,
    columns_of_splits,
    lines_of_warp,
    rounds_of_finishers,
    steps_of_tree,
    work_of,
)

#: Partial sums that a thread of the last block asks for at a time; a power of two.
BATCH = 8
#: Shared memory that PIECES may take; one piece may take SHARED_SUM_BYTES.
SHARED_BYTES = 40 * 1024


def shared_sums(lanes, pieces, threads, width):
    """Sums that a block has in shared memory: a unit has those of its rows and one more vector."""
    return threads // max(lanes, 32) * (lanes * pieces + 1) * width


def block_of(knobs, width, sum_bytes):
    """PIECES, the threads of a unit and of the block, which has a unit of whole warps per phase."""
    unit = max(knobs["LANES"], 32)
    threads = max(knobs["THREADS_PER_BLOCK"], unit * width)
    pieces = knobs["PIECES"]
    places = SHARED_BYTES // sum_bytes
    while pieces > 1 and shared_sums(knobs["LANES"], pieces, threads, width) > places:
        pieces //= 2
    return pieces, unit, threads


def own_rows(lanes, pieces, width):
    """Rows of a tile: a vector less than a unit reads, which begins up to a vector earlier."""
    return (lanes * pieces - (width > 1)) * width


def build(spec):
    from gemv.language import (
        atomic_inc,
        axpy_add,
        cuda,
        elements_past,
        fold,
        gather,
        gather_some,
        natural,
        post,
        put_pieces,
        quotient,
        rounded_down,
        row_starts,
        scatter_sums,
        stream_inside,
        stream_some,
        stream_tile,
        take,
        update_streaming,
        zeros,
    )

    number, zero = spec.number, spec.zero
    CONJUGATE = int(spec.conj)
    WIDTH = spec.widths[0]
    LANES, COLUMNS = spec["LANES"], spec["COLUMNS"]
    PIECES, UNIT, THREADS = block_of(dict(spec.knobs), WIDTH, spec.precision.sums.itemsize)
    UNITS = THREADS // UNIT
    IN_UNIT = UNIT // LANES
    GROUPS = UNITS * IN_UNIT
    PASS = GROUPS * COLUMNS
    PIECE_ROWS = LANES * WIDTH
    READ_ROWS = PIECES * PIECE_ROWS
    TILE_ROWS = own_rows(LANES, PIECES, WIDTH)
    TURNS = ceil_div(TILE_ROWS, THREADS)  # until each row of the tile had a thread
    # Row r of a tile is in place r + WIDTH: places before that are for rows before the tile.
    PLACES = READ_ROWS + WIDTH
    SUMS = PIECES * WIDTH
    # How many sums of its warp a lane keeps, how many lanes keep the same, and runs of neighbours.
    KEPT, HOLDERS, RUN = share_of_lane(SUMS, WIDTH, LANES)
    SPLIT = spec["BLOCKS_PER_SM"] > 0  # else no code for splits has to be fetched
    # Threads that share a row when the last block adds the splits.
    FINISHERS = finishers_of_columns(THREADS, READ_ROWS)
    SHARES = max(UNITS, FINISHERS)

    def phased_columns(
        rows, cols, cols_per_split, splits, phases, phase_bits, end_columns, alpha, a, col_stride,
        x, incx, beta, y, incy, scratch, counters,
    ):  # fmt: skip
        sums = cuda.shared.array((SHARES, PLACES), number)
        ticket = cuda.shared.array(1, np.uint32)
        tid = natural(cuda.threadIdx.x)
        lane = tid % LANES
        unit = tid // UNIT
        phase = unit & (phases - 1)
        group = ((unit >> phase_bits) * IN_UNIT + tid % UNIT // LANES) * phases + phase
        split = cuda.blockIdx.y
        begin = split * cols_per_split if SPLIT else 0
        end = min(cols, begin + cols_per_split) if SPLIT else cols
        if alpha == 0:
            end = begin
        drawn = np.uint32(0)
        if SPLIT and splits > 1 and tid == 0:
            drawn = atomic_inc(counters, cuda.blockIdx.x, splits - 1)  # not waited for here
        step = GROUPS * col_stride  # to the next column of this group: of the same phase
        tile = cuda.blockIdx.x
        first = tile * TILE_ROWS
        shift = elements_past(a, phase * col_stride, LOAD_BYTES)
        start = first - shift + lane * WIDTH  # the first of this thread's rows
        last = rounded_down(rows - 1 + shift, WIDTH) - shift  # the last vector with one of the rows
        # Past that it is read again; no thread uses its sums.
        pieces = row_starts(start, PIECE_ROWS, last, 1, PIECES)
        total = zeros(zero, SUMS)
        j = begin + group
        while j < min(end, end_columns):
            values = stream_inside(a, pieces, j * col_stride, WIDTH, rows)
            total = axpy_add(total, values, gather(x, j, 0, 1, incx, 1), WIDTH, CONJUGATE)
            j += GROUPS
        inside = min(end, cols - end_columns)
        # Passes in which every group has all of its columns, behind the columns at the front end.
        done = rounded_down(max(end_columns - begin, 0) + GROUPS - 1, GROUPS)
        limit = j + rounded_down(max(inside - begin - done, 0), PASS)
        while j < limit:
            values = stream_tile(a, pieces, j * col_stride, step, COLUMNS, WIDTH)
            factors = gather(x, j, GROUPS, COLUMNS, incx, 1)
            total = axpy_add(total, values, factors, WIDTH, CONJUGATE)
            j += PASS
        while j < inside:  # the remaining columns are loaded together, too
            rest = quotient(inside - 1 - j, GROUPS) + 1
            values = stream_some(a, pieces, j * col_stride, step, COLUMNS, WIDTH, rest)
            factors = gather_some(x, j, GROUPS, COLUMNS, incx, 1, rest)
            total = axpy_add(total, values, factors, WIDTH, CONJUGATE)
            j += min(rest, COLUMNS) * GROUPS
        while j < end:
            values = stream_inside(a, pieces, j * col_stride, WIDTH, rows)
            total = axpy_add(total, values, gather(x, j, 0, 1, incx, 1), WIDTH, CONJUGATE)
            j += GROUPS
        place = lane * WIDTH - shift + WIDTH
        if LANES < 32:
            some = scatter_sums(total, tid, WIDTH, 32, LANES)
            if tid % HOLDERS < LANES:
                k = tid % 32 // HOLDERS * KEPT  # the first of the sums that this lane keeps
                place += k // WIDTH * PIECE_ROWS + k % WIDTH
                put_pieces(sums, unit, place, some, PIECE_ROWS, RUN)
        else:
            put_pieces(sums, unit, place, total, PIECE_ROWS, WIDTH)
        if SPLIT and splits > 1 and tid == 0:
            ticket[0] = drawn
        cuda.syncthreads()  # all sums are in place
        r = tid
        while r < TILE_ROWS:
            i = first + r
            if i < rows:
                part = sums[0, r + WIDTH]
                for k in range(1, UNITS):
                    part += sums[k, r + WIDTH]
                if not SPLIT or splits == 1:
                    update_streaming(alpha, part, beta, y, i * incy)
                else:
                    post(scratch, split * rows + i, part)
            r = r + THREADS if TURNS > 1 else TILE_ROWS
        if SPLIT and splits > 1 and ticket[0] == splits - 1:
            # This block began last: all other blocks have posted their sums, or are running.
            cuda.syncthreads()  # all threads of a block are here, and have read `sums`
            share = tid // READ_ROWS
            r = tid % READ_ROWS
            while r < TILE_ROWS:
                i = first + r
                k = share
                part = zero
                while k < splits and i < rows and share < FINISHERS:
                    rest = quotient(splits - 1 - k, FINISHERS) + 1
                    several = take(zero, scratch, k * rows + i, FINISHERS * rows, BATCH, rest)
                    part += fold(several, 1)[0]
                    k += BATCH * FINISHERS
                if share < FINISHERS:
                    sums[share, r] = part
                r = r + THREADS if TURNS > 1 else TILE_ROWS
            cuda.syncthreads()  # all partial sums are in place
            r = tid
            while r < TILE_ROWS:
                i = first + r
                if i < rows:
                    part = sums[0, r]
                    for k in range(1, FINISHERS):
                        part += sums[k, r]
                    update_streaming(alpha, part, beta, y, i * incy)
                r = r + THREADS if TURNS > 1 else TILE_ROWS

    return (attach(phased_columns, launch_bounds=(THREADS, spec.min_blocks)),)


def accepts(problem):
    return wide_loads_object(problem, "axpy")


def prepared(problem, device, knobs):
    lanes, itemsize = knobs["LANES"], problem.dtype.itemsize
    width = LOAD_BYTES // itemsize
    pieces, _, threads = block_of(knobs, width, problem.precision.sums.itemsize)
    if lanes & (lanes - 1) or threads & (threads - 1) or lanes * pieces < 2 or threads > 1024:
        raise ValueError(
            "phased_columns: LANES and THREADS_PER_BLOCK must be powers of two, 1024 threads at"
            f" most with a warp and LANES for each of {width} phases, and more than one lane or"
            f" piece, got {lanes}, {threads} and PIECES = {pieces}"
        )
    sums = shared_sums(lanes, pieces, threads, width)
    if sums * problem.precision.sums.itemsize > SHARED_SUM_BYTES:
        raise ValueError(
            f"phased_columns: sums of a block must fit into {SHARED_SUM_BYTES} bytes of shared"
            f" memory, and {sums} of {problem.precision.sums.itemsize} bytes do not, from LANES ="
            f" {lanes} and {threads} threads"
        )
    tile_rows, block = own_rows(lanes, pieces, width), (threads, 1, 1)
    # One pass of a block over the columns; all splits begin at one phase.
    columns = threads // lanes * knobs["COLUMNS"]
    blocks = device.multiprocessors * knobs["BLOCKS_PER_SM"]

    def geometry_of(problem):
        cols, step = problem.cols, abs(problem.col_stride)
        phases = phases_of(cols, step * itemsize)
        tiles = ceil_div(problem.rows, tile_rows)
        own = {
            "phases": phases,
            "phase_bits": phases.bit_length() - 1,
            # Columns at either end of A where a vector over the end of a column may lie outside.
            "end_columns": min(cols, ceil_div(width - 1, step) if step else cols),
        }
        return split_evenly(problem, tiles, block, columns, blocks // tiles, own)

    return geometry_of


def geometry(problem, device, knobs):
    return prepared(problem, device, knobs)(problem)


def tile(knobs):
    pieces, _, threads = block_of(knobs, 4, 4)
    return own_rows(knobs["LANES"], pieces, 4), threads // knobs["LANES"] * knobs["COLUMNS"]


def work(problem, geometry, knobs):
    size, width = problem.dtype.itemsize, LOAD_BYTES // problem.dtype.itemsize
    lanes, columns = knobs["LANES"], knobs["COLUMNS"]
    pieces, unit, threads = block_of(knobs, width, problem.precision.sums.itemsize)
    tiles, splits, _ = geometry.launches[0].grid
    groups, units, read_rows = threads // lanes, threads // unit, lanes * pieces * width
    tile_rows = own_rows(lanes, pieces, width)
    first, last = columns_of_splits(problem, geometry)
    passes = loads = products = 0
    for split in (0, max(splits - 2, 0), splits - 1):  # others have no columns at the ends of A
        begin = split * first
        own = last if split == splits - 1 else first
        front = min(max(geometry.sizes["end_columns"] - begin, 0), own)
        inside = min(max(problem.cols - geometry.sizes["end_columns"] - begin, 0), own)
        for group in (0, min(front, groups - 1), inside % groups):  # one of them has the most
            found = passes_of_group(own, front, inside, group, groups, columns)
            passes = max(passes, found[0])
            loads = max(loads, pieces * (found[1] + width * found[3]))
            products = max(products, pieces * width * (found[2] + found[3]))
    if width > 1:  # two tiles share a vector, and whichever half of a sector that is, the sector
        nbytes = bytes_of_lines(problem) + (tiles - 1) * problem.cols * SECTOR_BYTES
    else:
        nbytes = bytes_of_lines(problem, tiles - 1, tile_rows * size)
    finishers = finishers_of_columns(threads, read_rows)
    return work_of(
        problem,
        geometry,
        bytes=nbytes,
        passes=passes,
        flight=pieces * columns * LOAD_BYTES,
        loads=loads,
        x_loads=ceil_div(first, groups),
        products=products,
        busy_threads=tiles * lanes * ((splits - 1) * min(groups, first) + min(groups, last)),
        warp_lines=lines_of_warp(problem, threads, lanes, LOAD_BYTES, geometry.sizes["phases"]),
        end_steps=steps_of_tree(32 // min(lanes, 32)) + 1 + ceil_div(tile_rows, threads) * units,
        collects=ceil_div(min(tile_rows, problem.rows), threads)
        * rounds_of_finishers(splits, finishers, BATCH),
        sums_shared=max(units, finishers) * (read_rows + width),
    )


def passes_of_group(own, front, inside, group, groups, columns):
    """Passes, columns by vectors, the same with zeros, and columns by elements of a group.

    Its split has `own` columns: those before `front`, and from `inside` on, are at the ends of A.
    """
    before = ceil_div(max(front - group, 0), groups)
    done = ceil_div(front, groups) * groups
    full = max(inside - done, 0) // (groups * columns)
    at = group + (before + full * columns) * groups
    rest = ceil_div(max(inside - at, 0), groups)
    behind = ceil_div(max(own - at - rest * groups, 0), groups)
    turns = full + ceil_div(rest, columns)
    return before + turns + behind, full * columns + rest, turns * columns, before + behind


def depth(problem, geometry, knobs):
    lanes, width = knobs["LANES"], LOAD_BYTES // problem.dtype.itemsize
    pieces, unit, threads = block_of(knobs, width, problem.precision.sums.itemsize)
    finishers = finishers_of_columns(threads, lanes * width * pieces)
    phases, in_unit = geometry.sizes["phases"], unit // lanes

    def in_block(columns):
        # Groups count through the units of all phases before the next unit of the first.
        groups = shared_out(columns, threads // lanes).reshape(-1, in_unit, phases)
        return in_order(in_halves(groups.swapaxes(0, 1) - 1).reshape(-1))

    depths = of_splits(problem, geometry, in_block)
    if len(depths) == 1:
        return int(depths[0])
    return int(in_order(of_finishers(depths, finishers, BATCH)))


KERNEL = Kernel(
    name="phased_columns",
    rung=12,
    build=build,
    geometry=geometry,
    prepared=prepared,
    tile=tile,
    depth=depth,
    work=work,
    wide=True,
    phased=True,
    splits_apart=True,
    accepts=accepts,
    # LANES and THREADS_PER_BLOCK are powers of two; a block has at least a warp for each phase.
    knobs={
        "LANES": 32,
        "PIECES": 2,
        "COLUMNS": 4,
        "THREADS_PER_BLOCK": 256,
        "BLOCKS_PER_SM": 4,
        "MIN_BLOCKS": 2,
    },
    small_knobs={
        "LANES": 8,
        "PIECES": 2,
        "COLUMNS": 2,
        "THREADS_PER_BLOCK": 32,
        "BLOCKS_PER_SM": 4,
        "MIN_BLOCKS": 1,
    },
    doc=__doc__,
)
