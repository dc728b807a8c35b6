"""How the blocks that began last add up the sums of splits, for several vectors at once.

Sums of a split are a trip to the L2 cache away, however few they are. A thread that took those of
one vector after the other would make as many trips, in which the rest of the GPU has nothing to
do. So it asks for the sums of TAKEN vectors at the same time, and adds up those of each vector as
the rung of rows or of columns does. Registers bound TAKEN: all sums that are on their way have
some, and so have their addresses.

The lanes of a warp should ask for neighbours in scratch memory, or each of their loads touches as
many lines of the cache as there are lanes. Along the rows they take the splits of one row, down the
columns those of neighbouring rows. So the sums lie in another order for either
(:mod:`gemv.core.splits`).
"""

from __future__ import annotations

from typing import Any

from gemv.core.shares import share_of_lane
from gemv.core.splits import row_by_row, split_by_split
from gemv.kernels import helpers_of_ends
from gemv.kernels.wide_tiles import TAKEN_FOR_COLUMNS, TAKEN_FOR_ROWS

#: Bytes of sums that a thread has on their way, of one float or of two. Twice as many spill
#: registers of some kernels.
TAKEN_BYTES, TAKEN_BYTES_OF_TWO = 128, 64
#: Down the columns, sums that a thread should have to take where several blocks finish a tile.
SUMS_OF_THREAD = 2
#: What both ends call.
WORDS = ("add_each", "fold", "quotient", "scatter_sums", "take_rows", "zeros")
#: A share of a tile along the rows, some rows of all vectors: each warp takes a row, and its lanes
#: meet as in a butterfly. All sums are there, or on their way.
_SHARE_OF_ROWS = """
row_step, split_step = steps_of_sums(vectors * rows, splits)
r = tid // 32 + <share> * (THREADS // 32)
while r < ALL_ROWS // TAKEN:
    i = first + r % TILE_ROWS
    item = vector + r // TILE_ROWS * TAKEN
    row_sum = zero
    for warp in range(SPLIT_WARPS):
        k = warp * 32 + tid % 32
        own = zeros(zero, TAKEN)
        while k < splits and i < rows and item < vectors:
            rest = quotient(splits - 1 - k, SPLIT_LANES) + 1
            at = (item * rows + i) * row_step + k * split_step
            step, apart = SPLIT_LANES * split_step, rows * row_step
            found = take_rows(zero, scratch, at, step, BATCH, rest, apart, TAKEN, vectors - item)
            own = add_each(own, fold(found, TAKEN))
            k += BATCH * SPLIT_LANES
        (part,) = scatter_sums(own, tid, 1, 32, 1)
        row_sum = part if warp == 0 else row_sum + part
    item += tid % 32 // HOLDERS  # the vector whose sum this lane has
    if tid % HOLDERS == 0 and i < rows and item < vectors:
        factors = {alpha}, alpha_step, {beta}, beta_step
        finish(factors, row_sum, item, y, item * y_step + i * incy)
    r += HELPERS * (THREADS // 32)
"""
#: A share of a tile down the columns, some vectors of all rows: FINISHERS threads share a row, and
#: meet in shared memory.
_SHARE_OF_COLUMNS = """
row_step, split_step = steps_of_sums(vectors * rows, splits)
for chunk in range(OF_SHARE // AT_END):
    s = tid
    while s < AT_END // TAKEN * FINISHERS * TILE_ROWS:
        place = s // (FINISHERS * TILE_ROWS) * TAKEN
        finisher = s // TILE_ROWS % FINISHERS
        row = s % TILE_ROWS
        i = first + row
        item = vector + <share> * OF_SHARE + chunk * AT_END + place
        k = finisher
        own = zeros(zero, TAKEN)
        while k < splits and i < rows and item < vectors:
            rest = quotient(splits - 1 - k, FINISHERS) + 1
            at = (item * rows + i) * row_step + k * split_step
            step, apart = FINISHERS * split_step, rows * row_step
            found = take_rows(zero, scratch, at, step, BATCH, rest, apart, TAKEN, vectors - item)
            own = add_each(own, fold(found, TAKEN))
            k += BATCH * FINISHERS
        if FINISHERS > 1:
            put_each(sums, place * FINISHERS + finisher, row, own)
        elif i < rows:
            factors = {alpha}, alpha_step, {beta}, beta_step
            finish_each(factors, own, item, vectors, y, y_step, i * incy)
        s += THREADS
    if FINISHERS > 1:
        cuda.syncthreads()  # the sums of all threads are in place
        r = tid
        while r < AT_END * TILE_ROWS:
            place = r // TILE_ROWS * FINISHERS
            row = r % TILE_ROWS
            i = first + row
            item = vector + <share> * OF_SHARE + chunk * AT_END + r // TILE_ROWS
            if i < rows and item < vectors:
                part = sums[place, row]
                for k in range(1, FINISHERS):
                    part += sums[place + k, row]
                at = item * y_step + i * incy
                finish({alpha}, alpha_step, {beta}, beta_step, part, item, y, at)
            r += THREADS
        if HELPERS > 1 or chunk < OF_SHARE // AT_END - 1:
            cuda.syncthreads()  # they are read
"""


