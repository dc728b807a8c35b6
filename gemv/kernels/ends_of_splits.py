"""How the block that began last adds up the sums of splits, for several vectors at once.

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
from gemv.kernels.wide_tiles import TAKEN_FOR_COLUMNS, TAKEN_FOR_ROWS

#: Bytes of sums that a thread has on their way, of one float or of two. Twice as many spill
#: registers of some kernels.
TAKEN_BYTES, TAKEN_BYTES_OF_TWO = 128, 64
#: What :data:`OF_ROWS` and :data:`OF_COLUMNS` call.
WORDS = ("add_each", "fold", "quotient", "scatter_sums", "take_rows", "zeros")
#: Along the rows: each warp takes a row, and its lanes meet as in a butterfly.
OF_ROWS = """
if SPLIT and ticket[0] == splits - 1:
    # The last one to begin: all sums are there, or on their way.
    row_step, split_step = steps_of_sums(vectors * rows, splits)
    r = tid // 32
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
                found = take_rows(
                    zero, scratch, at, step, BATCH, rest, apart, TAKEN, vectors - item
                )
                own = add_each(own, fold(found, TAKEN))
                k += BATCH * SPLIT_LANES
            (share,) = scatter_sums(own, tid, 1, 32, 1)
            row_sum = share if warp == 0 else row_sum + share
        item += tid % 32 // HOLDERS  # the vector whose sum this lane has
        if tid % HOLDERS == 0 and i < rows and item < vectors:
            factors = {alpha}, alpha_step, {beta}, beta_step
            finish(factors, row_sum, item, y, item * y_step + i * incy)
        r += THREADS // 32
"""
#: Down the columns: FINISHERS threads share a row, and meet in shared memory.
OF_COLUMNS = """
if SPLIT and splits > 1 and ticket[0] == splits - 1:
    # The last one to begin: all sums are there, or on their way. Whole blocks take this branch.
    row_step, split_step = steps_of_sums(vectors * rows, splits)
    for chunk in range(COUNT // AT_END):
        s = tid
        while s < AT_END // TAKEN * FINISHERS * TILE_ROWS:
            place = s // (FINISHERS * TILE_ROWS) * TAKEN
            share = s // TILE_ROWS % FINISHERS
            row = s % TILE_ROWS
            i = first + row
            item = vector + chunk * AT_END + place
            k = share
            own = zeros(zero, TAKEN)
            while k < splits and i < rows and item < vectors:
                rest = quotient(splits - 1 - k, FINISHERS) + 1
                at = (item * rows + i) * row_step + k * split_step
                step, apart = FINISHERS * split_step, rows * row_step
                found = take_rows(
                    zero, scratch, at, step, BATCH, rest, apart, TAKEN, vectors - item
                )
                own = add_each(own, fold(found, TAKEN))
                k += BATCH * FINISHERS
            if FINISHERS > 1:
                put_each(sums, place * FINISHERS + share, row, own)
            elif i < rows:
                factors = {alpha}, alpha_step, {beta}, beta_step
                finish_each(factors, own, item, vectors, y, y_step, i * incy)
            s += THREADS
        if FINISHERS > 1:
            cuda.syncthreads()  # all shares are in place
            r = tid
            while r < AT_END * TILE_ROWS:
                place = r // TILE_ROWS * FINISHERS
                row = r % TILE_ROWS
                i = first + row
                item = vector + chunk * AT_END + r // TILE_ROWS
                if i < rows and item < vectors:
                    part = sums[place, row]
                    for k in range(1, FINISHERS):
                        part += sums[place + k, row]
                    at = item * y_step + i * incy
                    finish({alpha}, alpha_step, {beta}, beta_step, part, item, y, at)
                r += THREADS
            if chunk < COUNT // AT_END - 1:
                cuda.syncthreads()  # they are read
"""


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


def names_of_rows(count: int, tile_rows: int, threads: int, number: Any) -> dict[str, Any]:
    """What :data:`OF_ROWS` refers to, beside names of the kernel."""
    from gemv import language
    from gemv.language import device

    taken = taken_at_once(count, TAKEN_FOR_ROWS, tile_rows, threads // 32, number)
    _, holders, _ = share_of_lane(taken, 1, 1)
    return {name: getattr(language, name) for name in WORDS} | {
        "TAKEN": taken, "HOLDERS": holders, "BATCH": TAKEN_FOR_ROWS,
        "steps_of_sums": device(row_by_row),
    }  # fmt: skip


def names_of_columns(
    count: int, tile_rows: int, threads: int, finishers: int, places: int, number: Any, finish: Any
) -> dict[str, Any]:
    """What :data:`OF_COLUMNS` refers to, beside names of the kernel.

    Shared memory has `places` sums for each row of a tile: so many vectors meet at a time. If no
    threads share a row, none meet there.
    """
    from gemv import language
    from gemv.language import device

    at_end = count
    while finishers > 1 and at_end * finishers > places:
        at_end //= 2
    of_vector = finishers * tile_rows
    taken = taken_at_once(at_end, TAKEN_FOR_COLUMNS, of_vector, threads, number)
    own = {"finish": finish, "FINISHERS": finishers}
    exec(_for_each(taken), own)
    return {name: getattr(language, name) for name in WORDS} | {
        "TAKEN": taken, "AT_END": at_end, "BATCH": TAKEN_FOR_COLUMNS,
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
