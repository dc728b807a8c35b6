"""Products of different sizes: gemv_batched and Batch against NumPy and single products."""

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from helpers.programs import program
from helpers.values import plain, whole

import gemv
from gemv.arrays.numba import Numba
from gemv.calls import order, ragged, ragged_factors, ragged_known, ragged_run, ragged_tables
from gemv.core import memo
from gemv.core.dtypes import DTYPES
from gemv.core.rules import coefficient
from gemv.engines import backend

needs_engine = pytest.mark.skipif(
    gemv.backend() == "host", reason="no GPU and no simulator to hold device arrays"
)
#: Rows and columns, empty ones among them, on both sides of what is small.
SHAPES = [(5, 7), (40, 3), (1, 1), (0, 4), (3, 0), (33, 36), (2, 50), (36, 33), (40, 40)]


def to_device(array):
    from numba import cuda

    return cuda.to_device(np.asarray(array))


def on_host(array):
    return array.copy_to_host() if hasattr(array, "copy_to_host") else np.asarray(array)


class Lists:
    """Matrices in both orders and as parts of larger ones, with vectors and factors for each."""

    def __init__(self, seed, dtype, shapes=SHAPES):
        rng = np.random.default_rng(seed)
        dtype = np.dtype(dtype)
        self.a, self.x, self.y, self.trans = [], [], [], []
        for k, (m, n) in enumerate(shapes):
            order = "CF"[k % 2]
            larger = np.array(whole(rng, (m + 2, n + 3), dtype, 3), order=order)
            matrix = larger[1 : m + 1, 2 : n + 2]
            self.a.append(matrix if k % 3 else np.array(matrix, order=order))
            self.trans.append((0, 1, 2, "N", "T", "C")[int(rng.integers(6))])
            rows, cols = (m, n) if self.trans[-1] in (0, "N") else (n, m)
            self.x.append(whole(rng, cols, dtype, 3))
            self.y.append(whole(rng, rows, dtype, 3))
        self.alpha = [float(rng.integers(0, 3)) for _ in shapes]
        self.beta = [float(rng.integers(0, 3)) for _ in shapes]

    def expected(self, alpha=None, beta=None):
        alpha = self.alpha if alpha is None else alpha
        beta = self.beta if beta is None else beta
        for k, (a, x, y) in enumerate(zip(self.a, self.x, self.y, strict=True)):
            if 0 in a.shape:  # as in BLAS
                yield plain(y)
                continue
            op = {0: a, "N": a, 1: a.T, "T": a.T}.get(self.trans[k], np.conj(plain(a)).T)
            yield alpha[k] * (plain(op) @ plain(x)) + beta[k] * plain(y)


def assert_same(found, expected):
    for k, (got, exact) in enumerate(zip(found, expected, strict=True)):
        got = plain(on_host(got))
        assert got.shape == exact.shape and np.array_equal(got, exact), (k, got, exact)


@pytest.mark.parametrize("letter", "sdczhb")
def test_items_of_all_sizes_orders_and_transpositions(everywhere, letter):
    lists = Lists(1, DTYPES[letter])
    before = [array.copy() for array in (*lists.a, *lists.x, *lists.y)]
    found = gemv.gemv_batched(lists.alpha, lists.a, lists.x, lists.beta, lists.y, lists.trans)
    assert_same(found, lists.expected())
    assert {each.dtype for each in found} == {np.dtype(DTYPES[letter])}
    after = (*lists.a, *lists.x, *lists.y)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(after, before, strict=True))


def test_new_results_are_zeros_where_nothing_is_computed(everywhere):
    lists = Lists(2, "d")
    found = gemv.gemv_batched(1, lists.a, lists.x, trans=lists.trans)
    for y in lists.y:
        y[:] = 0
    assert_same(found, lists.expected([1] * len(SHAPES), [0] * len(SHAPES)))


def test_y_is_overwritten_if_asked(everywhere):
    lists = Lists(3, "f")
    expected = list(lists.expected())
    found = gemv.gemv_batched(
        lists.alpha, lists.a, lists.x, lists.beta, lists.y, lists.trans, overwrite_y=1
    )
    assert all(a is b for a, b in zip(found, lists.y, strict=True))
    assert_same(lists.y, expected)


