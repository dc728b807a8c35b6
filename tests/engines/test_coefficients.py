"""alpha and beta in every home: the same values, and no two calls that get each other's."""

from __future__ import annotations

import copy
import doctest
import gc
import pickle
import random
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.problems import Case, knobs_for_tests, tile_of

import gemv
from gemv.core.geometry import CONSTANT_BYTES
from gemv.engines import backend as engines_backend
from gemv.engines import coefficients as engines_coefficients
from gemv.engines import slots as engines_slots
from gemv.engines.coefficients import Coefficients, homes_of
from gemv.engines.slots import SlotTable
from gemv.kernels import REGISTRY
from gemv.kernels import kernel as kernels_kernel
from gemv.kernels.spec import HOMES, SLOTS
from gemv.kernels.t06_where_x_lives import HOMES as X_HOMES
from gemv.measure.inputs import as_buffer, make_problem
from gemv.measure.reference import error_in_bounds, reference
from gemv.selection.select import select

KERNELS = list(REGISTRY.values())
BY_NAME = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
DOUBLE = np.dtype(np.float64)


def device_scalar(value, dtype):
    return as_buffer(engines_backend.engine().to_device(np.array([value], dtype)))


def run_with(case, kernel, homes, knobs=None, owner=None):
    """The y of a case, with alpha and beta brought from their homes."""
    engine = engines_backend.engine()
    knobs = {**(knobs_for_tests(kernel) or {}), **(knobs or {})}
    values = (case.alpha, case.beta)
    choice = select(case.problem, engine.device(), kernel.name, knobs, homes, values)
    factors = [
        device_scalar(value, case.element) if home in ("pointer", "global") else value
        for home, value in zip(homes, values, strict=True)
    ]
    views = (case.a, case.x, case.y_of(case.y_buffer))
    buffers = (case.a_buffer, case.x_buffer, case.y_buffer)
    operands = []
    for buffer, view in zip(buffers, views, strict=True):
        device = engine.to_device(buffer)
        byte = view.__array_interface__["data"][0] - buffer.__array_interface__["data"][0]
        if engine.name == "simulator":
            start = byte // view.itemsize
            inside = np.lib.stride_tricks.as_strided(device[start:], view.shape, view.strides)
            operands.append(SimpleNamespace(owner=inside, keep=device))
        else:
            pointer = device.__cuda_array_interface__["data"][0] + byte
            operands.append(SimpleNamespace(owner=device, pointer=pointer, keep=device))
    a, x, y = operands
    engine.run(choice, case.problem, factors[0], a, x, factors[1], y, owner=owner)
    return case.y_of(engine.to_host(y.keep)).copy()


def errors(case, got):
    y = case.y_of(case.y_buffer).copy()
    exact, magnitude = reference(case.alpha, case.op_a, case.x, case.beta, y)
    return error_in_bounds(got, exact, magnitude, case.cols, case.alpha)


# Homes ---------------------------------------------------------------------------------------

PAIRS = [(home, home) for home in HOMES]
PAIRS += [("pointer", "arguments"), ("constant", "pointer"), ("arguments", "constant")]


@BY_NAME
@pytest.mark.parametrize("homes", PAIRS, ids="-".join)
def test_every_home_gives_the_values(kernel, homes):
    tile_rows, tile_cols = tile_of(kernel)
    order = "C" if kernel.accepts(Case(3, 3, "d").problem) is None else "F"
    for alpha, beta in [(1.5, -0.25), (-2, 1), (0, 3), (0, 0), (0.5, 0)]:
        # NaN in A and x when alpha = 0, in y when beta = 0: nobody may read them.
        case = Case(tile_rows + 1, tile_cols + 2, "d", order, "N", 1, alpha=alpha, beta=beta)
        assert errors(case, run_with(case, kernel, homes)) <= 1, (alpha, beta)


