"""The words that the kernels of lists have for each item, and those that follow from its sums.

A kernel for one product asks here for the words with which a kernel of a list has its order of
sums.
"""

from __future__ import annotations

import numpy as np

from gemv.core.dtypes import Precision
from gemv.core.geometry import CACHE_LINE_BYTES, LOAD_BYTES, SECTOR_BYTES, ceil_div
from gemv.core.problem import Problem
from gemv.kernels.grids import power_above

#: Of ``list_rows``: lane k of a warp loads word k. ``lanes`` is the logarithm of the lanes of a
#: row; ``loads`` is twice the elements of a load of A, and 1 more where x is read by loads of as
#: many. It is AROUND more where the lanes load the aligned 16 bytes around these elements.
OF_ROWS = ("a", "row_stride", "rows", "cols", "incx", "incy", "lanes", "loads")
AROUND = 64
#: Of ``list_columns``: ``begin`` and ``rows`` are the first row and the one behind the last.
#: ``lanes``, ``shares`` and ``parts`` are the logarithms of the lanes with different rows, with
#: different trees, and with different parts of a tree; ``warps`` is that of the warps of a block
#: that share the columns. ``tree`` is the logarithm of the groups of a tree, and ``groups`` are
#: those of all trees. ``step`` is the rows of a warp, and ``wide`` is 1 where x is read by loads of
#: 16 bytes. ``runs`` is the logarithm of the warps with different rows: it and ``warps`` are 0
#: where a tile belongs to one warp.
OF_COLUMNS = (
    "a", "col_stride", "begin", "rows", "cols", "incx", "incy", "lanes", "shares", "parts", "warps",
    "tree", "groups", "step", "wide", "runs",
)  # fmt: skip
#: Of ``list_in_order``: ``lanes`` and ``shares`` are the logarithms of the lanes with different
#: rows, and of those that share the columns of a row. ``groups`` are the sums of a row that are
#: added up in the end: in pairs, or one after the other where ``in_pairs`` is 0.
OF_IN_ORDER = (
    "a", "col_stride", "rows", "cols", "incx", "incy", "lanes", "shares", "groups", "in_pairs",
)  # fmt: skip
#: Lanes of a row at least, by the bytes of a number, where ``list_rows`` loads the aligned 16 bytes
#: around its elements. On an NVIDIA H100, 68 MB of matrices with 4 to 512 rows and columns take
#: 31.9 us in bfloat16 from one lane on, and 34.3 from two. An earlier build took
#: 27.0, 26.9 and 26.4 us in float32 from one, two and four lanes on, and in float64 27.4, 27.5 and
#: 26.9.
LEAST_AROUND = {2: 1, 4: 4, 8: 4}
#: Words of the place of an item: x, y, and whether alpha is not 0.
PLACES = 3
#: Columns that a lane of ``list_columns`` loads together, by 16 bytes each, and its warps.
AT_ONCE, WARPS = 4, 4
#: Turns in which a lane of ``list_columns`` loads its columns of a tree, at most.
MOST_TURNS = 4
#: Bytes of a column that neighbouring lanes of ``list_columns`` read at least: a line of the cache.
RUN_BYTES = CACHE_LINE_BYTES
#: Bytes of the sums that a block of ``list_columns`` has in shared memory for a tile. A warp has
#: half as many for a tile of its own.
SHARED_BYTES = 4096
#: Bytes of a tile of ``list_columns`` up to which it belongs to one warp. On an NVIDIA H100 68 MB
#: of matrices with 4 to 512 rows and columns took 48.9 us in bfloat16 up to 4 KiB, 44.8 us up to
#: 9 KiB, 44.9 us up to 16 KiB, and 53.1 us where each tile belongs to a block.
ALONE_BYTES = 9 << 10
#: Lanes of ``list_in_order`` that load the columns of one row, where one after the other adds up
#: what it has.
MOST_IN_ORDER = 4
#: Bytes of a tile that make a warp busy for about as long as it waits for the memory.
TILE_BYTES = 4096


def words_of_rows(problem: Problem, lanes: int, width: int, wide_x: bool) -> list[dict[str, int]]:
    """The words of an item whose rows have so many lanes, and loads of `width` elements.

    Where rows begin between two multiples of 16 bytes, a lane may have as many neighbouring loads
    as fill 16 bytes, and load the aligned 16 bytes around them: then it has the sums of as many
    lanes, and a row has fewer of them.
    """
    size = problem.dtype.itemsize
    around = lanes * width * size // LOAD_BYTES
    is_narrow = width * size < LOAD_BYTES and problem.incx == 1
    if is_narrow and has_around(problem.dtype, problem.accumulate) and around >= LEAST_AROUND[size]:
        return [{"lanes": _log(around), "loads": AROUND + 2 * width}]
    return [{"lanes": _log(lanes), "loads": 2 * width + wide_x}]


def has_around(dtype: np.dtype, accumulate: str) -> bool:
    """Whether ``list_rows`` has aligned loads around rows: sums for each element of a load."""
    return dtype.kind != "c" and accumulate == "plain"