def test_some_items_may_have_no_y(everywhere):
    a, x = [np.eye(2), 2 * np.eye(3)], [np.ones(2), np.ones(3)]
    y = np.full(3, 5.0)
    first, second = gemv.gemv_batched(1, a, x, [0, 1], [None, y], overwrite_y=1)
    assert first.tolist() == [1, 1] and second is y and y.tolist() == [7, 7, 7]


def test_a_nan_stays_in_its_item_and_zeros_read_nothing(everywhere):
    nan = np.full((4, 4), np.nan)
    a = [np.eye(4), nan, np.eye(4), nan]
    x = [np.ones(4), np.full(4, np.nan), np.ones(4), np.ones(4)]
    y = [np.full(4, np.nan), np.ones(4), np.full(4, np.nan), np.ones(4)]
    found = gemv.gemv_batched([1, 0, 2, 1], a, x, [0, 3, 0, 1], y)
    assert [each.tolist() for each in found[:3]] == [[1] * 4, [3] * 4, [2] * 4]
    assert np.isnan(found[3]).all()


def test_host_arrays_of_several_dtypes_are_converted_to_a_common_one(everywhere):
    a = [np.eye(2, dtype="f"), np.eye(3, dtype="i4")]
    found = gemv.gemv_batched(1, a, [np.ones(2, "f"), [1, 2, 3]])
    assert [each.dtype for each in found] == [np.float64] * 2
    assert found[1].tolist() == [1, 2, 3]
    found = gemv.gemv_batched([1, 1j], a[:1] * 2, [np.ones(2, "f")] * 2)
    assert [each.dtype for each in found] == [np.complex64] * 2 and found[1].tolist() == [1j, 1j]


def test_empty_lists(everywhere):
    assert gemv.gemv_batched(1, [], []) == []
    batch = gemv.Batch([])
    assert len(batch) == 0 and batch @ [] == [] and batch.shapes == []


def test_an_array_with_a_leading_dimension_is_a_list_of_matrices(everywhere):
    a, x = np.arange(12.0).reshape(2, 2, 3), np.ones((2, 3))
    assert_same(gemv.gemv_batched(1, a, x), [a[0] @ x[0], a[1] @ x[1]])


def test_one_matrix_for_all_items(everywhere):
    a, x = np.arange(6.0).reshape(2, 3), np.eye(3)
    assert_same(gemv.gemv_batched(1, [a] * 3, list(x)), [a[:, k] for k in range(3)])


@pytest.mark.parametrize("letter", "sz")
def test_a_batch_multiplies_again_and_again(everywhere, letter):
    lists = Lists(4, DTYPES[letter])
    batch = gemv.Batch(lists.a, lists.trans)
    assert len(batch) == len(SHAPES) and batch.dtype == DTYPES[letter]
    assert batch.shapes == [(len(y), len(x)) for x, y in zip(lists.x, lists.y, strict=True)]
    assert_same(batch.gemv(lists.alpha, lists.x, lists.beta, lists.y), lists.expected())
    for y in lists.y:
        y[:] = 0
    products = list(lists.expected([1] * len(SHAPES), [0] * len(SHAPES)))
    assert_same(batch @ lists.x, products)
    together = batch @ np.concatenate(lists.x)
    assert together.dtype == DTYPES[letter]
    assert np.array_equal(together, np.concatenate(products))
    assert f"{len(SHAPES)} matrices" in repr(batch) and "None" not in str(batch.explain())
    assert ("small_items" in str(batch.explain())) == (everywhere != "host")


def test_wide_sums_and_results_of_another_dtype(everywhere):
    if everywhere == "host":
        with pytest.raises(ValueError, match="accumulate='wide' in float64 needs a GPU"):
            gemv.gemv_batched(1, [np.eye(2)], [np.ones(2)], accumulate="wide")
        return
    big = np.array([[1e20, 1.0, -1e20]])
    (found,) = gemv.gemv_batched(1, [big], [np.ones(3)], accumulate="wide")
    assert found.tolist() == [1.0]
    half = [np.eye(3, dtype="e")]
    (found,) = gemv.gemv_batched(1, half, [np.ones(3, "e")], out_dtype="float32")
    assert found.dtype == np.float32


def placed(lists):
    """The same arrays on the device, matrices as views of larger ones where they are that here."""

    def matrix(a):
        if a.base is None:
            return to_device(a)
        m, n = a.shape
        return to_device(a.base)[1 : m + 1, 2 : n + 2]  # as Lists cut it out

    makers = (matrix, lists.a), (to_device, lists.x), (to_device, lists.y)
    return [[make(each) for each in arrays] for make, arrays in makers]


