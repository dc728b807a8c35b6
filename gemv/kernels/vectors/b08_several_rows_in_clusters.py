"""Few long rows and several vectors: the blocks of a cluster share the lanes of a tile of rows.

Idea
    A hundred rows of a single product are a hundred blocks, one for each, and each of their lanes
    reads every so many columns. Eight vectors want a tile of several rows, which share what is
    loaded of x. That leaves a quarter of the blocks, or less, and most multiprocessors have nothing
    to do. Columns cannot be split over more blocks: the sums would be others than those of the
    single product.

    But the lanes of a row know nothing of each other until the end. ``several_rows`` lets the same
    threads be one share of the lanes after the other (TURNS). Here CLUSTER blocks of a *cluster*
    (compute capability 9.0) take a share each, all at the same time. So there are CLUSTER times as
    many blocks, and the larger CLUSTER is, the more rows has a tile of as many threads: x, which
    comes from the L2 cache once for each tile, comes less often.

    At the end each block has a sum for every warp of its lanes, of each row and vector. These have
    to be added in the order of the rung of rows: warp after warp. The sums of a tile are divided
    over the blocks of the cluster, each of which finishes some. It has a place in its shared memory
    for each warp of the whole row, to which the others send their sums. Then one thread adds up
    those of a row in order. ``cluster_rows`` (rung 14) tells how sums count themselves as they
    arrive, so that no fence is needed.

    Few blocks need many bytes on their way each. So A and x come by copies that no thread waits
    for, into a ring of STAGES stages of VECTORS loads of a lane, as in ``several_staged_rows``.

Picture
    ::

        128 lanes, CLUSTER = 4, a tile of two rows, and two vectors x and z

                  lanes 0-31    lanes 32-63   lanes 64-95   lanes 96-127
        row 0     block 0       block 1       block 2       block 3
        row 1     block 0       block 1       block 2       block 3

        sums      0 * x         1 * x         0 * z         1 * z
        are in    block 0       block 1       block 2       block 3    warp 0 + 1 + 2 + 3 -> y

Bytes
    (m*n + k * (len(x) + len(y) * (1 + [beta != 0]))) * itemsize from memory for up to COUNT
    vectors; with more of them A comes again for each COUNT. From the L2 cache x comes once for each
    tile of rows: COUNT / (rows of a tile) times the bytes of A, as absent vectors are copied as the
    last one.

Wins
    Over ``several_rows`` where rows are fewer than would give each multiprocessor a tile. On an
    NVIDIA H100 eight vectors with 100 x 200000 bfloat16 took 31.3 us, 87.5 by ``several_rows``,
    16.5 with one vector, and torch.mm 30.6; with 100 x 100000 18.9 us (47.6, 9.3 and 21.0), with
    128 x 131072 30.9 (60.4, 12.8 and 19.1). 100 x 200000 float32 took 49.7 us (69.2, 29.5 and
    104.7), 100 x 100000 float64 49.0 (78.7, 29.4 and 45.3), complex64 52.5 (75.5, 29.8 and 115.2).
    Four vectors with these took 23.9 us in bfloat16 (31.0), 41.8 in float32 (83.0), 42.1 in
    float64 (81.2) and 42.7 in complex64 (98.4).

Loses
    To ``several_rows`` where that has tiles for half of the multiprocessors: 128 x 131072 float32
    took 50.5 us with eight vectors, and 47.4 there; bfloat16 24.3 with four, and 21.2 there. To
    torch.mm, which multiplies on tensor cores and adds in another order, for 2-byte numbers: with
    128 x 131072 it took 19.1 us, and with 256 x 65536 17.2, where this kernel took 30.9 and 31.9.

Sums
    Those of the rung of rows with the same LANES and width of loads, without splits, for each
    vector.

Source
    Clusters and distributed shared memory: NVIDIA, "CUDA C++ Programming Guide", the section on
    thread block clusters. A share of the lanes for each block is what ``several_rows`` takes in
    turns.
"""

from __future__ import annotations

from typing import NamedTuple

