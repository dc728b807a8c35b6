"""Batches of small items: numbers of chance, where they can lie, and code for many of them."""

import numpy as np

from gemv.core.dtypes import DTYPES
from gemv.core.narrow import cast
from gemv.kernels import get


def random(rng, shape, letter):
    values = rng.standard_normal(shape)
    if letter in "cz":
        values = values + 1j * rng.standard_normal(shape)
    return cast(values, DTYPES[letter])


def to_device(array):
    from numba import cuda

    return cuda.to_device(array)


def places(shape, dtype):
    """Where a batch can lie: packed, one element further, with gaps in lines and between items."""
    count, m, n = shape
    whole = np.zeros(count * m * n + 1, dtype)
    yield "packed", (whole[:-1].reshape(shape), whole)
    whole = np.zeros(count * m * n + 1, dtype)
    yield "shifted", (whole[1:].reshape(shape), whole)
    for first, gap in ((0, 1), (1, 2)):
        whole = np.zeros(first + count * m * (n + gap), dtype)
        yield f"from {first} on, lines {gap} apart", (
            whole[first:].reshape(count, m, n + gap)[:, :, :n], whole
        )  # fmt: skip
    for gap in (3, 32 // dtype.itemsize):
        whole = np.zeros((count, m, n + gap), dtype)
        yield f"lines {gap} further apart", (whole[:, :, :n], whole)
    whole = np.zeros((count, m * n + 1), dtype)
    size = dtype.itemsize
    view = np.lib.stride_tricks.as_strided(whole, shape, ((m * n + 1) * size, n * size, size))
    yield "items one element further apart", (view, whole)
    whole = np.zeros((count, m, 2 * n), dtype)
    yield "every second element", (whole[:, :, ::2], whole)


def constants_for_many(monkeypatch, many=True):
    """Let `small_items` take a batch of any size for one of many items, or none."""
    known = get("small_items").constants_of_batch.__globals__  # also where a test has its own copy
    for name in ("MANY", "MANY_BYTES"):
        monkeypatch.setitem(known, name, 0 if many else 1 << 40)
