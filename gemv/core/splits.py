"""Where the sums of splits lie in scratch memory, for the kernel and for the host.

Blocks that share rows of op(A) have a *split* of its columns each, and leave a sum of every row in
scratch memory. That memory is an array of rows and splits, and a kernel has one of two functions
for the steps of that array: elements from a row to the next one, and from a split to the next one.
The kernel calls it as a device function. Panels and shards, which let some of the splits run by
themselves and copy their sums, call it on the host.

Row i of vector v is row ``v*rows + i`` of that array, so several vectors have many more rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

#: ``steps(rows, splits)`` gives the step of a row and the step of a split.
StepsOfSums = Callable[[int, int], tuple[int, int]]


def split_by_split(rows: int, splits: int) -> tuple[int, int]:
    """The rows of a split are neighbours, as threads that finish neighbouring rows read them."""
    return 1, rows


def row_by_row(rows: int, splits: int) -> tuple[int, int]:
    """The splits of a row are neighbours, as a warp that finishes one row reads them."""
    return splits, 1


class Lines(NamedTuple):
    """Some of the sums: lines of neighbours.

    Attributes
    ----------
    first : int
        The element that the first line begins with.
    number, length : int
        How many lines there are, and the elements of each.
    pitch : int
        Elements from the start of one line to that of the next.
    """

    first: int
    number: int
    length: int
    pitch: int


class SumsOfSplits(NamedTuple):
    """The scratch memory of one product.

    Attributes
    ----------
    steps : callable
        That of the kernel.
    rows, splits : int
        Of the whole product; a launch may have only some of the splits.
    """

    steps: StepsOfSums
    rows: int
    splits: int

    def first(self, split: int) -> int:
        """The element with the sum of the first row."""
        _, split_step = self.steps(self.rows, self.splits)
        return split * split_step

    def size(self, count: int) -> int:
        """Elements from the first sum to the last one of `count` neighbouring splits."""
        row_step, split_step = self.steps(self.rows, self.splits)
        return (self.rows - 1) * row_step + (count - 1) * split_step + 1

    def lines(self, first: int, count: int) -> Lines:
        """The sums that all rows have of `count` splits, from split `first` on."""
        row_step, split_step = self.steps(self.rows, self.splits)
        if split_step == 1:
            return Lines(self.first(first), self.rows, count, row_step)
        return Lines(self.first(first), count, self.rows, split_step)
