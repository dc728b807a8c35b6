"""Many small items, brought to shared memory by copies, and code for their number of columns."""

import itertools
import math

import numpy as np
import pytest
from helpers.arrays import host_of, view_of
from helpers.items import constants_for_many, places, random, to_device

import gemv
from gemv.core.batch import Batch
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device
from gemv.core.narrow import cast
from gemv.core.problem import Problem
from gemv.kernels import get
from gemv.selection import batches

if gemv.backend() == "host":
    pytest.skip("no GPU and no simulator", allow_module_level=True)

H200 = Device("nvidia-h200", (9, 0), 132)
SMALL = get("small_items")


@pytest.mark.parametrize(
    "letter, m, n, copied",
    # Number by number; in units; with gaps after each 128 bytes; not at all.
    [("h", 17, 17, {1}), ("b", 12, 12, {2}), ("h", 16, 16, {2, 3}), ("b", 32, 32, {0, 2}),
     ("s", 10, 12, {1, 2}), ("s", 8, 8, {2, 3}), ("d", 9, 11, {1}), ("d", 16, 14, {0, 2}),
     ("c", 9, 11, {1}), ("c", 6, 2, {2}), ("z", 7, 7, {0, 2}), ("z", 2, 2, {2, 3})],
)  # fmt: skip
@pytest.mark.parametrize("trans", [0, 2])
def test_copies_of_small_items_keep_the_bits(letter, m, n, copied, trans, monkeypatch):
    rng = np.random.default_rng([m, n])
    rows, cols = (n, m) if trans else (m, n)
    count = 4 + 8192 // (m * n * DTYPES[letter].itemsize)  # more than a block takes
    a, x, y = (random(rng, (count, *shape), letter) for shape in ((m, n), (cols,), (rows,)))
    wide = DTYPES["z" if letter in "cz" else "d"]
    exact, x_exact, y_exact = (cast(each, wide) for each in (a, x, y))
    exact = exact.conj().swapaxes(1, 2) if trans else exact
    expected = 2 * (exact @ x_exact[..., None])[..., 0] + 3 * y_exact
    bound = {"h": 2e-3, "b": 2e-2}.get(letter, 1e-5)
    found, seen = set(), set()
    for order, many in itertools.product("CF", (False, True)):
        constants_for_many(monkeypatch, many)
        stored = np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2) if order == "F" else a
        with gemv.trace() as calls:
            got = gemv.gemv(2, stored, x, 3, y, trans=trans)
        (call,) = calls
        assert call.kernel == "small_items"
        assert call.knobs["COLS"] == (cols if many else 0)
        assert math.prod(call.geometry.launches[0].grid) > 1
        assert many or call.knobs["COPIED"] == 0
        seen |= {call.knobs["COPIED"]} if many else set()
        found.add((order, got.tobytes()))
        np.testing.assert_allclose(cast(got, wide), expected, bound, 16 * bound)
    assert len(found) == 2  # an order of sums for each order of storage
    assert seen == copied


def vectors_at(values):
    """Vectors of items at places of all kinds: the array, and the memory that it is a part of."""
    count, n = values.shape
    whole = np.zeros(count * n + 1, values.dtype)
    yield "packed", (whole[:-1].reshape(count, n), whole)
    yield "one element further", (whole[1:].reshape(count, n), whole)
    whole = np.zeros((count, n + 3), values.dtype)
    yield "items further apart", (whole[:, :n], whole)
    whole = np.zeros((count, 2 * n), values.dtype)
    yield "elements further apart", (whole[:, ::2], whole)


# Numbers of x come in vectors, and y leaves in vectors, where both lie as close as they can.
@pytest.mark.parametrize("letter, m, n", [("h", 12, 12), ("b", 17, 9), ("s", 8, 6), ("d", 5, 5)])
@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("beta", [0, 2])
def test_vectors_of_copied_items_may_lie_anywhere(letter, m, n, trans, beta, monkeypatch):
    rng = np.random.default_rng([m, n])
    rows, cols = (n, m) if trans else (m, n)
    count = 5 + 8192 // (m * n * DTYPES[letter].itemsize)
    a, x, y = (random(rng, (count, *shape), letter) for shape in ((m, n), (cols,), (rows,)))
    alpha = (np.arange(count) % 3).astype("d" if letter == "d" else "f")  # 0 for some items
    stored, factors = to_device(a), to_device(alpha)

    def product(x_place, y_place, many):
        constants_for_many(monkeypatch, many)
        result = view_of(y, y_place)
        with gemv.trace() as calls:
            gemv.gemv(
                factors, stored, view_of(x, x_place), beta, result, trans=trans, overwrite_y=True
            )
        return host_of(result).tobytes(), calls[0].knobs

    (_, packed), *_ = places_of_x = list(vectors_at(x))
    expected, _ = product(packed, next(vectors_at(y))[1], False)
    seen = set()
    for (x_name, x_place), (y_name, y_place) in itertools.product(places_of_x, vectors_at(y)):
        found, knobs = product(x_place, y_place, True)
        assert found == expected, (x_name, y_name)
        assert knobs["COPIED"] > 0
        assert knobs["Y_PACKED"] == (y_name in ("packed", "one element further"))
        assert not knobs["X_VECTORS"] or x_name in ("packed", "one element further")
        seen.add(knobs["X_VECTORS"])
    assert seen == {0, 1}


