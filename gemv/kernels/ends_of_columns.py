"""How the sums of columns meet in the kernel for several vectors, and go to y or to other splits.

``several_columns`` has the lines of its passes, behind which ``total_0``, ``total_1``, … are the
sums of a thread, one tuple for each vector. The rest of its source is here, with the order of sums
of the rung of columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gemv.core.batch import Batch
from gemv.core.geometry import Geometry, ceil_div
from gemv.core.shares import share_of_lane
from gemv.kernels import ends_of_splits
from gemv.kernels.several import sizes_of_vectors, turns_of_vectors
from gemv.kernels.wide_tiles import (
    finishers_of_columns,
    lanes_and_pieces,
    lanes_and_pieces_of,
    split_columns_of,
)

#: Bytes of shared memory for sums, and those that a block gets without asking for more.
SUMS_BYTES, SHARED_BYTES = 32 << 10, (48 << 10) - 64
#: What the kernel calls.
WORDS = (
    "atomic_inc", "butterfly", "cuda", "moved", "natural", "post", "quotient", "rounded_down",
)  # fmt: skip
#: The kernel. A line with ``{v}`` stands there once for each vector: a tuple of tuples has no index
#: at run time. What is between ``each chunk:`` and ``end`` stands there for each CHUNK of them.
SOURCE = """
def {kernel}(
    rows, cols, cols_per_split, splits, vectors, a, col_stride, x, x_step, incx, y, y_step, incy,
    {alpha}, alpha_step, {beta}, beta_step, scratch, counters,
):
    sums = cuda.shared.array((CHUNK_SHARES, TILE_ROWS), number, alignment=16)
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
                row_step, split_step = steps_of_sums(vectors * rows, splits)
                post(scratch, (item * rows + i) * row_step + split * split_step, part)
        r += THREADS
    cuda.syncthreads()  # they are read, and the next vectors may have their place
    end
    the splits
