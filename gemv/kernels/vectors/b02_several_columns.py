"""One matrix and several vectors, down the columns: A is read once for up to eight of them.

Idea
    As along the rows: a load of A that is in registers is multiplied with the numbers of all k
    vectors before it is dropped. Here a thread has WIDTH neighbouring rows, and a column needs one
    number of each x, which all lanes of the group share: one load moves it to all of them. So x
    costs one load of a single number for each column and each vector, and the partial sums cost
    registers: k times those of the rung of columns.

    For eight vectors, and for four of complex numbers, these loads are as many as the rest has time
    for, and x of all vectors does not stay in the L1 cache. So the block copies x to shared
    memory before the products of a pass: each thread takes a column, converts and conjugates the
    numbers of all vectors, and stores them side by side. Then 16 bytes of shared memory are the
    factors of four vectors at once, for float32 and shorter numbers. A is asked for before x, so
    that x is staged while A is on its way. There are two places for x in turn, and so one barrier
    for each stage is enough: what is read behind it lies where the next stage does not write.

    The sums of a vector meet as those of a single product do, in shared memory. It has 32 KB for
    sums, so only some vectors add up at a time. Columns that are split over blocks stay so, with
    the same splits.

Picture
    ::

        LANES = 2, four rows to a lane, two vectors x and z

                     column 0   1   2   3
        rows 0-3     L0         L2  ...         * x[0] -> 4 sums of L0    * z[0] -> 4 more
        rows 4-7     L1         L3  ...         * x[0] -> 4 sums of L1    * z[0] -> 4 more

Bytes
    (m*n + k * (len(x) + len(y) * (1 + [beta != 0]))) * itemsize from memory for up to COUNT
    vectors; with more of them A comes again for each COUNT. Each block reads the numbers of x for
    its columns again, from the L2 cache: k / (rows of a tile) times the bytes of A.

Wins
    Over one launch for each vector. On an H200, 8192 x 8192 float32 down the columns took 61 us
    with one vector, 63 with two, 65 with four and 68 with eight, where torch.mm took 119. Before x
    was staged in shared memory, eight took 75.

Loses
    To matrix products on tensor cores, which add in another order: eight vectors with 8192 x 8192
    float64 took 142 us, torch.mm 133. If one vector gives too few blocks to fill the GPU, so do
    eight.

Sums
    Those of the rung of columns with the same LANES, threads and splits, for each vector.

Source
    The outer product form of a matrix product with one short side: G. H. Golub and C. F. Van Loan,
    "Matrix Computations", section 1.1.
"""

from __future__ import annotations

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import LOAD_BYTES, MAX_GRID_Y, ceil_div
from gemv.core.shares import share_of_lane
from gemv.kernels.grids import power_above
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.wide_tiles import TAKEN_FOR_COLUMNS, lanes_and_pieces, split_columns_of

#: Registers of 4 bytes that a thread has for sums.
SUM_REGISTERS = 64
#: Loads of A that a thread has in flight, and those where sums take all registers.
LOADS, FEW_LOADS = 16, 4
#: Those where numbers of x are staged, which take no registers; and those of numbers of 2 bytes.
STAGED_LOADS, NARROW_LOADS = 16, {DTYPES["b"]: 8, DTYPES["h"]: 4}
#: Blocks up to which an H200 has a multiprocessor for each.
FEW_BLOCKS = 132
#: Bytes of shared memory for sums, and those that a block gets without asking for more.
SUMS_BYTES, SHARED_BYTES = 32 << 10, (48 << 10) - 64

#: Bytes of shared memory for numbers of x.
STAGE_BYTES = 32 << 10

