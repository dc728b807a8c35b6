"""The cells of a campaign: drawn evenly over sizes, shapes, dtypes and alignments.

The draw is a low-discrepancy sequence, so its first cells cover the same ranges as all cells do,
only less densely. So a campaign that was interrupted is a complete, smaller campaign.
"""

from __future__ import annotations

import math

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import ceil_div
from gemv.measure.cells import Cell

#: Least and most bytes of A; a smaller A takes hardly longer than starting a kernel.
BYTES = (1 << 14, 1 << 30)
#: Least and most bytes of A in L2-resident cells.
HOT_BYTES = (1 << 14, 24 << 20)
#: The most elements of a line, and the most lines.
SIDE = 1 << 24
#: One cell of HOT_EACH is L2-resident.
HOT_EACH = 8
#: These of each 11 cells are held out of the fit; 11 and HOT_EACH have no common factor.
_HELD_OUT, _HELD_OUT_OF = (2, 5, 8), 11
#: Dtypes by their BLAS letter; a dtype is drawn as often as its letter is here.
_DTYPES = "sshhbbdcz"
#: Views; most matrices are whole.
_VIEWS = ("", "", "", "", ":, 1:", ":, 4:", "1:, :", "3:-2, :", ":, 2:-1")


def _steps(count: int) -> list[float]:
    """Steps of an additive sequence in `count` dimensions.

    They are negative powers of the root of ``x**(count + 1) == x + 1``, which give the most even
    sequence known of this kind (M. Roberts, "The unreasonable effectiveness of quasirandom
    sequences", 2018).
    """
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (count + 1))
    return [root ** -(k + 1) for k in range(count)]


_STEPS = _steps(6)


def cell(number: int) -> Cell:
    """Cell `number` of the draw; numbers count from 0."""
    size, length, kind, view, way, roundness = (
        (0.5 + (number + 1) * step) % 1.0 for step in _STEPS
    )
    hot = number % HOT_EACH == HOT_EACH - 1
    dtype = _DTYPES[int(kind * len(_DTYPES))]
    itemsize = DTYPES[dtype].itemsize
    least, most = HOT_BYTES if hot else BYTES
    elements = int(least * (most / least) ** size) // itemsize
    # The length of a line is log-uniform between the least and the most that SIDE allows.
    shortest = ceil_div(elements, SIDE)
    longest = min(elements, SIDE)
    line = int(shortest * (longest / shortest) ** length)
    lines = max(1, elements // line)
    if roundness < 0.45:  # as people allocate: both sides multiples of a power of two
        line, lines = _rounded(line, 64), _rounded(lines, 64)
    elif roundness < 0.6:
        line = _rounded(line, 16)
    order = "CF"[int(2 * way)]
    op = "NT"[int(4 * way) % 2]
    along_n = order == "C"  # lines of A are its rows
    m, n = (lines, line) if along_n else (line, lines)
    return Cell(m, n, dtype, op, order, _VIEWS[int(view * len(_VIEWS))], hot)


def _rounded(value: int, most: int) -> int:
    """`value`, rounded to a multiple of a power of two of at most `most` and `value` / 8."""
    unit = min(most, 1 << max(0, int(math.log2(value)) - 3))
    return max(unit, round(value / unit) * unit)


def is_held_out(number: int) -> bool:
    """Whether that cell is held out of the fit, so that it can judge the fit."""
    return number % _HELD_OUT_OF in _HELD_OUT
