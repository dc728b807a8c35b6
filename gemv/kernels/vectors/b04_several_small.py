"""One small matrix and several vectors: A stays in registers, and a warp takes vector after vector.

Idea
    A matrix of 32 x 32 has 1024 numbers, and a warp has 32 lanes: 32 numbers for each of them. So
    the warp can keep the matrix in registers while vectors go by. For each of them a lane loads a
    few numbers of x, which serve all its rows, and multiplies them with what it has.

    The lanes of a row each have a partial sum, as in ``small_matrix``, and they divide its rows
    between them where they add these up: two lanes halve the sums that both have a part of. In the
    end each lane has the sum of one row, and the warp stores 32 neighbours of y at once.

    A few vectors leave most of the GPU idle, and what counts is to wait only once. So each of them
    has warps of its own then, and a lane has one row, as in ``small_matrix``. Only where there are
    thousands of vectors, a lane has as many rows as registers allow, and a warp takes COUNT
    vectors, one after the other.

Picture
    ::

        32 x 32 float32 along the rows: 4 partial sums a row, so a lane has 4 rows and 8 columns

        lane 0    rows 0, 8, 16, 24   columns 0, 4, ..., 28       x of vector 0, then of vector 1
        lane 8    the same rows       columns 1, 5, ..., 29
        lane 16                       columns 2, 6, ..., 30       sums of rows  0, 8 | 16, 24
        lane 24                       columns 3, 7, ..., 31       and then each lane has one of them

Bytes
    (m*n + k * (len(x) + len(y) * (1 + [beta != 0]))) * itemsize from memory; from the caches A
    comes again for each COUNT vectors.

Wins
    Over a block for each vector that loads A anew, and over one launch for each vector.

Loses
    To matrix products on tensor cores, which add in another order.

Sums
    Those of ``small_matrix`` for each vector, whatever their number.

Source
    Register tiles of matrix products, with all of A as the tile.
"""

from __future__ import annotations

import inspect

from gemv.core.geometry import ceil_div, one_launch
from gemv.kernels.grids import power_above
from gemv.kernels.kernel import Kernel, attach
from gemv.kernels.several import ONE, sizes_of_vectors, turns_of_vectors
from gemv.kernels.small_sums import MOST, depth_of

#: Bytes of A that a thread has, and the most rows; where sums are of two numbers, it has one row.
A_BYTES, MOST_ROWS = 256, 4
#: Vectors from which on there are warps enough, so that each takes COUNT of them and more rows.
MANY, MANY_COUNT, MANY_THREADS = 8192, 4, 128