@pytest.mark.parametrize("dtype", "sdcz")
@pytest.mark.parametrize("homes", PAIRS, ids="-".join)
def test_every_home_in_every_precision(dtype, homes):
    kernel = REGISTRY["last_block"]
    alpha, beta = (1.5 - 2j, -0.25 + 1j) if dtype in "cz" else (1.5, -0.25)
    case = Case(7, 33, dtype, "C", "C", alpha=alpha, beta=beta)
    same = run_with(case, kernel, ("arguments", "arguments"))
    assert errors(case, same) <= 1
    assert errors(case, run_with(case, kernel, homes)) <= 1


def test_values_at_run_time_share_machine_code():
    problem = make_problem(4, 5, DOUBLE, "C", "N")
    device = engines_backend.engine().device()
    for homes in PAIRS:
        first, second = (
            select(problem, device, homes=homes, literals=values).spec
            for values in ((1.0, 2.0), (3.0, 4.0))
        )
        assert (first == second) == ("literal" not in homes)


def test_homes_are_told():
    problem = make_problem(4, 5, DOUBLE, "C", "N")
    device = engines_backend.engine().device()
    said = {homes: select(problem, device, homes=homes).coefficients for homes in PAIRS[:3]}
    assert list(said.values()) == [
        "kernel arguments",
        "constant memory",
        "device memory through the read-only cache",
    ]
    mixed = select(problem, device, homes=("pointer", "constant")).coefficients
    assert mixed == ("device memory through the read-only cache (alpha) and constant memory (beta)")


@pytest.mark.parametrize(
    ("coefficients", "on_device", "homes"),
    [
        (None, (False, False), ("arguments", "arguments")),
        (None, (True, False), ("pointer", "arguments")),
        ("arguments", (False, True), ("arguments", "pointer")),
        ("constant", (False, False), ("constant", "constant")),
        ("constant", (True, False), ("pointer", "constant")),
        ("pointer", (True, True), ("pointer", "pointer")),
    ],
)
def test_homes_of_a_call(coefficients, on_device, homes):
    assert homes_of("gemv", coefficients, on_device) == homes


@pytest.mark.parametrize(
    ("coefficients", "on_device", "error", "text"),
    [
        ("texture", (False, False), ValueError, "gemv: no coefficients='texture'; known: arg"),
        ("literal", (False, False), ValueError, "no coefficients='literal'"),
        ("pointer", (True, False), ValueError, r"needs alpha and beta as device arrays of shape"),
        (3, (False, False), TypeError, "coefficients must be one of .*, got int"),
    ],
)
def test_homes_that_do_not_exist(coefficients, on_device, error, text):
    with pytest.raises(error, match=text):
        homes_of("gemv", coefficients, on_device)


# Slots ---------------------------------------------------------------------------------------


class Timeline:
    """A device with streams: what is enqueued runs later, in any order that streams allow."""

    def __init__(self, waits=True):
        self.streams = {}
        self.recorded = {}
        self.waits = waits

    def enqueue(self, stream, *work):
        self.streams.setdefault(stream, []).append(work)

    def write(self, slot, values, stream):
        self.enqueue(stream, "write", slot, values.tobytes())

    def read(self, slot, values, stream):
        self.enqueue(stream, "read", slot, values.tobytes())

    def mark(self, stream, event):
        event = object() if event is None else event
        self.recorded[event] = self.recorded.get(event, 0) + 1
        self.enqueue(stream, "record", event, self.recorded[event])
        return event

    def wait(self, stream, event):
        if self.waits:
            self.enqueue(stream, "wait", event, self.recorded[event])

    def capturing(self, stream):
        return False

    def confused(self, seed):
        """Run everything in one of the possible orders; how many reads found other values."""
        rng = random.Random(seed)
        queues = [list(work) for work in self.streams.values()]
        memory, reached, wrong = {}, {}, 0
        while any(queues):
            queue = rng.choice([queue for queue in queues if queue])
            # Long stretches of one stream: the others fall behind.
            for _ in range(rng.choice([1, 1, 3, 30])):
                if not queue:
                    break
                kind, what, value = queue[0]
                if kind == "wait" and reached.get(what, 0) < value:
                    break
                queue.pop(0)
                if kind == "write":
                    memory[what] = value
                elif kind == "read":
                    wrong += memory.get(what) != value
                elif kind == "record":
                    reached[what] = value
        return wrong


