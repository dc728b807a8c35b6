"""One kernel, five homes for x: what broadcasts, what serialises, and what does not fit.

Idea
    All rows are multiplied with the same x, so x is what a GPU should keep close, and it has many
    places to offer. This kernel reads x[j] from one of them, chosen by ``X_HOME``: constant memory
    (a symbol of the module), the kernel's parameters (x passed by value, which is constant memory
    too), shared memory, the read-only path of the L1 cache, or plain global memory. Nothing else
    changes, so a difference in time is the home's.

    Constant memory delivers one address to a whole warp. ``LANES_PER_ROW`` says how many different
    x[j] the threads of a warp ask for at once: with 1 each thread takes a row and all threads read
    the same x[j], a broadcast; with 32 the warp shares a row and every thread reads another
    x[j], which constant memory serves one after the other.

Picture
    ::

        LANES_PER_ROW = 1                       LANES_PER_ROW = 32
        row 0    T0  reads x[j]                 row 0    T0 T1 T2 ... T31
        row 1    T1  reads x[j]                          x[j] x[j+1] x[j+2] ... x[j+31]
        ...
        row 31   T31 reads x[j]                 32 addresses: constant memory takes 32 turns,
        one address: one turn                   a cache line of 128 bytes takes one

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize, and len(x) * itemsize once more to
    bring x to constant memory, or to the parameters with every launch.

Wins
    Constant memory: one address for the whole warp, A stored along columns, x of at most 64 KB
    that changes rarely; some percent against loads through L1. From a few hundred columns on, a
    tile of x in shared memory wins against all of them.

Loses
    Constant memory: every thread of a warp at another address. And always where x is longer than
    64 KB: this kernel refuses it, and no compiler would put the rest elsewhere.

Sums
    Each of the LANES_PER_ROW threads of a row adds every LANES_PER_ROW-th product, then a tree of
    shuffles. The same for all homes, so all of them give the same bits.

Source
    "Constant Cache vs. Read-Only Cache", parts 1 and 2, Acceleware: the race and its rules. J.
    Sanders and E. Kandrot, "CUDA by Example", section 6.2: broadcast and its price, there for half
    warps. "Constant memory", a CUDA exercise of EPCC: the two banks, and x as the candidate.
"""

from gemv.core.dtypes import dtype_name
from gemv.core.geometry import CONSTANT_BYTES, Geometry, Launch, ceil_div
from gemv.kernels.depths import in_halves, shared_out
from gemv.kernels.kernel import Kernel, attach
from gemv.kernels.spec import X_SYMBOL

#: What X_HOME counts.
HOMES = ("global", "read_only", "shared", "constant", "value")
#: All parameters of a kernel together, since CUDA 12.1; 4096 before. The others take 100 or so.
PARAMETER_BYTES = 32764
_OTHER_PARAMETERS = 124
#: A tile of x in shared memory.
TILE_BYTES = 16 * 1024