from gemv.core.geometry import LOAD_BYTES, MAX_GRID_Y, ceil_div, one_launch
from gemv.kernels import ends_of_rows
from gemv.kernels.ends_of_rows import parts_of, sums_of_block
from gemv.kernels.grids import CLUSTERS, MOST_CLUSTERED
from gemv.kernels.kernel import Kernel, attach, no_twofold, wide_loads_object
from gemv.kernels.staging import BLOCK_BYTES, MOST_BLOCK_BYTES

#: Lanes of a warp, whose sums meet by a butterfly: a block has no smaller share of a row.
WARP = 32
#: The counter of sums, and what aligns it.
BOX_BYTES = 16


class Tile(NamedTuple):
    """Constants that sums do not depend on."""

    PARTS: int
    ROWS: int
    VECTORS: int
    STAGES: int
    THREADS_PER_BLOCK: int
    MIN_BLOCKS: int = 1


#: The vectors of a block, and the blocks of a cluster by the same: where a row has fewer warps of
#: lanes, one for each of them.
COUNTS, CLUSTER = (4, 8), {4: 8, 8: 16}
#: By COUNT and the bytes of a number, the tile for a block's share of so many lanes. They are among
#: the fastest that were tried on an H100, 3 to 9 for each problem. Where there is none, other
#: kernels are used. No tile spills registers.
TILES = {
    (8, 2): {32: Tile(4, 4, 3, 4, 256, 2)},
    (8, 4): {32: Tile(2, 4, 4, 4, 256)},
    (8, 8): {32: Tile(1, 4, 4, 4, 128)},
    (4, 2): {64: Tile(4, 4, 4, 3, 512)},
    (4, 4): {64: Tile(4, 8, 2, 6, 256)},
    (4, 8): {64: Tile(2, 4, 2, 6, 256)},
}
#: The vectors from which on the kernel is used.
LEAST_VECTORS = 3
#: The least lanes of a row by the bytes of a number, and bytes of A: below these a row ends too
#: soon, or was not timed.
LEAST_LANES, LEAST_BYTES = {2: 256, 4: 512, 8: 512}, 4 << 20
#: The most rows by COUNT and the bytes of a number, with which the kernel was the faster one.
MOST_ROWS = {(8, 2): 320, (8, 4): 112, (8, 8): 112, (4, 2): 112, (4, 4): 112, (4, 8): 112}