def calls_on(timeline, count, seed, table=None, owners=0):
    """Enqueue calls with an alpha each on three streams; some of them by owners."""
    table = table or SlotTable(timeline, DOUBLE, count)
    rng = random.Random(seed)
    held = [Coefficients() for _ in range(owners)]
    for number in range(60):
        stream = rng.randrange(3)
        owner = rng.choice([None, *held])
        lease = engines_coefficients.Lease(table, number, -number, stream, owner)
        timeline.read(lease.slot, table.values(number, -number), stream)
        lease.done()
        if owner is not None:
            assert (owner.alpha, owner.beta) == (number, -number)
    return held


@pytest.mark.parametrize("owners", [0, 1, 2])
@pytest.mark.parametrize("count", [3, 5, 64])
def test_no_call_reads_the_values_of_another(count, owners):
    for seed in range(20):
        timeline = Timeline()
        held = calls_on(timeline, count, seed, owners=owners)
        assert [timeline.confused(order) for order in range(10)] == [0] * 10
        for owner in held:
            owner.close()


def test_slots_reused_without_waiting_are_noticed():
    timeline = Timeline(waits=False)
    calls_on(timeline, 3, 1)
    assert any(timeline.confused(order) for order in range(10))


def test_one_slot_for_all_is_noticed(monkeypatch):
    timeline = Timeline()
    table = SlotTable(timeline, DOUBLE, 3)
    monkeypatch.setattr(table, "write", lambda slot, alpha, beta, stream: timeline.write(
        0, table.values(alpha, beta), stream
    ))  # fmt: skip
    calls_on(timeline, 3, 1, table)
    assert any(timeline.confused(order) for order in range(10))


def test_slots_run_out_and_come_back():
    table = SlotTable(Timeline(), DOUBLE, 2)
    first, second = Coefficients(), Coefficients()
    for owner in (first, second):
        engines_coefficients.Lease(table, 1, 2, 0, owner).done()
    with pytest.raises(RuntimeError, match=r"all 2 slots .* are taken.*64 KB a module"):
        engines_coefficients.Lease(table, 1, 2, 0, None)
    first.close()
    engines_coefficients.Lease(table, 1, 2, 0, None).done()
    with pytest.raises(RuntimeError, match="closed"):
        engines_coefficients.Lease(table, 1, 2, 0, first)
    with pytest.raises(RuntimeError, match="closed"):
        first.set(1, 2)
    del second, owner
    gc.collect()
    slots = {table.take().index, table.take().index}
    assert slots == {0, 1}


def test_a_failing_write_gives_the_slot_back():
    timeline = Timeline()
    table = SlotTable(timeline, DOUBLE, 1)
    with pytest.raises(TypeError):
        engines_coefficients.Lease(table, object(), 0, 0, None)
    owner = Coefficients()
    with pytest.raises(TypeError):
        engines_coefficients.Lease(table, object(), 0, 0, owner)
    owner.close()
    assert table.take().index == 0


def test_slots_leave_room_in_constant_memory():
    for dtype in ("f", "d", "F", "D"):
        assert SLOTS * 2 * np.dtype(dtype).itemsize <= CONSTANT_BYTES // 2