def fetch_from(home, spec):
    """``fetch(x, incx, j)`` for x[j] by the load that `home` asks for; the symbol, if any."""
    from gemv.language import constant_array, device, parameter_load, read_only_load

    load = None
    if home == "constant":
        load = constant_array(X_SYMBOL, spec.dtype, spec.constant_bytes // spec.dtype.itemsize)

        @device
        def fetch(x, incx, j):
            return load(j)
    elif home == "value":

        @device
        def fetch(x, incx, j):
            return parameter_load(x, j)
    elif home == "read_only":

        @device
        def fetch(x, incx, j):
            return read_only_load(x, j * incx)
    else:

        @device
        def fetch(x, incx, j):
            return x[j * incx]

    return fetch, load


def build(spec):
    from gemv.language import cuda, update

    number, zero, op, shfl_xor = spec.number, spec.zero, spec.op, spec.shfl_xor
    home = HOMES[spec["X_HOME"]]
    LANES = spec["LANES_PER_ROW"]
    COLS = spec["COLS"]
    THREADS_PER_BLOCK = spec["THREADS_PER_BLOCK"]
    ROWS_PER_BLOCK = THREADS_PER_BLOCK // LANES
    TILE = TILE_BYTES // spec.dtype.itemsize
    fetch, symbol = fetch_from(home, spec)

    def where_x_lives(rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy):
        tid = cuda.threadIdx.x
        lane = tid % LANES
        if alpha == 0:
            cols = 0
        for row0 in range(cuda.blockIdx.x * ROWS_PER_BLOCK, rows, cuda.gridDim.x * ROWS_PER_BLOCK):
            i = row0 + tid // LANES
            total = zero
            if i < rows:
                if COLS > 0:
                    if alpha != 0:
                        for j in range(lane, COLS, LANES):  # unrolled: each j is a number
                            total += op(a[i * row_stride + j * col_stride]) * fetch(x, incx, j)
                else:
                    for j in range(lane, cols, LANES):
                        total += op(a[i * row_stride + j * col_stride]) * fetch(x, incx, j)
            reach = LANES // 2
            while reach > 0:  # the whole warp comes here, also past the last row
                total += shfl_xor(total, reach)
                reach //= 2
            if lane == 0 and i < rows:
                update(alpha, total, beta, y, i * incy)

    def through_shared(rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy):
        tile = cuda.shared.array(TILE, number)
        tid = cuda.threadIdx.x
        lane = tid % LANES
        if alpha == 0:
            cols = 0
        for row0 in range(cuda.blockIdx.x * ROWS_PER_BLOCK, rows, cuda.gridDim.x * ROWS_PER_BLOCK):
            i = row0 + tid // LANES
            total = zero
            for start in range(0, cols, TILE):
                count = min(TILE, cols - start)
                cuda.syncthreads()  # the tile before this one has been read by all threads
                for k in range(tid, count, THREADS_PER_BLOCK):
                    tile[k] = x[(start + k) * incx]
                cuda.syncthreads()  # this tile is complete
                if i < rows:
                    at = i * row_stride + start * col_stride
                    for j in range(lane, count, LANES):
                        total += op(a[at + j * col_stride]) * tile[j]
            reach = LANES // 2
            while reach > 0:
                total += shfl_xor(total, reach)
                reach //= 2
            if lane == 0 and i < rows:
                update(alpha, total, beta, y, i * incy)

    if home == "shared":
        return (through_shared,)
    if home == "constant":
        return (attach(where_x_lives, x_symbol=symbol),)  # where the simulator writes x
    if home == "value":
        return (attach(where_x_lives, value_bytes=spec["VALUE_BYTES"]),)
    return (where_x_lives,)


def accepts(problem):
    if problem.precision.sums != problem.dtype:
        return f"{dtype_name(problem.dtype)} is not computed in as it lies in memory"
    needed = problem.cols * problem.dtype.itemsize
    if needed > CONSTANT_BYTES:
        return (
            f"x takes {needed} bytes, and constant memory ends at {CONSTANT_BYTES} bytes (64 KB)"
            " for each module"
        )
    return None


def geometry(problem, device, knobs):
    threads, lanes = knobs["THREADS_PER_BLOCK"], knobs["LANES_PER_ROW"]
    if lanes not in (1, 2, 4, 8, 16, 32) or threads % 32:
        raise ValueError(
            f"where_x_lives: LANES_PER_ROW must be a power of two up to 32, got {lanes}, and"
            f" THREADS_PER_BLOCK a multiple of 32, got {threads}"
        )
    if HOMES[knobs["X_HOME"]] == "value":
        room, needed = knobs["VALUE_BYTES"], problem.cols * problem.dtype.itemsize
        most = PARAMETER_BYTES - _OTHER_PARAMETERS
        if room > most or room % 16:
            raise ValueError(
                f"where_x_lives: VALUE_BYTES = {room} must be a multiple of 16 and at most {most}:"
                f" all parameters of a kernel together end at {PARAMETER_BYTES} bytes"
            )
        if needed > room:
            raise ValueError(
                f"where_x_lives: x takes {needed} bytes, its parameter VALUE_BYTES = {room}"
            )
    if knobs["COLS"] not in (0, problem.cols):
        raise ValueError(
            f"where_x_lives: compiled for COLS = {knobs['COLS']} columns, not {problem.cols}"
        )
    blocks = min(ceil_div(problem.rows, threads // lanes), knobs["MAX_BLOCKS"])
    return Geometry((Launch((blocks, 1, 1), (threads, 1, 1)),))


def x_home(knobs):
    home = HOMES[knobs["X_HOME"]]
    return home if home in ("constant", "value") else "pointer"


def depth(problem, geometry, knobs):
    return int(in_halves(shared_out(problem.cols, knobs["LANES_PER_ROW"]) - 1))


KERNEL = Kernel(
    name="where_x_lives",
    rung=6,
    build=build,
    geometry=geometry,
    tile=lambda knobs: (knobs["THREADS_PER_BLOCK"] // knobs["LANES_PER_ROW"], 32),
    depth=depth,
    knobs={
        "X_HOME": HOMES.index("constant"),
        "LANES_PER_ROW": 1,
        "THREADS_PER_BLOCK": 64,
        "MAX_BLOCKS": 1 << 20,
        "VALUE_BYTES": 4000,
        "COLS": 0,
    },
    small_knobs={"LANES_PER_ROW": 8, "THREADS_PER_BLOCK": 32, "MAX_BLOCKS": 2},
    teaching=True,
    beside=True,
    accepts=accepts,
    x_home=x_home,
    doc=__doc__,
)
