"""Sums that lanes divide between them: the same bits as where every lane has all of them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.combinations import of_all
from helpers.problems import Case

from gemv.core.geometry import one_launch
from gemv.core.narrow import cast
from gemv.core.shares import share_of_lane, shares
from gemv.kernels import REGISTRY
from gemv.kernels.kernel import Kernel


def divided():
    """A kernel whose 32 lanes add COUNT numbers each: all of them, or in row 1 their shares."""

    def build(spec):
        from numba import cuda

        from gemv.language import (
            axpy_add,
            butterfly,
            gather,
            natural,
            put_pieces,
            scatter_sums,
            zeros,
        )

        number, zero = spec.number, spec.zero
        COUNT, LANES = spec["COUNT"], spec["LANES"]
        KEPT, HOLDERS, _ = share_of_lane(COUNT, 1, LANES)
        PLACES = 32 * COUNT

        def divided(rows, a, row_stride, col_stride, x, y, incy):
            sums = cuda.shared.array((2, PLACES), number)
            tid = natural(cuda.threadIdx.x)
            values = gather(a, tid * COUNT, 0, 1, col_stride, COUNT)
            ones = gather(x, 0, 0, 1, 1, 1)
            mine = axpy_add(zeros(zero, COUNT), values, ones, COUNT, 0)
            put_pieces(sums, 0, tid * COUNT, butterfly(mine, 32, LANES), COUNT, COUNT)
            some = scatter_sums(mine, tid, 1, 32, LANES)
            k = tid // HOLDERS * KEPT
            if tid % HOLDERS < LANES:
                for lane in range(tid % LANES, 32, LANES):  # all who have this sum by butterfly
                    put_pieces(sums, 1, lane * COUNT + k, some, KEPT, KEPT)
            cuda.syncthreads()
            for i in range(tid, PLACES, 32):
                y[i * incy] = sums[0, i]
                y[(PLACES + i) * incy] = sums[1, i]

        return (divided,)

    def geometry(problem, device, knobs):
        return one_launch((1, 1, 1), (32, 1, 1))

    knobs = {"COUNT": 8, "LANES": 2}
    return Kernel(
        "divided", 99, build, geometry, lambda knobs: (1, 1), "Divided sums.", knobs=knobs
    )


@pytest.mark.parametrize("dtype, accumulate", [
    ("s", "plain"), ("d", "plain"), ("c", "plain"), ("z", "plain"), ("h", "plain"), ("b", "wide"),
    ("d", "wide"), ("z", "wide"), ("s", "pairs"), ("c", "pairs"),
])  # fmt: skip
@pytest.mark.parametrize("count", [1, 3, 8, 12])
@pytest.mark.parametrize("lanes", [1, 16])
def test_shares_are_the_sums_of_a_butterfly_bit_for_bit(
    dtype, accumulate, count, lanes, monkeypatch
):
    monkeypatch.setitem(REGISTRY, "divided", divided())
    case = Case(2 * 32 * count, 32 * count, dtype, accumulate=accumulate)
    case.x[0] = cast(np.ones(1), case.element)[0]
    whole, parts = case.y_of(case.run("divided", {"COUNT": count, "LANES": lanes})).reshape(2, -1)
    assert np.count_nonzero(whole.view(np.uint8)) > whole.nbytes // 4
    assert whole.tobytes() == parts.tobytes()
    exact, added = (
        each if dtype in "cz" else cast(each, np.dtype("d")) for each in (case.a[0], whole)
    )
    groups = exact.reshape(32 // lanes, lanes, count).sum(axis=0)
    expected = np.tile(groups, (32 // lanes, 1)).ravel()
    near = {"h": 2e-2, "b": 1e-1}.get(dtype, 1e-4)
    assert np.allclose(added, expected, rtol=near, atol=near)


#: Elements beside a row that a tile loads, in float32: a tile of one vector would own no row.
WIDTHS = {"vector_columns": 4, "phased_columns": 8}


@of_all(
    lambda lanes, pieces, name: name != "phased_columns" or lanes * pieces > 1,
    lanes=(1, 2, 8, 32), pieces=(1, 2, 3, 4, 6), name=WIDTHS,
)  # fmt: skip
def test_shares_come_to_their_rows(name, pieces, lanes):
    """Whole pieces, parts of one, or all that a thread has where halves would cut a piece."""
    knobs = {"LANES": lanes, "PIECES": pieces, "COLUMNS": 2, "THREADS_PER_BLOCK": 32}
    rows = (lanes * pieces + 1) * WIDTHS[name]
    for dtype, pad in (("s", 0), ("h", 1), ("c", 3)):
        Case(rows, 9, dtype, "F", pad=pad, alpha=2, beta=-1).check(
            name, {**knobs, "BLOCKS_PER_SM": 0, "MIN_BLOCKS": 1}
        )


def test_into_how_many_shares():
    assert [shares(count, 1, 32, 2) for count in (1, 2, 3, 4, 6, 8, 16, 64)] == [
        1, 2, 1, 4, 2, 8, 16, 16,
    ]  # fmt: skip
    assert shares(8, 1, 32, 32) == 1
    # One to six pieces of 4: halves are whole pieces, then parts of one.
    assert [shares(4 * pieces, 4, 32, 1) for pieces in (1, 2, 3, 4, 6)] == [4, 8, 1, 16, 2]
