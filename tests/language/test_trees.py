"""Sums that a lane adds up as trees, and takes from another lane, bit for bit as NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.problems import Case

from gemv.core.geometry import one_launch
from gemv.core.narrow import cast
from gemv.kernels import REGISTRY
from gemv.kernels.kernel import Kernel

#: Numbers of a lane: four pieces of two.
COUNT, WIDTH = 8, 2


def of_trees():
    """A kernel whose 32 lanes have COUNT numbers each; its results are three parts of y."""

    def build(spec):
        from numba import cuda

        from gemv.language import (
            add_each,
            axpy_add,
            fold_pieces,
            gather,
            natural,
            pieces_of,
            put_pieces,
            sums_of_lane,
            zeros,
        )

        number, zero = spec.number, spec.zero
        PLACES = 32 * WIDTH

        def of_trees(rows, a, row_stride, col_stride, x, y, incy):
            sums = cuda.shared.array((3, PLACES), number)
            tid = natural(cuda.threadIdx.x)
            values = gather(a, tid * COUNT, 0, 1, col_stride, COUNT)
            ones = gather(x, 0, 0, 1, 1, 1)
            mine = axpy_add(zeros(zero, COUNT), values, ones, COUNT, 0)
            tree = fold_pieces(mine, WIDTH)
            put_pieces(sums, 0, tid * WIDTH, tree, WIDTH, WIDTH)
            low = fold_pieces(pieces_of(mine, 0, 2, WIDTH), WIDTH)
            high = fold_pieces(pieces_of(mine, 2, 2, WIDTH), WIDTH)
            both = add_each(add_each(tree, low), high)
            put_pieces(sums, 1, tid * WIDTH, both, WIDTH, WIDTH)
            other = sums_of_lane(tree, (5 * tid + 3) % 32)
            put_pieces(sums, 2, tid * WIDTH, add_each(tree, other), WIDTH, WIDTH)
            cuda.syncthreads()
            for i in range(tid, PLACES, 32):
                y[i * incy] = sums[0, i]
                y[(PLACES + i) * incy] = sums[1, i]
                y[(2 * PLACES + i) * incy] = sums[2, i]

        return (of_trees,)

    def geometry(problem, device, knobs):
        return one_launch((1, 1, 1), (32, 1, 1))

    return Kernel("of_trees", 99, build, geometry, lambda knobs: (1, 1), "Sums of trees.")


def expected(values):
    """The same sums in the dtype of `values`: 32 lanes of four pieces."""
    p, q, r, s = values.reshape(32, 4, WIDTH).transpose(1, 0, 2)
    tree = (p + r) + (q + s)
    lanes = [(5 * tid + 3) % 32 for tid in range(32)]
    return np.concatenate([tree, (tree + (p + q)) + (r + s), tree + tree[lanes]]).ravel()


@pytest.mark.parametrize("dtype, accumulate", [
    ("s", "plain"), ("d", "plain"), ("c", "plain"), ("z", "plain"), ("h", "plain"), ("b", "plain"),
    ("s", "wide"), ("d", "wide"), ("z", "wide"), ("c", "pairs"),
])  # fmt: skip
def test_trees_and_sums_of_other_lanes(dtype, accumulate, monkeypatch):
    monkeypatch.setitem(REGISTRY, "of_trees", of_trees())
    case = Case(3 * 32 * WIDTH, 32 * COUNT, dtype, accumulate=accumulate)
    case.x[0] = cast(np.ones(1), case.element)[0]
    found = case.y_of(case.run("of_trees"))
    if accumulate == "plain":
        # Numbers of 2 bytes are added up in single precision, and rounded at the end.
        wide = case.a[0] if dtype in "sdcz" else cast(case.a[0], np.dtype("f"))
        assert found.tobytes() == cast(expected(wide), case.element).tobytes()
        return
    exact = expected(case.a[0].astype("D" if dtype in "cz" else "d"))
    assert np.allclose(found, exact, rtol=1e-6, atol=1e-6)
