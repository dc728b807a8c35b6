"""The launches of a batch: what their kernels are chosen by, and where a batch is cut."""

from __future__ import annotations

import pytest

from gemv.core.batch import Batch
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device
from gemv.measure.inputs import make_problem
from gemv.selection import batches
from gemv.selection.parts import aligned, parts

H200 = Device("NVIDIA H200", (9, 0), 132)
#: Sizes for the kernel of small items, and for one that runs for each item.
SMALL, LARGER = (8, 8), (66, 200)


def problem_of(m, n, letter="s", order="C"):
    return make_problem(m, n, DTYPES[letter], order, "N").at(256, 256)


def batch_of(shape, m, n, one_matrix=False, conjugate_x=False):
    """Items side by side along each dimension of `shape`, with numbers for alpha and beta."""
    steps = []
    for each in ((0 if one_matrix else m * n), n, m, 0, 0):
        own = [each]
        for length in reversed(shape[1:]):
            own.insert(0, own[0] * length)
        steps.append(tuple(own))
    return Batch(tuple(shape), tuple(steps), conjugate_x)


def test_the_alignment_is_that_of_all_items():
    """16 bytes of the first item; 961 and 26 elements from one item to the next leave 4 and 8."""
    problem = problem_of(40, 24)
    batch = Batch((3,), ((961,), (26,), (40,), (0,), (0,)))
    found = aligned(problem, batch)
    assert (problem.a_alignment, problem.x_alignment) == (16, 16)
    assert (found.a_alignment, found.x_alignment) == (4, 8)


@pytest.mark.parametrize("size", [SMALL, LARGER])
@pytest.mark.parametrize("shape", [(1,), (3,)])
@pytest.mark.parametrize("one_matrix", [False, True])
def test_every_kernel_of_a_batch_knows_whether_x_is_conjugated(size, shape, one_matrix):
    problem = problem_of(*size, letter="c")
    for conjugate_x in (False, True):
        batch = batch_of(shape, *size, one_matrix, conjugate_x)
        found = parts(problem, batch, H200)
        assert [part.choice.spec.conjugate_x for part in found] == [conjugate_x]


def test_a_part_with_one_vector_has_the_kernel_of_its_batch(monkeypatch):
    """Several vectors of one small matrix do not get the kernel for small items; nor does one."""
    monkeypatch.setattr(batches, "MOST_ITEMS", 2)
    problem = problem_of(*SMALL)
    found = parts(problem, batch_of((5,), *SMALL, one_matrix=True), H200)
    assert [part.batch.items for part in found] == [2, 2, 1]
    assert [part.choice.kernel.name for part in found] == ["several_small"] * 2 + ["small_matrix"]
    alone = batch_of((1,), *SMALL, one_matrix=True)
    (vector,) = parts(problem, alone, H200)
    assert vector.choice == batches.select(problem, H200)
    assert vector.choice.kernel.name == "small_matrix"


def test_a_batch_of_three_dimensions_is_cut_into_the_fewest_launches():
    batch = batch_of((5, 2, 3), *LARGER)._replace(
        strides=((70000, 35000, 14000), (4000, 2000, 500), (900, 400, 100), (0,) * 3, (0,) * 3)
    )
    found = parts(problem_of(*LARGER), batch, H200)
    assert [part.batch.shape for part in found] == [(3, 5)] * 2
    assert [part.offsets[:3] for part in found] == [(0, 0, 0), (35000, 2000, 400)]


def test_an_item_that_takes_more_scratch_memory_than_a_launch_may_is_a_launch(monkeypatch):
    problem = problem_of(8, 100_000)
    choice = batches.select(problem, H200, kernel="vector_rows")
    assert choice.geometry.scratch
    monkeypatch.setattr(batches, "MOST_SCRATCH_BYTES", 1)
    assert batches.limits(problem, choice)[1] == 1
    found = parts(problem, batch_of((3,), 8, 100_000), H200, "vector_rows")
    assert [part.batch.items for part in found] == [1, 1, 1]


@pytest.mark.parametrize(
    "size, vectors, limit", [((128, 131072), 3000, None), ((16, 131072), 3000, "MOST_COUNTERS")]
)
def test_vectors_take_no_more_scratch_memory_than_a_launch_may(size, vectors, limit, monkeypatch):
    """Where a product alone has none: few long rows, and those of a cluster."""
    if limit:
        monkeypatch.setattr(batches, limit, 100)
    else:
        monkeypatch.setattr(batches, "MOST_SCRATCH_BYTES", 1 << 22)
    problem = problem_of(*size)
    assert not batches.select(problem, H200).geometry.scratch
    found = parts(problem, batch_of((vectors,), *size, one_matrix=True), H200)
    assert {part.choice.kernel.name for part in found} == {"several_rows_in_shares"}
    for part in found:
        geometry = part.choice.geometry
        assert geometry.scratch * 4 <= batches.MOST_SCRATCH_BYTES
        assert geometry.counters <= batches.MOST_COUNTERS
    assert sum(part.batch.items for part in found) == vectors
    assert [part.offsets[1] for part in found[:2]] == [0, found[0].batch.items * size[1]]
    assert len(found) < vectors // 8, "as many as fit go together"


@pytest.mark.parametrize(
    "kernel, order, size",
    [("vector_rows", "C", (8, 100_000)), ("vector_columns", "F", (200, 60_000))],
)
def test_items_whose_sums_are_split_keep_their_splits(kernel, order, size):
    problem = problem_of(*size, order=order)
    single = batches.select(problem, H200, kernel=kernel)
    assert single.kernel.in_batches is not None and single.geometry.scratch
    many = batches.select_batch(problem, batch_of((1 << 16,), *size), H200, kernel)
    assert (many.kernel, many.knobs) == (single.kernel, single.knobs)
    assert many.geometry.sizes["splits"] == single.geometry.sizes["splits"]


@pytest.mark.parametrize("vectors", [1, 2, 3])
@pytest.mark.parametrize("one_matrix", [False, True])
def test_one_matrix_is_read_once_for_two_vectors_and_more(vectors, one_matrix):
    found = batches.select_batch(
        problem_of(*LARGER), batch_of((vectors,), *LARGER, one_matrix), H200
    )
    reads_once = found.kernel.name.startswith("several_")
    assert reads_once == (one_matrix and vectors > 1)


def test_a_kernel_that_moves_x_computes_no_batch():
    with pytest.raises(ValueError, match="kernel 'where_x_lives' moves x, so it computes no"):
        batches.select_batch(problem_of(*LARGER), batch_of((3,), *LARGER), H200, "where_x_lives")