"""


def source_of(
    kernel: str, count: int, chunk: int, names: Mapping[str, Any], parts: Mapping[str, str]
) -> str:
    """The source of the kernel for `count` vectors, `chunk` of which meet at a time.

    A line of its own that is in `parts` is replaced by the text that they have for it.
    """
    names = {**names, "kernel": kernel}
    source = SOURCE
    for place, part in parts.items():
        source = inserted(source, place, part)
    lines: list[str] = []
    of_chunk: list[str] | None = None
    for line in source.splitlines():
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


def inserted(source: str, place: str, part: str) -> str:
    """The `source` with the lines of `part` wherever `place` is a line of its own."""
    lines: list[str] = []
    for line in source.splitlines():
        own = line.strip() == place
        indent = " " * (len(line) - len(line.lstrip()))
        lines += (indent + each for each in part.strip("\n").splitlines()) if own else [line]
    return "\n".join(lines)


def _for_each(
    lines: Iterable[str], vectors: Sequence[int], names: Mapping[str, Any]
) -> Iterator[str]:
    """The lines, those with ``{v}`` once for each vector."""
    for line in lines:
        for v in vectors if "{v}" in line else vectors[:1]:
            low = v * names["sums"]
            yield line.format(v=v, low=low, high=low + names["sums"], **names)


def edge_bytes(count: int, threads: int, width: int, precision: Any) -> int:
    """Bytes of the sums of rows that fill no vector."""
    return count * (threads // 32) * width * int(precision.sums.itemsize)


def of_tile_rows(knobs: Iterable[tuple[str, int]], width: int, itemsize: int, narrow: int) -> int:
    """Rows of a tile of the single product, whose blocks have OF_PIECES: it adds splits so."""
    alone = {**dict(knobs), "PIECES": dict(knobs)["OF_PIECES"]}
    lanes, pieces = lanes_and_pieces(alone, width, itemsize, narrow)
    return pieces * lanes * width


def names_of(spec: Any, taken: int) -> dict[str, Any]:
    """What :data:`SOURCE` refers to, where the passes take `taken` bytes of shared memory."""
    import numpy as np

    from gemv import language
    from gemv.language import device, put_units, read_only_load, scatter_sums
    from gemv.language import update_streaming as update

    zero, WIDTH, COUNT = spec.zero, spec.widths[0], spec["COUNT"]
    LANES, PIECES = lanes_and_pieces(dict(spec.knobs), WIDTH, spec.dtype.itemsize, spec.narrow)
    THREADS = max(LANES, spec["THREADS_PER_BLOCK"])
    GROUPS, WARPS = THREADS // LANES, THREADS // 32
    PIECE_ROWS = LANES * WIDTH
    TILE_ROWS = PIECES * PIECE_ROWS
    SUMS = PIECES * WIDTH
    KEPT, HOLDERS, RUN = share_of_lane(SUMS, WIDTH, LANES)
    SLOTS = min(GROUPS, WARPS)  # sums of a row that meet in shared memory
    alone = of_tile_rows(spec.knobs, WIDTH, spec.dtype.itemsize, spec.narrow)
    FINISHERS = finishers_of_columns(THREADS, alone)
    SHARES = max(SLOTS, FINISHERS)
    CHUNK = COUNT  # vectors whose sums meet at a time
    room = SHARED_BYTES - edge_bytes(COUNT, THREADS, WIDTH, spec.precision) - taken
    of_vector = SHARES * TILE_ROWS * spec.precision.sums.itemsize
    while CHUNK > 1 and CHUNK * of_vector > min(SUMS_BYTES, room):
        CHUNK //= 2
    ALPHAS, BETAS = (home == "pointer" for home in spec.homes)

    @device
    def put(sums, slot, tid, total):
        """Store what a warp has of the sums of its rows: as in the rung of columns."""
        mine = tid % LANES * WIDTH
        if LANES < 32:
            some = scatter_sums(total, tid, WIDTH, 32, LANES)
            if tid % HOLDERS < LANES:
                k = tid % 32 // HOLDERS * KEPT
                place = mine + k // WIDTH * PIECE_ROWS + k % WIDTH
                put_units(sums, slot + tid // 32, place, some, PIECE_ROWS, RUN)
        else:
            put_units(sums, slot + tid // LANES, mine, total, PIECE_ROWS, WIDTH)

    @device
    def finish(alpha, alpha_step, beta, beta_step, total, item, y, at):
        """Write an element of the y of one vector."""
        own_alpha = read_only_load(alpha, item * alpha_step) if ALPHAS else alpha
        own_beta = read_only_load(beta, item * beta_step) if BETAS else beta
        update(own_alpha, zero if own_alpha == 0 else total, own_beta, y, at)

    @device
    def all_columns(alpha, begin, end):
        return end

    @device
    def none_if_zero(alpha, begin, end):
        return end if alpha != 0 else begin

    at_end = ends_of_splits.names_of_columns(
        COUNT, TILE_ROWS, THREADS, spec.helpers, FINISHERS, CHUNK * SHARES,
        spec.precision.sums, finish,
    )  # fmt: skip
    return {name: getattr(language, name) for name in WORDS} | at_end | {
        "put": put, "finish": finish, "op": spec.op, "uint32": np.uint32,
        "last_column": all_columns if ALPHAS else none_if_zero,
        "of_x": language.conjugated if spec.conjugate_x else language.same,
        "number": spec.number, "zero": zero, "CONJUGATE": int(spec.conj),
        "WIDTH": WIDTH, "COUNT": COUNT, "EDGES": COUNT * WARPS, "LANES": LANES,
        "PIECES": PIECES, "THREADS": THREADS, "GROUPS": GROUPS, "WARPS": WARPS,
        "PIECE_ROWS": PIECE_ROWS, "TILE_ROWS": TILE_ROWS, "SUMS": SUMS, "SLOTS": SLOTS,
        "FINISHERS": FINISHERS, "SHARES": SHARES, "CHUNK": CHUNK, "CHUNK_SHARES": CHUNK * SHARES,
        "WHOLE": WIDTH == 1 or spec.whole,
        "SPLIT": spec["BLOCKS_PER_SM"] > 0,
    }  # fmt: skip


def factor_names(spec: Any) -> dict[str, str]:
    """The parameters of alpha and beta, by their homes."""
    alphas, betas = (home == "pointer" for home in spec.homes)
    return {
        "alpha": "alpha_pointer" if alphas else "alpha",
        "beta": "beta_pointer" if betas else "beta",
    }


def geometry_of(
    name: str, problem: Any, device: Any, knobs: Mapping[str, int], batch: Batch
) -> Geometry:
    """The launch for vectors that share the matrix.

    Columns are split as for the single product, whose tiles may have more pieces.
    """
    width = problem.widths[0]
    found = split_columns_of(problem, device, {**knobs, "PIECES": knobs["OF_PIECES"]})(problem)
    (_, splits, _), block, _ = found.launches[0]
    lanes, pieces = lanes_and_pieces_of(problem, knobs)
    tiles = ceil_div(problem.rows, pieces * lanes * width)
    turns = turns_of_vectors(name, batch.items, knobs["COUNT"])
    helpers = ends_of_splits.helpers_of_columns(
        knobs["COUNT"], pieces * lanes * width, block[0], splits
    )
    launch = found.launches[0]._replace(grid=(tiles, splits, turns), block=block)
    return found._replace(
        launches=(launch,),
        sizes={**found.sizes, **sizes_of_vectors(batch), "helpers": helpers},
        scratch=found.scratch * batch.items,
        counters=tiles * turns * helpers if found.counters else 0,
    )