@pytest.mark.parametrize("letter", "hbsdcz")
@pytest.mark.parametrize("trans", [0, 1])
def test_copies_of_small_items_bring_whatever_lies_anywhere(letter, trans, monkeypatch):
    constants_for_many(monkeypatch)
    rng, copied = np.random.default_rng(3), set()
    for m, n in ((5, 7), (8, 8), (2, 2), (3, 32)):
        shape = (2, m, n)
        a, x = random(rng, shape, letter), random(rng, (2, (n, m)[trans]), letter)
        seen = set()
        for _, place in places(shape, DTYPES[letter]):
            with gemv.trace() as calls:
                y = gemv.gemv(1, view_of(a, place), to_device(x), trans=trans)
            seen.add(y.copy_to_host().tobytes())
            copied.add(calls[0].knobs["COPIED"])
        assert len(seen) == 1
    assert 0 in copied and copied != {0}


@pytest.mark.parametrize("letter", "sdczhb")
def test_blocks_of_copied_small_items_fit_their_shared_memory(letter):
    dtype, counts = DTYPES[letter], dict.fromkeys(range(4), 0)
    sizes_of_items = itertools.product(range(1, 33), range(1, 33), (0, 1), (0, 1))
    for m, n, down, gap in sizes_of_items:
        line, lines = (m, n) if down else (n, m)
        apart, step = line + gap, lines * (line + gap)
        strides = (1, apart) if down else (apart, 1)
        problem = Problem(dtype, m, n, 0, m, n, False, *strides).at(256, 256)
        batch = Batch((1 << 24,), ((step,), (n,), (m + gap,), (0,), (0,)))
        knobs = {**SMALL.knobs, **SMALL.constants_of(problem)}
        knobs = SMALL.constants_of_batch(problem, batch, knobs, H200)
        counts[knobs["COPIED"]] += 1
        if not knobs["COPIED"]:
            continue
        sizes = SMALL.of_batch(problem, H200, knobs, batch).sizes
        sums, each = problem.precision.sums.itemsize, sizes["each"]
        assert ((each - 1) * step + sizes["reach"]) * dtype.itemsize <= 8 * 1024
        assert each * sizes["x_pitch"] * sums <= 6 * 1024
        assert knobs["X_VECTORS"] or each * n <= 128 * knobs["X_LOADS"]
        if knobs["COPIED"] > 1:
            assert knobs["Y_PACKED"] == 1 - gap
            assert not knobs["DOWN"] or gap == 0 or each * m * sums <= 2048
            unit = 16 // sums * dtype.itemsize  # units begin at multiples of their bytes
            assert step * dtype.itemsize % unit == 0
            assert min(m, n) == 1 or apart * dtype.itemsize % unit == 0
    kinds = {0, 2, 3} if letter == "z" else {0, 1, 2, 3}  # a complex128 is a unit by itself
    assert {copied for copied, count in counts.items() if count} == kinds


def test_a_gpu_without_copies_loads_small_items():
    old = H200._replace(compute_capability=(7, 5))
    problem = Problem(DTYPES["h"], 9, 9, 0, 9, 9, False, 9, 1).aligned(2, 2)
    batch = Batch((4096,), ((81,), (9,), (9,), (0,), (0,)))
    choices = [batches.select_batch(problem, batch, device) for device in (H200, old)]
    assert [choice.knobs["COPIED"] for choice in choices] == [1, 0]
    with pytest.raises(ValueError, match="small_items: copies to shared memory"):
        SMALL.of_batch(problem, old, choices[0].knobs, batch)


def test_items_at_unknown_addresses_are_loaded(monkeypatch):
    constants_for_many(monkeypatch)
    batch = Batch((4096,), ((64,), (8,), (8,), (0,), (0,)))
    problem = Problem(DTYPES["s"], 8, 8, 0, 8, 8, False, 8, 1)
    found = [
        batches.select_batch(each, batch, H200).knobs["COPIED"]
        for each in (
            problem,
            problem.aligned(2, 16),
            problem.aligned(4, 16),
            problem.aligned(16, 16),
        )
    ]
    assert found == [0, 0, 1, 3]