#: What the kernel calls.
_WORDS = (
    "butterfly", "cluster_arrive", "cluster_expect", "cluster_post", "cluster_rank",
    "cluster_take", "cluster_wait", "copies_wait", "cuda", "kept", "moved", "multiply_add",
    "natural", "pieces_of", "quotient", "row_starts", "short", "staged_tile", "zeros",
)  # fmt: skip
#: The kernel: see :func:`gemv.kernels.ends_of_rows.source_of`.
_SOURCE = """
def several_rows_in_clusters(
    rows, cols, vectors, a, row_stride, x, x_step, y, y_step, incy, {alpha}, alpha_step, {beta},
    beta_step,
):
    pool = cuda.shared.array(0, uint8, alignment=16)  # the ring, as long as the launch says
    sums = cuda.shared.array(ALL_SUMS, number, alignment=16)
    met = cuda.shared.array((OWN, WARPS), number)
    box = cuda.shared.array(1, uint64)
    tid = natural(cuda.threadIdx.x)
    rank = natural(cluster_rank())
    mine = rank * OWN  # the first of the sums that this block finishes
    if tid == 0:
        cluster_expect(box, met, WARPS * max(min(ALL_ROWS - mine, OWN), 0))
    cluster_arrive()
    place = tid % ROW_THREADS
    group = tid // ROW_THREADS
    part = place % PARTS
    lane = place // PARTS
    begin = rank * SHARE_COLUMNS  # of the block's first lane
    end = last_column({alpha}, begin, cols)
    first = natural(cuda.blockIdx.x) * TILE_ROWS
    vector = natural(cuda.blockIdx.z) * COUNT
    # What the thread copies: the vectors of its lane in every PARTS-th row, and some of x.
    own_row = first + group + part * GROUPS
    starts = kept(row_starts(own_row, PARTS * GROUPS, rows - 1, row_stride, COPIED_ROWS))
    own_item = vector + tid // SHARE % COUNT
    x_starts = kept(row_starts(own_item, ITEMS_APART, vectors - 1, x_step, COPIED_ITEMS))
    a_column = lane * WIDTH
    x_column = tid % SHARE * WIDTH + tid // OF_X_LOAD * STEP
    own_a = kept(moved(a, begin + a_column))
    own_x = kept(moved(x, begin + x_column))
    read_x = of_x(x)  # what the numbers in a stage of x are read as: conjugates, if need be
    theirs = short((group * SHARE + lane) * WIDTH + part * COPIED)
    theirs_x = short(A_STAGE + tid * WIDTH)
    here = short((group * SHARE + lane) * WIDTH + part * UNIT)
    here_x = short(A_STAGE + lane * WIDTH + part * UNIT)
    j = begin
    coming = short(0)
    for _ in range(STAGES - 1):
        places = theirs + coming, theirs_x + coming
        columns = j, end, a_column, x_column
        copied(pool, own_a, own_x, starts, x_starts, places, columns)
        own_a, own_x, j = moved(own_a, OF_STAGE), moved(own_x, OF_STAGE), j + OF_STAGE
        coming = short(coming + STAGE)
    total_{v} = zeros(zero, SUMS)
    left = short(quotient(end - begin + (OF_STAGE - 1), OF_STAGE)) if end > begin else short(0)
    stage = short(0)
    while left > 0:
        copies_wait(PENDING)
        cuda.syncthreads()  # the stage is there for all, and all have left the one before
        places = theirs + coming, theirs_x + coming
        columns = j, end, a_column, x_column
        copied(pool, own_a, own_x, starts, x_starts, places, columns)
        own_a, own_x, j = moved(own_a, OF_STAGE), moved(own_x, OF_STAGE), j + OF_STAGE
        coming = stage
        a_stage = short(here + stage)
        x_stage = short(here_x + stage)
        the steps
        stage = short(stage + STAGE) if stage + STAGE < RING else short(0)
        left = short(left - 1)
    own_{v} = of_lane(total_{v}, tid)
    put(sums, tid, joined({all_own}))
    cuda.syncthreads()  # all sums of these lanes are in place
    cluster_wait()  # all counters are set: sums may be sent
    r = tid // FINISHERS
    c = tid % FINISHERS
    while r - tid // FINISHERS < ALL_ROWS:  # whole warps, which shuffle
        row = min(r, ALL_ROWS - 1)
        for warp in range(SHARE_WARPS):
            (part_sum,) = butterfly((of_warp(sums, row, warp * OF_WARP + c),), FINISHERS, 1)
            if c == 0:
                slot = rank * SHARE_WARPS + warp
                cluster_post(box, met, slot, r, (part_sum,), 1, 1, OWN, ALL_ROWS)
        r += THREADS // FINISHERS
    own = tid
    while own < OWN and mine + own < ALL_ROWS:
        cluster_take(box)
        row_sum = met[own, 0]
        for warp in range(1, WARPS):
            row_sum += met[own, warp]
        i = first + (mine + own) % TILE_ROWS
        item = vector + (mine + own) // TILE_ROWS
        if i < rows and item < vectors:
            factors = {alpha}, alpha_step, {beta}, beta_step
            # A compiler may read factors ahead of the comparison, so they are those of a vector.
            finish(factors, row_sum, min(item, vectors - 1), y, item * y_step + i * incy)
        own += THREADS
"""
#: One load of a lane for all rows, which is multiplied with the numbers of all vectors.
_STEP = """
values = staged_tile(pool, a, PLACES, a_stage + <s> * A_LOAD, 0, 1, UNIT)
numbers = staged_tile(pool, read_x, (0,), x_stage + <s> * X_LOAD, X_OF_VECTOR, COUNT, UNIT)
total_{v} = multiply_add(total_{v}, values, pieces_of(numbers, {v}, 1, UNIT), CONJUGATE)
"""


