"""Many small matrices, read as one stretch of memory through shared memory.

Idea
    A matrix of 4 x 4 is 64 bytes. A warp that takes one has nothing to do, and a thread that takes
    one reads memory in steps of 64 bytes. But packed items lie side by side, and a block that takes
    many of them reads one stretch: neighbouring threads load neighbouring vectors of 16 bytes,
    whatever m and n are, and every byte that comes is used. Shared memory then hands the numbers
    out in the other order: to one thread all that belongs to its row.

    A thread has 4 vectors of A in flight, and a few numbers of x beside them. With 8 KB a block
    and half a dozen blocks on a multiprocessor that is more than the 40 KB that the memory's
    latency asks for, and while one block adds up, the others load.

    From 1024 items on, asynchronous copies bring A to shared memory as it is in memory: numbers of
    2 bytes always, others from 64 MB on. They take no registers, no stores, and no conversion of
    numbers that may be 2 bytes there instead of 4. So a dozen blocks are on a multiprocessor. The
    lines of A then lie as close as in memory; only where neighbouring threads would read rows that
    begin in the same banks, 16 bytes are left free after each 128. Rows of 64 bytes or more that
    are whole vectors are loaded as before, which takes 2 to 5 % less time on an NVIDIA H100.

    Instructions are the limit as often as memory is, above all with numbers of 2 bytes. So a thread
    loads no more numbers of x than its block has for it, takes four steps of a sum at a time, and
    adds up two shares of a row where there are rows enough. For 1024 items or more there is code
    for their number of columns: it has no loop, and reads up to four numbers of x at a time. With
    copies, x without gaps comes in vectors of 16 bytes where that saves loads, and for y without
    gaps no place of an item is computed.

    Shared memory has 32 banks of 4 bytes. Eight threads that read 16 bytes each need eight
    different groups of 4 banks, but rows of 32 float32 all begin in the same group. So rows lie an
    odd number of vectors apart where that is needed, by a gap of one vector; columns, of which
    neighbouring threads read neighbouring vectors anyway, get a gap at the end of an item.

    Where lines or items have gaps, up to a third of the memory, the block reads the stretch with
    its gaps, which costs less than to tell lines apart. Shared memory holds what memory does, and
    threads pick their numbers one by one. Wider gaps are left out, line by line.

    Vectors are of whole 16 bytes, wherever a block's part begins. Those of two blocks overlap, but
    nothing is read before the first element of the batch or behind its last.

    The order of a sum is given by m, n, the dtype and whether memory runs along the rows. How the
    numbers came to shared memory, by vectors of the whole stretch, by vectors of a line, or one by
    one where addresses or strides are odd, does not enter it, and neither does the number of items.

Picture
    ::

        items of 2 x 8 float32, 16 bytes are 4 columns          gap after each row: 8/4 is even

        memory   | i0 r0 . | i0 r1 . | i1 r0 . | i1 r1 . |     T0 T1 T2 ... load 16 bytes each
        shared   | i0 r0 . _ | i0 r1 . _ | i1 r0 . _ | ...     T0 adds up row 0 of item 0,
                                                               T1 row 1, T2 row 0 of item 1, ...

Bytes
    items * (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize. What items share, a matrix or a
    vector with a stride of 0, comes from the caches after its first time.

Wins
    Batches of matrices up to 32 x 32.

Loses
    To reading the rows of a larger matrix straight into registers: here every number goes through
    shared memory.

Sums
    Along the rows: partial sum k over the columns j with j % U == k, in order, where U is the
    number of columns in 16 bytes of sums if they divide n, else 1; then pairwise. Down the columns:
    one sum over the columns in order. From 16 steps on, 2 or 4 lanes take every second or fourth
    step, and a butterfly adds them up (:mod:`gemv.kernels.small_sums`). A thread that has a row for
    itself adds up the same sums in the same order. Same bits on every run, for each item of each
    batch, and for the product alone.

Source
    Padding of rows in shared memory against bank conflicts: M. Harris, "An efficient matrix
    transpose in CUDA". A block of threads for several tiny matrices: A. Haidar et al., "Batched
    matrix computations on hardware accelerators based on GPUs" (2015), with a thread for each row.
    Asynchronous copies: the chapter on them in NVIDIA's "CUDA C++ Programming Guide".
"""

from __future__ import annotations

import inspect
from math import gcd

import numpy as np

from gemv.core.geometry import LOAD_BYTES, MAX_GRID_X, ceil_div, one_launch
from gemv.kernels.kernel import Kernel, attach
from gemv.kernels.list_words import words_in_order, words_of_rows
from gemv.kernels.several import ONE, steps_of
from gemv.kernels.small_sums import MOST, depth_of, order_of, unit_of
from gemv.kernels.staging import COPIES, line_copier

#: Vectors of A that a thread has in flight; the code below has so many names.
VECTORS = 4
#: Numbers of x that a thread has in flight: more where a vector of A has eight numbers.
USUAL_X_LOADS, NARROW_X_LOADS = 4, 8
#: Bytes of shared memory for A, x and y. Copies of A take a multiple of 16 bytes more: what lies
#: before the first element in its vector, and a gap after each :data:`BANKS_BYTES`.
TILE_BYTES, X_BYTES, Y_BYTES = 20 * 1024, 8 * 1024, 4 * 1024
COPIED_BYTES, COPIED_X_BYTES, COPIED_Y_BYTES = 8 * 1024, 6 * 1024, 2 * 1024
#: Bytes of a row of whole vectors from which on loads are faster than copies; blocks of a
#: multiprocessor with copies.
LOADED_ROW, COPYING_BLOCKS = 64, 12
#: Bytes of all banks of shared memory together.
BANKS_BYTES = 128
#: Items of a batch from which on there are blocks enough, so that they may be larger ones, and code
#: for their very number of columns pays. Copies of A pay with 2-byte numbers, and with others from
#: so many bytes on.
MANY, MANY_BYTES = 1024, 1 << 26
#: A quotient by a constant is a product with a number of so many bits behind the point: one of 32
#: bits, also for a quotient by 1.
SHIFT = 31