@needs_engine
@pytest.mark.parametrize("letter", "sc")
def test_device_arrays_stay_where_they_are(letter):
    lists = Lists(5, DTYPES[letter], [shape for shape in SHAPES if 0 not in shape])
    a, x, y = placed(lists)
    expected = list(lists.expected())
    arguments = lists.alpha, a, x, lists.beta, y, lists.trans
    found = gemv.gemv_batched(*arguments)
    assert all(type(each) is type(a[0]) for each in found)
    assert_same(found, expected)
    assert_same(y, [plain(each) for each in lists.y])
    again = gemv.gemv_batched(*arguments, overwrite_y=1)
    assert all(one is two for one, two in zip(again, y, strict=True))
    assert_same(y, expected)


@needs_engine
def test_items_on_a_device_have_the_bits_of_a_batch_of_one(everywhere):
    rng = np.random.default_rng(8)
    shapes = [(3, 40), (70, 33), (20, 20), (36, 100)]
    a, x = [rng.standard_normal(s) for s in shapes], [rng.standard_normal(s[1]) for s in shapes]
    for one_a, one_x, found in zip(a, x, gemv.gemv_batched(1, a, x), strict=True):
        assert found.tobytes() == gemv.matvec(one_a[None], one_x[None])[0].tobytes()


@needs_engine
def test_a_batch_of_device_arrays():
    lists = Lists(6, "f", [shape for shape in SHAPES if 0 not in shape])
    a, x, y = placed(lists)
    batch = gemv.Batch(a, lists.trans)
    zeros = [0] * len(a)
    products = list(lists.expected([1] * len(a), zeros))
    for _ in range(2):  # the second call knows the launches of the first
        found = batch @ x
        assert all(type(each) is type(a[0]) for each in found)
        assert_same(found, products)
    together = batch @ to_device(np.concatenate(lists.x))
    assert np.array_equal(on_host(together), np.concatenate(products))
    apart = to_device(np.repeat(np.concatenate(lists.x), 3))[::3]  # one vector, of any stride
    assert np.array_equal(on_host(batch @ apart), np.concatenate(products))
    # Vectors that lie otherwise in memory: other launches.
    wide = [to_device(np.repeat(each, 2))[::2] for each in lists.x]
    assert_same(batch @ wide, products)
    assert_same(batch.gemv(lists.alpha, x, lists.beta, y), lists.expected())


@pytest.fixture
def arrays_say_where_they_are(monkeypatch):
    """Arrays of the simulator as those of a GPU: on number 0, and empty ones on none."""
    read, read_all = Numba.read, Numba.read_all

    def on_a_gpu(self, array):
        view = read(self, array)
        return view._replace(device=None if 0 in view.shape else 0)

    def all_on_a_gpu(self, arrays):
        views = read_all(self, arrays)
        return views._replace(devices=[None if 0 in shape else 0 for shape in views.shapes])

    if backend.backend() == "simulator":
        monkeypatch.setattr(Numba, "read", on_a_gpu)
        monkeypatch.setattr(Numba, "read_all", all_on_a_gpu)


@needs_engine
def test_one_vector_after_the_other_is_multiplied_with_the_tables_of_the_first(
    monkeypatch, arrays_say_where_they_are
):
    rng, bound, bind = np.random.default_rng(10), [], ragged.bind_product

    def noted(*arguments):
        bound.append(arguments)
        return bind(*arguments)

    shapes = [(5, 7), (40, 3), (3, 0), (1, 1), (33, 36), (5, 7)]
    a = [to_device(whole(rng, shape, np.float32)) for shape in shapes]
    batch = gemv.Batch(a, [0, 1, 0, 2, 1, 0])
    lengths = [n for _, n in batch.shapes]
    cols = sum(lengths)
    for start, step in ((0, 1), (0, 1), (1, 1), (0, 2), (1, 1), (0, 1)):
        memory = whole(rng, start + step * cols, np.float32)
        x = to_device(memory)[start::step]
        values = memory[start::step].copy()
        with monkeypatch.context() as patch:
            patch.setattr(ragged, "bind_product", noted)
            together = on_host(batch @ x)
        found = np.split(together, np.cumsum([m for m, _ in batch.shapes])[:-1])
        pieces = [to_device(piece) for piece in np.split(values, np.cumsum(lengths)[:-1])]
        assert_same(found, [on_host(each) for each in batch @ pieces])
        assert any(each.any() for each in found)
    assert len(bound) == 3, "one for each way in which a vector lies in memory"
    with pytest.raises(ValueError, match=f"x has {cols - 1} elements"):
        batch @ x[: cols - 1]
    with pytest.raises(TypeError, match="x has dtype float64, but the products are in float32"):
        batch @ to_device(np.zeros(cols))
    with pytest.raises(TypeError, match="item 0: x is in host memory"):
        batch @ np.zeros(cols, np.float32)