def _copies(at_once, rows, x_copies, items, whole):
    """The source of the function that begins the copies of a stage; some are zeros if not `whole`.

    What lies behind the last column is zeros in shared memory.
    """
    name = "whole_stage" if whole else "some_stage"
    lines = [f"def {name}(pool, own_a, own_x, starts, x_starts, theirs, theirs_x, room, x_room):"]
    for s in range(at_once):
        for r in range(rows):
            there = f"pool, theirs + {s} * A_LOAD + {r} * ROWS_APART, own_a, starts[{r}]"
            there += f" + {s} * STEP"
            some = f"    copy_or_zeros({there}, {s} * STEP < room)"
            lines.append(f"    copy_async({there})" if whole else some)
    for k in range(x_copies):
        column = f"{k // items} * X_TURN_COLUMNS"
        there = f"pool, theirs_x + {k} * X_TURN, own_x, x_starts[{k % items}] + {column}"
        some = f"    copy_or_zeros({there}, {column} < x_room)"
        lines.append(f"    copy_async({there})" if whole else some)
    return "\n".join(lines)


def build(spec):
    import numpy as np

    from gemv import language
    from gemv.language import copies_commit, copy_async, copy_or_zeros, device

    WIDTH = spec.widths[0]
    LANES, CLUSTER, AT_ONCE, COUNT, STAGES = (
        spec[k] for k in ("LANES", "CLUSTER", "VECTORS", "COUNT", "STAGES")
    )
    # The share of a block is what is a turn elsewhere.
    scope = ends_of_rows.names_of(ends_of_rows.unsplit(spec, CLUSTER))
    PARTS, ROWS, THREADS, GROUPS = (scope[k] for k in ("PARTS", "ROWS", "THREADS", "GROUPS"))
    SHARE, STEP = LANES // CLUSTER, LANES * WIDTH
    SHARE_COLUMNS = SHARE * WIDTH
    COPIED = GROUPS * SHARE_COLUMNS  # elements of a load of one row of each group
    COPIED_ROWS = ROWS // PARTS
    A_LOAD, X_LOAD = ROWS * COPIED, COUNT * SHARE_COLUMNS
    A_STAGE = AT_ONCE * A_LOAD
    STAGE = A_STAGE + AT_ONCE * X_LOAD
    OF_X_LOAD = COUNT * SHARE  # threads that copy x of one load, or copies of it
    COPIED_ITEMS = max(OF_X_LOAD // THREADS, 1)  # vectors of which a thread copies some
    own = {
        "A_LOAD": A_LOAD, "ROWS_APART": PARTS * COPIED, "STEP": STEP, "X_TURN": THREADS * WIDTH,
        "X_TURN_COLUMNS": max(THREADS // OF_X_LOAD, 1) * STEP, "copy_async": copy_async,
        "copy_or_zeros": copy_or_zeros,
    }  # fmt: skip
    x_copies = AT_ONCE * OF_X_LOAD // THREADS
    exec(_copies(AT_ONCE, COPIED_ROWS, x_copies, COPIED_ITEMS, True), own)
    exec(_copies(AT_ONCE, COPIED_ROWS, x_copies, COPIED_ITEMS, False), own)
    whole_stage, some_stage = device(own["whole_stage"]), device(own["some_stage"])
    LAST = (AT_ONCE - 1) * STEP + SHARE_COLUMNS

    @device
    def copied(pool, own_a, own_x, starts, x_starts, places, columns):
        """Begin the copies of a stage, if there is one."""
        theirs, theirs_x = places
        j, end, a_column, x_column = columns
        if j + LAST <= end:
            whole_stage(pool, own_a, own_x, starts, x_starts, theirs, theirs_x, 0, 0)
        elif j < end:
            room, x_room = end - j - a_column, end - j - x_column
            some_stage(pool, own_a, own_x, starts, x_starts, theirs, theirs_x, room, x_room)
        copies_commit()

    scope |= {name: getattr(language, name) for name in _WORDS}
    scope |= {
        "copied": copied, "uint8": np.uint8, "uint64": np.uint64, "STEP": STEP, "COPIED": COPIED,
        "COPIED_ROWS": COPIED_ROWS, "COPIED_ITEMS": COPIED_ITEMS, "ITEMS_APART": THREADS // SHARE,
        "SHARE": SHARE, "SHARE_COLUMNS": SHARE_COLUMNS, "SHARE_WARPS": SHARE // WARP,
        "WARPS": LANES // WARP, "OWN": _own(scope["ALL_ROWS"], CLUSTER), "OF_X_LOAD": OF_X_LOAD,
        "A_STAGE": A_STAGE, "A_LOAD": A_LOAD, "X_LOAD": X_LOAD, "X_OF_VECTOR": SHARE_COLUMNS,
        "STAGE": STAGE, "RING": STAGES * STAGE, "STAGES": STAGES, "PENDING": STAGES - 2,
        "OF_STAGE": AT_ONCE * STEP, "PLACES": tuple(r * COPIED for r in range(ROWS)),
    }  # fmt: skip
    steps = (_STEP.strip("\n").replace("<s>", str(s)) for s in range(AT_ONCE))
    names = ends_of_rows.factor_names(spec)
    exec(ends_of_rows.source_of(_SOURCE, COUNT, names, {"steps": "\n".join(steps)}), scope)
    bounds = scope["THREADS"], spec.min_blocks
    kernel = attach(scope["several_rows_in_clusters"], launch_bounds=bounds, cluster=CLUSTER)
    return (kernel,)


def _own(sums, cluster):
    """Sums that a block of the cluster finishes, of all that a tile has."""
    return ceil_div(sums, cluster)


def accepts(problem):
    if problem.widths[0] * problem.dtype.itemsize != LOAD_BYTES or len(set(problem.widths)) > 1:
        return "A and x must be loaded by 16 bytes"
    if not problem.whole:
        return "some columns fill no vector"
    return no_twofold(problem) or wide_loads_object(problem, "dot")


def _shape(problem, knobs):
    """Lanes of a block, threads that share one of them, and threads and rows of a block."""
    parts = parts_of(knobs["PARTS"], problem.widths[0], problem.precision)
    lanes = knobs["LANES"] // knobs["CLUSTER"]
    threads = max(lanes * parts, knobs["THREADS_PER_BLOCK"])
    return lanes, parts, threads, threads // max(lanes * parts, 1) * knobs["ROWS"]


def tile(knobs):
    threads_of_row = knobs["LANES"] // knobs["CLUSTER"] * knobs["PARTS"]
    threads = max(threads_of_row, knobs["THREADS_PER_BLOCK"])
    return threads // threads_of_row * knobs["ROWS"], 4 * knobs["LANES"]


def ring_bytes(problem, knobs):
    """Bytes of shared memory that a launch asks for: STAGES of A and of x."""
    lanes, _, _, tile_rows = _shape(problem, knobs)
    return knobs["STAGES"] * knobs["VECTORS"] * lanes * (tile_rows + knobs["COUNT"]) * LOAD_BYTES


def sums_bytes(problem, knobs):
    """Bytes of shared memory for the sums of a block's lanes, and of all for rows it finishes."""
    lanes, parts, threads, tile_rows = _shape(problem, knobs)
    sums = sums_of_block(lanes, parts, threads, knobs["ROWS"] * knobs["COUNT"])
    sums += _own(knobs["COUNT"] * tile_rows, knobs["CLUSTER"]) * (knobs["LANES"] // WARP)
    return sums * problem.precision.sums.itemsize + BOX_BYTES


def constants_for(problem, knobs, vectors):
    """The constants for so many vectors, from those of the rung of rows; None where there are none.

    Then another kernel takes them.
    """
    lanes, size = knobs["LANES"], problem.dtype.itemsize
    if vectors < LEAST_VECTORS or accepts(problem) or problem.accumulate != "plain":
        return None
    if knobs["BLOCKS_PER_SM"] or lanes < LEAST_LANES.get(size, lanes + 1):
        return None
    count = next((each for each in COUNTS if vectors <= each), COUNTS[-1])
    if problem.rows * problem.cols * size < LEAST_BYTES or problem.rows > MOST_ROWS[count, size]:
        return None
    cluster = min(CLUSTER[count], lanes // WARP)
    made = TILES.get((count, size), {}).get(lanes // cluster)
    if made is None:
        return None
    return {"LANES": lanes, "CLUSTER": cluster, "COUNT": count, **made._asdict()}


def geometry(problem, device, knobs):
    return _geometry(problem, device, knobs, 1, 0, 0, 0, 0)


def of_batch(problem, batch, device, knobs):
    """The launch for vectors that share the matrix."""
    (vectors,), steps = batch.shape, (own[0] for own in batch.strides[1:])
    return _geometry(problem, device, knobs, vectors, *steps)


def _geometry(problem, device, knobs, vectors, x_step, y_step, alpha_step, beta_step):
    name, cluster = "several_rows_in_clusters", knobs["CLUSTER"]
    lacks = device.lacks(CLUSTERS, MOST_BLOCK_BYTES)
    if lacks:
        raise ValueError(f"{name}: blocks in clusters, and their rings of copies: {lacks}")
    if not 2 <= cluster <= MOST_CLUSTERED or cluster & (cluster - 1):
        raise ValueError(
            f"{name}: CLUSTER must be a power of two from 2 to {MOST_CLUSTERED}, got {cluster}"
        )
    lanes, parts, threads, tile_rows = _shape(problem, knobs)
    if knobs["LANES"] % cluster or lanes % WARP or threads % (lanes * parts):
        raise ValueError(
            f"{name}: LANES must be whole warps for each of CLUSTER blocks, and the threads of a"
            f" block a multiple of those of a row, got {knobs['LANES']} and {cluster}, {threads}"
            f" and {lanes * parts}"
        )
    of_x = knobs["COUNT"] * lanes
    if (
        knobs["ROWS"] % parts
        or knobs["VECTORS"] * of_x % threads
        or (threads % of_x and of_x % threads)
    ):
        raise ValueError(
            f"{name}: ROWS must be a multiple of PARTS, the threads of a block one or a part of"
            " COUNT times its lanes, and VECTORS times that one of the threads, got"
            f" {knobs['ROWS']} and {parts}, {threads} and {of_x}, and {knobs['VECTORS']}"
        )
    if knobs["STAGES"] < 2:
        raise ValueError(f"{name}: STAGES must be 2 or more, got {knobs['STAGES']}")
    turns = ceil_div(vectors, knobs["COUNT"])
    if turns > MAX_GRID_Y:
        raise ValueError(f"{name}: {vectors} vectors are more than a grid has blocks for")
    own, shared = sums_bytes(problem, knobs), ring_bytes(problem, knobs)
    if own > BLOCK_BYTES or own + shared > MOST_BLOCK_BYTES:
        raise ValueError(
            f"{name}: {own} bytes of shared memory for sums and {shared} for the ring are more than"
            f" {BLOCK_BYTES}, or together more than the {MOST_BLOCK_BYTES} that a block may ask for"
        )
    sizes = {
        "splits": 1, "cols_per_split": problem.cols, "helpers": 1, "vectors": vectors,
        "x_step": x_step, "y_step": y_step, "alpha_step": alpha_step, "beta_step": beta_step,
    }  # fmt: skip
    found = one_launch((ceil_div(problem.rows, tile_rows), cluster, turns), (threads, 1, 1), sizes)
    return found._replace(launches=(found.launches[0]._replace(shared=shared),))


KERNEL = Kernel(
    name="several_rows_in_clusters",
    rung=8,
    build=build,
    geometry=geometry,
    of_batch=of_batch,
    for_vectors=constants_for,
    tile=tile,
    beside=True,
    wide=True,
    accepts=accepts,
    capability=CLUSTERS,
    block_bytes=MOST_BLOCK_BYTES,
    # CLUSTER is a power of two from 2 to 16, and leaves each block a multiple of 32 lanes.
    knobs={
        "LANES": 512, "PARTS": 4, "CLUSTER": 8, "ROWS": 4, "VECTORS": 4, "COUNT": 8,
        "THREADS_PER_BLOCK": 512, "MIN_BLOCKS": 1, "STAGES": 3,
    },
    small_knobs={
        "LANES": 64, "PARTS": 1, "CLUSTER": 2, "ROWS": 1, "VECTORS": 1, "COUNT": 2,
        "THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1, "STAGES": 3,
    },
    doc=__doc__,
)  # fmt: skip
