"""The cells of a campaign: drawn evenly over sizes, shapes, dtypes and alignments.

The draw is a low-discrepancy sequence, so that any first part of it covers the same ground, only
more thinly: a campaign that was cut short is a smaller campaign.
"""

from __future__ import annotations

import math

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import ceil_div
from gemv.measure.cells import Cell

#: Bytes of A: less takes hardly longer than starting a kernel.
BYTES = (1 << 14, 1 << 30)
#: Bytes of A that is read from the L2 cache again and again.
HOT_BYTES = (1 << 14, 24 << 20)
#: The longest line, and the most lines, in elements.
SIDE = 1 << 24
#: One cell of so many is read from the L2 cache.
HOT_EACH = 8
#: Of each eleven cells these are kept from the fit; 11 shares no factor with HOT_EACH.
_HELD_OUT, _HELD_OUT_OF = (2, 5, 8), 11
#: Dtypes by their prefix, as often as they are drawn.
_DTYPES = "sshhbbdcz"
#: Views; most matrices are whole.
_VIEWS = ("", "", "", "", ":, 1:", ":, 4:", "1:, :", "3:-2, :", ":, 2:-1")


def _steps(count: int) -> list[float]:
    """Steps of an additive sequence in `count` dimensions: powers of the root of an equation.

    The root of ``x**(count + 1) == x + 1`` gives the most even sequence known of this kind
    (M. Roberts, "The unreasonable effectiveness of quasirandom sequences", 2018).
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
    # The length of a line is drawn evenly on a logarithmic scale, between what SIDE allows.
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
    """`value` as a multiple of a power of two, `most` at most, that is below an eighth of it."""
    unit = min(most, 1 << max(0, int(math.log2(value)) - 3))
    return max(unit, round(value / unit) * unit)


def is_held_out(number: int) -> bool:
    """Whether that cell is kept from the fit, to judge it by."""
    return number % _HELD_OUT_OF in _HELD_OUT
