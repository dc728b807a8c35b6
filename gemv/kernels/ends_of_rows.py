"""How the sums of rows meet in the kernel for several vectors, and go to y or to other splits.

The loops of ``several_rows`` and ``several_staged_rows`` leave the partial sums of a thread in
``total_0``, ``total_1``, …, one tuple for each vector. :data:`ENDING` adds them up in the order of
the rung of rows. What comes behind all turns is in :mod:`gemv.kernels.ends_of_splits`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gemv.core.geometry import LOAD_BYTES, Geometry, ceil_div, one_launch
from gemv.core.shares import shares
from gemv.kernels import ends_of_splits
from gemv.kernels.grids import partial_sums
from gemv.kernels.several import turns_of_vectors
from gemv.kernels.wide_tiles import finish_warps, split_rows

#: Constants of the single product, and what they are called beside those of several vectors.
_OF_ONE = {"ROWS": "OF_ROWS", "VECTORS": "OF_VECTORS", "THREADS_PER_BLOCK": "OF_THREADS"}
#: What :data:`ENDING` calls.
WORDS = ("butterfly", "cuda", "fold", "load_units", "moved", "post")
#: The end where each row has one sum in shared memory: a thread takes RUN neighbours of y.
ENDING_IN_RUNS = """
own_{v} = of_lane(total_{v}, tid)
put(sums, tid, joined({all_own}))
cuda.syncthreads()  # the sums of all rows are in place
r = tid * RUN
while r < ALL_ROWS:
    i = first + r % TILE_ROWS
    item = vector + r // TILE_ROWS
    if i < rows and item < vectors:
        row_sums = load_units(sums, r, RUN)
        factors = {alpha}, alpha_step, {beta}, beta_step
        finish_run(factors, row_sums, item, moved(y, item * y_step), i, rows, incy)
    r += RUN * THREADS
"""
#: The end of a turn: `sums` is shared memory for all sums, which nobody needs for other things.
ENDING = """
own_{v} = of_lane(total_{v}, tid)
put(sums, tid, joined({all_own}))
cuda.syncthreads()  # all sums of these lanes are in place, and neighbours store neighbours
r = tid // FINISHERS
c = tid % FINISHERS
while r - tid // FINISHERS < ALL_ROWS:  # whole warps, which shuffle
    row = min(r, ALL_ROWS - 1)
    (row_sum,) = butterfly((of_warp(sums, row, c),), FINISHERS, 1)
    if TURNS > 1 and turn > 0 and c == 0:
        row_sum = carried[row] + row_sum
    for warp in range(1, WARPS_PER_TURN):
        (more,) = butterfly((of_warp(sums, row, warp * OF_WARP + c),), FINISHERS, 1)
        row_sum += more
    i = first + r % TILE_ROWS
    item = vector + r // TILE_ROWS
    if TURNS > 1 and turn < TURNS - 1:
        if c == 0 and r < ALL_ROWS:
            carried[row] = row_sum
    elif c == 0 and r < ALL_ROWS and i < rows and item < vectors:
        if SPLIT:
            row_step, split_step = steps_of_sums(vectors * rows, splits)
            post(scratch, (item * rows + i) * row_step + split * split_step, row_sum)
        else:
            factors = {alpha}, alpha_step, {beta}, beta_step
            at = item * y_step + i * incy
            # A compiler may read factors ahead of the comparison, so they are those of a vector.
            finish(factors, row_sum, min(item, vectors - 1), y, at)
    r += THREADS // FINISHERS
if turn < TURNS - 1:
    cuda.syncthreads()  # they are read, and those of the next lanes may have their place
