"""Kernels for batches: the bits of the single call in every layout and order of threads."""

import itertools
import math

import numpy as np
import pytest
from helpers.arrays import view_of
from helpers.items import constants_for_many, places, random, to_device
from helpers.problems import ALL_ROWS

import gemv
from gemv.core.batch import Batch
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.engines import backend
from gemv.kernels import get
from gemv.kernels.wide_tiles import lanes_and_pieces_of
from gemv.selection import batches

if gemv.backend() == "host":
    pytest.skip("no GPU and no simulator", allow_module_level=True)

H200 = Device("nvidia-h200", (9, 0), 132)
SMALL = get("small_items")


def item_choice(problem):
    """What an item of a batch gets."""
    step = problem.rows * problem.cols
    return batches.select_item(problem, Batch((9,), ((step,), (0,), (0,), (0,), (0,))), H200)


SHAPES = [(4, 4), (5, 7), (16, 8), (3, 32), (1, 9), (31, 3)]


# A load of 16 bytes has 8, 2 and 1 of the three.
@pytest.mark.parametrize("letter", "sdczh" if ALL_ROWS else "hcz")
@pytest.mark.parametrize("trans", [0, 1])
def test_the_bits_of_small_items_do_not_depend_on_where_they_lie(letter, trans):
    rng = np.random.default_rng(1)
    dtype = DTYPES[letter]
    for m, n in SHAPES:
        shape = (2, m, n)
        a, x = random(rng, shape, letter), random(rng, (2, (n, m)[trans]), letter)
        seen = {}
        on_device = to_device(x)
        for name, place in places(shape, dtype):
            with gemv.trace() as calls:
                y = gemv.gemv(1, view_of(a, place), on_device, trans=trans).copy_to_host()
            assert [call.kernel for call in calls] == ["small_items"]
            seen[name] = y.tobytes()
            # The second item alone, at its place: a batch of one, and a single product.
            single = gemv.gemv(1, view_of(a[1:2], (place[0][1:2], place[1])), to_device(x[1:2]),
                               trans=trans)  # fmt: skip
            assert single.copy_to_host().tobytes() == y[1:2].tobytes(), (m, n, name)
            matrix = view_of(a[1], (place[0][1], place[1]))
            flat = gemv.gemv(1, matrix, to_device(x[1]), trans=trans).copy_to_host()
            assert flat.tobytes() == y[1].tobytes(), (m, n, name)
        assert len(set(seen.values())) == 1, (m, n, seen.keys())


@pytest.mark.parametrize(
    "letter, m, n, order, across",
    [("s", 40, 24, "C", 0), ("s", 40, 24, "F", 1), ("s", 24, 40, "C", 0), ("s", 24, 40, "F", 1),
     ("s", 16, 500, "C", 0), ("s", 40, 100, "F", 2), ("s", 44, 300, "F", 4), ("c", 48, 100, "F", 4),
     ("d", 64, 200, "F", 2), ("h", 64, 100, "F", 1)],
)  # fmt: skip
def test_constants_for_many_items_keep_the_bits(letter, m, n, order, across, monkeypatch):
    """`across` is ACROSS of the kernel for columns; 0 where it is another kernel."""
    rng = np.random.default_rng([m, n])
    a, x = random(rng, (4, m, n), letter), random(rng, (4, n), letter)
    if order == "F":
        a = np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2)
    found = set()
    for least in (1 << 30, 0):
        monkeypatch.setattr(batches, "THREADS_PER_SM", least)
        with gemv.trace() as calls:
            y = gemv.matvec(a, x)
        found.add(y.tobytes())
    assert len(found) == 1 and len(calls) == 1
    assert calls[0].knobs.get("ACROSS", 0) == across
    single = np.stack([gemv.gemv(1, a[k], x[k]) for k in range(4)])
    assert {single.tobytes()} == found