def call_repeatedly(number, stream, wrong, calls=12, size=9):
    """Calls with an alpha of this thread's own, on integers: any mix-up is exact."""
    engine = engines_backend.engine()
    kernel = REGISTRY["thread_per_row"]
    knobs = knobs_for_tests(kernel)
    problem = make_problem(size, size, DOUBLE, "C", "N")
    a = np.ones((size, size))
    x = np.arange(size, dtype=float)
    choice = select(problem, engine.device(), kernel.name, knobs, ("constant", "constant"))
    device_a, device_x = as_buffer(engine.to_device(a)), as_buffer(engine.to_device(x))
    results = []
    for call in range(calls):
        alpha, beta = DOUBLE.type(1 + 100 * number + call), DOUBLE.type(number)
        y = as_buffer(engine.to_device(np.ones(size)))
        engine.run(choice, problem, alpha, device_a, device_x, beta, y, stream)
        results.append((alpha * x.sum() + beta, y))
    if engine.name == "cuda":
        from numba import cuda

        cuda.synchronize()
    for expected, y in results:
        if not (engine.to_host(y.owner) == expected).all():
            wrong.append((number, expected, engine.to_host(y.owner)))


def race_of_threads(threads=6):
    streams = [None]
    if engines_backend.backend() == "cuda":
        from numba import cuda

        streams = [cuda.stream(), cuda.stream()]
        engines_backend.engine().device()
    wrong: list = []
    call_repeatedly(0, streams[0], wrong, calls=1)  # compiled before the threads start

    def work(number, stream):
        try:
            call_repeatedly(number, stream, wrong)
        except Exception as error:
            wrong.append((number, error))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        running = [
            threading.Thread(target=work, args=(k, streams[k % len(streams)]))
            for k in range(threads)
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    return wrong


def test_threads_and_streams_with_alpha_of_their_own():
    assert race_of_threads() == []


@pytest.mark.skipif(engines_backend.backend() != "simulator", reason="a planted fault")
def test_threads_that_share_a_slot_are_noticed(monkeypatch):
    slot = engines_slots.Slot(0)
    monkeypatch.setattr(SlotTable, "take", lambda table: slot)
    monkeypatch.setattr(SlotTable, "give", lambda table, slot: None)
    assert race_of_threads() != []


def test_two_owners_keep_their_values():
    kernel = REGISTRY["warp_per_row"]
    case = Case(5, 40, "d", alpha=2, beta=0)
    first, second = Coefficients(), Coefficients()
    runs = []
    for owner, alpha in ((first, 2), (second, -3), (first, 5)):
        case.alpha = DOUBLE.type(alpha)
        runs.append(run_with(case, kernel, ("constant", "constant"), owner=owner))
        assert errors(case, runs[-1]) <= 1
    assert (first.alpha, second.alpha) == (5, -3)
    first.close(), second.close()


def test_slots_keep_their_values_when_functions_are_built_again():
    """As they are once more kernels are in use than are remembered."""
    kernel = REGISTRY["warp_per_row"]
    case = Case(5, 40, "d", alpha=2, beta=-3)
    for _ in range(2):
        assert errors(case, run_with(case, kernel, ("constant", "constant"))) <= 1
        kernels_kernel._functions.cache_clear()


# Calls ---------------------------------------------------------------------------------------


def to_device(array):
    from numba import cuda

    return cuda.to_device(array)


@pytest.mark.parametrize("coefficients", [None, "arguments", "constant"])
@pytest.mark.parametrize("backend", [None, "host"])
def test_calls_give_the_same_from_every_home(coefficients, backend):
    a, x, y = np.arange(6.0).reshape(2, 3), np.ones(3), np.array([1.0, np.nan])
    gemv.use_backend(backend)
    try:
        got = gemv.gemv(2, a, x, coefficients=coefficients)
        assert got.tolist() == [6, 24]
        assert gemv.dgemv(2, a, x, 0, y, coefficients=coefficients).tolist() == [6, 24]
        assert gemv.dgemv(0, a * np.nan, x, -1, [1, 2], coefficients=coefficients).tolist() == [
            -1,
            -2,
        ]
        told = gemv.explain(2, a, x, coefficients=coefficients)
        if gemv.backend() != "host":
            constant = coefficients == "constant"
            assert told.coefficients == ("constant memory" if constant else "kernel arguments")
            assert told.coefficients in str(told)
    finally:
        gemv.use_backend(None)


def test_calls_with_an_owner():
    a, x = np.arange(6.0).reshape(2, 3), np.ones(3)
    with gemv.Coefficients() as place:
        with gemv.trace() as calls:
            assert gemv.gemv(2, a, x, coefficients=place).tolist() == [6, 24]
            # alpha = 0 and beta = 1 change nothing, but a graph needs the launch.
            assert gemv.gemv(0, a, x, 1, [5.0, 7.0], coefficients=place).tolist() == [5, 7]
        if gemv.backend() != "host":
            assert [call.coefficients for call in calls] == ["constant memory"] * 2
        assert (place.alpha, place.beta) == (0, 1)
    with pytest.raises(RuntimeError, match="closed"):
        gemv.gemv(2, a, x, coefficients=place)
    assert repr(place) == "Coefficients(alpha=0.0, beta=1.0, closed)"


def test_coefficients_are_numbers_and_stay_in_their_process():
    with pytest.raises(TypeError, match="^Coefficients: alpha must be a number, got None"):
        gemv.Coefficients(None)
    with pytest.raises(TypeError, match=r"^Coefficients: beta must be one number, .* shape \(2,\)"):
        gemv.Coefficients(1, np.ones(2))
    for send in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="neither pickled nor copied"):
            send(gemv.Coefficients())


