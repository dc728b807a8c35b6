"""The words that the kernels of lists have for each item, and those that follow from its sums.

A kernel for one product asks here for the words with which a kernel of a list has its order of
sums.
"""

from __future__ import annotations

from gemv.core.dtypes import Precision
from gemv.core.geometry import SECTOR_BYTES, ceil_div
from gemv.core.problem import Problem
from gemv.kernels.grids import power_above

#: Of ``list_rows``: lane k of a warp loads word k. ``lanes`` is the logarithm of the lanes of a
#: row; ``loads`` is twice the elements of a load of A, and 1 more where x is read by loads of as
#: many.
OF_ROWS = ("a", "row_stride", "rows", "cols", "incx", "incy", "lanes", "loads")
#: Of ``list_columns``: ``begin`` and ``rows`` are the first row and the one behind the last.
#: ``lanes``, ``shares`` and ``parts`` are the logarithms of the lanes with different rows, with
#: different trees, and with different parts of a tree. ``tree`` is the logarithm of the groups of a
#: tree, or IN_ORDER, and ``groups`` are those of all trees. ``loads`` is the elements of a load.
OF_COLUMNS = (
    "a", "col_stride", "begin", "rows", "cols", "incx", "incy", "lanes", "shares", "tree", "groups",
    "loads", "parts",
)  # fmt: skip
#: Words of the place of an item: x, y, and whether alpha is not 0.
PLACES = 3
#: In place of the logarithm of a tree: the shares of a row are added up in order.
IN_ORDER = -1
#: The most columns that a lane of ``list_columns`` loads together.
LONGEST = 16
#: Lanes that load the columns of one row, where one after the other adds up what it has.
MOST_IN_ORDER = 4
#: Columns of the longest item that has fewer groups than that, whose columns lanes do not share.
MOST_OF_FEW = 128
#: Bytes of a tile that make a warp busy for about as long as it waits for the memory.
TILE_BYTES = 4096


def words_of_rows(lanes: int, width: int, wide_x: bool) -> list[dict[str, int]]:
    """The words of an item whose rows have so many lanes, and loads of `width` elements."""
    return [{"lanes": _log(lanes), "loads": 2 * width + wide_x}]


def words_of_trees(problem: Problem, tree: int, trees: int) -> list[dict[str, int]] | None:
    """The words of an item whose sums are `trees` trees of `tree` groups each, if there are any.

    Rows that fill no vector are a second item: there, each of 32 threads of a warp is a group.
    """
    rows, cols, width = problem.rows, problem.cols, problem.widths[0]
    edge = rows - rows % width
    if not has_plain_edges(problem) or trees & (trees - 1) or tree * trees < 4:
        return None
    found = []
    for begin, end, loads, groups in ((0, edge, width, tree), (edge, rows, 1, 32)):
        if begin == end:
            continue
        unit, all_groups = columns_at_once(loads, problem.precision), trees * groups
        if all_groups < unit and cols > MOST_OF_FEW:
            return None
        parts = max(groups // unit, 1)
        unit = max(unit, groups)  # columns of a tree, or of the small trees of one lane
        most = power_above(max(1, min(all_groups // unit, ceil_div(cols, unit))))
        lanes, shares = _lanes(problem, end - begin, loads, most * parts)
        found.append({
            "begin": begin, "rows": end, "lanes": _log(lanes), "shares": _log(min(shares, most)),
            "tree": _log(groups), "groups": all_groups, "loads": loads,
            "parts": _log(max(shares // most, 1)),
        })  # fmt: skip
    return found


def words_in_order(problem: Problem, groups: int) -> list[dict[str, int]]:
    """The words of an item where the columns of each of a few groups are added up in order."""
    loads = ceil_div(problem.cols, columns_at_once(1, problem.precision))
    most = min(loads, MOST_IN_ORDER) if groups == 1 else 1
    lanes, shares = _lanes(problem, problem.rows, 1, most)
    if groups > 1:  # each lane of a row has a group of its own
        lanes, shares = min(lanes, 32 // groups), groups
    return [{
        "begin": 0, "rows": problem.rows, "lanes": _log(lanes), "shares": _log(shares),
        "tree": IN_ORDER, "groups": groups, "loads": 1, "parts": 0,
    }]  # fmt: skip


def columns_at_once(width: int, precision: Precision) -> int:
    """Columns that a lane of ``list_columns`` loads together, by `width` elements each."""
    return max(4, LONGEST * 4 // (width * precision.sums.itemsize))


def _lanes(problem: Problem, rows: int, width: int, most: int) -> tuple[int, int]:
    """How many lanes have different rows, and how many different columns: at most `most`."""
    size = width * problem.dtype.itemsize
    shares = min(power_above(most), 32)
    enough = min(power_above(ceil_div(rows, width)), 32)  # lanes for all rows
    lanes = min(enough, max(32 // shares, SECTOR_BYTES // size, 1))
    while lanes < enough and lanes * problem.cols * size < TILE_BYTES:
        lanes *= 2
    return lanes, min(shares, 32 // lanes)


def has_plain_edges(problem: Problem) -> bool:
    """Whether products of rows that fill no vector, if there are any, are added as all others are.

    A kernel of one product writes these as ``part += a * x``, which is one instruction for real
    numbers. For complex ones it is several, which the compiler joins as it likes.
    """
    plain = problem.dtype.kind != "c" and problem.accumulate == "plain"
    return plain or problem.rows % problem.widths[0] == 0


def _log(number: int) -> int:
    return number.bit_length() - 1