@needs_engine
def test_one_vector_without_elements_gives_zeros_again_and_again():
    batch = gemv.Batch([to_device(np.ones((3, 0))), to_device(np.ones((2, 0)))])
    for _ in range(3):
        assert on_host(batch @ to_device(np.ones(0))).tolist() == [0] * 5


@needs_engine
def test_a_batch_keeps_no_vector_alive():
    a = [to_device(np.eye(2)), to_device(np.eye(3))]
    batch, x = gemv.Batch(a), to_device(np.arange(5.0))
    memory = weakref.ref(x)
    y = batch @ x
    result = weakref.ref(y)
    assert on_host(y).tolist() == [0, 1, 2, 3, 4]
    del x, y
    gc.collect()
    assert memory() is None and result() is None
    x = to_device(np.arange(5.0) + 1)
    assert on_host(batch @ x).tolist() == [1, 2, 3, 4, 5]


@needs_engine
def test_a_plan_launches_without_a_look_at_its_arrays(monkeypatch):
    lists = Lists(7, "f", [shape for shape in SHAPES if 0 not in shape])
    a, x, y = placed(lists)
    planned = []

    def planning(*arguments):
        planned.append(arguments)
        return plan_launches(*arguments)

    plan_launches = ragged_tables.planned
    monkeypatch.setattr(ragged_tables, "planned", planning)
    plan = gemv.Batch(a, lists.trans).plan(x, y, lists.alpha, 0)
    products = list(lists.expected(beta=[0] * len(a)))
    for settings in (True, False, True):  # what is chosen follows the settings of each call
        gemv.use_alignment(settings)
        try:
            found = plan()
        finally:
            gemv.use_alignment(True)
        assert all(one is two for one, two in zip(found, y, strict=True))
        assert_same(y, products)
    assert len(planned) == 4, "at first, and after each setting"
    plan()
    x[0].copy_to_device(np.zeros(x[0].shape, x[0].dtype))
    plan()
    assert len(planned) == 5
    assert not on_host(y[0]).any() and np.array_equal(on_host(y[1]), plain(products[1]))
    assert repr(plan) == f"<gemv.BatchPlan of {len(a)} products>"


@needs_engine
def test_a_call_of_a_plan_takes_as_many_steps_for_many_items_as_for_few(monkeypatch):
    entered = program("measure.list_calls").entered
    steps = []
    for count in (2, 40):
        a, x, y = (
            [to_device(np.ones(shape)) for _ in range(count)] for shape in ((3, 5), (5,), (3,))
        )
        plan = gemv.Batch(a).plan(x, y)
        plan()
        assert all(on_host(each).tolist() == [5] * 3 for each in y)
        with monkeypatch.context() as patch:  # the simulator takes steps for each of its threads
            patch.setattr(type(backend.engine()), "run", lambda *arguments, **more: None)
            steps.append(entered(plan))
    assert steps[0] == steps[1] > 5


