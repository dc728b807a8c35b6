"""Small matrices: one order of sums in every kind of call, wherever A lies and on every GPU."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest
from helpers.bounds import worst
from helpers.problems import ALL_ROWS, Case, random_array

import gemv
from gemv.core.batch import Batch
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.engines import backend
from gemv.kernels import get
from gemv.kernels.small_sums import MOST, depth_of, order_of
from gemv.measure.inputs import make_problem
from gemv.selection import batches, items
from gemv.selection import select as selection_select
from gemv.selection.parts import parts
from gemv.selection.select import select

if gemv.backend() == "host":
    pytest.skip("no GPU and no simulator", allow_module_level=True)

SMALL, ITEMS, SEVERAL = (get(name) for name in ("small_matrix", "small_items", "several_small"))
H200 = Device("NVIDIA H200", (9, 0), 132)
OTHERS = [Device("any", (7, 5), 30, float64_ratio=32), Device("any", (8, 0), 108)]


@pytest.fixture(autouse=True)
def kernels_compute():
    """Kernels compute NumPy's arrays, even where the host is faster."""
    gemv.use_backend(gemv.backend())
    yield
    gemv.use_backend(None)


def to_device(array):
    """A device array of its own."""
    from numba import cuda

    return cuda.to_device(np.ascontiguousarray(array))


def on_device(array):
    """The same view of memory on the device."""
    from numba import cuda

    if backend.backend() == "simulator":
        return type(cuda.to_device(np.zeros(1)))(array)  # without a copy, which were contiguous
    whole = array
    while whole.base is not None:
        whole = whole.base
    there = cuda.to_device(whole)
    begin, behind = (each.__array_interface__["data"][0] for each in (whole, array))
    interface = {
        **there.__cuda_array_interface__,
        "typestr": array.dtype.str,
        "shape": array.shape,
        "strides": array.strides,
        "data": (there.device_ctypes_pointer.value + behind - begin, False),
    }
    return type("View", (), {"__cuda_array_interface__": interface, "keep": there})()


def placed(values, rng, order="C"):
    """A view with these values: with gaps, with other steps, or from another address on.

    Lines may be further apart, elements may be, and all may begin anywhere or run backwards. The
    dimension along which memory runs is that of `order`.
    """
    values = values if order == "C" else values.swapaxes(-1, -2)
    *lead, lines, length = values.shape
    step, gap, first = rng.choice((1, 1, 2, 3)), rng.choice((0, 0, 1, 4)), rng.choice((0, 0, 1, 3))
    whole = np.zeros(first + int(np.prod(lead)) * lines * (step * length + gap), values.dtype)
    view = whole[first:].reshape(*lead, lines, -1)[..., : step * length : step]
    if rng.random() < 0.2:
        view = view[..., ::-1, :]
    view[...] = values
    return view if order == "C" else view.swapaxes(-1, -2)


def as_array(result):
    return result.copy_to_host() if hasattr(result, "copy_to_host") else np.asarray(result)


def bits(result):
    return np.ascontiguousarray(as_array(result)).tobytes()


def random_products(count, seed):
    rng = random.Random(seed)
    for number in range(count):
        m, n = (rng.choice((1, 2, 3, 4, 8, 15, 16, 17, 31, 32, rng.randint(1, 32))) for _ in "mn")
        yield number, m, n, rng.choice("sdczh"), rng.choice("CF"), rng.choice((0, 1, 2)), rng