def words_of_trees(
    problem: Problem, tree: int, trees: int
) -> tuple[str, list[dict[str, int]]] | None:
    """A kernel and its words for an item whose sums are `trees` trees of `tree` groups each.

    Rows that fill no vector are a second item: there, each of 32 threads of a warp is a group.
    """
    rows, width = problem.rows, problem.widths[0]
    edge = rows - rows % width
    if not has_plain_edges(problem) or trees & (trees - 1):
        return None
    if tree == 1 and trees <= MOST_IN_ORDER and not _keeps_phase(problem, trees):
        return "list_in_order", words_in_order(problem, trees, False)
    found = []
    for begin, end, groups in ((0, edge, tree), (edge, rows, 32)):
        if begin < end:
            words = _words_of_tree(problem, begin, end, groups, trees * groups)
            if words is None:
                return None
            found.append(words)
    return "list_columns", found


def _keeps_phase(problem: Problem, groups: int) -> bool:
    """Whether all columns of a group have the same phase, so that sums are moved when all are done.

    A phase is the distance to the last multiple of 16 bytes.
    """
    return groups * problem.col_stride % (LOAD_BYTES // problem.dtype.itemsize) == 0


def _words_of_tree(
    problem: Problem, begin: int, end: int, tree: int, groups: int
) -> dict[str, int] | None:
    """The words for the rows from `begin` to `end`, whose sums are trees of `tree` groups.

    If a warp can read them all as a tile of few bytes, it does; or tiles of neighbouring rows, if
    these have few bytes. Else a tile belongs to a block.
    """
    if groups < AT_ONCE or not _keeps_phase(problem, groups):
        return None
    rows, col_bytes = end - begin, problem.cols * problem.dtype.itemsize
    lanes = _lanes(problem, rows, tree, groups, 1, 32)
    if rows * col_bytes > ALONE_BYTES or lanes is None or lanes["step"] < rows:
        lanes = _lanes(problem, rows, tree, groups, 1, RUN_BYTES // LOAD_BYTES)
        if lanes is None or min(lanes["step"], rows) * col_bytes > ALONE_BYTES:
            lanes = _lanes(problem, rows, tree, groups, WARPS, RUN_BYTES // LOAD_BYTES)
    if lanes is None:
        return None
    wide = int(problem.incx == 1 and problem.x_alignment >= LOAD_BYTES)
    return {
        "begin": begin, "rows": end, "tree": _log(tree), "groups": groups, "wide": wide, **lanes,
    }  # fmt: skip


def _lanes(
    problem: Problem, rows: int, tree: int, groups: int, of_tile: int, neighbours: int
) -> dict[str, int] | None:
    """How `of_tile` warps share a tile; None if its sums need too much shared memory.

    So many `neighbours` in a warp have different rows, or more, if there are so many rows.
    """
    width = LOAD_BYTES // problem.dtype.itemsize
    is_phased = problem.widths[0] < width
    unit = max(tree, AT_ONCE)  # columns of a tree, or of the small trees of one lane
    most = power_above(max(1, min(groups // unit, ceil_div(problem.cols, unit))))
    enough = min(power_above(ceil_div(rows, width) + is_phased), 32)  # lanes for all rows
    # So many lanes at least share the parts of a tree that none of them has too many turns.
    least = ceil_div(unit // AT_ONCE, MOST_TURNS)
    lanes, warps = min(enough, neighbours, 32 // least), min(of_tile, most)
    shares = max(min(most // warps, 32 // lanes // least), 1)
    parts = min(32 // lanes // shares, unit // AT_ONCE)
    lanes = min(32 // (shares * parts), enough)
    runs = of_tile // warps
    sums_of_lane = most * unit // tree * runs * width
    places = SHARED_BYTES // problem.precision.sums.itemsize // (2 if of_tile == 1 else 1)
    while lanes and sums_of_lane * lanes > places:
        lanes //= 2
    if lanes <= is_phased:
        return None
    return {
        "lanes": _log(lanes), "shares": _log(shares), "parts": _log(parts), "warps": _log(warps),
        "runs": _log(runs), "step": (lanes - is_phased) * width,
    }  # fmt: skip


def words_in_order(problem: Problem, groups: int, in_pairs: bool = True) -> list[dict[str, int]]:
    """The words of an item where the columns of each of a few groups are added up in order."""
    size, enough = problem.dtype.itemsize, min(power_above(problem.rows), 32)
    most = min(ceil_div(problem.cols, columns_at_once(problem.precision)), MOST_IN_ORDER)
    shares = power_above(most) if groups == 1 else 1
    lanes = min(enough, max(32 // shares, SECTOR_BYTES // size))
    while lanes < enough and lanes * problem.cols * size < TILE_BYTES:
        lanes *= 2
    shares = min(shares, 32 // lanes)
    if groups > 1:  # each lane of a row has a group of its own
        lanes, shares = min(lanes, 32 // groups), groups
    return [{"lanes": _log(lanes), "shares": _log(shares), "groups": groups, "in_pairs": in_pairs}]


def columns_at_once(precision: Precision) -> int:
    """Columns that a lane of ``list_in_order`` loads together."""
    return max(4, 64 // precision.sums.itemsize)


def has_plain_edges(problem: Problem) -> bool:
    """Whether products of rows that fill no vector, if there are any, are added as all others are.

    A kernel of one product writes these as ``part += a * x``, which is one instruction for real
    numbers. For complex ones it is several, which the compiler joins as it likes.
    """
    plain = problem.dtype.kind != "c" and problem.accumulate == "plain"
    return plain or problem.rows % problem.widths[0] == 0


def _log(number: int) -> int:
    return number.bit_length() - 1