#: What the kernel calls.
_WORDS = (
    "atomic_inc", "axpy_add", "butterfly", "cuda", "fold", "gather", "gather_some", "moved",
    "natural", "outer_add", "post", "quotient", "rounded_down", "row_starts", "stream_some",
    "stream_tile", "take", "zeros",
)  # fmt: skip
#: The kernel. A line with ``{v}`` stands there once for each vector: a tuple of tuples has no index
#: at run time. What is between ``each chunk:`` and ``end`` stands there for each CHUNK of them.
_SOURCE = """
def several_columns(
    rows, cols, cols_per_split, splits, vectors, a, col_stride, x, x_step, incx, y, y_step, incy,
    {alpha}, alpha_step, {beta}, beta_step, scratch, counters,
):
    sums = cuda.shared.array((CHUNK_SHARES, TILE_ROWS), number)
    edges = cuda.shared.array((EDGES, WIDTH), number)
    ticket = cuda.shared.array(1, uint32)
    tid = natural(cuda.threadIdx.x)
    lane = tid % LANES
    warp = tid // 32
    group = tid // LANES
    mine = lane * WIDTH  # the first of this thread's rows in a piece of the tile
    split = natural(cuda.blockIdx.y)
    vector = natural(cuda.blockIdx.z) * COUNT
    begin = split * cols_per_split if SPLIT else 0
    end = min(cols, begin + cols_per_split) if SPLIT else cols
    end = last_column({alpha}, begin, end)
    drawn = uint32(0)
    if SPLIT and splits > 1 and tid == 0:
        tile_of_turn = cuda.blockIdx.z * cuda.gridDim.x + cuda.blockIdx.x
        drawn = atomic_inc(counters, tile_of_turn, splits - 1)  # not waited for here
    x_{v} = of_x(moved(x, min(vector + {v}, vectors - 1) * x_step))
    step = GROUPS * col_stride
    edge = rows if WHOLE else rounded_down(rows, WIDTH)  # rows from here on fill no vector
    last = edge - WIDTH  # where the last whole vector starts, if there is one
    first = natural(cuda.blockIdx.x) * TILE_ROWS
    j = begin + group
    the passes
    if not WHOLE and edge < rows and first + TILE_ROWS >= rows:
        for i in range(edge, rows):  # the whole block for each of these few
            part_{v} = zero
            for k in range(begin + tid, end, THREADS):
                number_of_a = op(a[i + k * col_stride])
                part_{v} += number_of_a * x_{v}[k * incx]
            (part_{v},) = butterfly((part_{v},), 32, 1)
            if tid % 32 == 0:
                edges[{v} * WARPS + warp, i - edge] = part_{v}
    if SPLIT and splits > 1 and tid == 0:
        ticket[0] = drawn
    each chunk:
    put(sums, {v} % CHUNK * SHARES, tid, total_{v})
    cuda.syncthreads()  # all sums of these vectors are in place
    r = tid
    while r < CHUNK * TILE_ROWS:
        own = r // TILE_ROWS
        row = r % TILE_ROWS
        i = first + row
        item = vector + {chunk} * CHUNK + own
        if i < rows and item < vectors:
            if WHOLE or i < edge:
                part = sums[own * SHARES, row]
                for k in range(1, SLOTS):
                    part += sums[own * SHARES + k, row]
            else:
                place = ({chunk} * CHUNK + own) * WARPS
                part = edges[place, i - edge]
                for k in range(1, WARPS):
                    part += edges[place + k, i - edge]
            if not SPLIT or splits == 1:
                at = item * y_step + i * incy
                finish({alpha}, alpha_step, {beta}, beta_step, part, item, y, at)
            else:
                post(scratch, (split * vectors + item) * rows + i, part)
        r += THREADS
    cuda.syncthreads()  # they are read, and the next vectors may have their place
    end
    if SPLIT and splits > 1 and ticket[0] == splits - 1:
        # The last one to begin: all sums are there, or on their way. Whole blocks take this branch.
        for chunk in range(COUNT // CHUNK):
            s = tid
            while s < CHUNK * FINISHERS * TILE_ROWS:
                own = s // (FINISHERS * TILE_ROWS)
                share = s // TILE_ROWS % FINISHERS
                i = first + s % TILE_ROWS
                item = vector + chunk * CHUNK + own
                k = share
                part = zero
                while k < splits and i < rows and item < vectors:
                    rest = quotient(splits - 1 - k, FINISHERS) + 1
                    at = (k * vectors + item) * rows + i
                    several = take(zero, scratch, at, FINISHERS * vectors * rows, BATCH, rest)
                    part += fold(several, 1)[0]
                    k += BATCH * FINISHERS
                sums[own * SHARES + share, s % TILE_ROWS] = part
                s += THREADS
            cuda.syncthreads()  # all shares are in place
            r = tid
            while r < CHUNK * TILE_ROWS:
                own = r // TILE_ROWS
                i = first + r % TILE_ROWS
                item = vector + chunk * CHUNK + own
                if i < rows and item < vectors:
                    part = sums[own * SHARES, r % TILE_ROWS]
                    for k in range(1, FINISHERS):
                        part += sums[own * SHARES + k, r % TILE_ROWS]
                    at = item * y_step + i * incy
                    finish({alpha}, alpha_step, {beta}, beta_step, part, item, y, at)
                r += THREADS
            cuda.syncthreads()  # they are read
"""
#: The passes where a thread loads numbers of x for itself.
_LOADED = """
# Passes in which every group has all of its columns.
limit = j + rounded_down(end - begin, PASS)
total_{v} = zeros(zero, SUMS)
if WHOLE or last >= 0:
    # Past the edge the last vector is read again; nobody looks at those sums.
    pieces = row_starts(first + mine, PIECE_ROWS, last, 1, PIECES)
    if AHEAD and j + PASS <= limit:  # the next pass is on its way while this one is added
        values = stream_tile(a, pieces, j * col_stride, step, LOADS, WIDTH)
        while j + 2 * PASS <= limit:
            following = stream_tile(a, pieces, (j + PASS) * col_stride, step, LOADS, WIDTH)
            total_{v} = axpy_add(total_{v}, values, full(x_{v}, j, incx), WIDTH, CONJUGATE)
            values = following
            j += PASS
        total_{v} = axpy_add(total_{v}, values, full(x_{v}, j, incx), WIDTH, CONJUGATE)
        j += PASS
    while not AHEAD and j + PASS <= limit:
        values = stream_tile(a, pieces, j * col_stride, step, LOADS, WIDTH)
        total_{v} = axpy_add(total_{v}, values, full(x_{v}, j, incx), WIDTH, CONJUGATE)
        j += PASS
    if j < end:  # what is left goes out at once, too
        rest = quotient(end - 1 - j, GROUPS) + 1
        values = stream_some(a, pieces, j * col_stride, step, LOADS, WIDTH, rest)
        total_{v} = axpy_add(total_{v}, values, some(x_{v}, j, incx, rest), WIDTH, CONJUGATE)
"""
#: The passes where the block copies x to shared memory, STAGED passes at a time. There are two
#: places for these: what is read in one of them is not overwritten before the next barrier.
_STAGED = """
xs = cuda.shared.array(BOTH_STAGES, x_number, alignment=16)
total = zeros(zero, ALL_SUMS)
if WHOLE or last >= 0:
    # Past the edge the last vector is read again; nobody looks at those sums.
    pieces = row_starts(first + mine, PIECE_ROWS, last, 1, PIECES)
    start = begin  # the first column of a pass
    at = 0  # where its numbers of x begin in xs
    while start + PASS <= end:
        values = stream_tile(a, pieces, j * col_stride, step, LOADS, WIDTH)
        if STAGED == 1 or at == 0 or at == STAGE:  # while A is on its way
            stage
            cuda.syncthreads()  # x of these passes is in place
        total = outer_add(
            total, values, xs, at + group * COUNT, GROUPS * COUNT, COUNT, WIDTH, CONJUGATE
        )
        at = at + PASS * COUNT if at + PASS * COUNT < BOTH_STAGES else 0
        start += PASS
        j += PASS
    if start < end:  # what is left goes out at once, too
        rest = quotient(end - 1 - j, GROUPS) + 1
        values = stream_some(a, pieces, j * col_stride, step, LOADS, WIDTH, rest)
        if STAGED == 1 or at == 0 or at == STAGE:
            stage
            cuda.syncthreads()  # x of what is left is in place
        if j < end:
            total = outer_add(
                total, values, xs, at + group * COUNT, GROUPS * COUNT, COUNT, WIDTH, CONJUGATE
            )
total_{v} = total[{low}:{high}]
"""
#: How the block copies x: all numbers of a column together, and zeros behind the last column.
_STAGE = """
for k in range(TURNS):
    c = tid + k * THREADS
    if STAGE_COLUMNS % THREADS == 0 or c < STAGE_COLUMNS:
        left = end - start - c
        number_{v} = gather_some(x_{v}, start + c, 1, 1, incx, 1, left)[0]
        keep(xs, at + c * COUNT, ({all_numbers},))
"""