@pytest.mark.parametrize("accumulate", ["plain", "wide", "pairs"])
def test_every_kind_of_call_has_the_same_bits(accumulate):
    """One product, items of a batch, vectors, and items of a list, each at places of its own."""
    kernels = set()
    count = (300 if ALL_ROWS else 60) if accumulate == "plain" else 20 if ALL_ROWS else 12
    for number, m, n, letter, order, trans, rng in random_products(count, len(accumulate)):
        numbers = np.random.default_rng(number)
        a, x, y = (
            random_array(numbers, (3, *shape), DTYPES[letter])
            for shape in ((m, n), (m,) if trans else (n,), (n,) if trans else (m,))
        )
        alpha, beta = rng.choice(((1, 0), (-2, 0), (0.5, 1), (1.5, -0.25), (0, 3)))
        options = {"trans": trans, "accumulate": accumulate, "overwrite_y": 1}

        def product(a, x, y, alpha=alpha, beta=beta, options=options):
            y = to_device(y)
            return bits(gemv.gemv(alpha, on_device(a), to_device(x), beta, y, **options))

        where = (m, n, letter, order, trans, accumulate)
        with gemv.trace() as calls:
            alone = [product(placed(a[k], rng, order), x[k].copy(), y[k]) for k in range(3)]
            assert product(placed(a, rng, order), x, y) == b"".join(alone), where
            one = placed(a[:1], rng, order)
            assert product(one, x[:1].copy(), y[:1]) == alone[0], where
            shared = np.broadcast_to(placed(a[0], rng, order), a.shape)
            vectors = [product(a[0].copy(order), x[k].copy(), y[k]) for k in range(3)]
            assert product(shared, x, y) == b"".join(vectors), where
            listed = gemv.gemv_batched(
                alpha, [on_device(placed(a[k], rng, order)) for k in range(3)],
                [to_device(x[k]) for k in range(3)], beta,
                [to_device(y[k]) for k in range(3)], trans=trans, accumulate=accumulate,
                overwrite_y=1,
            )  # fmt: skip
            assert [bits(each) for each in listed] == alone, where
        kernels |= {call.kernel for call in calls}
    plain = {"small_items", "list_rows", "list_in_order"} if accumulate == "plain" else set()
    assert kernels == {"small_matrix", "several_small"} | plain


def test_a_matrix_that_is_kept_and_a_plan_have_the_bits_of_the_call():
    rng = np.random.default_rng(3)
    for (m, n), dtype in itertools.product([(5, 7), (32, 32), (17, 30)], "fD"):
        a, x = rng.standard_normal((m, n)).astype(dtype), rng.standard_normal((n, 5)).astype(dtype)
        single = [bits(gemv.gemv(1, a, x[:, k])) for k in range(5)]
        with gemv.Matrix(a) as kept:
            assert [bits(kept @ x[:, k]) for k in range(5)] == single
            assert [bits(y) for y in (kept @ x).T] == single
        there, y = to_device(a), to_device(np.zeros(m, dtype))
        gemv.plan(there, to_device(x[:, 0]), y)()
        assert bits(y) == single[0]


def test_alignment_decides_nothing():
    rng = random.Random(5)
    a, x = (random_array(np.random.default_rng(5), shape, np.dtype("f")) for shape in ((9, 20), 20))
    expected = bits(gemv.gemv(1, a, x))
    gemv.use_alignment(False)
    try:
        for _ in range(5):
            assert bits(gemv.gemv(1, on_device(placed(a, rng)), to_device(x))) == expected
    finally:
        gemv.use_alignment(True)