"""


def parts_of(parts: int, width: int, precision: Any) -> int:
    """Threads that share a lane: one where wide sums of different columns are one sum."""
    return min(parts, width) if partial_sums(width, precision) == width else 1


def turns_of(turns: int, lanes: int) -> int:
    """Turns that threads take for the lanes of a row: a turn has whole butterflies of 32 lanes."""
    return max(min(turns, lanes // 32), 1)


def tile(knobs: Mapping[str, int]) -> tuple[int, int]:
    """Rows and columns of a tile of the kernels for several vectors."""
    row_threads = knobs["LANES"] // turns_of(knobs["TURNS"], knobs["LANES"]) * knobs["PARTS"]
    threads = max(row_threads, knobs["THREADS_PER_BLOCK"])
    return threads // row_threads * knobs["ROWS"], 4 * knobs["LANES"]


def of_one(knobs: Mapping[str, int]) -> dict[str, int]:
    """The constants of the single product that say how it splits columns, by other names."""
    return {own: knobs[name] for name, own in _OF_ONE.items()}


def launch_of(
    name: str, problem: Any, device: Any, knobs: Mapping[str, int], tile_rows: int, threads: int,
    most: int, sizes: Mapping[str, int],
) -> Geometry:  # fmt: skip
    """The launch of a kernel for several vectors, with the splits of the single product.

    A tile has `tile_rows` rows, and without splits at most `most` blocks take them all; `sizes` are
    what the kernel is told besides, among them how many vectors there are.
    """
    vectors, tiles = sizes["vectors"], ceil_div(problem.rows, tile_rows)
    turns = turns_of_vectors(name, vectors, knobs["COUNT"])
    sizes = {"splits": 1, "cols_per_split": problem.cols, "helpers": 1, **sizes}
    if not knobs["BLOCKS_PER_SM"]:
        return one_launch((min(tiles, most), 1, turns), (threads, 1, 1), sizes)
    own = {name: knobs[of_name] for name, of_name in _OF_ONE.items()}
    sizes |= split_rows(problem, device, {**knobs, **own})(problem).sizes
    splits = sizes["splits"]
    sizes["helpers"] = helpers = ends_of_splits.helpers_of_rows(
        knobs["COUNT"], tile_rows, threads, splits, problem.precision.sums
    )
    return one_launch(
        (tiles, splits, turns), (threads, 1, 1), sizes, splits * vectors * problem.rows,
        tiles * turns * helpers, posts=True,
    )  # fmt: skip


def sums_of_block(lanes: int, parts: int, threads: int, rows: int) -> int:
    """Sums in shared memory, of so many rows a thread: each leaves one for 32 lanes or for each.

    `lanes` are those of a turn.
    """
    slots = lanes if min(lanes, 32) * parts > 32 else ceil_div(lanes, 32)
    return threads // (lanes * parts) * rows * slots


def source_of(source: str, count: int, names: Mapping[str, str], more: Mapping[str, str]) -> str:
    """The source of a kernel for `count` vectors.

    A line ``the NAME`` is replaced by the text `more` has for it, and a line with ``{v}`` stands
    there once for each vector: a tuple of tuples has no index at run time, so the loop over the
    vectors is unrolled in the source.
    """
    own = {**names, "all_own": ", ".join(f"own_{v}" for v in range(count))}
    lines: list[str] = []
    for line in source.splitlines():
        indent, word = line[: len(line) - len(line.lstrip())], line.strip().removeprefix("the ")
        inserted = more[word].strip("\n").splitlines() if word in more else None
        for each in [line] if inserted is None else (indent + one for one in inserted):
            vectors = range(count) if "{v}" in each else (0,)
            lines += (each.format(v=v, **own) for v in vectors)
    return "\n".join(lines)


def _joined(count: int, length: int) -> str:
    """The source of a function that makes one tuple of `count` tuples."""
    tuples = ", ".join(f"own_{v}" for v in range(count))
    numbers = ", ".join(f"own_{v}[{k}]" for v in range(count) for k in range(length))
    return f"def joined({tuples}):\n    return ({numbers},)"


def _store(held: int, held_rows: int, groups: int, tile_rows: int, slots: int) -> str:
    """The source of a function that stores `held` sums: so many rows for each of some vectors."""
    places = (k // held_rows * tile_rows + k % held_rows * groups for k in range(held))
    lines = (
        f"    sums[(row + {place}) * {slots} + slot] = values[{k}]"
        for k, place in enumerate(places)
    )
    return "\n".join(["def store(sums, row, slot, values):", *lines])


def unsplit(spec: Any, turns: int) -> Any:
    """`spec` for :func:`names_of`, of a kernel that splits no columns and has no constants for it.

    The threads of a block have the lanes of one of so many `turns`.
    """
    own = {"TURNS": turns, "BLOCKS_PER_SM": 0, "OF_ROWS": 1, "OF_THREADS": 32}
    return dataclasses.replace(spec, knobs=tuple(sorted({**dict(spec.knobs), **own}.items())))


def names_of(spec: Any) -> dict[str, Any]:
    """What the ends refer to, and the loop before them, for the knobs of a kernel of rows."""
    from gemv import language
    from gemv.language import butterfly, device, fold, scatter_sums, update_streaming

    zero, WIDTH = spec.zero, spec.widths[0]
    LANES, ROWS, COUNT = (spec[k] for k in ("LANES", "ROWS", "COUNT"))
    PARTS = parts_of(spec["PARTS"], WIDTH, spec.precision)
    TURNS = turns_of(spec["TURNS"], LANES)
    ROW_THREADS = LANES // TURNS * PARTS
    THREADS = max(ROW_THREADS, spec["THREADS_PER_BLOCK"])
    GROUPS = THREADS // ROW_THREADS
    TILE_ROWS = GROUPS * ROWS
    WARP_LANES = min(LANES, 32)  # of the rung of rows, whose butterfly they have
    SPREAD = max(WARP_LANES * PARTS // 32, 1)  # warps that these lanes take here
    # Sums of a row in shared memory: one of each such butterfly, or one of each lane.
    EACH_SLOT = PARTS if SPREAD > 1 else WARP_LANES * PARTS
    SLOTS = ROW_THREADS // EACH_SLOT
    FINISHERS = WARP_LANES // SPREAD if SPREAD > 1 else 1
    OF_ROW = partial_sums(WIDTH, spec.precision) // PARTS  # partial sums of a thread for a row
    # The threads of a lane divide its rows between them, then the lanes of a warp divide the sums.
    DIVIDED = ROWS % PARTS == 0
    HELD_ROWS = ROWS // PARTS if DIVIDED else ROWS
    HOLDING = PARTS if DIVIDED else 1  # threads of a lane with sums that no other has
    SHARES = shares(COUNT * HELD_ROWS, 1, EACH_SLOT, PARTS) if SPREAD == 1 else 1
    HELD, SHARERS = COUNT * HELD_ROWS // SHARES, EACH_SLOT // SHARES
    # Warps that share a row when splits are added: as in the rung of rows, with its constants.
    sharing = finish_warps(LANES, spec["OF_ROWS"], spec["OF_THREADS"])
    ALPHAS = spec.homes[0] == "pointer"
    RUN = run_of(spec, SLOTS, TILE_ROWS)
    runs = runs_of(spec, RUN)
    own_factors = runs["own_factors"]

    written: dict = {}
    exec(_joined(COUNT, HELD_ROWS), written)
    exec(_store(HELD, HELD_ROWS, GROUPS, TILE_ROWS, SLOTS), written)
    joined, store = device(written["joined"]), device(written["store"])

    @device
    def of_lane(total, tid):
        """The sums of the rows of a lane, as in a lane that is one thread."""
        if DIVIDED:
            return fold(scatter_sums(total, tid, OF_ROW, PARTS, 1), HELD_ROWS)
        return fold(butterfly(total, PARTS, 1), ROWS)

    @device
    def put(sums, tid, own):
        """Store what a warp has of the sums, each by one of its threads."""
        place = tid % ROW_THREADS
        row = tid // ROW_THREADS + place % HOLDING * (HELD_ROWS * GROUPS)
        if SPREAD > 1:
            if place % PARTS < HOLDING:
                store(sums, row, place // PARTS, own)
        else:
            share = scatter_sums(own, tid, 1, EACH_SLOT, PARTS)
            if place % SHARERS < HOLDING:
                first = place % EACH_SLOT // SHARERS * HELD
                row += first // HELD_ROWS * TILE_ROWS + first % HELD_ROWS * GROUPS
                store(sums, row, place // EACH_SLOT, share)

    @device
    def of_warp(sums, row, slot):
        """The sum of the lanes in one place of SPREAD warps, in the order of a butterfly."""
        at = row * SLOTS + slot
        if SPREAD == 1:
            return sums[at]
        if SPREAD == 2:
            return sums[at] + sums[at + FINISHERS]
        even, odd = sums[at], sums[at + FINISHERS]
        if SPREAD == 4:
            even += sums[at + 2 * FINISHERS]
            odd += sums[at + 3 * FINISHERS]
        else:
            even += sums[at + 4 * FINISHERS]
            odd += sums[at + 5 * FINISHERS]
            even += sums[at + 2 * FINISHERS] + sums[at + 6 * FINISHERS]
            odd += sums[at + 3 * FINISHERS] + sums[at + 7 * FINISHERS]
        return even + odd

    @device
    def finish(factors, total, item, y, at):
        """Write an element of the y of one vector."""
        own_alpha, own_beta = own_factors(factors, item)
        update_streaming(own_alpha, zero if own_alpha == 0 else total, own_beta, y, at)

    @device
    def all_columns(alpha, begin, end):
        return end

    @device
    def none_if_zero(alpha, begin, end):
        return end if alpha != 0 else begin

    at_end = ends_of_splits.names_of_rows(
        COUNT, TILE_ROWS, THREADS, spec.helpers, spec.precision.sums
    )
    return {name: getattr(language, name) for name in WORDS} | at_end | {
        "finish": finish, "last_column": all_columns if ALPHAS else none_if_zero,
        "of_x": language.conjugated if spec.conjugate_x else language.same,
        "number": spec.number, "zero": zero, "CONJUGATE": int(spec.conj), "WIDTH": WIDTH,
        "of_lane": of_lane, "put": put, "joined": joined, "of_warp": of_warp,
        "finish_run": runs["finish_run"], "RUN": RUN, "ALL_SUMS": COUNT * TILE_ROWS * SLOTS,
        "UNIT": WIDTH // PARTS, "PARTS": PARTS, "ROW_THREADS": ROW_THREADS,
        "ROWS": ROWS, "COUNT": COUNT, "THREADS": THREADS, "GROUPS": GROUPS,
        "TILE_ROWS": TILE_ROWS, "ALL_ROWS": COUNT * TILE_ROWS, "SLOTS": SLOTS,
        "FINISHERS": FINISHERS, "OF_WARP": FINISHERS * SPREAD if SPREAD > 1 else 1,
        "TURNS": TURNS, "CARRIED": COUNT * TILE_ROWS if TURNS > 1 else 1,
        "WARPS_PER_TURN": LANES // TURNS // WARP_LANES, "SPLIT": spec["BLOCKS_PER_SM"] > 0,
        "SPLIT_WARPS": sharing, "SPLIT_LANES": 32 * sharing,
        "SUMS": ROWS * OF_ROW,
    }  # fmt: skip


def runs_of(spec: Any, run: int) -> dict[str, Any]:
    """The functions ``own_factors`` and ``finish_run``, for `run` neighbours of y at a time."""
    from gemv import language
    from gemv.language import device, load_back, moved, read_only_load, store_vectors, zeros

    zero, RUN, RUN_BYTES = spec.zero, run, run * spec.precision.y.itemsize
    ALPHAS, BETAS = (home == "pointer" for home in spec.homes)
    is_aligned = language.is_aligned
    scaled_all, blended_all, update_all = language.unrolled(1, RUN)

    @device
    def own_factors(factors, item):
        alpha, alpha_step, beta, beta_step = factors
        own_alpha = read_only_load(alpha, item * alpha_step) if ALPHAS else alpha
        own_beta = read_only_load(beta, item * beta_step) if BETAS else beta
        return own_alpha, own_beta

    @device
    def finish_run(factors, totals, item, y, i, rows, incy):
        """Write neighbouring elements of the y of one vector, by one store if that is possible."""
        own_alpha, own_beta = own_factors(factors, item)
        if own_alpha == 0:
            totals = zeros(zero, RUN)
        if incy == 1 and i + RUN <= rows and is_aligned(moved(y, i), RUN_BYTES):
            if own_beta == 0:
                store_vectors(y, i, 0, scaled_all(own_alpha, totals), RUN)
            else:
                old = load_back(y, i, 0, 1, RUN)
                store_vectors(y, i, 0, blended_all(own_alpha, totals, own_beta, old), RUN)
        else:
            update_all(own_alpha, totals, own_beta, y, i, 0, rows, incy)

    return {"own_factors": own_factors, "finish_run": finish_run}


def run_of(spec: Any, slots: int, tile_rows: int) -> int:
    """Neighbours of y that a thread finishes: 1 if a row has several sums left, or more to come."""
    has_turns = turns_of(spec["TURNS"], spec["LANES"]) > 1
    if slots > 1 or has_turns or spec["BLOCKS_PER_SM"] or spec.precision.sums.fields is not None:
        return 1
    run = max(1, LOAD_BYTES // max(spec.precision.y.itemsize, spec.precision.sums.itemsize))
    return run if tile_rows % run == 0 else 1


def ending_of(names: Mapping[str, Any]) -> str:
    """The text of the end of a turn."""
    return ENDING_IN_RUNS if names["RUN"] > 1 else ENDING


def factor_names(spec: Any) -> dict[str, str]:
    """The parameters of alpha and beta, by their homes."""
    alphas, betas = (home == "pointer" for home in spec.homes)
    return {
        "alpha": "alpha_pointer" if alphas else "alpha",
        "beta": "beta_pointer" if betas else "beta",
    }