@needs_engine
def test_launches_run_beside_each_other_but_for_the_first_and_those_that_share_memory(monkeypatch):
    """The first one comes behind all work before; sums that are posted have one memory."""
    seen, bind = [], ragged_tables.bound

    def noted(launches, *arguments):
        third = launches.groups[2]
        shared = third.choice._replace(geometry=third.choice.geometry._replace(scratch=8))
        groups = [*launches.groups[:2], third._replace(choice=shared), *launches.groups[3:]]
        made = bind(launches._replace(groups=groups), *arguments)
        seen.append([each.tables.is_beside for each in made])
        return bind(launches, *arguments)

    monkeypatch.setattr(ragged_tables, "bound", noted)
    # One launch for rows of all lengths, one for columns, and one for the rows that blocks share.
    shapes, trans = [(70, 80), (5, 7), (300, 2), (2, 5000)], [0, 1, 0, 0]
    sides = [(n, m) if t else (m, n) for (m, n), t in zip(shapes, trans, strict=True)]
    a, x = ([to_device(np.ones(each)) for each in every] for every in
            (shapes, [n for _, n in sides]))  # fmt: skip
    y = gemv.gemv_batched(1, a, x, trans=trans)
    assert [on_host(each).tolist() for each in y] == [[n] * m for m, n in sides]
    assert seen[0][:3] == [False, True, False] and all(seen[0][3:])


@needs_engine
def test_a_plan_of_nothing_leaves_y_as_it_is():
    a, y = [to_device(np.eye(2))], [to_device(np.ones(2))]
    plan = gemv.Batch(a).plan([to_device(np.ones(2))], y, 0, 1)
    assert plan() == y and on_host(y[0]).tolist() == [1, 1]


def test_launches_are_few(everywhere):
    if everywhere == "host":
        return
    shapes = [(m, n) for m in (40, 48, 64, 100) for n in (36, 64, 80)]
    rng = np.random.default_rng(9)
    a, x = [rng.standard_normal(s) for s in shapes], [rng.standard_normal(s[1]) for s in shapes]
    with gemv.trace() as calls:
        found = gemv.gemv_batched(1, a, x)
    assert len(calls) < len(shapes) / 2
    for one_a, one_x, y in zip(a, x, found, strict=True):
        assert np.allclose(y, one_a @ one_x)


def test_a_y_of_one_column_is_a_vector_on_the_host(everywhere):
    y = np.ones((3, 1))
    (found,) = gemv.gemv_batched(1, [np.eye(3)], [[1.0, 2.0, 3.0]], 1, [y], overwrite_y=1)
    assert found is y and y.tolist() == [[2], [3], [4]]


def test_the_host_refuses_more_rows_than_its_blas_takes():
    far = np.broadcast_to(np.zeros((1, 1), np.float32), (2**31, 1))
    gemv.use_backend("host")
    try:
        with pytest.raises(ValueError, match="item 1: SciPy's BLAS takes at most 2147483647 rows"):
            gemv.gemv_batched(1, [far[:1], far], [np.ones(1, "f")] * 2)
    finally:
        gemv.use_backend(None)


def test_threads_share_a_batch(everywhere):
    rng = np.random.default_rng(11)
    shapes = [(5, 7), (36, 33), (2, 40)]
    matrices = [rng.standard_normal(shape) for shape in shapes]
    batch = gemv.Batch(matrices)
    vectors = [[rng.standard_normal(n) for _, n in shapes] for _ in range(4)]
    alone = [batch @ each for each in vectors]
    fresh = gemv.Batch(matrices)

    def multiply(number):
        return fresh @ vectors[number % 4]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(multiply, range(8)))
    for number, results in enumerate(found):
        for got, exact in zip(results, alone[number % 4], strict=True):
            assert got.tobytes() == exact.tobytes()