class HalfAway(Case):
    """Its A begins at half of a complex number, which is as much as its alignment allows."""

    def __post_init__(self):
        super().__post_init__()
        memory = np.full(2 * len(self.a_buffer) + 1, np.nan, self.a_buffer.real.dtype)
        inside = memory[1:].view(self.element)
        inside[:] = self.a_buffer
        begin = self.a.__array_interface__["data"][0]
        begin -= self.a_buffer.__array_interface__["data"][0]
        self.a = np.lib.stride_tricks.as_strided(
            inside[begin // self.element.itemsize :], self.a.shape, self.a.strides
        )
        self.a_buffer = memory


@pytest.mark.parametrize("dtype", "cz")
@pytest.mark.parametrize("order", "CF")
def test_complex_numbers_that_lie_across_their_size(dtype, order):
    shape = (11, 18, dtype, order)
    case = HalfAway(*shape, alpha=2, beta=-1)
    expected = Case(*shape, alpha=2, beta=-1).check("small_matrix")
    assert case.check("small_matrix").tobytes() == expected.tobytes()


@pytest.mark.parametrize("letter", "sdczhb")
def test_small_products_are_right_and_nothing_else_is_touched(letter):
    """NaN lies wherever nothing may be read."""
    scalars = itertools.cycle([(1, 0), (0, 0.5), (2, 1), (0, 0), (-0.5, 0.25), (0, 1)])
    increments = itertools.cycle([(1, 1), (2, 3), (-1, -1), (-3, 2)])
    sizes = [(1, 1), (4, 4), (9, 1), (1, 9), (8, 32), (33, 3), (32, 31), (17, 16), (32, 32)]
    for (m, n), order, op in itertools.product(sizes, "CF", "NTC"):
        alpha, beta = next(scalars)
        if (n if op == "N" else m) > MOST or op == "C" and letter not in "cz":
            continue
        incx, incy = next(increments)
        case = Case(m, n, letter, order, op, m % 3, incx, incy, alpha, beta, shift=n % 2)
        for accumulate in ("plain", "wide") if m != n else ("plain", "pairs"):
            dataclasses.replace(case, accumulate=accumulate).check("small_matrix")
        if letter in "hb":
            dataclasses.replace(case, y_dtype="s").check("small_matrix")


@pytest.mark.parametrize("dtype, accumulate", [("s", "plain"), ("z", "plain"), ("s", "pairs")])
def test_errors_stay_within_what_the_depth_allows(dtype, accumulate):
    for (m, n), order in itertools.product([(9, 7), (20, 31), (32, 32)], "CF"):
        case = Case(m, n, dtype, order, alpha=1.25, beta=-0.75, accumulate=accumulate)
        y = case.y_of(case.y_buffer).copy()
        assert worst(case, case.run("small_matrix"), y, "small_matrix", None) <= 1


@pytest.mark.parametrize("dtype, m, n", [
    ("f4", 3, 1), ("f4", 3, 5), ("f4", 3, 18), ("f4", 3, 130), ("f4", 70, 33), ("c8", 3, 9),
    ("c8", 40, 35),
])  # fmt: skip
def test_a_sum_that_underflows_is_a_positive_zero(dtype, m, n):
    """On a GPU the fused product of two tiny numbers may be -0, and some loads bring zeros."""
    rng = random.Random(1)
    for order, beta in itertools.product("CF", (1, 0)):
        a, x = np.full((2, m, n), 1e-30, dtype), np.full((2, n), -1e-30, dtype)
        old = np.full((2, m), -0.0, dtype)

        def product(a, x, y, beta=beta):
            y = to_device(y)
            return bits(gemv.gemv(1, on_device(a), to_device(x), beta, y, overwrite_y=1))

        for k in range(2):
            alone = product(placed(a[k], rng, order), x[k].copy(), old[k])
            assert alone == bits(np.zeros(m, dtype))
        assert product(placed(a, rng, order), x, old) == bits(np.zeros((2, m), dtype))
        ys = [to_device(each) for each in old]
        views = [on_device(placed(each, rng, order)) for each in a]
        for each in gemv.gemv_batched(1, views, [to_device(each) for each in x], beta, ys):
            assert bits(each) == bits(np.zeros(m, dtype))
        shared = np.broadcast_to(placed(a[0], rng, order), (2, m, n))
        assert product(shared, x, old) == bits(np.zeros((2, m), dtype))


# Selection --------------------------------------------------------------------------------------


def small_problems():
    rng = random.Random(7)
    for m, n, letter, order, op in itertools.product(
        (1, 2, 5, 16, 31, 32), (1, 3, 8, 15, 17, 32), "sdczhb", "CF", "NTC"
    ):
        problem = make_problem(m, n, DTYPES[letter], order, op)
        if rng.random() < 0.3:
            problem = problem._replace(accumulate=rng.choice(("wide", "pairs")))
        yield problem, rng


@pytest.mark.parametrize("device", [H200, *OTHERS], ids=lambda device: str(device[1]))
def test_the_order_of_sums_follows_shape_dtype_op_and_order_alone(device):
    """Neither what a machine's file says, nor its stored choices, nor addresses, nor strides."""
    found = {}
    for problem, rng in small_problems():
        usual = select(problem.at(256, 256), device)
        for _ in range(3):
            size, step = problem.dtype.itemsize, rng.choice((1, 2))
            wide, gap = rng.choice((1, 3)), rng.randint(0, 9)
            longer, shorter = ("row", "col") if problem.access == "dot" else ("col", "row")
            strides = {
                f"{shorter}_stride": step,
                f"{longer}_stride": wide * (step * max(problem.rows, problem.cols) + gap),
                "incx": rng.choice((1, -2)),
            }
            moved = problem._replace(**strides).at(size * rng.randint(0, 9), size * 3)
            choice = select(moved, device)
            assert choice.kernel is usual.kernel is SMALL
            computed = selection_select.as_computed(moved, device)
            assert choice.knobs == {**SMALL.knobs, **SMALL.constants_of(computed)}
            for name in ("UNIT", "SHARES"):
                assert choice.knobs[name] == usual.knobs[name], (problem, moved)
        key = (problem.dtype.char, problem.accumulate, problem.rows == 1, problem.cols)
        found.setdefault((*key, problem.access), usual.knobs["UNIT"] * usual.knobs["SHARES"])
    assert len(set(found.values())) >= 4


def test_neither_exceptions_nor_cells_decide_for_small_matrices():
    for problem, _ in small_problems():
        assert select(problem.at(256, 256), H200).kernel is SMALL
        assert select(problem.at(256, 256), H200, knobs={"LOADS": 16}).kernel is SMALL
    assert select(make_problem(33, 32, DTYPES["s"], "C", "N"), H200).kernel is not SMALL
    assert select(make_problem(32, 33, DTYPES["s"], "C", "N"), H200).kernel is not SMALL
    asked = select(make_problem(9, 9, DTYPES["s"], "C", "N").at(256, 256), H200, "vector_rows")
    assert asked.kernel.name == "vector_rows"


def test_a_cell_of_the_machine_is_not_asked(monkeypatch):
    def fails(*arguments):
        raise AssertionError("the formula is not for small matrices")

    monkeypatch.setattr(selection_select, "_Problems", fails)
    monkeypatch.setattr(selection_select, "best", fails)
    selection_select.forget()
    assert select(make_problem(32, 32, DTYPES["s"], "C", "N").at(64, 64), H200).kernel is SMALL


def test_from_33_on_a_batch_has_the_sums_of_the_single_call():
    problem = make_problem(33, 33, DTYPES["s"], "C", "N").at(256, 256)
    batch = Batch((100,), ((33 * 33,), (33,), (33,), (0,), (0,)))
    assert batches.select_item(problem, batch, H200).kernel is select(problem, H200).kernel
    assert items.counts_in_batches(problem)


def test_few_items_have_the_kernel_of_a_single_product(monkeypatch):
    problem = make_problem(8, 8, DTYPES["s"], "C", "N").at(256, 256)

    def kernels(count, **options):
        batch = Batch((count,), ((64,), (8,), (8,), (0,), (0,)))
        return [part.choice.kernel for part in parts(problem, batch, H200, **options)]

    assert kernels(1) == [SMALL] and kernels(2) == [ITEMS]
    monkeypatch.setattr(batches, "FEW_ITEMS", 5)
    assert kernels(5) == [SMALL] and kernels(6) == [ITEMS]
    assert kernels(1, kernel="small_items") == [ITEMS]
    rng = np.random.default_rng(2)
    a, x = rng.standard_normal((5, 7, 9)).astype("f"), rng.standard_normal((5, 9)).astype("f")
    few = bits(gemv.matvec(a, x))
    monkeypatch.setattr(batches, "FEW_ITEMS", 0)
    assert bits(gemv.matvec(a, x)) == few


def test_lanes_and_loads_are_enough_for_all_columns():
    for problem, _ in small_problems():
        for own in (problem, problem._replace(cols=32)):
            knobs = {**SMALL.knobs, **SMALL.constants_of(own)}
            for each in (knobs, SMALL.in_tables(own, knobs), SMALL.in_batches(own, knobs)):
                assert each["UNIT"] * each["SHARES"] * each["LOADS"] >= own.cols
                (launch,) = SMALL.geometry(own, H200, each).launches
                rows, _ = SMALL.tile(each)
                assert launch.grid[0] * rows >= own.rows > (launch.grid[0] - 1) * rows
            for vectors in (2, 1 << 20):
                several = SEVERAL.for_vectors(own, knobs, vectors)
                lanes = several["UNIT"] * several["SHARES"]
                assert several["ROWS"] <= lanes and lanes * several["LOADS"] >= own.cols
                assert several["ROWS"] * several["LOADS"] * own.dtype.itemsize <= 256


def test_the_order_of_sums_by_hand():
    def order(letter, cols, *, down=False, rows=8, accumulate="plain"):
        strides = (1, rows + 5) if down else (cols, 1)
        problem = Problem(DTYPES[letter], rows, cols, 0, rows, cols, False, *strides)
        return tuple(order_of(problem._replace(accumulate=accumulate)))

    assert order("s", 32) == (False, 4, 1) and order("h", 28) == (False, 4, 1)
    assert order("s", 31) == (False, 1, 2) and order("s", 15) == (False, 1, 1)
    assert order("d", 32) == (False, 2, 2) == order("c", 32) and order("z", 32) == (False, 1, 4)
    assert order("s", 32, down=True) == (True, 1, 4) and order("z", 16, down=True) == (True, 1, 2)
    assert order("s", 32, down=True, rows=1) == (False, 4, 1), "a single row has no order"
    assert order("s", 32, accumulate="wide") == (False, 2, 2)
    assert order("s", 32, accumulate="pairs") == (False, 2, 8)
    assert order("d", 31, accumulate="wide") == (False, 1, 8)
    # Neither stride is 1: memory runs along the smaller one, whatever the signs.
    base = Problem(DTYPES["s"], 8, 8, 0, 8, 8, False, 0, 0)
    for strides, down in (((64, 2), False), ((2, 64), True), ((-2, 64), True), ((-64, -2), False)):
        assert order_of(base._replace(row_stride=strides[0], col_stride=strides[1]))[0] == down
    # Depths: 8 products in order; 4 times 8; two of 2 times 8; 16 and 15 in order.
    assert [depth_of(*each) for each in ((8, 1, 1), (32, 4, 1), (32, 2, 2), (31, 1, 2))] == [
        7, 9, 9, 16,
    ]  # fmt: skip


def test_explain_names_the_kernel_that_is_no_rung():
    a, x = np.ones((9, 20), "f"), np.ones(20, "f")
    told = gemv.explain(1, a, x)
    assert (told.kernel, told.rung, told.depth) == ("small_matrix", None, 6)
    assert "runs kernel 'small_matrix', beside the ladder, on the" in str(told)
    assert "one order" in told.reason
    asked = gemv.explain(1, a, x, kernel="vector_rows")
    assert asked.rung == 8 and "'vector_rows', rung 8, on the" in str(asked)
    several = gemv.explain(1, a, np.ones((5, 20), "f"), routine="matvec")
    assert (several.kernel, several.rung, several.depth) == ("several_small", None, 6)
    batch = gemv.explain(1, np.ones((5, 9, 20), "f"), x)
    assert (batch.kernel, batch.rung, batch.depth) == ("small_items", None, 6)


# Bad cases --------------------------------------------------------------------------------------


def test_what_is_refused():
    problem = make_problem(8, 33, DTYPES["s"], "C", "N")
    with pytest.raises(ValueError, match="'small_matrix' refuses this problem: 8 rows and 33 col"):
        select(problem, H200, "small_matrix")
    a, x = np.ones((8, 33), "f"), np.ones(33, "f")
    with pytest.raises(ValueError, match="there must be at most 32 columns"):
        gemv.gemv(1, a, x, kernel="small_matrix")
    problem = make_problem(8, 20, DTYPES["s"], "C", "N")
    for knobs, words in (
        ({"LOADS": 4, "SHARES": 2}, "2 partial sums of LOADS = 4 columns are fewer than 20"),
        ({"SHARES": 3}, "power of two up to 32, got 32 and 3"),
        ({"THREADS_PER_BLOCK": 48}, "must be whole warps"),
        ({"LANES": 4}, "no knob LANES"),
    ):
        with pytest.raises(ValueError, match=words):
            select(problem, H200, "small_matrix", knobs)
    batch = Batch((1 << 24,), ((0,), (32,), (32,), (0,), (0,)))
    knobs = {**SEVERAL.knobs, **SEVERAL.small_knobs}
    with pytest.raises(ValueError, match="several_small: 16777216 vectors are more than a grid"):
        SEVERAL.of_batch(problem, H200, knobs, batch)
    wide = make_problem(8, 33, DTYPES["s"], "C", "N")
    assert "registers hold at most 32" in SEVERAL.accepts(wide)


# Several vectors --------------------------------------------------------------------------------


@pytest.mark.parametrize("letter, accumulate", [("s", "plain"), ("d", "plain"), ("c", "plain"),
                                                ("h", "plain"), ("s", "pairs")])  # fmt: skip
@pytest.mark.parametrize("many", [False, True])
def test_vectors_have_the_bits_of_single_products(letter, accumulate, many, monkeypatch):
    """Where each has warps of its own, and where a warp takes several and a lane several rows."""
    if many:
        monkeypatch.setattr(f"{SEVERAL.build.__module__}.MANY", 2)
    rng = np.random.default_rng(4)
    problems = list(itertools.product([(3, 5), (32, 32), (19, 17), (30, 8), (1, 31)], "CF"))
    if accumulate == "pairs" and not ALL_ROWS:  # five times as long: the orders in turn
        problems = [each for k, each in enumerate(problems) if k % 2 == (k // 2 + many) % 2]
    for (m, n), order in problems:
        a = np.asarray(random_array(rng, (m, n), DTYPES[letter]), order=order)
        x, y = (random_array(rng, (7, length), DTYPES[letter]) for length in (n, m))
        alpha, beta = np.array([1, 0, -2, 1, 1, 0.5, 0]), np.array([0, 0, 1, 0.5, 0, 2, 1])
        options = {"accumulate": accumulate}
        with gemv.trace() as calls:
            plain = gemv.matvec(a, x, **options)
            blended = gemv.matvec(a, x, y.copy(), alpha=alpha, beta=beta, **options)
        assert {call.kernel for call in calls} == {"several_small"}
        assert {call.knobs["COUNT"] > 1 for call in calls} == {many}
        for k in range(7):
            assert bits(plain[k]) == bits(gemv.gemv(1, a, x[k], **options)), (m, n, order, k)
            own = gemv.gemv(alpha[k], a, x[k], beta[k], y[k], **options)
            assert bits(blended[k]) == bits(own), (m, n, order, k)


@pytest.mark.parametrize("many", [False, True])
def test_conjugated_vectors_and_matrices_across_their_size(many, monkeypatch):
    if many:
        monkeypatch.setattr(f"{SEVERAL.build.__module__}.MANY", 2)
    rng = np.random.default_rng(6)
    for m, n in ((7, 5), (32, 20), (20, 32)):
        memory = np.zeros(2 * m * n + 1, "f")
        a = memory[1:].view("F").reshape(m, n)
        a[...] = random_array(rng, (m, n), DTYPES["c"])
        x = random_array(rng, (4, m), DTYPES["c"])
        with gemv.trace() as calls:
            y = as_array(gemv.vecmat(to_device(x), on_device(a)))
        assert [call.kernel for call in calls] == ["several_small"]
        assert calls[0].knobs["SPLIT_A"] == 1
        assert np.allclose(y, x.conj() @ a, atol=1e-4)
        aligned = as_array(gemv.vecmat(to_device(x), to_device(a)))
        assert bits(y) == bits(aligned)


def test_vectors_of_several_launches_have_the_bits_of_single_products(monkeypatch):
    monkeypatch.setattr(batches, "MOST_ITEMS", 2)
    rng = np.random.default_rng(8)
    a, x = rng.standard_normal((6, 5)).astype("f"), rng.standard_normal((5, 5)).astype("f")
    with gemv.trace() as calls:
        y = gemv.matvec(a, x)
    assert [call.kernel for call in calls] == ["several_small"] * 2 + ["small_matrix"]
    assert bits(y) == b"".join(bits(gemv.gemv(1, a, each)) for each in x)


# Cut matrices -----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", "CF")
def test_a_small_part_of_a_large_matrix_has_the_sums_of_the_large_one(order):
    """Shards of 32 rows, if memory runs along them, and panels of a few rows from host memory."""
    rng = np.random.default_rng(9)
    for m, n in ((96, 20), (96, 32)):
        a = np.asarray(rng.standard_normal((m, n)).astype("f"), order=order)
        x = rng.standard_normal(n).astype("f")
        with gemv.trace() as calls:
            whole = bits(gemv.gemv(1, a, x))
            with gemv.Matrix(a, devices=[0, 0, 0], split="rows") as shards:
                assert order == "F" or shards.bounds == (0, 32, 64, 96)
                assert bits(shards @ x) == whole
                assert bits((shards @ np.stack([x, x]).T).T[1]) == whole
        assert "small_matrix" not in {call.kernel for call in calls}
        limit = a.nbytes // 2 + x.nbytes + 4 * m + 6144
        assert bits(gemv.gemv(1, a, x, device_memory_limit=limit)) == whole


@pytest.mark.parametrize("order", "CF")
def test_a_small_matrix_in_shards_has_its_own_sums(order):
    rng = np.random.default_rng(10)
    a = np.asarray(rng.standard_normal((32, 27)).astype("f"), order=order)
    x = rng.standard_normal((27, 3)).astype("f")
    single = [bits(gemv.gemv(1, a, x[:, k])) for k in range(3)]
    for count in (2, 3):
        with gemv.trace() as calls, gemv.Matrix(a, devices=[0] * count, split="rows") as shards:
            assert bits(shards @ x[:, 0]) == single[0]
            assert [bits(y) for y in (shards @ x).T] == single
        assert {call.kernel for call in calls} == {"small_matrix", "several_small"}


# Schedules --------------------------------------------------------------------------------------

if backend.backend() == "simulator":
    from gemv.language.simulator.scheduler import Schedule, scheduled

    @pytest.mark.parametrize("m, n, order", [(9, 31, "C"), (32, 32, "F")])
    def test_no_order_of_threads_and_blocks_changes_a_bit(m, n, order, monkeypatch):
        monkeypatch.setattr(f"{SEVERAL.build.__module__}.MANY", 4)
        rng = np.random.default_rng([m, n])
        a = np.asarray(random_array(rng, (m, n), DTYPES["c"]), order=order)
        x, y = (random_array(rng, (5, length), DTYPES["c"]) for length in (n, m))
        found = set()
        for schedule in (
            Schedule("forward"), Schedule("reversed", late=True),
            *(Schedule("random", k) for k in range(3)),
        ):  # fmt: skip
            with scheduled(schedule):
                several = gemv.matvec(a, x, y.copy(), beta=0.5)
                few = gemv.matvec(a, x[:2], y[:2].copy(), beta=0.5)
                one = gemv.gemv(1, a, x[0], 0.5, y[0])
                found.add((bits(several), bits(few), bits(one)))
        ((several, few, one),) = found
        assert several.startswith(few) and few.startswith(one)