def test_constants_for_many_items_leave_the_order_of_sums():
    """LANES of rows, and LANES and threads of columns, are what a sum is added up by."""
    changed = 0
    for letter, side, down in itertools.product("sdczh", (33, 64, 65, 128, 256, 500), (0, 1)):
        dtype = DTYPES[letter]
        strides = (1, side) if down else (side, 1)
        problem = Problem(dtype, side, side, 0, side, side, False, *strides)
        width = dtype.itemsize * side
        problem = problem.aligned(*[min(width & -width, 16)] * 2)
        single = item_choice(problem)
        batch = Batch((4096,), ((side * side,), (side,), (side,), (0,), (0,)))
        many = batches.select_batch(problem, batch, H200)
        if many.kernel is not single.kernel:
            if many.kernel.name == "staged_rows":
                assert many.knobs["LANES"] == single.knobs["LANES"]
            else:
                assert many.kernel.name == "staged_columns"
                lanes, _ = lanes_and_pieces_of(problem, single.knobs)
                groups = max(lanes, single.knobs["THREADS_PER_BLOCK"]) // lanes
                assert (many.knobs["GROUPS"], many.knobs["TOGETHER"]) == (groups, 32 // lanes)
            changed += 1
            continue
        kept = {
            "vector_rows": ("LANES",),
            "vector_columns": ("LANES", "THREADS_PER_BLOCK"),
            "small_items": ("DOWN", "WHOLE", "SHARES"),
        }
        for name in kept.get(single.kernel.name, single.knobs):
            assert many.knobs[name] == single.knobs[name]
        assert many.geometry.sizes.get("splits", 1) == single.geometry.sizes.get("splits", 1)
        changed += many.knobs != single.knobs
    assert changed > 20


@pytest.mark.parametrize("letter", "sdczhb")
def test_blocks_of_small_items_fit_their_shared_memory(letter):
    dtype = DTYPES[letter]
    larger = itertools.product((1, 5, 33, 45, 62, 63, 64), repeat=2)
    shapes = (*itertools.product(range(1, 33), repeat=2), *larger)
    for (m, n), down in itertools.product(shapes, (0, 1)):
        problem = Problem(dtype, m, n, 0, m, n, False, *((1, m) if down else (n, 1)))
        if SMALL.accepts(problem) is not None:
            assert max(m, n) > 32
            continue
        constants = {**SMALL.knobs, **SMALL.constants_of(problem)}
        batch = Batch((1 << 30,), ((m * n,), (n,), (m,), (0,), (0,)))
        sizes = SMALL.of_batch(problem, H200, constants, batch).sizes
        sums, each = problem.precision.sums.itemsize, sizes["each"]
        rows = 1 if constants["DOWN"] else m
        assert each * (m * n + sizes["gap"] * rows) * sums <= 20 * 1024 - 32 * sums // 4
        assert each * sizes["x_pitch"] * sums <= 8 * 1024
        assert each * n <= (1024 if dtype.itemsize == 2 else 512)
        assert not constants["WHOLE"] or not constants["DOWN"] or each * m * sums <= 4096
        if constants["WHOLE"] and sizes["packed"]:
            assert each * m * n * dtype.itemsize % 16 == 0
        # Quotients by a product: the largest numbers that are divided.
        for divisor in (m, n, m * n, sizes["gap"] or 1):
            over = (1 << 31) // divisor + 1
            for number in (each * m * n - 1, each * m * n // divisor * divisor):
                assert number * over >> 31 == number // divisor


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("letter, count", [("d", 3), ("h", 13)])
@pytest.mark.parametrize("trans", [0, 1])
def test_stretches_of_several_blocks_end_where_their_batch_does(
    letter, count, trans, many, monkeypatch
):
    """The simulator raises an error for reads before the first element or behind the last."""
    constants_for_many(monkeypatch, many)
    m, n = 20, 19
    rng = np.random.default_rng(2)
    a, x = random(rng, (count, m, n), letter), random(rng, (count, (n, m)[trans]), letter)
    found = set()
    for gap in (0, 1, 5):
        place = np.zeros((count, m, n + gap), a.dtype)
        with gemv.trace() as calls:
            y = gemv.gemv(1, view_of(a, (place[:, :, :n], place)), to_device(x), trans=trans)
        assert math.prod(calls[0].geometry.launches[0].grid) > 1
        found.add(y.copy_to_host().tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("letter, count, first", [("s", 2, 1), ("h", 3, 4), ("h", 2, 1)])
def test_a_batch_may_end_in_the_16_bytes_that_it_begins_in(letter, count, first, many, monkeypatch):
    """The simulator raises an error for reads before the first element or behind the last."""
    constants_for_many(monkeypatch, many)
    rng = np.random.default_rng(8)
    a, x = random(rng, (count, 1, 1), letter), random(rng, (count, 1), letter)
    whole = np.zeros(first + count, a.dtype)
    with gemv.trace() as calls:
        y = gemv.gemv(1, view_of(a, (whole[first:].reshape(a.shape), whole)), to_device(x))
    assert [call.kernel for call in calls] == ["small_items"]
    assert y.copy_to_host().tobytes() == (a[:, 0] * x).tobytes()


def test_larger_blocks_of_small_items_keep_the_bits(monkeypatch):
    rng = np.random.default_rng(7)
    a, x = random(rng, (4, 23, 23), "d"), random(rng, (4, 23), "d")
    found = set()
    for many, threads in ((1 << 30, 128), (0, 256)):
        monkeypatch.setattr(f"{SMALL.build.__module__}.MANY", many)
        with gemv.trace() as calls:
            found.add(gemv.matvec(a, x).tobytes())
        assert calls[0].knobs["THREADS_PER_BLOCK"] == threads
    assert len(found) == 1


@pytest.mark.parametrize(
    "letter, m, n, own",
    # Rows of two shares and of four; then of blocks with few rows, and of one share.
    [("s", 17, 17, 2), ("h", 17, 32, 2), ("z", 3, 31, 1), ("d", 17, 32, 1), ("s", 17, 15, 1)],
)
def test_own_shares_keep_the_bits_of_lanes_that_share_a_row(letter, m, n, own):
    rng = np.random.default_rng([m, n])
    count = 130 if ALL_ROWS else 26  # four blocks, the last one not full, or more
    a, x = random(rng, (count, m, n), letter), random(rng, (count, n), letter)
    across = np.ascontiguousarray(a.swapaxes(1, 2))
    for product in (
        lambda at: gemv.matvec(a[at], x[at]),
        lambda at: gemv.vecmat(x[at], across[at]),
    ):
        with gemv.trace() as calls:
            found = product(np.s_[:])
        (call,) = calls
        assert call.kernel == "small_items"
        assert call.knobs["OWN_SHARES"] == (own if call.knobs["SHARES"] > 1 else 1)
        assert found.tobytes() == np.stack([product(at) for at in range(len(a))]).tobytes()


@pytest.mark.parametrize("letter, m, n", [("h", 1, 32), ("s", 3, 5), ("d", 5, 4)])
def test_small_items_with_gaps_in_x_and_a_y_that_is_read(letter, m, n):
    """A block of the first ones has eight numbers of x for each of its threads."""
    rng = np.random.default_rng([m, n])
    shapes = (40, m, n), (40, n), (40, m)
    a, x, y = (rng.integers(-4, 5, shape).astype(DTYPES[letter]) for shape in shapes)
    expected = (a.astype("d") @ x.astype("d")[..., None])[..., 0] + 2 * y
    apart = to_device(np.repeat(x, 2, -1))[:, ::2]
    for trans in (0, 1):  # A lies along the rows, then along the columns
        stored = to_device(np.ascontiguousarray(a.swapaxes(1, 2)) if trans else a)
        for each in (to_device(x), apart):
            with gemv.trace() as calls:
                found = gemv.gemv(1.0, stored, each, 2.0, to_device(y), trans=trans)
            assert [call.kernel for call in calls] == ["small_items"]
            assert np.array_equal(found.copy_to_host(), expected)


def test_small_items_with_narrow_gaps_are_read_as_one_stretch():
    def constants(m, n, down, line_step, step, letter="s", at=0):
        strides = (1, line_step) if down else (line_step, 1)
        problem = Problem(DTYPES[letter], m, n, 0, m, n, False, *strides).at(at, 0)
        batch = Batch((1000,), ((step,), (n,), (m,), (0,), (0,)))
        choice = batches.select_batch(problem, batch, H200)
        assert choice.kernel is SMALL
        assert choice.geometry.sizes["each"] > 1 or m * n > 256
        return choice.knobs["GAPS"]

    for down in (0, 1):
        assert constants(16, 16, down, 16, 256) == constants(4, 4, down, 4, 16, "b") == 0
        assert constants(16, 16, down, 17, 272) == 1
        assert constants(32, 32, down, 32, 1025) == 2 - down  # rows would share a bank
        assert constants(16, 16, down, 32, 512) == 0  # as many bytes as lines alone have
        assert constants(16, 16, down, 16, 100) == 0
        assert constants(17, 17, down, 17, 289, at=4) == 0  # read by vectors as it is
        assert constants(16, 16, down, 16, 256, at=4) > 0
        assert constants(4, 4, down, 5, 20, "c", at=4) == 0  # elements lie across their size
        assert constants(32, 32, down, 40, 1280, "z") == 0  # more than shared memory has


def test_the_depth_of_small_sums():
    for m, n, down, wanted in (
        (4, 4, 0, 2), (4, 32, 0, 9), (4, 5, 0, 4), (4, 17, 0, 9), (32, 32, 1, 9), (8, 8, 1, 7),
    ):  # fmt: skip
        strides = (1, m) if down else (n, 1)
        problem = Problem(DTYPES["s"], m, n, 0, m, n, False, *strides)
        choice = item_choice(problem)
        assert choice.kernel is SMALL
        assert SMALL.depth(problem, choice.geometry, choice.knobs) == wanted, (m, n, down)


@pytest.mark.parametrize("letter, m, n", [
    ("s", 37, 65), ("z", 5, 33), ("c", 3, 300), ("h", 3, 300), ("d", 2, 1030), ("s", 2, 1030),
])  # fmt: skip
def test_several_vectors_have_the_bits_of_single_products(letter, m, n):
    """Sums of a lane, of a warp and of several warps, with and without columns behind the last."""
    rng = np.random.default_rng([m, n])
    a, x = random(rng, (m, n), letter), random(rng, (3, n), letter)
    alpha = np.array([1.0, 0.0, -2.0])
    y = np.ones((3, m), a.dtype)
    with gemv.trace() as calls:
        several = gemv.matvec(a, x)
        gemv.matvec(a, x, y, alpha=alpha, beta=1 - alpha)
    assert letter == "h" or {call.kernel for call in calls} == {"several_rows"}
    for k in range(3):
        assert several[k].tobytes() == gemv.gemv(1, a, x[k]).tobytes()
        single = gemv.gemv(alpha[k], a, x[k], 1 - alpha[k], np.ones(m, a.dtype))
        assert y[k].tobytes() == single.tobytes()


def test_several_vectors_are_conjugated():
    rng = np.random.default_rng(3)
    a, x = random(rng, (40, 50), "z"), random(rng, (3, 40), "z")
    with gemv.trace() as calls:
        y = gemv.vecmat(x, np.asfortranarray(a))
    assert [call.kernel for call in calls] == ["several_rows"]
    assert np.allclose(y, x.conj() @ a)


if backend.backend() == "simulator":
    from gemv.language.simulator.scheduler import Schedule, scheduled

    SCHEDULES = [
        Schedule("forward"),
        Schedule("reversed"),
        *(Schedule("random", k) for k in (1, 2)),
    ]

    def same_in_all(run):
        results = set()
        for schedule in SCHEDULES:
            with scheduled(schedule):
                results.add(run().tobytes())
        return results

    @pytest.mark.parametrize("m, n, trans", [(5, 7, 0), (8, 8, 1), (2, 130, 0)])
    def test_an_item_has_its_bits_in_every_order(m, n, trans):
        """Those of a batch of one, and of the single call."""
        rng = np.random.default_rng([m, n])
        a, x = random(rng, (3, m, n), "s"), random(rng, (3, (n, m)[trans]), "s")
        many = same_in_all(lambda: gemv.gemv(1, a, x, trans=trans))
        of_one = same_in_all(
            lambda: np.stack(
                [gemv.gemv(1, a[k : k + 1], x[k : k + 1], trans=trans)[0] for k in range(3)]
            )
        )
        assert many == of_one and len(many) == 1
        single = same_in_all(
            lambda: np.stack([gemv.gemv(1, a[k], x[k], trans=trans) for k in range(3)])
        )
        assert many == single

    def test_splits_of_items_have_scratch_memory_of_their_own():
        rng = np.random.default_rng(5)
        a, x = random(rng, (2, 2, 600), "s"), random(rng, (2, 600), "s")
        with gemv.trace() as calls:
            many = same_in_all(lambda: gemv.gemv(1, a, x, kernel="last_block"))
        assert calls[0].geometry.scratch and calls[0].geometry.counters
        single = np.stack([gemv.gemv(1, a[k], x[k], kernel="last_block") for k in range(2)])
        assert many == {single.tobytes()}


@pytest.mark.parametrize("letter, kernel", [("s", "last_block"), ("z", "last_block")])
def test_limits_of_scratch_memory_and_of_counters(letter, kernel):
    """One launch takes as many items as both allow: bytes of scratch memory, and counters."""
    problem = Problem(DTYPES[letter], 8, 100_000, 0, 8, 100_000, False, 100_000, 1)
    choice = batches.select(problem, H200, kernel=kernel)
    size = problem.precision.sums.itemsize
    for elements, counters, most in (
        (1 << 20, 0, batches.MOST_SCRATCH_BYTES // (size << 20)),
        (1 << 30, 0, 1),
        (0, 1 << 10, batches.MOST_COUNTERS >> 10),
        (1 << 20, 1 << 15, 2),
        (0, 0, batches.MOST_ITEMS),
    ):
        geometry = choice.geometry._replace(scratch=elements, counters=counters)
        assert batches.most_items(problem, choice._replace(geometry=geometry)) == most
