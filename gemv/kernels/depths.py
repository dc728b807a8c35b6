"""How deep sums are: additions on the longest way from a product to the sum.

A sum of n products one after the other has the depth n - 1; a sum of no products has -1. Kernels
find theirs by adding up depths instead of numbers, in the order in which they add up numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gemv.core.geometry import Geometry, ceil_div
from gemv.core.problem import Problem


def shared_out(count: int, parties: int) -> np.ndarray:
    """How many of `count` things each of `parties` gets that takes every `parties`-th."""
    return np.maximum(count - np.arange(parties) + parties - 1, 0) // parties


def joined(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Depths of sums of two: to add to a sum of no products rounds nothing."""
    return np.maximum(left, right) + ((left >= 0) & (right >= 0))


def in_order(depths: np.ndarray) -> np.ndarray:
    """Depth of what is added up from first to last, along the first axis."""
    return functools.reduce(joined, depths)


def in_halves(depths: np.ndarray) -> np.ndarray:
    """The same for a tree that adds the second half to the first, of a power of two."""
    while len(depths) > 1:
        half = len(depths) // 2
        depths = joined(depths[:half], depths[half:])
    return depths[0]


def of_splits(problem: Problem, geometry: Geometry, depth_of: Callable[[int], Any]) -> np.ndarray:
    """Depth of each split of a row, by a function of how many columns it has."""
    splits, most = (geometry.sizes[name] for name in ("splits", "cols_per_split"))
    last = depth_of(problem.cols - (splits - 1) * most)
    return np.array([depth_of(most)] * (splits - 1) + [last])  # all but the last are alike


def in_lanes(depths: np.ndarray, lanes: int) -> np.ndarray:
    """Depth of sums that `lanes` take in turns, each in order, and a butterfly adds up."""
    return in_halves(in_order(depths.reshape(-1, lanes)))


def of_finishers(depths: np.ndarray, finishers: int, batch: int) -> np.ndarray:
    """Depths of splits once `finishers` threads have shared them, `batch` of a thread at a time."""
    turns = ceil_div(len(depths), finishers * batch)
    padded = np.full((turns * batch * finishers, *depths.shape[1:]), -1)
    padded[: len(depths)] = depths
    several = padded.reshape(turns, batch, finishers, *depths.shape[1:])
    return in_order(in_halves(several.swapaxes(0, 1)))
