"""Lists that come again: launches that were found for products of the same sizes."""

from __future__ import annotations

from collections.abc import Sequence

from gemv.core import memo
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.selection import ragged
from gemv.selection.ragged import Group

#: Lists whose launches are kept, and bytes that the tables of one may take.
MOST_LISTS, MOST_BYTES = 8, 4 << 20

_known: dict[tuple, list[Group]] = {}
memo.on_forget(_known.clear)


def groups(
    problems: Sequence[Problem], places: Sequence[tuple[int, ...]], device: Device
) -> list[Group]:
    """:func:`gemv.selection.ragged.groups`, which is asked once for a list that comes again.

    Nobody may write to their tables.
    """
    key = (memo.generation(), device, tuple(problems), tuple(places))
    found = _known.get(key)
    if found is None:
        found = ragged.groups(problems, places, device)
        arrays = [each for group in found for each in (group.table, group.blocks)]
        if sum([0 if each is None else each.nbytes for each in arrays]) <= MOST_BYTES:
            for old in list(_known)[: max(len(_known) + 1 - MOST_LISTS, 0)]:
                _known.pop(old, None)
            _known[key] = found
    return found