def of_rows(helpers: int) -> str:
    """The end of kernels along the rows, where so many blocks finish a tile."""
    return helpers_of_ends.in_shares(helpers, "SPLIT", _SHARE_OF_ROWS)


def of_columns(helpers: int) -> str:
    """The end of the kernel down the columns, where so many blocks finish a tile."""
    return helpers_of_ends.in_shares(helpers, "SPLIT and splits > 1", _SHARE_OF_COLUMNS)


def helpers_of_rows(count: int, tile_rows: int, threads: int, splits: int, number: Any) -> int:
    """Blocks that finish a tile along the rows: one for each row that a warp of one would take."""
    taken = _taken_of_rows(count, tile_rows, threads, number)
    return helpers_of_ends.helpers_of(splits, count * tile_rows // taken // (threads // 32))


def helpers_of_columns(count: int, tile_rows: int, threads: int, splits: int) -> int:
    """Blocks that finish a tile down the columns, each of which has some vectors."""
    worth = count * tile_rows * splits // (SUMS_OF_THREAD * threads)
    return helpers_of_ends.helpers_of(splits, min(count, worth))


def _taken_of_rows(count: int, tile_rows: int, threads: int, number: Any) -> int:
    return taken_at_once(count, TAKEN_FOR_ROWS, tile_rows, threads // 32, number)


def taken_at_once(vectors: int, batch: int, of_vector: int, workers: int, number: Any) -> int:
    """Vectors whose sums a thread takes at once, at most `vectors`, which is a power of two.

    A trip takes `batch` sums of each. There are `workers` threads or warps, and a vector is work
    for `of_vector` of them: none of them should have nothing to do.
    """
    taken, most = vectors, TAKEN_BYTES if number.kind == "f" else TAKEN_BYTES_OF_TWO
    while taken > 1 and (
        taken * batch * number.itemsize > most or vectors // taken * of_vector < workers
    ):
        taken //= 2
    return taken


def names_of_rows(
    count: int, tile_rows: int, threads: int, helpers: int, number: Any
) -> dict[str, Any]:
    """What :func:`of_rows` refers to, beside names of the kernel."""
    from gemv import language
    from gemv.language import device

    taken = _taken_of_rows(count, tile_rows, threads, number)
    _, holders, _ = share_of_lane(taken, 1, 1)
    return {name: getattr(language, name) for name in WORDS} | helpers_of_ends.names(helpers) | {
        "TAKEN": taken, "HOLDERS": holders, "BATCH": TAKEN_FOR_ROWS,
        "steps_of_sums": device(row_by_row),
    }  # fmt: skip


def names_of_columns(
    count: int, tile_rows: int, threads: int, helpers: int, finishers: int, places: int,
    number: Any, finish: Any,
) -> dict[str, Any]:  # fmt: skip
    """What :func:`of_columns` refers to, beside names of the kernel.

    Shared memory has `places` sums for each row of a tile: so many vectors meet at a time. If no
    threads share a row, none meet there.
    """
    from gemv import language
    from gemv.language import device

    at_end = of_share = count // helpers
    while finishers > 1 and at_end * finishers > places:
        at_end //= 2
    of_vector = finishers * tile_rows
    taken = taken_at_once(at_end, TAKEN_FOR_COLUMNS, of_vector, threads, number)
    own = {"finish": finish, "FINISHERS": finishers}
    exec(_for_each(taken), own)
    return {name: getattr(language, name) for name in WORDS} | helpers_of_ends.names(helpers) | {
        "TAKEN": taken, "AT_END": at_end, "OF_SHARE": of_share, "BATCH": TAKEN_FOR_COLUMNS,
        "steps_of_sums": device(split_by_split),
        "put_each": device(own["put_each"]), "finish_each": device(own["finish_each"]),
    }  # fmt: skip


def _for_each(taken: int) -> str:
    """The source of functions for the sums of so many vectors: a tuple has no index at run time."""
    put = [f"    sums[slot + {n} * FINISHERS, row] = own[{n}]" for n in range(taken)]
    finish = [
        line
        for n in range(taken)
        for line in (
            f"    if item + {n} < vectors:",
            f"        at = (item + {n}) * y_step + i",
            f"        finish(alpha, alpha_step, beta, beta_step, own[{n}], item + {n}, y, at)",
        )
    ]
    return "\n".join(
        [
            "def put_each(sums, slot, row, own):",
            *put,
            "def finish_each(factors, own, item, vectors, y, y_step, i):",
            "    alpha, alpha_step, beta, beta_step = factors",
            *finish,
        ]
    )
