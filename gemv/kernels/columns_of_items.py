"""Constants of ``vector_columns`` for many items: those with the least time by a formula.

A batch fills the GPU by the number of its items, and LANES and threads of a block are those of a
single product, as sums depend on them. What is left to choose are a few constants, and the best of
them differ by factors from shape to shape: rows behind the last one are loaded in vain, registers
limit the blocks of a multiprocessor, and these the bytes that are on their way.

The formula is that of :mod:`gemv.selection.formula` in small. It tells how long a multiprocessor
takes for an item, in us::

    T = sqrt(bytes**2 + waits**2 + issue**2) * (1 + spilled)

    bytes    of A, and a sector of 32 bytes for each column that two tiles share
    waits    the start of a block and one latency for each pass, divided by the blocks that a
             multiprocessor holds
    issue    loads, and for each of them the multiply-adds of a warp; the exchange of sums
    spilled  the part of the registers that is missing

Squares are compared, and computed by + - * / alone, so every machine has the same choice. Its
numbers were fitted to 1,694 times of 123 batches on an NVIDIA H100, with 32 to 512 rows and columns
in five dtypes (``benchmarks/results/items``, which has more by now). On the 134 batches there its
choice takes 1.5 % longer than the best of :data:`CANDIDATES` in the mean, 7 % in 95 % of the
batches and 16 % at most. The rule before it took 8.9 %, 34 % and 63 % longer on the first 123.
Other GPUs get the same choice, untimed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gemv.core.geometry import SECTOR_BYTES, ceil_div
from gemv.core.problem import Problem
from gemv.kernels.wide_tiles import lanes_and_pieces_of


class Columns(NamedTuple):
    """Constants that sums do not depend on."""

    COLUMNS: int
    ACROSS: int
    PIECES: int
    MIN_BLOCKS: int


#: What is compared: few loads in many blocks up to many loads in few blocks.
CANDIDATES = tuple(
    Columns(*each)
    for each in (
        (2, 1, 2, 4), (4, 1, 1, 4), (4, 1, 2, 2), (4, 1, 2, 4), (8, 1, 1, 2), (8, 1, 2, 2),
        (8, 1, 2, 4), (4, 1, 4, 2), (2, 2, 2, 2), (4, 2, 1, 2), (4, 2, 2, 2), (8, 2, 1, 2),
        (8, 2, 2, 2), (4, 4, 1, 2), (8, 4, 1, 2), (4, 4, 2, 2), (4, 1, 8, 2), (1, 1, 8, 4),
    )
)  # fmt: skip
#: PIECES, and bytes of a number, of candidates that are for loads of a single number alone. us on
#: an H100 for 136 MB, with the choice among up to 4 PIECES and with 8: float32 286 x 143,
#: transposed, 66 and 55, 259 x 259 60 and 53; complex64 129 x 129 64 and 52.
NARROW_PIECES, NARROW_BYTES = 8, 8
#: For blocks that have no room for the sums of any of these: a tile of as few rows as possible.
SMALLEST = Columns(4, 1, 1, 1)
#: Bytes of the sums in shared memory; a block has 48 KB, and some are for other things.
SUMS_BYTES = 47 << 10
#: The most lanes that stand along the rows, and the most threads of a block, with ACROSS.
MOST_LANES, MOST_THREADS = 16, 512
#: Registers of a multiprocessor, and threads that have at least 64 of them each.
REGISTERS, THREADS = 1 << 16, 1 << 10
#: Of a multiprocessor: threads, and blocks.
_MOST_RESIDENT, _MOST_BLOCKS = 2048, 32
#: Bytes that a multiprocessor gets from memory in a us.
RATE = 22500.0
#: us that a block waits: at its start, for the loads of a pass, and at its end for each word of a
#: thread's sums.
START, LATENCY, EXCHANGE = 0.6, 1.1, 0.125
#: us of the instructions of a warp: a load, its multiply-adds for a word of a thread's sums, and
#: the end for each of these sums.
LOAD, ADD, END = 0.0006, 0.001, 0.000125
#: Registers of a thread that are for no numbers of A, of x or of sums.
OWN = 32.0
#: Parts of the words of A and of x that a pass loads which are in registers at a time.
OF_A, OF_X = 0.75, 0.2
#: How much longer a kernel takes that has half of the registers that it wants.
SPILLED = 0.9


def can_widen(problem: Problem) -> bool:
    """Whether all rows fill vectors; for other rows a sum depends on the threads of the block."""
    return problem.whole or problem.widths[0] == 1


def arguments_of(problem: Problem, knobs: Mapping[str, int]) -> tuple[int, int, int]:
    """Lanes and threads of a single product, and its loads that stand for one of 16 bytes."""
    lanes, pieces = lanes_and_pieces_of(problem, knobs)
    return lanes, max(lanes, knobs["THREADS_PER_BLOCK"]), pieces // knobs["PIECES"]


def best_for_items(problem: Problem, lanes: int, threads: int, again: int) -> Mapping[str, int]:
    """COLUMNS, ACROSS, PIECES and MIN_BLOCKS for the items of a large batch.

    Parameters
    ----------
    problem : Problem
        An item.
    lanes, threads : int
        Of a group and of a block, in a single product.
    again : int
        Loads that stand for one of 16 bytes, in rows of their own.
    """
    found, least = SMALLEST, math.inf
    for each in possible(problem, lanes, threads):
        if _sums_bytes(problem, lanes, threads, again, each) > SUMS_BYTES:
            continue
        square = squared_time(problem, lanes, threads, again, each)
        # A fit has arrays of sizes here (benchmarks/fit/together.py), and divides them where they
        # differ: so this compares, and does not call min().
        if square < least:
            found, least = each, square
    return found._asdict()


def _sums_bytes(problem: Problem, lanes: int, threads: int, again: int, constants: Columns) -> int:
    """Bytes of shared memory where the warps of a block leave their sums."""
    warps = threads * constants.ACROSS // 32
    rows = lanes * constants.ACROSS * problem.widths[0] * constants.PIECES * again
    return min(threads // lanes, warps) * rows * problem.precision.sums.itemsize


def possible(problem: Problem, lanes: int, threads: int) -> Iterator[Columns]:
    """Those of :data:`CANDIDATES` that are compared, with at least 64 registers a thread."""
    widens = can_widen(problem)
    is_narrow = problem.widths[0] == 1 and problem.dtype.itemsize <= NARROW_BYTES
    for each in CANDIDATES:
        if each.PIECES >= NARROW_PIECES and not is_narrow:
            continue
        block = threads * each.ACROSS
        wide = widens and lanes * each.ACROSS <= MOST_LANES and block <= MOST_THREADS
        if each.ACROSS == 1 or wide:
            yield each._replace(MIN_BLOCKS=max(1, min(each.MIN_BLOCKS, THREADS // block)))


def squared_time(
    problem: Problem, lanes: int, threads: int, again: int, constants: Columns
) -> float:
    """The square of the us that a multiprocessor takes for an item, by the formula."""
    columns, across, pieces, min_blocks = constants
    size, width = problem.dtype.itemsize, problem.widths[0]
    words = problem.precision.sums.itemsize / 4
    pieces *= again
    groups, block = threads // lanes, threads * across
    tiles = ceil_div(problem.rows, lanes * across * width * pieces)
    passes = ceil_div(problem.cols, groups * columns)
    sums = pieces * width * words
    wanted = (
        OWN
        + OF_A * columns * pieces * max(1.0, width * size / 4)
        + OF_X * columns * max(1.0, size / 4)
        + sums
    )
    given = min(255, REGISTERS // (min_blocks * block) // 8 * 8)
    registers = math.ceil(min(wanted, given) / 8) * 8
    blocks = max(1, min(REGISTERS // (registers * block), _MOST_RESIDENT // block, _MOST_BLOCKS))
    column = problem.rows * size + SECTOR_BYTES * (tiles - 1)
    reads = column * problem.cols / RATE
    waits = tiles * (START + passes * LATENCY + EXCHANGE * sums) / blocks
    loads = passes * columns * pieces * (LOAD + ADD * width * words)
    issue = tiles * (block / 32) * (loads + END * pieces * width)
    longer = 1 + SPILLED * max(0.0, wanted / given - 1)
    return (reads * reads + waits * waits + issue * issue) * (longer * longer)