def test_set_checks_like_a_call():
    with gemv.Coefficients() as place:
        place.set(1j, 2)  # no call has said in which precision
        with pytest.raises(TypeError, match="^Coefficients.set: beta must be a number, got str"):
            place.set(1, "2")
        assert (place.alpha, place.beta) == (1j, 2)
        gemv.dgemv(2, np.ones((2, 2)), np.ones(2), coefficients=place)
        if gemv.backend() == "host":
            return
        with pytest.raises(TypeError, match=r"Coefficients.set: alpha = 1j is complex"):
            place.set(1j)
        with pytest.raises(TypeError, match=r"beta must be a number, got str"):
            place.set(1, "2")
        assert place.alpha == 2
        place.set(3, 4)
        assert (place.alpha, place.beta) == (3, 4)


needs_device_arrays = pytest.mark.skipif(
    engines_backend.backend() == "host", reason="there are no device arrays on the host"
)


@needs_device_arrays
def test_coefficients_on_the_device():
    a, x = to_device(np.arange(6.0).reshape(2, 3)), to_device(np.ones(3))
    two, zero, minus = (to_device(np.array(v)) for v in (2.0, 0.0, -1.0))
    y = to_device(np.array([1.0, 2.0]))
    poisoned = to_device(np.array([np.nan, np.nan]))
    assert gemv.gemv(two, a, x).copy_to_host().tolist() == [6, 24]
    assert gemv.gemv(two, a, x, minus, y).copy_to_host().tolist() == [5, 22]
    assert gemv.gemv(2, a, x, minus, y).copy_to_host().tolist() == [5, 22]
    constant = gemv.gemv(two, a, x, -1, y, coefficients="constant")
    assert constant.copy_to_host().tolist() == [5, 22]
    # Zeros keep their meaning, though only the kernel can see them.
    assert gemv.dgemv(two, a, x, zero, poisoned).copy_to_host().tolist() == [6, 24]
    nan = to_device(np.full((2, 3), np.nan))
    assert gemv.gemv(zero, nan, x, minus, y).copy_to_host().tolist() == [-1, -2]
    told = gemv.explain(two, a, x)
    assert "read-only cache (alpha) and kernel arguments (beta)" in told.coefficients


@needs_device_arrays
def test_coefficients_on_the_device_are_read_when_the_kernel_runs():
    a, x = to_device(np.eye(2)), to_device(np.ones(2))
    alpha = to_device(np.array(2.0))
    assert gemv.gemv(alpha, a, x).copy_to_host().tolist() == [2, 2]
    alpha.copy_to_device(np.array(-3.0))
    assert gemv.gemv(alpha, a, x).copy_to_host().tolist() == [-3, -3]


