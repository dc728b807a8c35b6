"""Wide loads along rows that begin anywhere: rows of the same phase belong to one block.

Idea
    A load of 16 bytes needs an address that is a multiple of 16. Rows of a view ``A[:, 1:]``, or
    rows of an odd length, do not begin at such an address. There ``vector_rows`` (rung 8) uses
    narrower loads, down to 2 bytes for float16. But a thread need not begin where the row begins.
    Every row has a multiple of 16 within its first 16 bytes, and from there on wide loads work. The
    few elements before it, and those behind the last whole vector, are loaded one by one by lanes.

    Then loads of x cost more. If the first whole vector of a row begins at column `s`, the *shift*
    of the row, it is multiplied with x from element `s` on, and x is aligned for one shift only. So
    a lane loads two vectors of x, from L1, and puts the one that it needs together from their
    bytes; if incx is not 1, it loads x element by element. To do this once for several rows, these
    rows must have the same shift. The shift follows from the address of the row modulo 16, its
    *phase*. Rows are lda elements apart, so the phase repeats after P = 16 / gcd(16, lda *
    itemsize) rows: 1, 2, 4 or 8. Rows q, q + P, q + 2P, ... have one phase, and each block takes
    its rows from one phase.

Picture
    ::

        float32, 9 columns, lda 9: 4 phases, | is a multiple of 16 bytes

        row 0     |0 1 2 3|4 5 6 7|8              shift 0     blocks of phase 0: rows 0, 4, 8, ...
        row 1      0 1 2|3 4 5 6|7 8              shift 3     blocks of phase 1: rows 1, 5, 9, ...
        row 2      0 1|2 3 4 5|6 7 8              shift 2     ...
        row 3      0|1 2 3 4|5 6 7 8|             shift 1
        row 4     |0 1 2 3|4 5 6 7|8              shift 0     phase 0 again

        whole vectors: one load each; columns 0 1 2 and 7 8 of row 1: one lane each

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory. Of x, up to 2*m*n/ROWS
    elements are loaded, from L1 or L2. Nothing of A outside of a row is read.

Wins
    Long rows that do not begin at multiples of 16 bytes: an odd lda, and views without the first
    columns. The smaller the elements, the more it gains.

Loses
    To ``vector_rows`` where all rows are aligned: it needs one load for a vector of x, and this
    rung needs two. In rows of a few vectors most of the time goes to the elements at both ends.

Sums
    As in ``vector_rows``, each split of a row separately. Element k of a lane's vectors goes to
    partial sum k. Then come the elements before the first and behind the last whole vector, a
    pairwise sum in the lane, a butterfly over the lanes, the warps in order, and the splits. The
    order is fixed by shape, the addresses of rows modulo 16 bytes, the machine's file (the
    constants for a GPU, ``docs/machine.md``) and the number of multiprocessors. Same bits on every
    run.

Source
    Copying loops load elements one by one up to a boundary, and vectors from there on, in the same
    way. That rows at fixed distances share their phase is arithmetic modulo 16.
"""

from math import gcd

import numpy as np

from gemv.core.geometry import LOAD_BYTES, MAX_GRID_X, ceil_div
from gemv.core.problem import phases_of
from gemv.kernels.depths import in_halves, in_order, of_finishers, of_splits, shared_out
from gemv.kernels.grids import split_evenly
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.wide_tiles import finish_warps
from gemv.kernels.work import (
    bytes_of_lines,
    columns_of_splits,
    lines_of_warp,
    rounds_of_warps,
    steps_of_tree,
    work_of,
)

#: Partial sums that a thread of the last block asks for at a time; a power of two.
BATCH = 4