def build(spec):
    from gemv.language import (
        blended,
        conjugated,
        cuda,
        device,
        gather_some,
        inlined,
        load_old,
        load_some,
        moved,
        multiply_add,
        read_only_load,
        rolled,
        row_starts,
        scaled,
        scatter_sums,
        short,
        store,
        stream_some,
        zeros,
    )

    zero, CONJUGATE = spec.zero, int(spec.conj)
    CONJUGATE_X = spec.conjugate_x
    UNIT, SHARES, LOADS, ROWS = (spec[name] for name in ("UNIT", "SHARES", "LOADS", "ROWS"))
    THREADS, COUNT = spec["THREADS_PER_BLOCK"], spec["COUNT"]
    LANES = UNIT * SHARES  # of a row
    APART = 32 // LANES  # lanes from one of a row to the next, and rows from one of a lane's
    SAME = LANES // ROWS  # lanes that end with the sum of the same row
    ALONG = spec.access == "dot"
    SPLIT_A, PACKED_X = spec["SPLIT_A"] > 0, spec["PACKED_X"] > 0
    FACTORS = [home == "pointer" for home in spec.homes]
    ALPHAS, BETAS = FACTORS

    @device
    def split_1(a, starts, at, step, count):
        return gather_some(a, starts[0] + at, step, LOADS, 1, 1, count)

    @device
    def split_2(a, starts, at, step, count):
        return split_1(a, starts, at, step, count) + split_1(a, starts[1:], at, step, count)

    @device
    def split_4(a, starts, at, step, count):
        return split_2(a, starts, at, step, count) + split_2(a, starts[2:], at, step, count)

    @device
    def whole(a, starts, at, step, count):
        return stream_some(a, starts, at, step, LOADS, 1, count)

    matrix = {1: split_1, 2: split_2, 4: split_4}[ROWS] if SPLIT_A else whole

    @device
    def numbers(x, last, incx, count):
        if PACKED_X:
            return load_some(x, last, -LANES, LOADS, 1, count)
        return gather_some(x, last, -LANES, LOADS, incx, 1, count)

    @device
    def loaded(factor, at):
        return read_only_load(factor, at)

    @device
    def itself(factor, at):
        return factor

    alpha_of = loaded if ALPHAS else itself
    beta_of = loaded if BETAS else itself

    def several_small(
        rows, cols, vectors, a, row_stride, col_stride, x, x_step, incx, y, y_step, incy, alpha,
        alpha_step, beta, beta_step,
    ):  # fmt: skip
        tid = short(cuda.threadIdx.x)
        lane = tid % 32
        place, group = lane // APART, lane % APART
        # As in small_matrix: the columns of a lane, counted from the last one.
        first = short(place % SHARES * UNIT + place // SHARES)
        count = short(short(cols) + (LANES - 1) - first) // LANES
        vector = (short(cuda.blockIdx.y) * (THREADS // 32) + tid // 32) * COUNT
        if vector >= vectors or not ALPHAS and alpha == 0:
            count = 0
        count = short(count)
        last = first + (count - 1) * LANES
        step = 1 if ALONG else col_stride
        tile = short(cuda.blockIdx.x) * (APART * ROWS)
        starts = row_starts(tile + group, APART, rows - 1, row_stride, ROWS)
        values = matrix(a, starts, last * step, -LANES * step, count)
        own_x = x
        if CONJUGATE_X:
            own_x = conjugated(x)
        # After the exchanges a lane has one of its sums, the last ones in the first lanes.
        row = short(tile + group + (ROWS - 1 - place // SAME) * APART)
        stores = place % SAME == 0 and row < rows
        end = min(vector + COUNT, vectors)
        while vector < end:
            factors = numbers(moved(own_x, vector * x_step), last, incx, count)
            own_alpha = alpha_of(alpha, vector * alpha_step)
            own_beta = beta_of(beta, vector * beta_step)
            at = vector * y_step + row * incy
            old = load_old(y, at, own_beta != 0 and stores)
            total = multiply_add(zeros(zero, ROWS), values[::-1], factors[::-1], CONJUGATE)
            (own,) = scatter_sums(total, tid, 1, 32, APART)
            if stores:
                if own_alpha == 0:
                    own = zero
                if own_beta == 0:
                    store(y, at, scaled(own_alpha, own))
                else:
                    store(y, at, blended(own_alpha, own, own_beta, old))
            if COUNT == 1:
                break
            vector += 1
            rolled()

    names = list(inspect.signature(several_small).parameters)
    passed = [
        f"{name}_pointer" if name in ("alpha", "beta") and FACTORS[name == "beta"] else name
        for name in names
    ]
    # As for the homes of alpha and beta, Numba takes the parameters from a def.
    scope = {"body": inlined(several_small)}
    exec(f"def several_small({', '.join(passed)}):\n    body({', '.join(passed)})\n", scope)
    return (attach(scope["several_small"], launch_bounds=(THREADS, 1)),)


def accepts(problem):
    if problem.cols > MOST:
        return f"{problem.cols} columns: registers hold at most {MOST}"
    return None


def constants_for(problem, knobs, vectors):
    """The constants for so many vectors, from those of ``small_matrix``; sums stay the same."""
    found = {name: knobs[name] for name in ("UNIT", "SHARES", "LOADS", "SPLIT_A", "PACKED_X")}
    if vectors < MANY:
        return found | {"ROWS": 1, "COUNT": 1, "THREADS_PER_BLOCK": 32}
    lanes, nbytes = knobs["UNIT"] * knobs["SHARES"], knobs["LOADS"] * problem.dtype.itemsize
    rows = min(power_above(ceil_div(problem.rows * lanes, 32)), lanes, MOST_ROWS)
    while rows > 1 and (problem.precision.sums.fields or rows * nbytes > A_BYTES):
        rows //= 2
    return found | {"ROWS": rows, "COUNT": MANY_COUNT, "THREADS_PER_BLOCK": MANY_THREADS}


def geometry(problem, device, knobs, batch=ONE):
    lanes, threads = knobs["UNIT"] * knobs["SHARES"], knobs["THREADS_PER_BLOCK"]
    tiles = ceil_div(problem.rows, 32 // lanes * knobs["ROWS"])
    turns = turns_of_vectors("several_small", batch.items, threads // 32 * knobs["COUNT"])
    return one_launch((tiles, turns, 1), (threads, 1, 1), sizes_of_vectors(batch))


def tile(knobs):
    lanes = knobs["UNIT"] * knobs["SHARES"]
    return 32 // lanes * knobs["ROWS"], lanes * knobs["LOADS"]


def depth(problem, geometry, knobs):
    return depth_of(problem.cols, knobs["UNIT"], knobs["SHARES"])


KERNEL = Kernel(
    name="several_small",
    rung=4,
    build=build,
    geometry=geometry,
    of_batch=geometry,
    for_vectors=constants_for,
    tile=tile,
    depth=depth,
    beside=True,
    accepts=accepts,
    knobs={
        "UNIT": 1, "SHARES": 4, "LOADS": 8, "SPLIT_A": 1, "PACKED_X": 0, "ROWS": 1, "COUNT": 1,
        "THREADS_PER_BLOCK": 32,
    },
    small_knobs={
        "UNIT": 1, "SHARES": 4, "LOADS": 8, "SPLIT_A": 1, "PACKED_X": 0, "ROWS": 2, "COUNT": 2,
        "THREADS_PER_BLOCK": 64,
    },
    doc=__doc__,
)  # fmt: skip