@needs_device_arrays
def test_coefficients_on_the_device_that_do_not_fit():
    a, x = to_device(np.eye(2)), to_device(np.ones(2))
    single = to_device(np.array(2, np.float32))
    with pytest.raises(TypeError, match="alpha has dtype float32 .* never converted"):
        gemv.gemv(single, a, x)
    with pytest.raises(TypeError, match="beta has dtype float32"):
        gemv.dgemv(1, a, x, single, x)
    with pytest.raises(TypeError, match="with host arrays alpha and beta must be numbers"):
        gemv.dgemv(to_device(np.array(2.0)), np.eye(2), np.ones(2))
    with pytest.raises(ValueError, match=r"alpha must have no dimension, got shape \(1,\)"):
        gemv.gemv(to_device(np.ones(1)), a, x)
    with gemv.Coefficients() as place, pytest.raises(ValueError, match="nothing is left"):
        factor = to_device(np.array(2.0))
        gemv.gemv(factor, a, x, factor, x, coefficients=place)


def test_examples_in_the_documentation():
    assert doctest.testmod(engines_coefficients) == (0, 5)


# Graphs --------------------------------------------------------------------------------------


class Graph:
    """What `work(stream)` enqueues, captured; replayed on the same stream."""

    def __init__(self, work):
        from cuda.bindings import driver

        from gemv.driver.libcuda import check

        self.driver, self.check = driver, check
        engines_backend.engine().device()
        self.stream = check(driver.cuStreamCreate(1))
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        check(driver.cuStreamBeginCapture(self.stream, mode))
        try:
            work(int(self.stream))
        finally:
            self.graph = check(driver.cuStreamEndCapture(self.stream))
        self.executable = check(driver.cuGraphInstantiate(self.graph, 0))

    def nodes(self):
        status, _, count = self.driver.cuGraphGetNodes(self.graph)
        assert status == self.driver.CUresult.CUDA_SUCCESS
        return count

    def replay(self):
        self.check(self.driver.cuGraphLaunch(self.executable, self.stream))

    def wait(self):
        self.check(self.driver.cuStreamSynchronize(self.stream))


@pytest.mark.gpu
def test_set_between_replays_changes_the_result():
    a, x, y = to_device(np.eye(3)), to_device(np.arange(3.0)), to_device(np.zeros(3))
    with gemv.Coefficients() as place, gemv.Coefficients() as other:
        gemv.gemv(1, a, x, 0, y, overwrite_y=1, coefficients=place)
        gemv.gemv(9, a, x, 0, y, overwrite_y=1, coefficients=other)

        def work(stream):
            gemv.gemv(2, a, x, 0, y, overwrite_y=1, coefficients=place, stream=stream)

        graph = Graph(work)
        assert graph.nodes() == 1, "the launch alone: no write, no event"
        graph.replay()
        graph.wait()
        assert y.copy_to_host().tolist() == [0, 2, 4]
        for alpha in (3, -5, 0, 7):
            place.set(alpha, 0, stream=int(graph.stream))
            graph.replay()
        graph.wait()
        assert y.copy_to_host().tolist() == [0, 7, 14]
        place.set(1, 2, stream=int(graph.stream))
        graph.replay()
        graph.replay()
        graph.wait()
        assert y.copy_to_host().tolist() == [0, 1 + 2 * (1 + 2 * 7), 2 + 2 * (2 + 2 * 14)]
        # Calls in between take slots of their own.
        for number in range(2 * SLOTS):
            gemv.gemv(number, a, x, 0, y, overwrite_y=1, coefficients="constant")
        place.set(4, 0, stream=int(graph.stream))
        from numba import cuda

        cuda.synchronize()
        graph.replay()
        graph.wait()
        assert y.copy_to_host().tolist() == [0, 4, 8]
        assert (other.alpha, place.alpha) == (9, 4)