def inverse(divisor):
    """A number by which :data:`SHIFT` bits further a quotient comes: of numbers below 2**20."""
    return (1 << SHIFT) // max(divisor, 1) + 1


def x_loads(width):
    """Numbers of x that a thread loads, beside vectors of `width` elements."""
    return NARROW_X_LOADS if width == 8 else USUAL_X_LOADS


def build(spec):
    from gemv.language import (
        axpy_add,
        butterfly,
        conjugated,
        copies_commit,
        copies_wait,
        cuda,
        device,
        elements_past,
        fold,
        fold_pieces,
        inlined,
        is_aligned,
        load_back,
        load_units,
        moved,
        multiply_add,
        natural,
        put_unit,
        read_only_load,
        rolled,
        short,
        staged_tile,
        store_vectors,
        stream_some,
        stream_tile,
        unrolled,
        update_streaming,
        zeros,
    )

    number, zero = spec.number, spec.zero
    size = spec.precision.sums.itemsize
    CONJUGATE = int(spec.conj)
    CONJUGATE_X = spec.conjugate_x
    DOWN = spec["DOWN"] > 0
    COLS, COPIED = spec["COLS"], spec["COPIED"] > 0
    # Whether shared memory holds A as memory does, its gaps included.
    GAPS, PADDED = as_memory(spec), spec["GAPS"] > 1 or spec["COPIED"] > 2
    THREADS, SHARES, OWN = spec["THREADS_PER_BLOCK"], spec["SHARES"], spec["OWN_SHARES"]
    LANES = SHARES // OWN  # threads that add up a row together
    WIDTH = LOAD_BYTES // spec.dtype.itemsize  # elements of a load
    PART = unit_of(spec.precision)  # of them, as many as fill 16 bytes of shared memory
    # Whether a line is a whole number of these, and is one in shared memory as well.
    WHOLE = spec["WHOLE"] > 0 and not GAPS
    X_LOADS, ITEMSIZE = spec["X_LOADS"], spec.dtype.itemsize
    # Numbers that a thread reads from shared memory at a time, or one by one where that may not be.
    # A sum down the columns is the same whoever has the rows beside it.
    ALONE = GAPS and spec["COPIED"] < 2
    UNIT = PART if spec["WHOLE"] > 0 and not (ALONE and DOWN) else 1
    GROUPED = DOWN and spec["WHOLE"] > 0 and not ALONE  # neighbouring rows belong to a thread
    SEGMENT = (BANKS_BYTES // (ITEMSIZE if COPIED else size)).bit_length() - 1
    PAD = WIDTH if COPIED else 1  # elements that are left free after each segment
    XS, YS = (nbytes // size for nbytes in bytes_of_vectors(spec))
    TILE, KIND = (pool_bytes(spec), np.uint8) if COPIED else (TILE_BYTES // size, number)
    NOWHERE = TILE - WIDTH  # vectors that do not exist are stored here
    NEXT_X = LANES * (1 if DOWN else UNIT)  # from the numbers of x for a step to the next one's
    X_IN_VECTORS = in_vectors_of_x(spec.precision, spec)
    # Whether vectors of x are loaded, and whether shared memory has items' numbers side by side.
    X_VECTORS, X_CLOSE = spec["X_VECTORS"] > 0, X_IN_VECTORS and COLS % PART == 0
    Y_PACKED = spec["Y_PACKED"] > 0
    # Whether sums go through shared memory, so that neighbouring threads store neighbours of y.
    THROUGH_SHARED = GROUPED and not Y_PACKED
    Y_BYTES_OF_UNIT = UNIT * spec.precision.y.itemsize
    scaled_all, blended_all, update_all = unrolled(1, UNIT)
    APART = 32 // LANES  # lanes of a warp that have rows of their own
    AT_ONCE = THREADS // LANES
    FACTORS = [home == "pointer" for home in spec.homes]
    ALPHAS, BETAS = FACTORS

    @device
    def divided(value, by):
        """``value // divisor``, from the inverse of the divisor."""
        return short((short(value) * short(by)) >> SHIFT)

    @device
    def place(e, over_period, gap):
        """Where element `e` of the stretch is in shared memory."""
        if PADDED:
            return short(e + (e >> SEGMENT) * PAD)
        if WHOLE:
            return short(e + divided(e, over_period) * gap)
        return e

    @device
    def one(tile, a, at):
        if COPIED:
            return staged_tile(tile, a, (place(at, 0, 0),), 0, 0, 1, 1)
        return load_units(tile, place(at, 0, 0), 1)

    @device
    def two(tile, a, at):
        return one(tile, a, at) + one(tile, a, at + 1)

    @device
    def four(tile, a, at):
        return two(tile, a, at) + two(tile, a, at + 2)

    @device
    def together(tile, a, at):
        if COPIED:
            return staged_tile(tile, a, (place(at, 0, 0),), 0, 0, 1, UNIT)
        return load_units(tile, at, UNIT)

    # The numbers of a thread, which the stretch has from element `at` on.
    numbers = {1: one, 2: two, 4: four}[UNIT] if ALONE else together

    @device
    def spread(e):
        return place(e, 0, 0)

    copy_lines = line_copier(spec, THREADS, spread)

    @device
    def place_of_x(e, over_cols, further):
        return short(e + divided(e, over_cols) * further)

    @device
    def put_x(xs, e, values, over_cols, further):
        """Store a vector of x, whose numbers may belong to several items."""
        if X_CLOSE:
            put_unit(xs, e, values, 0, PART)
            if WIDTH > PART:
                put_unit(xs, e + PART, values, PART, PART)
            return
        put_unit(xs, place_of_x(e, over_cols, further), values, 0, 1)
        if WIDTH > 1:
            put_unit(xs, place_of_x(e + 1, over_cols, further), values, 1, 1)
        if WIDTH > 2:
            put_unit(xs, place_of_x(e + 2, over_cols, further), values, 2, 1)
            put_unit(xs, place_of_x(e + 3, over_cols, further), values, 3, 1)
        if WIDTH > 4:
            put_unit(xs, place_of_x(e + 4, over_cols, further), values, 4, 1)
            put_unit(xs, place_of_x(e + 5, over_cols, further), values, 5, 1)
            put_unit(xs, place_of_x(e + 6, over_cols, further), values, 6, 1)
            put_unit(xs, place_of_x(e + 7, over_cols, further), values, 7, 1)

    @device
    def put(tile, e, values, there, over_period, gap):
        """Store a vector of A."""
        at = place(e, over_period, gap) if there else NOWHERE
        if PADDED:  # neighbours are neighbours, but do not begin at a multiple of 16 bytes
            put_unit(tile, at, values, 0, 1)
            if WIDTH > 1:
                put_unit(tile, at + 1, values, 1, 1)
            if WIDTH > 2:
                put_unit(tile, at + 2, values, 2, 1)
                put_unit(tile, at + 3, values, 3, 1)
            if WIDTH > 4:
                put_unit(tile, at + 4, values, 4, 1)
                put_unit(tile, at + 5, values, 5, 1)
                put_unit(tile, at + 6, values, 6, 1)
                put_unit(tile, at + 7, values, 7, 1)
            return
        put_unit(tile, at, values, 0, PART)
        if WIDTH > PART:
            at = place(e + PART, over_period, gap) if there else NOWHERE
            put_unit(tile, at, values, PART, PART)

    @device
    def factor_of(factor, item, step):
        return read_only_load(factor, item * step)

    @device
    def itself(factor, item, step):
        return factor

    @device
    def of_step(xs, x_at):
        """The numbers of x for a step of a sum."""
        return load_units(xs, x_at, 1 if DOWN else UNIT)

    @device
    def of_four_steps(xs, x_at):
        """Those for four steps, which lie side by side if a thread takes all steps of a row."""
        if X_IN_VECTORS:
            if PART == 4:
                found = load_units(xs, x_at, 4)
            else:
                found = load_units(xs, x_at, 2) + load_units(xs, x_at + 2, 2)
            return (found[0],), (found[1],), (found[2],), (found[3],)
        return (
            of_step(xs, x_at), of_step(xs, x_at + NEXT_X),
            of_step(xs, x_at + 2 * NEXT_X), of_step(xs, x_at + 3 * NEXT_X),
        )  # fmt: skip

    @device
    def added(total, tile, a, at, factors):
        """A step of a sum."""
        if DOWN:
            return axpy_add(total, numbers(tile, a, at), factors, UNIT, CONJUGATE)
        return multiply_add(total, numbers(tile, a, at), factors, CONJUGATE)

    @device
    def all_steps(t0, t1, tile, a, at, apart, xs, x_at, share, steps):
        """The sums of every second step of a share, if the thread has two, or of all of them."""
        k = 0
        # Step k belongs to share k % SHARES. The loads of four steps wait for nothing.
        while k + 4 * LANES <= steps:
            x0, x1, x2, x3 = of_four_steps(xs, x_at)
            at1, at2, at3 = at + apart, at + 2 * apart, at + 3 * apart
            t0 = added(t0, tile, a, at, x0)
            if OWN == 1:
                t0 = added(t0, tile, a, at1, x1)
                t0 = added(t0, tile, a, at2, x2)
                t0 = added(t0, tile, a, at3, x3)
            else:
                t1 = added(t1, tile, a, at1, x1)
                t0 = added(t0, tile, a, at2, x2)
                t1 = added(t1, tile, a, at3, x3)
            if COLS > 0:
                at, x_at = at3 + apart, x_at + 4 * NEXT_X
                k += 4 * LANES
            else:
                at, x_at = short(at3 + apart), short(x_at + 4 * NEXT_X)
                k = short(k + 4 * LANES)
                rolled()
        k += share
        if k < steps:
            t0 = added(t0, tile, a, at, of_step(xs, x_at))
        if k + LANES < steps:
            if OWN > 1:
                t1 = added(t1, tile, a, at + apart, of_step(xs, x_at + NEXT_X))
            else:
                t0 = added(t0, tile, a, at + apart, of_step(xs, x_at + NEXT_X))
        if k + 2 * LANES < steps:
            t0 = added(t0, tile, a, at + 2 * apart, of_step(xs, x_at + 2 * NEXT_X))
        if LANES > 1 and k + 3 * LANES < steps:
            if OWN > 1:
                t1 = added(t1, tile, a, at + 3 * apart, of_step(xs, x_at + 3 * NEXT_X))
            else:
                t0 = added(t0, tile, a, at + 3 * apart, of_step(xs, x_at + 3 * NEXT_X))
        return t0, t1

    @device
    def of_units(total):
        """The sum of a share, or sums of neighbouring rows."""
        return total if DOWN else fold(total, 1)

    @device
    def of_shares(t0, t1):
        """The sum of the shares that a thread has."""
        if OWN == 1:
            return of_units(t0)
        return fold_pieces(of_units(t0) + of_units(t1), UNIT if DOWN else 1)

    @device
    def update_group(alpha, totals, beta, y, at):
        """Update neighbours of a y without gaps, as a vector where its address allows that."""
        if not is_aligned(y, Y_BYTES_OF_UNIT):
            update_all(alpha, totals, beta, y, at, 0, at + UNIT, 1)
        elif beta == 0:
            store_vectors(y, at, 0, scaled_all(alpha, totals), UNIT)
        else:
            olds = load_back(y, at, 0, 1, UNIT)
            store_vectors(y, at, 0, blended_all(alpha, totals, beta, olds), UNIT)

    alpha_of = factor_of if ALPHAS else itself
    beta_of = factor_of if BETAS else itself

    def small_items(
        rows, cols, items, each, reach, packed, in_vectors, a, a_step, row_stride, col_stride, x,
        x_step, incx, y, y_step, incy, alpha, alpha_step, beta, beta_step, gap, x_pitch,
        over_period, over_size, over_line, over_cols, over_rows, over_groups,
    ):  # fmt: skip
        tile = cuda.shared.array(TILE, KIND, alignment=16)
        xs = cuda.shared.array(XS, number, alignment=16)
        ys = cuda.shared.array(YS if THROUGH_SHARED else PART, number, alignment=16)
        tid = natural(cuda.threadIdx.x)
        rows, cols, each = short(rows), COLS if COLS > 0 else short(cols), short(each)
        lane = tid % 32
        first = natural(cuda.blockIdx.x) * each
        here = short(min(each, items - first))
        line = rows if DOWN else cols
        line_step = col_stride if DOWN else row_stride
        along_step = row_stride if DOWN else col_stride
        size = short(rows * cols)
        count = short(here * size)  # elements of A in this block
        needed = True if ALPHAS else alpha != 0
        shift = 0
        if needed:
            # Numbers of x are asked for before A, and stored when A has come.
            own_x = moved(x, first * x_step)
            if CONJUGATE_X:
                own_x = conjugated(own_x)
            x_count = short(here * cols)
            further = short(x_pitch - cols)
            x_skip = x_step - cols * incx  # from the end of an item's numbers to the next item's
            if not X_VECTORS:
                # Behind the last number that number again, so that all loads go out at once.
                last = x_count - 1
                e0 = short(min(tid, last))
                i0 = divided(e0, over_cols)
                p0 = short(e0 + i0 * further)  # where it is in shared memory
                x0 = own_x[e0 * incx + i0 * x_skip]
                if X_LOADS > 1:
                    e1 = short(min(tid + THREADS, last))
                    i1 = divided(e1, over_cols)
                    p1 = short(e1 + i1 * further)
                    x1 = own_x[e1 * incx + i1 * x_skip]
                if X_LOADS > 2:
                    e2, e3 = (
                        short(min(tid + 2 * THREADS, last)),
                        short(min(tid + 3 * THREADS, last)),
                    )
                    i2, i3 = divided(e2, over_cols), divided(e3, over_cols)
                    p2, p3 = short(e2 + i2 * further), short(e3 + i3 * further)
                    x2 = own_x[e2 * incx + i2 * x_skip]
                    x3 = own_x[e3 * incx + i3 * x_skip]
                if X_LOADS > 4:
                    e4, e5 = (
                        short(min(tid + 4 * THREADS, last)),
                        short(min(tid + 5 * THREADS, last)),
                    )
                    e6, e7 = (
                        short(min(tid + 6 * THREADS, last)),
                        short(min(tid + 7 * THREADS, last)),
                    )
                    i4, i5 = divided(e4, over_cols), divided(e5, over_cols)
                    i6, i7 = divided(e6, over_cols), divided(e7, over_cols)
                    p4, p5 = short(e4 + i4 * further), short(e5 + i5 * further)
                    p6, p7 = short(e6 + i6 * further), short(e7 + i7 * further)
                    x4 = own_x[e4 * incx + i4 * x_skip]
                    x5 = own_x[e5 * incx + i5 * x_skip]
                    x6 = own_x[e6 * incx + i6 * x_skip]
                    x7 = own_x[e7 * incx + i7 * x_skip]
            aligned = is_aligned(a, LOAD_BYTES)
            if COPIED:
                start = natural(first * a_step)
                shift = elements_past(a, start, LOAD_BYTES)
                length, end = (here - 1) * a_step + reach, (items - 1) * a_step + reach - start
                own = moved(a, start)
                copy_lines(tile, shift, own, 0, 1, 0, 0, length, -start, end, 0, tid, 1)
                copies_commit()
                if X_VECTORS:  # A is on its way, so nothing is lost by waiting for x here
                    left = natural(items - first) * cols  # to the end of the batch
                    x_aligned = is_aligned(x, LOAD_BYTES)
                    e = tid * WIDTH
                    while e < x_count:
                        behind = min(e + WIDTH, left)
                        if x_aligned and behind == e + WIDTH:
                            values = stream_tile(own_x, (e,), 0, 0, 1, WIDTH)
                            put_x(xs, e, values, over_cols, further)
                        else:
                            k = e
                            while k < behind:
                                xs[place_of_x(k, over_cols, further)] = own_x[k]
                                k += 1
                                rolled()
                        e += THREADS * WIDTH
                        rolled()
            elif GAPS or (packed != 0 and (aligned if WHOLE else is_aligned(a, ITEMSIZE))):
                start = natural(first * a_step)
                # Elements from the multiple of 16 bytes before the first one of the block to its
                # last one, and to the last one of all: none behind it may be read.
                shift = 0 if WHOLE else elements_past(a, start, LOAD_BYTES)
                span = (here - 1) * a_step + reach + shift
                behind = (items - first - 1) * a_step + reach + shift
                own = moved(a, start - shift)
                whole = short(min(span + WIDTH - 1, behind)) // WIDTH  # vectors
                ahead = 1 if not WHOLE and first == 0 and shift > 0 else 0
                v = ahead + tid
                while v < whole:
                    rest = whole - v
                    at, step = v * WIDTH, THREADS * WIDTH
                    a0 = stream_some(own, (at,), 0, 0, 1, WIDTH, 1)
                    a1 = stream_some(own, (at + step,), 0, 0, 1, WIDTH, rest - THREADS)
                    a2 = stream_some(own, (at + 2 * step,), 0, 0, 1, WIDTH, rest - 2 * THREADS)
                    a3 = stream_some(own, (at + 3 * step,), 0, 0, 1, WIDTH, rest - 3 * THREADS)
                    put(tile, at, a0, True, over_period, gap)
                    put(tile, at + step, a1, rest > THREADS, over_period, gap)
                    put(tile, at + 2 * step, a2, rest > 2 * THREADS, over_period, gap)
                    put(tile, at + 3 * step, a3, rest > 3 * THREADS, over_period, gap)
                    v += 4 * THREADS
                    rolled()  # most blocks need one turn only
                if tid < WIDTH:  # a part of a vector, where the batch begins and where it ends
                    if ahead > 0 and tid >= shift and tid < span:
                        tile[place(tid, over_period, gap)] = own[tid]
                    e = max(whole, ahead) * WIDTH + tid
                    if e < span:
                        tile[place(e, over_period, gap)] = own[e]
            elif aligned and in_vectors != 0:
                own = moved(a, first * a_step)
                v = tid
                while v * WIDTH < count:
                    e = v * WIDTH
                    item = divided(e, over_size)
                    e -= item * size
                    lines = divided(e, over_line)
                    at = item * a_step + lines * line_step + e - lines * line
                    values = stream_some(own, (at,), 0, 0, 1, WIDTH, 1)
                    put(tile, v * WIDTH, values, True, over_period, gap)
                    v += THREADS
                    rolled()
            else:
                own = moved(a, first * a_step)
                e = tid
                while e < count:
                    item = divided(e, over_size)
                    r = e - item * size
                    lines = divided(r, over_line)
                    at = item * a_step + lines * line_step + (r - lines * line) * along_step
                    tile[place(e, over_period, gap)] = own[at]
                    e += THREADS
            if not X_VECTORS:
                xs[p0] = x0
            if not X_VECTORS and X_LOADS > 1:
                xs[p1] = x1
            if not X_VECTORS and X_LOADS > 2:
                xs[p2], xs[p3] = x2, x3
            if not X_VECTORS and X_LOADS > 4:
                xs[p4], xs[p5], xs[p6], xs[p7] = x4, x5, x6, x7
            if COPIED:
                copies_wait(0)
            cuda.syncthreads()  # all of A and x is in place
        line = short(line)
        groups = (
            short(line // UNIT) if DOWN else rows
        )  # of an item: threads that have sums of their own
        units = 1 if DOWN else UNIT
        steps = cols // units if COLS > 0 else short(cols // units)
        # How far apart items, rows of an item, or columns are in shared memory.
        next_item = (
            a_step if GAPS else natural(size + gap) if DOWN else natural(rows * (line + gap))
        )
        next_line = line_step if GAPS else line if DOWN else line + gap
        along = next_line if DOWN else UNIT  # and steps of a sum
        apart = LANES * along
        all_groups = short(here * groups)
        own_y = moved(y, first * y_step)
        share = lane // APART if LANES > 1 else 0
        base = tid // 32 * APART
        while base < all_groups:  # the same for a whole warp, which adds up together
            base = short(base)
            g = short(base + lane % APART)
            own = short(min(g, all_groups - 1))
            item = divided(own, over_groups)
            row = short(own - item * groups)
            x_at = short(item * x_pitch + share * units)
            if DOWN:
                at = shift + item * next_item + row * UNIT + share * along
            else:
                at = shift + own * next_line + share * along
                if GAPS:
                    at += item * (next_item - rows * next_line)
            at = short(at)
            t0, t1 = zeros(zero, UNIT), zeros(zero, UNIT)
            if needed:
                t0, t1 = all_steps(t0, t1, tile, a, at, apart, xs, x_at, share, steps)
            total = butterfly(of_shares(t0, t1), 32, APART)
            if share == 0 and g < all_groups:
                if THROUGH_SHARED:
                    put_unit(ys, g * UNIT, total, 0, UNIT)
                elif GROUPED:
                    own_alpha = alpha_of(alpha, first + item, alpha_step)
                    own_beta = beta_of(beta, first + item, beta_step)
                    if ALPHAS and own_alpha == 0:
                        total = zeros(zero, UNIT)
                    update_group(own_alpha, total, own_beta, own_y, g * UNIT)
                else:
                    own_alpha = alpha_of(alpha, first + item, alpha_step)
                    own_beta = beta_of(beta, first + item, beta_step)
                    value = total[0]
                    if ALPHAS and own_alpha == 0:
                        value = zero
                    at = g if Y_PACKED else item * y_step + row * incy
                    update_streaming(own_alpha, value, own_beta, own_y, at)
            base += AT_ONCE
        if THROUGH_SHARED:
            cuda.syncthreads()  # all sums are in place, and neighbours store neighbours
            o = tid
            while o < here * rows:
                item = divided(o, over_rows)
                row = short(o - item * rows)
                own_alpha = alpha_of(alpha, first + item, alpha_step)
                own_beta = beta_of(beta, first + item, beta_step)
                value = ys[o]
                if ALPHAS and own_alpha == 0:
                    value = zero
                at = item * y_step + row * incy
                update_streaming(own_alpha, value, own_beta, own_y, at)
                o = short(o + THREADS)

    names = list(inspect.signature(small_items).parameters)
    passed = [
        f"{name}_pointer" if name in ("alpha", "beta") and FACTORS[name == "beta"] else name
        for name in names
    ]
    # As for the homes of alpha and beta, Numba takes the parameters from a def.
    scope = {"body": inlined(small_items)}
    exec(f"def small_items({', '.join(passed)}):\n    body({', '.join(passed)})\n", scope)
    return (attach(scope["small_items"], launch_bounds=(THREADS, spec["MIN_BLOCKS"])),)


def accepts(problem):
    rows, cols = problem.rows, problem.cols
    if not (0 < rows <= MOST and 0 < cols <= MOST):
        return f"{rows} rows and {cols} columns: there must be 1 to {MOST} of each"
    if problem.accumulate != "plain":
        return f"accumulate={problem.accumulate!r}: sums are plain ones here"
    return None


def constants_of(problem):
    """The constants that the shape decides, so that the order of a sum follows it alone."""
    down, _, shares = order_of(problem)
    whole = (problem.rows if down else problem.cols) % unit_of(problem.precision) == 0
    found = {"DOWN": int(down), "WHOLE": int(whole), "SHARES": shares}
    if problem.rows * problem.cols * problem.dtype.itemsize > 128 * VECTORS * LOAD_BYTES:
        found |= {"THREADS_PER_BLOCK": 256, "MIN_BLOCKS": 3}  # else all loads go out at once
    return found


def constants_of_batch(problem, batch, knobs, device):
    """The constants that the places of items decide: the same sums from the same numbers."""
    copied = 0 if device.lacks(COPIES) else _copied(problem, batch, knobs)
    if copied:
        y_packed = problem.incy == 1 and batch.of("y") == (problem.rows,)
        knobs = {
            **knobs, "COPIED": copied, "MIN_BLOCKS": COPYING_BLOCKS, "Y_PACKED": int(y_packed)
        }  # fmt: skip
    else:
        knobs = _of_gaps(problem, batch, knobs)
    larger = {**knobs, "THREADS_PER_BLOCK": 256, "MIN_BLOCKS": 3}
    if batch.items >= MANY and (knobs["THREADS_PER_BLOCK"], knobs["MIN_BLOCKS"]) == (128, 6):
        # Blocks take whole items: one of 128 threads may have loads for 1.9 of them, two for 3.8.
        few, more = (
            each["MIN_BLOCKS"] * geometry(problem, None, each, batch).sizes["each"]
            for each in (knobs, larger)
        )
        if 4 * more > 5 * few:
            knobs = larger
    if batch.items >= MANY:
        knobs = {**knobs, "COLS": problem.cols}
    threads, shares = knobs["THREADS_PER_BLOCK"], knobs["SHARES"]
    each = geometry(problem, None, knobs, batch).sizes["each"]
    # A thread with two shares of a row finds its place once for both.
    has_two = shares > 1 and each * _groups(problem, knobs) * shares > threads
    knobs = {**knobs, "OWN_SHARES": 1 + has_two}
    each = geometry(problem, None, knobs, batch).sizes["each"]
    loads = 1 << (ceil_div(each * problem.cols, threads) - 1).bit_length()
    if not knobs["COPIED"]:
        return {**knobs, "X_LOADS": loads}
    if loads > 1 and _x_in_vectors(problem, batch, each, threads):
        return {**knobs, "X_LOADS": 1, "X_VECTORS": 1}
    return {**knobs, "X_LOADS": loads}


def _x_in_vectors(problem, batch, each, threads):
    """Whether x of a block is one stretch, of which each thread loads 16 bytes or none."""
    itemsize, step = problem.dtype.itemsize, _aligned(problem)
    nbytes = problem.cols * itemsize
    # This is the alignment that x of all items has. The kernel asks for that of the first one.
    known = problem.x_alignment >= min(nbytes & -nbytes, LOAD_BYTES)
    if problem.incx != 1 or batch.of("x") != (problem.cols,) or batch.conjugate_x or not known:
        return False
    in_one_turn = each * nbytes <= threads * LOAD_BYTES
    return in_one_turn and 8 * (each % step) <= each  # blocks then have few items less


def _aligned(problem):
    """Items until x of one begins at a multiple of 16 bytes again, if they lie side by side."""
    width = LOAD_BYTES // problem.dtype.itemsize
    return width // gcd(width, problem.cols)


def in_vectors_of_x(precision, knobs):
    """Whether a thread reads the numbers of x for several steps at a time from shared memory."""
    part = unit_of(precision)
    if part == 1 or (knobs["WHOLE"] > 0 and knobs["DOWN"] == 0):
        return False
    return knobs["COLS"] > 0 and knobs["SHARES"] == knobs["OWN_SHARES"]


def _groups(problem, knobs):
    """Sums of an item, or vectors of sums, that threads have."""
    line = problem.rows
    return line // unit_of(problem.precision) if knobs["DOWN"] and _in_units(knobs) else line


def as_memory(knobs):
    """Whether shared memory holds A as memory does, its gaps included."""
    return knobs["GAPS"] > 0 or knobs["COPIED"] > 0


def _in_units(knobs):
    """Whether a thread has a unit of neighbouring rows, where memory runs down the columns."""
    return knobs["WHOLE"] > 0 and (knobs["COPIED"] > 1 or not as_memory(knobs))


def pool_bytes(knobs):
    """Bytes of shared memory for copies of A."""
    gaps = knobs["COPIED"] > 2
    return COPIED_BYTES + LOAD_BYTES + (COPIED_BYTES // BANKS_BYTES + 1) * LOAD_BYTES * gaps


def bytes_of_vectors(knobs):
    """Bytes of shared memory for x and for y."""
    return (COPIED_X_BYTES, COPIED_Y_BYTES) if knobs["COPIED"] > 0 else (X_BYTES, Y_BYTES)


def _copied(problem, batch, knobs):
    """The constant COPIED: how A comes to shared memory, and is read there.

    0 by loads; 1 by copies, and number by number; 2 by copies, and as many numbers at a time as
    fill 16 bytes of sums; 3 as 2, with 16 bytes left free after each :data:`BANKS_BYTES`.
    """
    (step,) = batch.of("a")
    line, lines, line_step, _ = _lines(problem, knobs)
    itemsize = problem.dtype.itemsize
    least = 0 if itemsize == 2 else MANY_BYTES
    if batch.items < MANY or step * batch.items * itemsize < least:
        return 0
    if not _is_stretch(problem, batch, knobs):
        return 0
    if _reach(problem, knobs) * itemsize > COPIED_BYTES:
        return 0
    if problem.a_alignment < itemsize:  # 0 where the address is not known
        return 0
    part = unit_of(problem.precision) * itemsize
    steps = gcd(line_step if lines > 1 else step, step) * itemsize
    if not knobs["WHOLE"] or steps % part or problem.a_alignment < part:
        return 1
    in_vectors = steps % LOAD_BYTES == 0 and problem.a_alignment >= LOAD_BYTES
    if knobs["DOWN"] or not in_vectors:
        return 2
    if line * itemsize >= LOADED_ROW:
        return 0
    # Neighbouring threads read neighbouring rows: from few banks if these lie even vectors apart.
    return 3 if steps % (2 * LOAD_BYTES) == 0 else 2


def _is_stretch(problem, batch, knobs):
    """Whether items are runs of lines, one behind the other, and gaps a third of it at most."""
    (step,) = batch.of("a")
    line, lines, line_step, along = _lines(problem, knobs)
    in_order = along == 1 and line_step >= line and _reach(problem, knobs) <= step
    return in_order and 2 * step <= 3 * line * lines and not problem.splits_elements


def _of_gaps(problem, batch, knobs):
    """The same constants, or those for a stretch with gaps."""
    (step,) = batch.of("a")
    line, lines, line_step, _ = _lines(problem, knobs)
    apart = line if lines > 1 else step
    least = gcd(LOAD_BYTES, gcd(apart, step) * problem.dtype.itemsize)  # if the first is aligned
    if not _is_stretch(problem, batch, knobs):
        return knobs
    packed = step == line * lines  # from addresses that the vectors of shared memory agree with
    if packed and (not knobs["WHOLE"] or problem.a_alignment % least == 0):
        return knobs
    if _most_in_gaps(problem, knobs) < 1:
        return knobs
    # Neighbouring threads read neighbouring rows: from few banks if these lie even vectors apart.
    segment = segment_of(problem.precision)
    crowded = not knobs["DOWN"] and lines > 1 and gcd(line_step, segment) > 2
    return {**knobs, "GAPS": 2 if crowded else 1}


def _lines(problem, knobs):
    """Length and number of the lines of memory, and the steps from one to the next and along."""
    if knobs["DOWN"]:
        line, lines, step, along = (
            problem.rows, problem.cols, problem.col_stride, problem.row_stride,
        )  # fmt: skip
    else:
        line, lines, step, along = (
            problem.cols, problem.rows, problem.row_stride, problem.col_stride,
        )  # fmt: skip
    return line, lines, line if lines == 1 else step, 1 if line == 1 else along


def _reach(problem, knobs):
    """Elements from the first one of an item to its last one."""
    line, lines, line_step, _ = _lines(problem, knobs)
    return (lines - 1) * line_step + line


def segment_of(precision):
    """Numbers in all banks of shared memory."""
    return BANKS_BYTES // precision.sums.itemsize


def _most_in_gaps(problem, knobs):
    """Elements of a stretch with gaps that shared memory takes, less those of the last item."""
    if knobs["COPIED"]:
        return COPIED_BYTES // problem.dtype.itemsize - _reach(problem, knobs)
    sums = problem.precision.sums.itemsize
    room = (TILE_BYTES // sums - 4 * LOAD_BYTES // problem.dtype.itemsize) * 32 // 33
    return room - _reach(problem, knobs)


def geometry(problem, device, knobs, batch=ONE):
    items, (a_step,) = batch.items, batch.of("a")
    runs_down, whole, shares = knobs["DOWN"] > 0, knobs["WHOLE"] > 0, knobs["SHARES"]
    threads, part = knobs["THREADS_PER_BLOCK"], unit_of(problem.precision)
    rows, cols, size = problem.rows, problem.cols, problem.rows * problem.cols
    line, lines, line_step, along = _lines(problem, knobs)
    if whole and line % part:
        raise ValueError(f"small_items: WHOLE needs lines of whole {part} elements, got {line}")
    if threads % 32 or shares not in (1, 2, 4) or knobs["OWN_SHARES"] not in (1, min(shares, 2)):
        raise ValueError(
            "small_items: THREADS_PER_BLOCK must be whole warps, SHARES 1, 2 or 4, and OWN_SHARES 1"
            f" or 2 of them, got {threads}, {shares} and {knobs['OWN_SHARES']}"
        )
    gaps, reach = as_memory(knobs), _reach(problem, knobs)
    if knobs["COPIED"] and device is not None and device.lacks(COPIES):
        raise ValueError(f"small_items: copies to shared memory: {device.lacks(COPIES)}")
    width = LOAD_BYTES // problem.dtype.itemsize
    in_line = along == 1
    packed = in_line and line_step == line and (items == 1 or a_step == size)
    in_vectors = in_line and line % width == 0 and a_step % width == 0
    in_vectors = in_vectors and (lines == 1 or line_step % width == 0)
    gap = _gap(line // part, cols, runs_down) * part if whole else 0
    period = size if runs_down else line
    padded = size + (gap if runs_down else gap * rows)
    x_pitch = cols | 1 if runs_down else cols + gap
    if in_vectors_of_x(problem.precision, knobs):
        x_pitch = ceil_div(cols, part) * part
    through_shared = runs_down and _in_units(knobs) and not knobs["Y_PACKED"]
    sums = problem.precision.sums.itemsize
    of_x, of_y = bytes_of_vectors(knobs)
    each = min(
        threads * VECTORS * width // (max(a_step, 1) if gaps else size),
        items if knobs["COPIED"] else (TILE_BYTES // sums - 3 * width) // padded,
        of_x // sums // x_pitch,
        threads * x_loads(width) // cols,
        of_y // sums // rows if through_shared else items,
        items,
    )
    if gaps:
        each = min(each, 1 + _most_in_gaps(problem, knobs) // a_step)
    each = max(each, 1)
    if whole and not gaps and packed and items > 1:
        step = width // gcd(width, size)  # items until one begins at a multiple of 16 bytes again
        if each >= step:
            each = each // step * step
        elif items > each:
            packed = False
    if knobs["X_VECTORS"] and items > each:
        each = max(each // _aligned(problem), 1) * _aligned(problem)
    elif each * cols > threads * knobs["X_LOADS"] and not knobs["X_VECTORS"]:
        raise ValueError(
            f"small_items: X_LOADS={knobs['X_LOADS']} of {threads} threads are too few for"
            f" {each} items of {cols} columns"
        )
    blocks = ceil_div(items, each)
    if blocks > MAX_GRID_X:
        raise ValueError(f"small_items: {blocks} blocks, and a grid has at most {MAX_GRID_X}")
    sizes = {
        "items": items, "each": each, "reach": reach,
        "packed": int(packed), "in_vectors": int(in_vectors),
        **steps_of(batch),
        "gap": gap, "x_pitch": x_pitch,
        "over_period": inverse(period), "over_size": inverse(size), "over_line": inverse(line),
        "over_cols": inverse(cols), "over_rows": inverse(rows),
        "over_groups": inverse(_groups(problem, knobs)),
    }  # fmt: skip
    return one_launch((blocks, 1, 1), (threads, 1, 1), sizes)


def _gap(units, cols, runs_down):
    """Vectors that are left free, so that eight neighbouring threads read from different banks.

    Rows begin an odd number of vectors apart. Items of columns of `units` vectors begin as far
    apart, modulo eight, as if neighbouring threads read on where the item before ended.
    """
    if not runs_down:
        return 1 - units % 2
    modulus = 8 if units & (units - 1) else min(2 * units, 8)
    return (units - units * cols) % modulus


def in_lists(problem, knobs):
    """A kernel with the same sums for items of many sizes, where loads are whole vectors."""
    shares = knobs["SHARES"]
    # Those take a stride of 1 along memory, which small matrices need not have.
    if problem.splits_elements or problem.access != ("axpy" if knobs["DOWN"] else "dot"):
        return None
    if knobs["DOWN"]:
        return "list_in_order", words_in_order(problem, shares)
    unit = unit_of(problem.precision) if knobs["WHOLE"] else 1
    if problem.widths[0] < unit:
        return None
    wide = problem.incx == 1 and problem.x_alignment >= unit * problem.dtype.itemsize
    return "list_rows", words_of_rows(problem, shares, unit, wide)


def tile(knobs):
    return MOST, MOST


def depth(problem, geometry, knobs):
    along_units = knobs["WHOLE"] and not knobs["DOWN"]
    return depth_of(problem.cols, unit_of(problem.precision) if along_units else 1, knobs["SHARES"])


KERNEL = Kernel(
    name="small_items",
    rung=1,
    build=build,
    geometry=geometry,
    of_batch=geometry,
    constants_of=constants_of,
    constants_of_batch=constants_of_batch,
    in_lists=in_lists,
    tile=tile,
    depth=depth,
    beside=True,
    accepts=accepts,
    # DOWN, WHOLE and SHARES follow from the shape, the others from the places of items and their
    # number as well: see constants_of and constants_of_batch.
    knobs={
        "DOWN": 0,
        "WHOLE": 0,
        "SHARES": 1,
        "OWN_SHARES": 1,
        "X_LOADS": NARROW_X_LOADS,
        "COPIED": 0,
        "X_VECTORS": 0,
        "Y_PACKED": 0,
        "COLS": 0,
        "GAPS": 0,
        "THREADS_PER_BLOCK": 128,
        "MIN_BLOCKS": 6,
    },
    small_knobs={
        "DOWN": 0,
        "WHOLE": 0,
        "SHARES": 1,
        "OWN_SHARES": 1,
        "X_LOADS": NARROW_X_LOADS,
        "COPIED": 0,
        "X_VECTORS": 0,
        "Y_PACKED": 0,
        "COLS": 0,
        "GAPS": 0,
        "THREADS_PER_BLOCK": 32,
        "MIN_BLOCKS": 1,
    },
    doc=__doc__,
)