def test_an_interrupt_before_a_launch_leaves_a_batch_usable(everywhere, monkeypatch):
    if everywhere == "host":
        return
    a, x = [to_device(np.eye(3)), to_device(np.eye(40))], [to_device(np.ones(n)) for n in (3, 40)]
    batch = gemv.Batch(a, [0, 1])  # two launches: for memory along rows, and down columns
    run, calls = type(backend.engine()).run, []

    def interrupted(engine, *arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(engine, *arguments, **options)

    monkeypatch.setattr(type(backend.engine()), "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        batch @ x
    assert [on_host(y).tolist() for y in batch @ x] == [[1] * 3, [1] * 40]
    assert len(calls) == 4


@needs_engine
def test_a_batch_keeps_a_few_launches_and_a_plan_all_of_its_own(monkeypatch):
    a, y = [to_device(np.eye(40))], [to_device(np.zeros(40))]
    batch, memory = gemv.Batch(a), to_device(np.ones(400))
    for first in range(20):
        assert on_host((batch @ [memory[first :: 1 + first % 9][:40]])[0]).tolist() == [1] * 40
    assert 0 < len(batch._known) <= ragged_run._MOST_KNOWN
    plan = batch.plan([memory[:40]], y)
    tables = plan._ready.prepared.memory
    gemv.use_alignment(True)  # a setting like before, but it was set anew
    plan()
    assert plan._ready.prepared.memory is not tables
    assert plan._before[0].prepared.memory is tables, "a graph may still read it"
    batch @ [memory[:40]]
    assert {signature[0] for signature in batch._known} == {memo.generation()}


@needs_engine
def test_only_tables_that_stay_are_waited_for(monkeypatch):
    finished = []
    upload = type(backend.engine()).upload

    def watched(engine, host, target, stream, finish=False):
        finished.append(finish)
        return upload(engine, host, target, stream, finish)

    monkeypatch.setattr(type(backend.engine()), "upload", watched)
    a, x = [to_device(np.eye(3))], [to_device(np.ones(3))]
    gemv.gemv_batched(1, a, x)
    assert finished == [False, False]
    batch = gemv.Batch(a)
    batch @ x
    batch @ x
    assert finished[2:] == [True, False, False]
    batch.plan(x, [to_device(np.ones(3))])
    assert finished[5:] == [True]


@needs_engine
@pytest.mark.parametrize("how", ["list", "vector", "plan"])
def test_tables_of_earlier_calls_are_told_with_the_stream_that_they_were_made_on(how, monkeypatch):
    """Whoever uses them later on another stream would else lose them with the batch."""
    batch = gemv.Batch([to_device(np.ones(shape, "f")) for shape in ((5, 7), (40, 3))])
    xs = [to_device(np.ones(n, "f")) for n in (7, 3)]
    ys = [to_device(np.zeros(m, "f")) for m in (5, 40)]
    streams, told = iter(range(1, 100)), []
    made_on, stays = order.Order.made_on, order.Order.stays

    def numbered(self, operand):
        made_on(self, operand)
        number = next(streams)
        made[operand.pointer] = number
        return number

    def noted(self, operand, made_on):
        told.append((operand.pointer, made_on))
        stays(self, operand, None)

    made = {}
    monkeypatch.setattr(order.Order, "made_on", numbered)
    monkeypatch.setattr(order.Order, "stays", noted)
    whole = to_device(np.ones(10, "f"))
    if how == "list":
        for _ in range(2):
            batch.gemv(1, xs, 0, ys, overwrite_y=1)
        expected = 1
    else:
        call = batch.plan(xs, ys) if how == "plan" else lambda: batch @ whole
        for _ in range(2):
            call()
        expected = 4 if how == "plan" else 2
    assert len(told) == expected
    assert all(made[pointer] == number for pointer, number in told)


def test_lists_may_be_any_sequence(everywhere):
    a, x = [np.eye(2), np.eye(3)], [np.ones(2), np.ones(3)]
    expected = [[3.0, 3.0], [5.0, 5.0, 5.0]]
    for alpha in ((3, 5), np.array([3.0, 5.0]), range(3, 6, 2)):
        found = gemv.gemv_batched(alpha, iter(a), tuple(x), trans=np.array([0, 1]))
        assert [y.tolist() for y in found] == expected


@needs_engine
def test_a_plan_of_iterators_and_what_cannot_be_copied():
    a, x, y = ([to_device(each)] for each in (np.eye(2), np.ones(2), np.zeros(2)))
    batch = gemv.Batch(a)
    plan = batch.plan(iter(x), iter(y))
    assert plan()[0] is y[0] and on_host(y[0]).tolist() == [1, 1]
    for each in (batch, plan):
        with pytest.raises(TypeError, match="can be neither pickled nor copied"):
            copy.copy(each)
        with pytest.raises(TypeError, match="can be neither pickled nor copied"):
            pickle.dumps(each)


@needs_engine
def test_a_batch_of_host_arrays_in_both_places():
    a, x = [np.arange(4.0).reshape(2, 2)], [np.ones(2)]
    batch = gemv.Batch(a)
    here = batch @ x
    gemv.use_backend("host")
    try:
        there = batch @ x
    finally:
        gemv.use_backend(None)
    assert here[0].tolist() == there[0].tolist() == [1, 5]


@needs_engine
@pytest.mark.parametrize("first, kernel", [(0, "list_rows"), (1, "small_items")])
def test_small_items_of_several_sizes_share_a_launch(first, kernel):
    """Where A begins at no whole vector, they keep the kernel that stages it."""
    shapes = [(20, 4), (19, 4), (20, 4), (18, 4)]
    buffers = [to_device(np.ones(first + m * n, np.float32)) for m, n in shapes]
    a = [b[first:].reshape(shape) for b, shape in zip(buffers, shapes, strict=True)]
    x = [to_device(np.ones(4, np.float32)) for _ in shapes]
    (only,) = gemv.explain_batched(1, a, x).launches
    assert only.kernel == kernel and only.items == (0, 1, 2, 3)
    assert_same(gemv.gemv_batched(1, a, x), [np.full(m, 4.0) for m, _ in shapes])


@needs_engine
@pytest.mark.parametrize("order, kernels", [
    ("C", ["list_rows"]), ("F", ["list_columns", "list_in_order"]),
])  # fmt: skip
def test_most_items_of_a_list_share_a_launch_or_two(order, kernels):
    """Their rows have different lengths, and begin at different addresses."""
    rng, shapes = np.random.default_rng(13), [(5, 7), (40, 36), (33, 65), (100, 20), (3, 200)]
    a = [to_device(np.array(whole(rng, shape, np.float64), order=order)) for shape in shapes]
    x = [to_device(whole(rng, n, np.float64)) for _, n in shapes]
    with gemv.trace() as calls:
        found = gemv.gemv_batched(1, a, x)
    assert [call.kernel for call in calls] == kernels
    assert_same(found, [on_host(m) @ on_host(v) for m, v in zip(a, x, strict=True)])


@needs_engine
def test_launches_of_lists_that_come_again_are_found_once(monkeypatch):
    found, groups = [], ragged_known.ragged.groups

    def noted(problems, *rest):
        found.append([(problem.rows, problem.cols) for problem in problems])
        return groups(problems, *rest)

    monkeypatch.setattr(ragged_known.ragged, "groups", noted)
    lists = [[(3, 5), (40, 8)], [(5, 3), (8, 40)]]
    made = [
        ([to_device(np.ones(s)) for s in shapes], [to_device(np.ones(s[1])) for s in shapes])
        for shapes in lists
    ]
    for number in (0, 1, 0, 1, 1):
        y = gemv.gemv_batched(1, *made[number])
        assert [on_host(each).tolist() for each in y] == [[n] * m for m, n in lists[number]]
    assert found == lists
    gemv.use_alignment(True)  # a setting like before, but it was set anew
    gemv.gemv_batched(1, *made[0])
    assert found == [*lists, lists[0]]
    for count in range(2, 3 + ragged_known.MOST_LISTS):
        gemv.gemv_batched(1, [made[0][0][0]] * count, [made[0][1][0]] * count)
    assert len(ragged_known._known) == ragged_known.MOST_LISTS
    monkeypatch.setattr(ragged_known, "MOST_BYTES", 0)
    before = list(ragged_known._known)
    gemv.gemv_batched(1, [made[1][0][0]] * 3, [made[1][1][0]] * 3)
    assert list(ragged_known._known) == before, "large tables are not kept"


@needs_engine
def test_an_array_that_begins_in_a_result_is_refused():
    a, x = [to_device(np.ones((8, 3))), to_device(np.ones((4, 8)))], to_device(np.ones(3))
    other = to_device(np.ones(4))
    for first in (0, 7, 8, 40):
        memory = to_device(np.ones(64))
        vectors, y = [x, memory[first : first + 8]], [memory[:8], other]
        if first < 8:
            with pytest.raises(ValueError, match="item 0: y overlaps x of item 1"):
                gemv.gemv_batched(1, a, vectors, 0, y, overwrite_y=1)
            assert (on_host(memory) == 1).all()
        else:
            gemv.gemv_batched(1, a, vectors, 0, y, overwrite_y=1)
            assert on_host(memory).tolist() == [3] * 8 + [1] * 56 and (on_host(other) == 8).all()
    # Results between the elements of each other do no harm.
    memory = to_device(np.ones(64))
    pair = [memory[0:16:2], memory[1:8:2]]
    gemv.gemv_batched(1, a, [x, to_device(np.ones(8))], 0, pair, overwrite_y=1)
    assert on_host(memory)[:10].tolist() == [3, 8, 3, 8, 3, 8, 3, 8, 3, 1]
    with pytest.raises(ValueError, match="item 0: y overlaps x of item 1"):
        y = [memory[15:7:-1], other]  # its first element is the last in memory
        gemv.gemv_batched(1, a, [x, memory[8:16]], 0, y, overwrite_y=1)
    empty = [to_device(np.ones((0, 3)))]
    assert gemv.gemv_batched(1, empty, [x], 0, [memory[:0]], overwrite_y=1)[0].shape == (0,)


@needs_engine
@pytest.mark.parametrize("kind", ["new", "in place", "Batch"])
def test_most_functions_are_called_once_for_all_items(kind, monkeypatch):
    """Without those of Numba's simulator, which are called for each slice of the result."""
    entered = program("measure.list_calls").entered
    engine, steps = backend.engine(), []
    if engine.name != "simulator":
        pytest.skip("a GPU's engine calls other functions for each item: Numba's")
    monkeypatch.setattr(engine, "run", lambda *arguments, **more: None, raising=False)
    monkeypatch.setattr(engine, "in_host_memory", lambda: False, raising=False)
    for count in (10, 510):
        a = [to_device(np.ones((3, 5), "f")) for _ in range(count)]
        x, y = ([to_device(np.ones(n, "f")) for _ in a] for n in (5, 3))
        call = {
            "new": partial(gemv.gemv_batched, 1, a, x),
            "in place": partial(gemv.gemv_batched, [2.0] * count, a, x, 0, y, overwrite_y=1),
            "Batch": partial(gemv.Batch(a).gemv, 1, x),
        }[kind]
        call()
        steps.append(entered(call))
    of_slices = 0 if kind == "in place" else 2 * 500
    assert steps[1] - steps[0] <= of_slices + 100


@pytest.mark.parametrize("dtype", "efFdD")
def test_factors_of_all_items_are_those_of_each(dtype):
    factors = np.dtype({"e": "f"}.get(dtype, dtype))
    values = [0.1, 1e300, -1e-300, np.float32(0.1), np.float64(1 / 3), float("inf"), -0.0]
    values += [0.1 + 1e300j, np.complex64(1j)] if factors.kind == "c" else []
    for listed in (values, [*values, 3, 2**53 + 1, True, np.int8(7)]):
        found = ragged_factors.coefficients("gemv", "alpha", listed, factors)
        expected = [coefficient("gemv", "alpha", value, factors) for value in listed]
        assert found.dtype == factors and found.tobytes() == np.array(expected).tobytes()


@needs_engine
def test_a_plan_packs_its_launches_once(monkeypatch):
    packed, engine = [], type(backend.engine())
    pack = engine.packed

    def noted(engine, *arguments):
        packed.append(arguments)
        return pack(engine, *arguments)

    monkeypatch.setattr(engine, "packed", noted)
    a, x = ([to_device(np.ones(s)) for s in each] for each in ([(3, 5), (40, 8)], [5, 8]))
    y = [to_device(np.zeros(3)), to_device(np.zeros(40))]
    batch = gemv.Batch(a)
    plan = batch.plan(x, y)
    many = len(packed)
    assert many == len(batch.explain().launches)
    for _ in range(3):
        assert [on_host(each).tolist() for each in plan()] == [[5] * 3, [8] * 40]
    whole = to_device(np.ones(13))
    assert len(packed) == many
    for _ in range(3):
        assert on_host(batch @ whole).tolist() == [5] * 3 + [8] * 40
    assert len(packed) == 2 * many


@needs_engine
def test_results_beside_new_ones_are_adopted_together(monkeypatch):
    a, x = [to_device(np.ones((3, 5)))] * 4, [to_device(np.ones(5))] * 4
    y = [None, to_device(np.ones(3)), None, to_device(np.ones(3))]
    monkeypatch.setattr(ragged, "adopt", None)  # none is looked at by itself
    for beta, overwrite, expected in ((0, 0, [5] * 4), (2, 0, [5, 7] * 2), (2, 1, [5, 7] * 2)):
        found = gemv.gemv_batched(1, a, x, beta, y, overwrite_y=overwrite)
        assert [on_host(each).tolist() for each in found] == [[each] * 3 for each in expected]
    assert found[1] is y[1] and found[3] is y[3]


def test_an_array_times_a_batch_is_refused():
    batch = gemv.Batch([np.ones((3, 4))])
    with pytest.raises(TypeError, match="unsupported operand"):
        np.ones(4) @ batch
