"""Several vectors on several GPUs: what a shard launches where blocks take tile after tile."""

from __future__ import annotations

import pytest

from gemv.core.batch import Batch
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device
from gemv.measure.inputs import make_problem
from gemv.selection.select import select
from gemv.shards import several
from gemv.shards.cut import Part

H100 = Device("NVIDIA H100", (9, 0), 132)


@pytest.mark.parametrize(
    "kernel, rows, cols",
    [("several_short_rows", 1 << 20, 64), ("several_long_rows", 1 << 16, 8192)],
)
def test_a_shard_has_the_tiles_of_its_own_rows(kernel, rows, cols):
    """And not those of the whole matrix, which would read its last row again and again."""
    whole, own = (
        make_problem(count, cols, DTYPES["b"], "C", "N").at(256, 256) for count in (rows, rows // 4)
    )
    single = select(whole, H100)
    choice = several.choice_for(whole, single, 8, H100, None)
    assert choice is not None and choice.kernel.name == kernel
    part = Part(single, own, 0, cols, 0, own.rows, 0, 1)
    found = several.part_for(part, choice, rows, H100, False).choice.geometry
    assert 4 * found.sizes["tiles"] == choice.geometry.sizes["tiles"]
    assert found.sizes == {**choice.geometry.sizes, "tiles": found.sizes["tiles"]}
    ((launch,), (before,)) = found.launches, choice.geometry.launches
    assert launch == before  # as many blocks as the GPU holds, with as much shared memory


@pytest.mark.parametrize("rows, cols", [(100, 200000), (16, 262144)], ids=["lanes", "cluster"])
@pytest.mark.parametrize("part_of", [1, 2, 3])
@pytest.mark.parametrize("vectors", [8, 16])
def test_a_shard_has_the_tasks_and_the_sums_of_its_own_rows(rows, cols, part_of, vectors):
    """Of whole tiles, of which the last one has more sums than rows."""
    whole, own = (
        make_problem(count, cols, DTYPES["b"], "C", "N").at(256, 256)
        for count in (rows, rows // part_of)
    )
    single = select(whole, H100)
    choice = several.choice_for(whole, single, vectors, H100, None)
    assert choice is not None and choice.kernel.name == "several_rows_in_shares"
    part = Part(single, own, 0, own.cols, 0, own.rows, 0, 1)
    found = several.part_for(part, choice, whole.rows, H100, False).choice.geometry
    batch = Batch((vectors,), ((0,), (own.cols,), (whole.rows,), (0,), (0,)))
    right = choice.kernel.of_batch(own, H100, choice.knobs, batch)
    assert found._replace(counters=0) == right._replace(counters=0)
    assert found.counters >= right.counters


@pytest.mark.parametrize("is_apart, left", [(True, 1), (False, 4)])
def test_a_shard_with_some_of_the_splits_has_no_helpers(is_apart, left):
    """Blocks that began just before its last one may be those of other shards."""
    whole = make_problem(64, 1 << 20, DTYPES["d"], "C", "N").at(256, 256)
    single = select(whole, H100)
    choice = several.choice_for(whole, single, 8, H100, None)
    assert choice is not None and choice.spec.helpers == 4
    part = Part(single, whole, 0, whole.cols, 0, whole.rows, 0, 7)
    found = several.part_for(part, choice, whole.rows, H100, is_apart).choice
    assert (found.spec.helpers, found.geometry.sizes["helpers"]) == (left, left)
