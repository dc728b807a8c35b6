"""Where a launch finds the items of a list of products."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gemv.core.operand import Operand


class Tables(NamedTuple):
    """What a launch for items of different sizes is given beside the first A, x and y.

    Attributes
    ----------
    arrays : dict of str to Operand
        By the names of :data:`~gemv.core.geometry.TABLES`.
    a, x, y : list of Operand
        Of all items, each beginning at the element with index 0, in the order of the table.
    is_beside : bool
        Whether the launch may run beside the one before it, which is of the same list.
    """

    arrays: dict[str, Operand]
    a: list[Operand]
    x: list[Operand]
    y: list[Operand]
    is_beside: bool


#: ``launch(stream, a, x, y, tables)``: a launch that is packed, on the stream with this handle. The
#: tables are those that it was packed with, or others at the same addresses.
PackedLaunch = Callable[[int, Operand, Operand, Operand, Tables], None]
