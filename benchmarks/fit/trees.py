"""Predictions of decision trees in machine code: those of scikit-learn, bit for bit, in less time.

A decision for all cells of a GPU asks the trees some fifty million times. To go down a tree, a
processor has to guess at each node, and a wrong guess costs it twenty cycles. Here no tree is gone
down. Each node has a mask of the leaves that are still possible where its number is above the
threshold: all but those of its first branch. What is left of all masks of a tree begins with the
right leaf (C. Lucchese et al., "QuickScorer", 2015). And the masks of all nodes that look at one
number are combined ahead, for each interval between two of their thresholds. So a prediction is the
product of some fifty rows of masks, which are combined for 16 trees by one instruction or two.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

#: Leaves of a tree: bits of a mask.
_LEAVES = 16
#: Multiplied with a power of two below 2**16, it has another number in its highest four bits for
#: each of them (C. E. Leiserson et al., "Using de Bruijn sequences to index a 1", 1998).
_DE_BRUIJN = 0x09AF
#: Rows that trees are compared on with scikit-learn's own predictions.
_CHECKED = 200


class Trees:
    """The trees of a fitted ``HistGradientBoostingRegressor``, for numbers that are not NaN.

    Parameters
    ----------
    fitted : HistGradientBoostingRegressor
        Its trees have at most 16 leaves.
    features : array
        What it was fitted to. A part of it is predicted by both, because what a release of
        scikit-learn keeps of its trees is not in its documentation.
    """

    def __init__(self, fitted: Any, features: np.ndarray) -> None:
        self._base = float(fitted._baseline_prediction.item())
        trees = [tree.nodes for (tree,) in fitted._predictors]
        self._values = np.zeros((len(trees), _LEAVES))
        nodes: list[tuple[int, float, int, int]] = []  # feature, threshold, tree, mask
        for number, tree in enumerate(trees):
            values = _read(tree, number, 0, 0, nodes)
            if values > _LEAVES:
                raise ValueError(f"a tree may have {_LEAVES} leaves, and one has {values}")
            _keep_values(tree, 0, 0, self._values[number])
        self._features = sorted({feature for feature, *_ in nodes})
        self._thresholds, tables = [], []
        for feature in self._features:
            own = [node[1:] for node in nodes if node[0] == feature]
            thresholds = np.unique([threshold for threshold, _, _ in own])
            table = np.full((len(thresholds) + 1, len(trees)), 0xFFFF, np.uint16)
            for threshold, tree, mask in own:  # the number is above it from there on
                table[np.searchsorted(thresholds, threshold) + 1 :, tree] &= mask
            self._thresholds.append(thresholds)
            tables.append(table)
        self._begins = np.cumsum([0, *map(len, tables)])[:-1]
        self._tables = np.concatenate(tables)
        some = features[:: max(1, len(features) // _CHECKED)]
        if not np.array_equal(self.predict(some), fitted.predict(some)):
            raise RuntimeError("this release of scikit-learn keeps its trees in another way")

    def predict(self, features: np.ndarray) -> np.ndarray:
        """As ``fitted.predict``."""
        rows = np.empty((len(features), len(self._features)), np.int32)
        for at, (feature, thresholds) in enumerate(
            zip(self._features, self._thresholds, strict=True)
        ):
            rows[:, at] = np.searchsorted(thresholds, features[:, feature]) + self._begins[at]
        return _predicted(rows, self._tables, self._values, self._base)


def _read(
    nodes: Any, tree: int, number: int, begin: int, found: list[tuple[int, float, int, int]]
) -> int:
    """The number of leaves below a node, whose first leaf is number `begin`."""
    node = nodes[number]
    if node["is_leaf"]:
        return 1
    first = _read(nodes, tree, int(node["left"]), begin, found)
    mask = 0xFFFF & ~(((1 << first) - 1) << begin)
    found.append((int(node["feature_idx"]), float(node["num_threshold"]), tree, mask))
    return first + _read(nodes, tree, int(node["right"]), begin + first, found)


def _keep_values(nodes: Any, number: int, begin: int, values: np.ndarray) -> int:
    """Store the values of the leaves below a node where :func:`_predicted` looks for them."""
    node = nodes[number]
    if node["is_leaf"]:
        values[(_DE_BRUIJN << begin & 0xFFFF) >> 12] = node["value"]
        return begin + 1
    begin = _keep_values(nodes, int(node["left"]), begin, values)
    return _keep_values(nodes, int(node["right"]), begin, values)


@numba.njit(nogil=True)
def _predicted(rows, tables, values, base):
    trees = len(values)
    found = np.empty(len(rows))
    left = np.empty(trees, np.uint16)
    for k in range(len(rows)):
        left[:] = 0xFFFF
        for row in rows[k]:
            masks = tables[row]
            for tree in range(trees):
                left[tree] &= masks[tree]
        total = base
        for tree in range(trees):  # in the order of trees, as scikit-learn adds
            mask = np.uint32(left[tree])
            lowest = mask & (~mask + np.uint32(1))
            total += values[tree, (lowest * np.uint32(_DE_BRUIJN) & np.uint32(0xFFFF)) >> 12]
        found[k] = total
    return found