@pytest.mark.gpu
def test_writes_are_never_captured():
    a, x, y = to_device(np.eye(3)), to_device(np.arange(3.0)), to_device(np.zeros(3))
    with gemv.Coefficients() as place:
        gemv.gemv(1, a, x, 0, y, overwrite_y=1, coefficients=place)
        said = []

        def work(stream):
            for action in (
                lambda: place.set(1, 2, stream=stream),
                lambda: gemv.gemv(
                    2, a, x, 0, y, overwrite_y=1, coefficients="constant", stream=stream
                ),
            ):
                try:
                    action()
                except RuntimeError as error:
                    said.append(str(error))

        assert Graph(work).nodes() == 0
        assert "Coefficients.set cannot be captured" in said[0]
        assert "coefficients=gemv.Coefficients()" in said[1]


@pytest.mark.gpu
def test_device_coefficients_in_a_graph_are_read_at_each_replay():
    a, x, y = to_device(np.eye(2)), to_device(np.ones(2)), to_device(np.zeros(2))
    alpha = to_device(np.array(2.0))
    gemv.gemv(alpha, a, x, 0, y, overwrite_y=1)
    graph = Graph(lambda stream: gemv.gemv(alpha, a, x, 0, y, overwrite_y=1, stream=stream))
    graph.replay()
    graph.wait()
    assert y.copy_to_host().tolist() == [2, 2]
    alpha.copy_to_device(np.array(-3.0))
    graph.replay()
    graph.wait()
    assert y.copy_to_host().tolist() == [-3, -3]


# x in constant memory ------------------------------------------------------------------------


@pytest.mark.parametrize("home", X_HOMES)
@pytest.mark.parametrize("lanes", [1, 4, 32])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", "sz")
def test_x_in_every_home(home, lanes, order, dtype):
    kernel = REGISTRY["where_x_lives"]
    knobs = {"X_HOME": X_HOMES.index(home), "LANES_PER_ROW": lanes}
    for (m, n), (incx, incy) in (((3, 70), (1, 1)), ((40, 33), (-2, 3)), ((1, 1), (1, 1))):
        case = Case(m, n, dtype, order, "C", 2, incx, incy, alpha=1.5, beta=-1)
        got = run_with(case, kernel, ("arguments", "arguments"), knobs)
        assert errors(case, got) <= 1, (m, n)


@pytest.mark.parametrize("home", ["shared", "global"])
def test_x_longer_than_a_tile(home):
    kernel = REGISTRY["where_x_lives"]
    case = Case(2, 2500, "d", alpha=1.5, beta=-1)  # a tile holds 2048
    got = run_with(case, kernel, ("arguments",) * 2, {"X_HOME": X_HOMES.index(home)})
    assert errors(case, got) <= 1


def test_x_that_does_not_fit_is_refused_with_the_limit():
    device = engines_backend.engine().device()
    fits = make_problem(3, 8192, DOUBLE, "C", "N")
    longer = make_problem(3, 8193, DOUBLE, "C", "N")
    assert select(fits, device, "where_x_lives").kernel.name == "where_x_lives"
    with pytest.raises(ValueError, match=r"65544 bytes, .* ends at 65536 bytes \(64 KB\)"):
        select(longer, device, "where_x_lives")
    value = {"X_HOME": X_HOMES.index("value")}
    with pytest.raises(ValueError, match=r"x takes 65536 bytes, its parameter VALUE_BYTES = 4000"):
        select(fits, device, "where_x_lives", value)
    with pytest.raises(ValueError, match=r"at most 32640: .* end at 32764 bytes"):
        select(fits, device, "where_x_lives", {**value, "VALUE_BYTES": 65536})


def test_the_slot_that_was_given_back_first_is_taken_first():
    """Its work is mostly over, so nobody waits for it."""
    table = SlotTable(None, np.dtype("f"), 3)
    taken = [table.take() for _ in range(3)]
    for slot in (taken[1], taken[0], taken[2]):
        table.give(slot)
    assert [table.take().index for _ in range(3)] == [1, 0, 2]
