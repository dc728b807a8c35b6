"""Long columns and several vectors: the bits of single products in every precision."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import forced
from helpers.problems import random_array
from numba import cuda

import gemv
from gemv.core.batch import aligned_step
from gemv.core.dtypes import DTYPES
from gemv.selection import batches


@pytest.mark.parametrize("stages", [0, 3])
@pytest.mark.parametrize(
    "letter, accumulate",
    [("z", "plain"), ("s", "wide"), ("b", "wide"), ("d", "wide"), ("z", "wide")],
)
def test_long_columns_of_every_precision_have_the_bits_of_each_alone(
    letter, accumulate, stages, monkeypatch
):
    """Conjugated, and with an x that is apart in memory."""
    alone = {"PIECES": 2, "COLUMNS": 2, "THREADS_PER_BLOCK": 8, "MIN_BLOCKS": 1}
    together = {"PIECES": 1, "COLUMNS": 2, "COUNT": 4, "THREADS_PER_BLOCK": 16, "STAGES": stages,
                "CHUNK_COLUMNS": 4}  # fmt: skip
    forced.together(monkeypatch, "long_columns", alone, "several_long_columns", together)
    rng = np.random.default_rng(11)
    m, n = 37, 11
    whole = np.zeros((n, aligned_step(m)), DTYPES[letter])  # n lines, which are columns of A
    whole[:, :m] = random_array(rng, (n, m), DTYPES[letter])
    down = cuda.to_device(whole)[:, :m]
    x = cuda.to_device(np.repeat(random_array(rng, (3, n), DTYPES[letter]), 2, axis=1))[:, ::2]

    def computed():
        with gemv.trace() as calls:
            y = gemv.vecmat(x, down, accumulate=accumulate)
        return {call.kernel for call in calls}, y.copy_to_host().tobytes()

    kernels, several = computed()
    assert kernels == {"several_long_columns"}
    monkeypatch.setattr(batches, "SEVERAL", {})
    kernels, expected = computed()
    assert kernels == {"long_columns"} and several == expected
