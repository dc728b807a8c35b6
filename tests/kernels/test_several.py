"""What a launch is told of several products, and the same of one."""

from __future__ import annotations

import pytest

from gemv.core.batch import Batch
from gemv.core.geometry import MAX_GRID_Y
from gemv.kernels.several import ONE, sizes_of_vectors, steps_of, turns_of_vectors


def test_each_step_has_the_name_of_its_operand():
    batch = Batch((7,), ((11,), (12,), (13,), (14,), (15,)))
    of_vectors = {"x_step": 12, "y_step": 13, "alpha_step": 14, "beta_step": 15}
    assert steps_of(batch) == {"a_step": 11, **of_vectors}
    assert sizes_of_vectors(batch) == {"vectors": 7, **of_vectors}
    assert sizes_of_vectors(ONE) == {"vectors": 1, **dict.fromkeys(of_vectors, 0)}


def test_a_grid_has_blocks_for_so_many_vectors_and_no_more():
    most = 8 * MAX_GRID_Y
    assert [turns_of_vectors("it", count, 8) for count in (1, 8, 9, most)] == [1, 1, 2, MAX_GRID_Y]
    with pytest.raises(ValueError, match=f"it: {most + 1} vectors are more than a grid has"):
        turns_of_vectors("it", most + 1, 8)