def build(spec):
    from gemv.language import (
        atomic_inc,
        butterfly,
        cuda,
        elements_past,
        fold,
        gather,
        gather_some,
        is_aligned,
        load_shifted,
        multiply_add,
        natural,
        post,
        quotient,
        rounded_down,
        row_starts,
        stream_some,
        stream_tile,
        take,
        update_streaming,
        zeros,
    )

    number, zero = spec.number, spec.zero
    CONJUGATE = int(spec.conj)
    WIDTH, SIZE = spec.widths[0], spec.dtype.itemsize
    LANES, ROWS, VECTORS = spec["LANES"], spec["ROWS"], spec["VECTORS"]
    THREADS = max(LANES, spec["THREADS_PER_BLOCK"])
    GROUPS = THREADS // LANES
    TILE_ROWS = GROUPS * ROWS
    TURNS = ceil_div(TILE_ROWS, THREADS)  # until each row of the tile had a thread
    WARP_LANES = min(LANES, 32)
    WARPS_PER_ROW = LANES // WARP_LANES
    WARPS = max(THREADS // 32, 1)
    STEP = LANES * WIDTH
    PASS = VECTORS * STEP
    # Elements at either end of a split that a lane may have to take one by one.
    ENDS = ceil_div(WIDTH - 1, LANES)
    SPLIT = spec["BLOCKS_PER_SM"] > 0  # else no code for splits has to be fetched
    # Warps, and threads, that share a row when the last block adds the splits.
    FINISH_WARPS = finish_warps(LANES, ROWS, THREADS)
    FINISHERS = 32 * FINISH_WARPS
    # Indices into tuples of ROWS numbers: constants, and inside the tuple even where it is shorter.
    SECOND, THIRD, FOURTH = (min(k, ROWS - 1) for k in (1, 2, 3))
    SUMS = ROWS * WIDTH

    def phased_rows(
        rows, cols, cols_per_split, splits, phases, phase_bits, alpha, a, row_stride, x, incx,
        beta, y, incy, scratch, counters,
    ):  # fmt: skip
        sums = cuda.shared.array((TILE_ROWS, WARPS_PER_ROW), number)
        parts = cuda.shared.array(WARPS, number)
        ticket = cuda.shared.array(1, np.uint32)
        tid = natural(cuda.threadIdx.x)
        lane = tid % LANES
        group = tid // LANES
        # Of the rows phase, phase + phases, ... this block has those from number `first` on.
        phase = cuda.blockIdx.x & (phases - 1)
        first = (cuda.blockIdx.x >> phase_bits) * TILE_ROWS
        count = (rows - phase + phases - 1) >> phase_bits
        if first >= count:
            return  # as do all splits of this tile, so no block waits for their sums
        split = cuda.blockIdx.y
        begin = split * cols_per_split if SPLIT else 0
        end = min(cols, begin + cols_per_split) if SPLIT else cols
        if alpha == 0:
            end = begin
        drawn = np.uint32(0)
        if SPLIT and splits > 1 and tid == 0:
            drawn = atomic_inc(counters, cuda.blockIdx.x, splits - 1)  # not waited for here
        start = phase * row_stride
        starts = row_starts(first + group, GROUPS, count - 1, phases * row_stride, ROWS)
        total = zeros(zero, SUMS)
        # Splits begin whole vectors apart, so this is the shift of all of them.
        body = begin + natural(WIDTH - elements_past(a, start, LOAD_BYTES)) % WIDTH
        j = body + lane * WIDTH
        # Passes in which every lane has all of its vectors.
        limit = j + rounded_down(end - body, PASS)
        if incx == 1 and is_aligned(x, SIZE):
            # Up to a vector beyond those of a pass is read, which must be x as well. What lies
            # before x[0] shares 16 bytes with it.
            shift = elements_past(x, body, LOAD_BYTES)
            whole = min(limit, j + rounded_down(cols - WIDTH - body, PASS))
            while j < whole:
                values = stream_tile(a, starts, start + j, STEP, VECTORS, WIDTH)
                factors = load_shifted(x, j, STEP, VECTORS, WIDTH, shift)
                total = multiply_add(total, values, factors, CONJUGATE)
                j += PASS
        while j + PASS <= limit:
            values = stream_tile(a, starts, start + j, STEP, VECTORS, WIDTH)
            total = multiply_add(total, values, gather(x, j, STEP, VECTORS, incx, WIDTH), CONJUGATE)
            j += PASS
        # The remaining vectors and the elements at both ends are loaded together, too.
        rest = quotient(end - WIDTH - j, STEP) + 1
        values = stream_some(a, starts, start + j, STEP, VECTORS, WIDTH, rest)
        factors = gather_some(x, j, STEP, VECTORS, incx, WIDTH, rest)
        if WIDTH > 1:
            j = begin + lane
            mine = quotient(min(body, end) - j + LANES - 1, LANES)
            before = stream_some(a, starts, start + j, LANES, ENDS, 1, mine)
            x_before = gather_some(x, j, LANES, ENDS, incx, 1, mine)
            j = body + rounded_down(max(end - body, 0), WIDTH) + lane
            mine = quotient(end - j + LANES - 1, LANES)
            behind = stream_some(a, starts, start + j, LANES, ENDS, 1, mine)
            x_behind = gather_some(x, j, LANES, ENDS, incx, 1, mine)
        total = multiply_add(total, values, factors, CONJUGATE)
        if WIDTH > 1:
            total = multiply_add(total, before, x_before, CONJUGATE)
            total = multiply_add(total, behind, x_behind, CONJUGATE)
        row_sums = butterfly(fold(total, ROWS), WARP_LANES, 1)
        # The whole row is in this warp: no barrier is needed.
        if WARPS_PER_ROW == 1 and (not SPLIT or splits == 1):
            if lane == 0:
                k = first + group
                i = phase + phases * k
                step = phases * GROUPS
                if k < count:
                    update_streaming(alpha, row_sums[0], beta, y, i * incy)
                if ROWS > 1 and k + GROUPS < count:
                    update_streaming(alpha, row_sums[SECOND], beta, y, (i + step) * incy)
                if ROWS > 2 and k + 2 * GROUPS < count:
                    update_streaming(alpha, row_sums[THIRD], beta, y, (i + 2 * step) * incy)
                if ROWS > 3 and k + 3 * GROUPS < count:
                    update_streaming(alpha, row_sums[FOURTH], beta, y, (i + 3 * step) * incy)
            return
        if lane % WARP_LANES == 0:
            warp = lane // WARP_LANES
            sums[group, warp] = row_sums[0]
            if ROWS > 1:
                sums[GROUPS + group, warp] = row_sums[SECOND]
            if ROWS > 2:
                sums[2 * GROUPS + group, warp] = row_sums[THIRD]
            if ROWS > 3:
                sums[3 * GROUPS + group, warp] = row_sums[FOURTH]
        if SPLIT and splits > 1 and tid == 0:
            ticket[0] = drawn
        cuda.syncthreads()  # all sums are in place
        r = tid
        while r < TILE_ROWS:
            if first + r < count:
                i = phase + phases * (first + r)
                row_sum = sums[r, 0]
                for warp in range(1, WARPS_PER_ROW):
                    row_sum += sums[r, warp]
                if not SPLIT or splits == 1:
                    update_streaming(alpha, row_sum, beta, y, i * incy)
                else:
                    post(scratch, split * rows + i, row_sum)
            r = r + THREADS if TURNS > 1 else TILE_ROWS
        if SPLIT and splits > 1 and ticket[0] == splits - 1:
            # This block began last: all other blocks have posted their sums, or are running.
            warp = tid // 32
            for r in range(warp // FINISH_WARPS, TILE_ROWS, WARPS // FINISH_WARPS):
                i = phase + phases * (first + r)
                k = warp % FINISH_WARPS * 32 + tid % 32
                row_sum = zero
                while k < splits and first + r < count:
                    rest = quotient(splits - 1 - k, FINISHERS) + 1
                    several = take(zero, scratch, k * rows + i, FINISHERS * rows, BATCH, rest)
                    row_sum += fold(several, 1)[0]
                    k += BATCH * FINISHERS
                (row_sum,) = butterfly((row_sum,), 32, 1)
                if tid % 32 == 0:
                    if FINISH_WARPS > 1:
                        parts[warp] = row_sum
                    elif first + r < count:
                        update_streaming(alpha, row_sum, beta, y, i * incy)
            if FINISH_WARPS > 1:
                cuda.syncthreads()  # all threads of the block are here: ticket is shared
                if tid < TILE_ROWS and first + tid < count:
                    row_sum = parts[tid * FINISH_WARPS]
                    for warp in range(1, FINISH_WARPS):
                        row_sum += parts[tid * FINISH_WARPS + warp]
                    i = phase + phases * (first + tid)
                    update_streaming(alpha, row_sum, beta, y, i * incy)

    return (attach(phased_rows, launch_bounds=(THREADS, spec.min_blocks)),)


def accepts(problem):
    return wide_loads_object(problem, "dot", MAX_GRID_X - LOAD_BYTES)


def prepared(problem, device, knobs):
    lanes, rows = knobs["LANES"], knobs["ROWS"]
    threads = max(lanes, knobs["THREADS_PER_BLOCK"])
    if not 1 <= rows <= 4 or lanes & (lanes - 1) or threads & (threads - 1) or threads < 32:
        raise ValueError(
            f"phased_rows: ROWS must be 1 to 4, got {rows}, and LANES and THREADS_PER_BLOCK powers"
            f" of two, whole warps together, got {lanes} and {threads}"
        )
    if knobs["VECTORS"] < 1:
        raise ValueError(f"phased_rows: VECTORS must be 1 or more, got {knobs['VECTORS']}")
    tile_rows, block = threads // lanes * rows, (threads, 1, 1)
    # One pass of a group; a split is a whole number of them, so that all begin at one phase.
    itemsize = problem.dtype.itemsize
    step = lanes * LOAD_BYTES // itemsize * knobs["VECTORS"]
    blocks = device.multiprocessors * knobs["BLOCKS_PER_SM"]

    def geometry_of(problem):
        phases = phases_of(problem.rows, problem.row_stride * itemsize)
        tiles = phases * ceil_div(ceil_div(problem.rows, phases), tile_rows)
        own = {"phases": phases, "phase_bits": phases.bit_length() - 1}
        return split_evenly(problem, tiles, block, step, ceil_div(blocks, tiles), own)

    return geometry_of


def geometry(problem, device, knobs):
    return prepared(problem, device, knobs)(problem)


def repeats(problem, knobs):
    blocks, rows = problem.phases, problem.phases * tile(knobs)[0]
    # A few rows have fewer phases than P. A may move by multiples of 16 bytes only.
    apart = rows * problem.row_stride * problem.dtype.itemsize
    again = LOAD_BYTES // gcd(LOAD_BYTES, apart)
    return again * blocks, again * rows


def tile(knobs):
    threads = max(knobs["LANES"], knobs["THREADS_PER_BLOCK"])
    return threads // knobs["LANES"] * knobs["ROWS"], 4 * knobs["LANES"]


def work(problem, geometry, knobs):
    size, width = problem.dtype.itemsize, LOAD_BYTES // problem.dtype.itemsize
    lanes, rows, vectors = knobs["LANES"], knobs["ROWS"], knobs["VECTORS"]
    (_, splits, _), (threads, _, _), _ = geometry.launches[0]
    warps, warps_per_row, groups = threads // 32, ceil_div(lanes, 32), threads // lanes
    in_pass, tile_rows = vectors * lanes * width, threads // lanes * rows
    shifted = problem.incx == 1 and not 0 < problem.x_alignment < size
    first, last = columns_of_splits(problem, geometry)
    passes = loads = x_loads = full = busy_first = busy_last = 0
    for head in problem.heads:
        # Behind the split before the last are the columns of the last one, which may be few.
        for columns, behind_it in ((first, last), (last, 0)):
            before = min(head, columns)
            body = columns - before
            whole, behind = body // width, body % width
            # The first lane has the most.
            own = ceil_div(whole, lanes)
            ends = ceil_div(before, lanes) + ceil_div(behind, lanes)
            pairs = max(min(body, body + behind_it - width), 0) // in_pass * vectors * shifted
            full = max(full, body // in_pass)
            passes = max(passes, body // in_pass + min(before + body % in_pass, 1))
            loads = max(loads, rows * (own + ends))
            # A vector of x is aligned, or put together from two.
            of_pair = 1 if width == 1 or (head == 0 and problem.x_alignment == LOAD_BYTES) else 2
            x_loads = max(x_loads, of_pair * pairs + (own - pairs) * width + ends)
            busy = min(lanes, max(whole, before, behind))
            if behind_it:
                busy_first = max(busy_first, busy)
            else:
                busy_last = max(busy_last, busy)
    # Some phases have a row less than others, and then perhaps a block less.
    phases = geometry.sizes["phases"]
    each, more = problem.rows // phases, problem.rows % phases
    tiles = more * ceil_div(each + 1, tile_rows) + (phases - more) * ceil_div(each, tile_rows)
    rows_of_tile = min(tile_rows, ceil_div(problem.rows, phases))
    in_shared = warps_per_row > 1 or splits > 1
    return work_of(
        problem,
        geometry,
        bytes=bytes_of_lines(problem, splits - 1, first * size),
        passes=passes,
        flight=rows * vectors * LOAD_BYTES,
        loads=loads,
        x_loads=x_loads,
        # What is left and both ends are added in any case, if only zeros.
        products=rows * ((full + 1) * vectors * width + 2 * ceil_div(width - 1, lanes)),
        busy_threads=tiles * groups * ((splits - 1) * busy_first + busy_last),
        warp_lines=lines_of_warp(problem, threads, lanes, LOAD_BYTES, phases),
        end_steps=steps_of_tree(min(lanes, 32))
        + in_shared * (1 + ceil_div(tile_rows, threads) * warps_per_row),
        collects=rounds_of_warps(rows_of_tile, tile_rows, warps, splits, BATCH),
        sums_shared=tile_rows * warps_per_row + warps,
    )


def depth(problem, geometry, knobs):
    lanes, width = knobs["LANES"], LOAD_BYTES // problem.dtype.itemsize
    threads, rows = max(lanes, knobs["THREADS_PER_BLOCK"]), knobs["ROWS"]
    sharing = finish_warps(lanes, rows, threads)

    def of_lanes(depths):
        return in_order(in_halves(depths.reshape(-1, min(len(depths), 32)).T))

    def in_block(columns, head):
        head = min(head, columns)
        vectors, behind = divmod(columns - head, width)
        products = np.repeat([shared_out(vectors, lanes)], width, axis=0)
        for end in (head, behind):  # element k of an end is number k // LANES of its lane
            turns, last = divmod(end, lanes)
            products[:turns] += 1
            products[turns, :last] += 1
        return of_lanes(in_halves(products - 1))

    def in_row(head):
        depths = of_splits(problem, geometry, lambda columns: in_block(columns, head))
        if len(depths) == 1:
            return int(depths[0])
        return int(of_lanes(of_finishers(depths, 32 * sharing, BATCH)))

    return max(map(in_row, problem.heads))


KERNEL = Kernel(
    name="phased_rows",
    rung=11,
    build=build,
    geometry=geometry,
    prepared=prepared,
    tile=tile,
    repeats=repeats,
    depth=depth,
    work=work,
    wide=True,
    phased=True,
    splits_apart=True,
    accepts=accepts,
    # LANES and THREADS_PER_BLOCK are powers of two.
    knobs={
        "LANES": 32,
        "ROWS": 4,
        "VECTORS": 2,
        "THREADS_PER_BLOCK": 128,
        "BLOCKS_PER_SM": 4,
        "MIN_BLOCKS": 4,
    },
    small_knobs={
        "LANES": 4,
        "ROWS": 2,
        "VECTORS": 2,
        "THREADS_PER_BLOCK": 32,
        "BLOCKS_PER_SM": 4,
        "MIN_BLOCKS": 1,
    },
    doc=__doc__,
)
