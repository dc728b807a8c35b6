"""Choices of one GPU as changes of those of another: the cells that differ, and what they get.

A GPU with the multiprocessors of one that was measured has its choices. Times of the GPU itself may
tell better ones for some cells. ``machines/<gpu>.cells`` without a ``.toml`` has these alone, in a
tenth of the bytes: launches, and for each kind of problem the cells that get one of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np


def changes_of(cells: Mapping[int, int]) -> array[int]:
    """Places of cells and their numbers as one array: the distances of places, then the numbers.

    Neighbouring cells often change together, and then equal distances take few bytes as text.
    """
    places = sorted(cells)
    apart = [here - before for before, here in zip([0, *places], places, strict=False)]
    return array("H", [*apart, *(cells[place] for place in places)])


def cells_of(changes: array[int]) -> dict[int, int]:
    """The places of cells and their numbers that :func:`changes_of` made an array of."""
    places, new = _places_and_numbers(changes)
    return dict(zip(places.tolist(), new.tolist(), strict=True))


def change(numbers: array[int], changes: array[int], first: int) -> None:
    """Give cells their new numbers, of which the least is `first`."""
    places, new = _places_and_numbers(changes)
    np.frombuffer(numbers, np.uint16)[places] = new + first


def _places_and_numbers(changes: array[int]) -> tuple[np.ndarray, np.ndarray]:
    apart, new = np.frombuffer(changes, np.uint16).reshape(2, -1)
    return np.cumsum(apart, dtype=np.int64), new


def merged(choices: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Choices made ahead with changes of them, for :mod:`gemv.selection.choices`."""
    entries = choices["entries"]
    return {
        "entries": [*entries, *changes["entries"]],
        "kinds": choices["kinds"],
        "changes": {"first": len(entries), "kinds": changes["kinds"]},
    }