def source_of(count, chunk, staged, names):
    """The source of the kernel for `count` vectors, `chunk` of which meet at a time."""
    lines: list[str] = []
    of_chunk: list[str] | None = None
    numbers = ", ".join(f"number_{v}" for v in range(count))
    names = {**names, "all_numbers": numbers}
    source = _inserted(_SOURCE, "the passes", _STAGED if staged else _LOADED)
    for line in _inserted(source, "stage", _STAGE).splitlines():
        if line.strip() == "each chunk:":
            of_chunk = []
        elif line.strip() == "end" and of_chunk is not None:
            for number in range(count // chunk):
                some = range(number * chunk, (number + 1) * chunk)
                lines += _for_each(of_chunk, some, {**names, "chunk": number})
            of_chunk = None
        elif of_chunk is not None:
            of_chunk.append(line)
        else:
            lines += _for_each([line], range(count), names)
    return "\n".join(lines)


def _inserted(source, place, part):
    """The `source` with the lines of `part` wherever `place` is a line of its own."""
    lines: list[str] = []
    for line in source.splitlines():
        own = line.strip() == place
        indent = " " * (len(line) - len(line.lstrip()))
        lines += (indent + each for each in part.strip("\n").splitlines()) if own else [line]
    return "\n".join(lines)


def _keep(count, unit):
    """The source of a function that stores the numbers of a column, `unit` of them at a time."""
    stores = (f"    put_unit(xs, at + {k}, values, {k}, {unit})" for k in range(0, count, unit))
    return "\n".join(["def keep(xs, at, values):", *stores])


def _for_each(lines, vectors, names):
    """The lines, those with ``{v}`` once for each vector."""
    for line in lines:
        for v in vectors if "{v}" in line else vectors[:1]:
            low = v * names["sums"]
            yield line.format(v=v, low=low, high=low + names["sums"], **names)


def x_number_of(precision):
    """The dtype of a staged number of x: that in which a thread would have it in a register."""
    if precision.data == DTYPES["h"]:  # whose products float32 holds exactly
        return DTYPES["s"]
    return precision.sums


def stages(precision):
    """Whether numbers of x can be staged: not where a sum is two numbers."""
    return precision.sums.fields is None


def stage_bytes(count, columns, precision):
    """Bytes of both places for the numbers of so many columns."""
    return 2 * columns * count * x_number_of(precision).itemsize


def edge_bytes(count, threads, width, precision):
    """Bytes of the sums of rows that fill no vector."""
    return count * (threads // 32) * width * precision.sums.itemsize


def finishers_of(threads, tile_rows):
    """Shares in which a block takes the splits of a row."""
    return min(max(threads // tile_rows, 1), 16)


def build(spec):
    import numpy as np

    from gemv import language
    from gemv.language import (
        device,
        gather,
        gather_some,
        put_pieces,
        put_unit,
        read_only_load,
        scatter_sums,
        update_streaming,
    )

    zero, WIDTH = spec.zero, spec.widths[0]
    COUNT, LOADS = spec["COUNT"], spec["LOADS"]
    LANES, PIECES = lanes_and_pieces(dict(spec.knobs), WIDTH, spec.dtype.itemsize)
    THREADS = max(LANES, spec["THREADS_PER_BLOCK"])
    GROUPS, WARPS = THREADS // LANES, THREADS // 32
    PIECE_ROWS = LANES * WIDTH
    TILE_ROWS = PIECES * PIECE_ROWS
    SUMS = PIECES * WIDTH
    KEPT, HOLDERS, RUN = share_of_lane(SUMS, WIDTH, LANES)
    SLOTS = min(GROUPS, WARPS)  # sums of a row that meet in shared memory
    FINISHERS = finishers_of(THREADS, TILE_ROWS)
    SHARES = max(SLOTS, FINISHERS)
    # A number of two is one number for A and two for its sums: nothing moves those of x.
    STAGED = spec["STAGED"] if stages(spec.precision) else 0
    STAGE_COLUMNS = STAGED * GROUPS * LOADS
    CHUNK = COUNT  # vectors whose sums meet at a time
    room = SHARED_BYTES - edge_bytes(COUNT, THREADS, WIDTH, spec.precision)
    room -= stage_bytes(COUNT, STAGE_COLUMNS, spec.precision) if STAGED else 0
    of_vector = SHARES * TILE_ROWS * spec.precision.sums.itemsize
    while CHUNK > 1 and CHUNK * of_vector > min(SUMS_BYTES, room):
        CHUNK //= 2
    ALPHAS, BETAS = (home == "pointer" for home in spec.homes)

    @device
    def full(x, j, incx):
        """The numbers of x for a full pass."""
        return gather(x, j, GROUPS, LOADS, incx, 1)

    @device
    def some(x, j, incx, rest):
        return gather_some(x, j, GROUPS, LOADS, incx, 1, rest)

    @device
    def put(sums, slot, tid, total):
        """Store what a warp has of the sums of its rows: as in the rung of columns."""
        mine = tid % LANES * WIDTH
        if LANES < 32:
            some = scatter_sums(total, tid, WIDTH, 32, LANES)
            if tid % HOLDERS < LANES:
                k = tid % 32 // HOLDERS * KEPT
                place = mine + k // WIDTH * PIECE_ROWS + k % WIDTH
                put_pieces(sums, slot + tid // 32, place, some, PIECE_ROWS, RUN)
        else:
            put_pieces(sums, slot + tid // LANES, mine, total, PIECE_ROWS, WIDTH)

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
    if STAGED:
        x_number = x_number_of(spec.precision)
        written = {"put_unit": put_unit}
        exec(_keep(COUNT, min(COUNT, LOAD_BYTES // x_number.itemsize)), written)
        scope |= {
            "keep": device(written["keep"]), "x_number": x_number.type, "STAGED": STAGED,
            "ALL_SUMS": COUNT * SUMS, "STAGE_COLUMNS": STAGE_COLUMNS,
            "STAGE": STAGE_COLUMNS * COUNT, "BOTH_STAGES": 2 * STAGE_COLUMNS * COUNT,
            "TURNS": ceil_div(STAGE_COLUMNS, THREADS),
        }  # fmt: skip
    scope |= {
        "full": full, "some": some, "put": put, "finish": finish, "op": spec.op,
        "uint32": np.uint32,
        "last_column": all_columns if ALPHAS else none_if_zero,
        "of_x": language.conjugated if spec.conjugate_x else language.same,
        "number": spec.number, "zero": zero, "CONJUGATE": int(spec.conj),
        "AHEAD": spec["AHEAD"] > 0,
        "WIDTH": WIDTH, "COUNT": COUNT, "EDGES": COUNT * WARPS, "LOADS": LOADS, "LANES": LANES,
        "PIECES": PIECES, "THREADS": THREADS, "GROUPS": GROUPS, "WARPS": WARPS,
        "PASS": GROUPS * LOADS,
        "PIECE_ROWS": PIECE_ROWS, "TILE_ROWS": TILE_ROWS, "SUMS": SUMS, "SLOTS": SLOTS,
        "FINISHERS": FINISHERS, "SHARES": SHARES, "CHUNK": CHUNK, "CHUNK_SHARES": CHUNK * SHARES,
        "BATCH": TAKEN_FOR_COLUMNS,
        "WHOLE": WIDTH == 1 or spec.whole, "SPLIT": spec["BLOCKS_PER_SM"] > 0,
    }  # fmt: skip
    names = {"sums": SUMS, "alpha": "alpha_pointer" if ALPHAS else "alpha"}
    names["beta"] = "beta_pointer" if BETAS else "beta"
    exec(source_of(COUNT, CHUNK, STAGED, names), scope)
    return (attach(scope["several_columns"], launch_bounds=(THREADS, spec.min_blocks)),)


def accepts(problem):
    return wide_loads_object(problem, "axpy")


def constants_for(problem, knobs, vectors):
    """The constants for so many vectors, with the sums of the rung of columns."""
    width = problem.widths[0]
    lanes, pieces = lanes_and_pieces(knobs, width, problem.dtype.itemsize)
    of_vector = pieces * width * problem.precision.sums.itemsize // 4
    count = 2
    while count < 8 and count < vectors and 2 * count * of_vector <= SUM_REGISTERS:
        count *= 2
    loads = LOADS if count * of_vector < SUM_REGISTERS else FEW_LOADS
    threads = max(lanes, knobs["THREADS_PER_BLOCK"])
    own = power_above(ceil_div(problem.cols * lanes, threads))
    turns = ceil_div(vectors, count)
    blocks = ceil_div(problem.rows, pieces * lanes * width) * turns
    # Then a multiprocessor has one block, which may have all registers.
    is_alone = (
        blocks <= FEW_BLOCKS
        if not knobs["BLOCKS_PER_SM"]
        else (knobs["BLOCKS_PER_SM"] * turns == 1)
    )
    kept = ("LANES", "PIECES", "COLUMNS", "THREADS_PER_BLOCK", "BLOCKS_PER_SM")
    loads = max(1, min(loads // pieces, own))
    staged = 0
    narrow = problem.dtype.itemsize == 2
    many = count == 8 or count * of_vector >= SUM_REGISTERS
    if stages(problem.precision) and (many or (count == 4 and problem.dtype.kind == "c")):
        tile_rows, groups = pieces * lanes * width, threads // lanes
        shares = max(min(groups, threads // 32), finishers_of(threads, tile_rows))
        room = SHARED_BYTES - edge_bytes(count, threads, width, problem.precision)
        room -= shares * tile_rows * problem.precision.sums.itemsize  # of one vector at least
        most = min(STAGE_BYTES, room) // stage_bytes(count, groups, problem.precision)
        if most > 0:
            # Numbers of 2 bytes have no registers for more loads, and gain by two passes at a time.
            wanted = min(NARROW_LOADS.get(problem.dtype, STAGED_LOADS), most // (1 + narrow))
            loads = max(1, min(wanted // pieces, own))
            loads = 1 << loads.bit_length() - 1
            staged = max(1, min(2, most // loads))
    return {
        **{name: knobs[name] for name in kept},
        "COUNT": count,
        "LOADS": loads,
        "MIN_BLOCKS": 1 if (is_alone and not staged) or threads > 256 else 2,
        "AHEAD": 0,
        "STAGED": staged,
    }


def geometry(problem, device, knobs):
    return _geometry(problem, device, knobs, 1, 0, 0, 0, 0)


def of_batch(problem, batch, device, knobs):
    """The launch for vectors that share the matrix."""
    (vectors,), steps = batch.shape, (own[0] for own in batch.strides[1:])
    return _geometry(problem, device, knobs, vectors, *steps)


def _geometry(problem, device, knobs, vectors, x_step, y_step, alpha_step, beta_step):
    found = split_columns_of(problem, device, knobs)
    ((tiles, splits, _), block) = found.launches[0]
    turns = ceil_div(vectors, knobs["COUNT"])
    if turns > MAX_GRID_Y:
        raise ValueError(f"several_columns: {vectors} vectors are more than a grid has blocks for")
    sizes = {
        **found.sizes, "vectors": vectors, "x_step": x_step, "y_step": y_step,
        "alpha_step": alpha_step, "beta_step": beta_step,
    }  # fmt: skip
    launch = found.launches[0]._replace(grid=(tiles, splits, turns), block=block)
    return found._replace(
        launches=(launch,),
        sizes=sizes,
        scratch=found.scratch * vectors,
        counters=found.counters * turns,
    )


def tile(knobs):
    threads = max(knobs["LANES"], knobs["THREADS_PER_BLOCK"])
    return 4 * knobs["LANES"] * knobs["PIECES"], threads // knobs["LANES"] * knobs["COLUMNS"]


KERNEL = Kernel(
    name="several_columns",
    rung=2,
    build=build,
    geometry=geometry,
    of_batch=of_batch,
    for_vectors=constants_for,
    tile=tile,
    beside=True,
    wide=True,
    accepts=accepts,
    knobs={
        "LANES": 8, "PIECES": 1, "COLUMNS": 4, "THREADS_PER_BLOCK": 256, "BLOCKS_PER_SM": 0,
        "COUNT": 4, "LOADS": 4, "MIN_BLOCKS": 1, "AHEAD": 0, "STAGED": 0,
    },
    small_knobs={
        "LANES": 2, "PIECES": 1, "COLUMNS": 2, "THREADS_PER_BLOCK": 32, "BLOCKS_PER_SM": 1,
        "COUNT": 2, "LOADS": 1, "MIN_BLOCKS": 1, "AHEAD": 1, "STAGED": 0,
    },
    doc=__doc__,
)  # fmt: skip
