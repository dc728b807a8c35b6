import numpy as np
import pytest

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Chip, Device, Launch, ceil_div
from gemv.core.problem import Problem
from gemv.kernels.k09_vector_columns import KERNEL
from gemv.measure.inputs import make_problem


@pytest.mark.parametrize(
    "m, n, order, op, access",
    [
        (5, 7, "C", "N", "dot"),
        (5, 7, "C", "T", "axpy"),
        (5, 7, "F", "N", "axpy"),
        (5, 7, "F", "C", "dot"),
        (1, 7, "C", "N", "dot"),
        (5, 1, "F", "N", "axpy"),
        (5, 1, "C", "N", "axpy"),  # one column: memory runs along y in either order
    ],
)
def test_access_folds_order_and_trans(m, n, order, op, access):
    assert make_problem(m, n, DTYPES["s"], order, op).access == access


@pytest.mark.parametrize(
    "dtype, rows, cols, row_stride, col_stride, sparse",
    [
        ("z", 1 << 18, 4, 8, 1, True),  # 64 bytes, then a gap of 64
        ("z", 4, 1 << 18, 1, 8, True),  # the same down the columns
        ("z", 1 << 18, 4, -8, 1, True),
        ("z", 1 << 18, 4, 7, 1, False),  # a gap of 48
        ("z", 1 << 10, 4, 8, 1, False),  # 64 KiB, which the L2 cache holds
        ("s", 1 << 18, 64, 80, 1, True),  # 256 bytes
        ("s", 1 << 18, 65, 81, 1, False),
        ("s", 1 << 18, 64, 79, 1, False),
        ("b", 1 << 20, 1, 32, 1, False),  # one column of 32
        ("b", 1 << 20, 1, 33, 1, True),
        ("s", 1 << 20, 1, 64, 7, True),  # a single column has no next one
        ("s", 1 << 20, 2, 64, 2, False),  # every second element of lines
        ("s", 1 << 10, 1 << 10, 2, 1 << 12, False),  # of columns
        ("s", 1 << 10, 1 << 10, 32, 1 << 16, True),
        ("s", 1 << 10, 1 << 10, 1 << 12, 1, False),
    ],
)
def test_short_lines_far_apart_are_sparse(dtype, rows, cols, row_stride, col_stride, sparse):
    problem = Problem(DTYPES[dtype], rows, cols, 0, rows, cols, False, row_stride, col_stride)
    assert problem.sparse is sparse


def test_kernels_are_compiled_for_sparse_matrices_apart():
    problem = Problem(DTYPES["z"], 1 << 18, 4, 2, 4, 1 << 18, True, 1, 8)
    assert KERNEL.spec(problem).sparse
    assert not KERNEL.spec(problem._replace(col_stride=4)).sparse


def test_access_without_a_unit_stride():
    assert Problem(DTYPES["d"], 4, 4, 0, 4, 4, False, 20, 2).access == "strided"
    assert Problem(DTYPES["d"], 4, 4, 0, 4, 4, False, 4, -1).access == "strided"


def test_bytes_moved_counted_by_hand():
    # 3 x 5 in float64: 15 of A, 5 of x, 3 of y written, 3 more read when beta is not zero.
    problem = make_problem(3, 5, DTYPES["d"], "C", "N")
    assert problem.bytes_moved(beta_is_zero=True) == (15 + 5 + 3) * 8
    assert problem.bytes_moved(beta_is_zero=False) == (15 + 5 + 6) * 8
    # Transposed, x has 3 elements and y 5.
    turned = make_problem(3, 5, DTYPES["c"], "C", "T")
    assert turned.bytes_moved(beta_is_zero=True) == (15 + 3 + 5) * 8


def test_conjugation_is_dropped_for_real_numbers():
    assert not make_problem(2, 3, DTYPES["s"], "C", "C").conj
    assert make_problem(2, 3, DTYPES["z"], "C", "C").conj
    assert not make_problem(2, 3, DTYPES["z"], "C", "T").conj


def test_a_gpu_that_lacks_something_says_what():
    device = Device("any GPU", (8, 9), 1)._replace(chip=Chip(block_bytes=99 << 10))
    assert device.lacks((8, 0)) is None and device.lacks((8, 9), 99 << 10) is None
    told = "it needs compute capability 9.0 or newer, and any GPU has 8.9"
    assert device.lacks((9, 0), 1) == told
    told = "it needs 101377 bytes of shared memory in a block, and any GPU gives 101376"
    assert device.lacks((8, 0), (99 << 10) + 1) == told
    simulator = device._replace(compute_capability=(0, 0))
    assert simulator.lacks((99, 0)) is None and simulator.lacks((99, 0), 100 << 10) is not None


def test_launch_and_ceil_div():
    assert Launch((4, 2, 1), (32, 8, 1)).threads_per_block == 256
    assert [ceil_div(k, 4) for k in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert ceil_div(np.int64(9), 4) == 3


def test_alignment_is_that_of_every_line_and_of_the_first_element_of_x():
    """A line counts from the one before, x from its offset; a single line has no next one."""
    f = np.dtype("f")

    def aligned(rows, row_stride, a=256, x=256, offset=0):
        problem = Problem(f, rows, 8, 0, rows, 8, False, row_stride, 1, x_offset=offset).at(a, x)
        return problem.a_alignment, problem.x_alignment

    assert aligned(3, 8) == (16, 16)
    assert aligned(3, 9) == (4, 16) and aligned(3, 10) == (8, 16)
    assert aligned(1, 9) == (16, 16)
    assert aligned(3, 8, a=264) == (8, 16)
    assert aligned(3, 8, x=264) == (16, 8)
    assert aligned(3, 8, offset=1) == (16, 4) and aligned(3, 8, x=252, offset=1) == (16, 16)


def test_x_is_loaded_as_widely_as_a_where_it_may_be():
    problem = Problem(np.dtype("f"), 3, 8, 0, 3, 8, False, 8, 1)
    assert problem.aligned(16, 16).widths == (4, 4)
    assert problem.aligned(16, 8).widths == (4, 0), "one by one"
    assert problem.aligned(8, 16).widths == (2, 2)
    assert problem.aligned(4, 4).widths == (1, 1)
    assert problem._replace(incx=2).aligned(16, 16).widths == (4, 0)
