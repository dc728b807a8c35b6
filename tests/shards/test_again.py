"""Products with a sharded matrix that come again and again, on GPUs that a stand-in plays."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.problems import random_array

import gemv
from gemv.core import errors, memo
from gemv.engines import backend

if backend.backend() != "simulator":
    pytest.skip("with a GPU the real driver is tested", allow_module_level=True)

from helpers.virtual_gpus import LOST, Array, Stream

UNSUPPORTED = 900
#: How a product runs: arguments of the matrix, and its shape.
FORMS = {
    "within": ({"split": "rows"}, (37, 20)),
    "in order": ({"split": "columns", "reproducible": False}, (20, 37)),
    "across": ({"split": "columns", "kernel": "vector_rows"}, (5, 411)),
}
#: What the driver is asked for once there is a graph.
CALLS = ["cuMemAlloc", "cuMemcpyAsync", "cuGraphLaunch", "cuMemcpyAsync", "cuEventRecord"]


def numbers(shape, seed=0):
    return np.asarray(random_array(np.random.default_rng(seed), shape, np.dtype("f")))


def again():
    return sys.modules["gemv.shards.again"]


def bits(virtual, y):
    """Those of a y, for who waits for the stream that it names and for nothing else."""
    virtual.current = virtual.block_at(y.interface["data"][0])[1]
    virtual.cuStreamSynchronize(y.interface["stream"] or 0)
    virtual.current = 0
    return y.values().tobytes()


@pytest.fixture(params=FORMS)
def product(request, small_knobs, virtual_gpus):
    """A matrix on three GPUs whose product has a graph, and its vectors' length."""
    options, shape = FORMS[request.param]
    several = gemv.Matrix(numbers(shape), devices=[0, 1, 2], **options)
    for seed in range(again().ONE_BY_ONE):
        x = numbers(shape[1], seed)
        expected = several.matvec(x).tobytes()
        assert bits(virtual_gpus, several @ Array(virtual_gpus, x)) == expected
    return several, shape[1]


def calls_of(virtual, call):
    virtual.calls.clear()
    made = call()
    return made, [name for name, _ in virtual.calls]


def test_new_vectors_have_the_bits_of_the_product(product, virtual_gpus):
    several, cols = product
    kept = []
    for seed in range(5, 10):
        x = numbers(cols, seed)
        kept.append((several @ Array(virtual_gpus, x), several.matvec(x).tobytes()))
    for y, expected in reversed(kept):
        assert bits(virtual_gpus, y) == expected
    x = Array(virtual_gpus, x)
    assert calls_of(virtual_gpus, lambda: several @ x)[1] == CALLS


def test_the_streams_of_x_are_ordered(product, virtual_gpus):
    """The graph has one x and one y: a product on another stream comes behind the last one."""
    several, cols = product
    streams = [virtual_gpus.check(virtual_gpus.cuStreamCreate(1)) for _ in range(2)]
    made, late = [], []
    for seed in range(5, 12):
        stream = (*streams, None)[seed % 3]
        x = Array(virtual_gpus, np.full(cols, np.nan, "f"), stream)
        values = numbers(cols, seed)
        # x has its values late, in the order of its own stream.
        virtual_gpus.enqueue(
            virtual_gpus._stream(stream or 0), lambda x=x, v=values: np.copyto(x.values(), v)
        )
        made.append((several @ x, several.matvec(values).tobytes()))
        late.append(x)
    for y, expected in reversed(made):
        assert bits(virtual_gpus, y) == expected


def test_a_product_does_not_disturb_the_one_before(product, virtual_gpus):
    """It comes on another stream when the graph's own x has the values of the one before.

    Each y is made on the stream of its x, as PyTorch's tensors are.
    """
    several, cols = product
    several @ Array(virtual_gpus, numbers(cols))
    repeated = several._again._known[0, 0]
    streams = [virtual_gpus.check(virtual_gpus.cuStreamCreate(1)) for _ in range(3)]

    def enqueue(seed, stream):
        values = numbers(cols, seed)
        x, y = Array(virtual_gpus, values), Array(virtual_gpus, np.zeros(several.shape[0], "f"))
        operands = [
            several._layouts.operand(each, several.dtype, len(each.values())) for each in (x, y)
        ]
        repeated.run(operands[0], stream, SimpleNamespace(stream=stream, operand=operands[1]))
        return y, several.matvec(values).tobytes()

    enqueue(4, streams[2])
    for first, second in (streams[:2], streams[1::-1], streams[:1] * 2):
        one, expected = enqueue(5, first)
        copied = last = virtual_gpus._stream(first).last
        for _ in range(3):  # behind the copy of x: the graph, the copy of y, the event
            copied = copied.after[0]
        copied.run()
        if second == first:  # it is destroyed, and the driver takes its handle for the next one
            virtual_gpus.cuStreamDestroy(first)
            virtual_gpus.streams[first] = Stream(0)
        other, of_other = enqueue(6, second)
        virtual_gpus.check(virtual_gpus.cuStreamSynchronize(second))
        last.run()
        assert other.values().tobytes() == of_other
        assert one.values().tobytes() == expected


def test_an_x_is_read_before_later_work_on_its_stream(product, virtual_gpus):
    several, cols = product
    values = numbers(cols, 7)
    x = Array(virtual_gpus, values)
    y = several @ x
    virtual_gpus.enqueue(virtual_gpus._stream(0), lambda: x.values().fill(np.nan))
    virtual_gpus.cuStreamSynchronize(0)
    assert np.isnan(x.values()).all() and bits(virtual_gpus, y) == several.matvec(values).tobytes()


def test_an_unaligned_x_and_the_transposed_product(small_knobs, virtual_gpus):
    a = numbers((37, 20))
    several = gemv.Matrix(a, devices=[0, 1], split="rows", reproducible=False)
    for form, length in ((several, 20), (several.T, 37)):
        whole = Array(virtual_gpus, numbers(length + 1))
        x = whole._view((length,), (4,))
        x.interface = {**x.interface, "data": (whole.interface["data"][0] + 4, False)}
        expected = form.matvec(whole.values()[1:]).tobytes()
        for _ in range(2 + again().ONE_BY_ONE):
            y, names = calls_of(virtual_gpus, lambda form=form, x=x: form @ x)
            assert bits(virtual_gpus, y) == expected
        assert names.count("cuGraphLaunch") == 1


def test_vectors_elsewhere_and_lists_of_results_are_one_by_one(small_knobs, virtual_gpus):
    a, x = numbers((37, 20)), numbers(20)
    for options in ({"gather": "all"}, {"gather": None}, {"gather": 2}):
        several = gemv.Matrix(a, devices=[0, 1, 2], **options)
        for _ in range(2 + again().ONE_BY_ONE):
            _, names = calls_of(virtual_gpus, lambda: several @ Array(virtual_gpus, x))  # noqa: B023
        assert "cuGraphLaunch" not in names
    several = gemv.Matrix(a, devices=[1, 2])
    for _ in range(2 + again().ONE_BY_ONE):
        y, names = calls_of(virtual_gpus, lambda: several @ Array(virtual_gpus, x))
    assert "cuGraphLaunch" not in names and bits(virtual_gpus, y) == several.matvec(x).tobytes()


def test_a_trace_and_a_capture_are_one_by_one(product, virtual_gpus, monkeypatch):
    several, cols = product
    x = Array(virtual_gpus, numbers(cols))
    with gemv.trace() as told:
        _, names = calls_of(virtual_gpus, lambda: several @ x)
    assert told and "cuGraphLaunch" not in names
    several @ x
    monkeypatch.setattr(again(), "capture_of", lambda stream: "a capture")
    assert "cuGraphLaunch" not in calls_of(virtual_gpus, lambda: several @ x)[1]


@pytest.mark.parametrize("name", ["cuMemcpyAsync", "cuGraphLaunch", "cuEventRecord"])
@pytest.mark.parametrize("after", [0, 1])
def test_an_error_names_the_gpus_and_leaves_nothing(name, after, product, virtual_gpus):
    several, cols = product
    values = numbers(cols, 5)
    x, expected = Array(virtual_gpus, values), several.matvec(values).tobytes()
    several @ x
    virtual_gpus.break_(0, name, LOST, after)
    if after < CALLS.count(name):
        with pytest.raises(
            RuntimeError, match=r"^Matrix: shards on cuda:0, cuda:1, cuda:2: CUDA_ERROR"
        ):
            several @ x
    virtual_gpus.broken.clear()
    stream = virtual_gpus.check(virtual_gpus.cuStreamCreate(1))
    for on in (None, stream, None):
        assert bits(virtual_gpus, several @ Array(virtual_gpus, values, on)) == expected


def test_long_vectors_are_one_by_one(small_knobs, virtual_gpus, monkeypatch):
    """Copies of x and y would take the GPU longer than they save the host."""
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1], split="rows")
    for longest, graphs in ((57 * 4 - 1, 0), (57 * 4, 1)):
        monkeypatch.setattr(again(), "LONGEST", longest)
        for _ in range(1 + again().ONE_BY_ONE):
            _, names = calls_of(virtual_gpus, lambda: several @ Array(virtual_gpus, numbers(20)))
        assert names.count("cuGraphLaunch") == graphs


@pytest.mark.parametrize("wrong", ["capture", "memory"])
def test_what_cannot_be_a_graph_stays_one_by_one(wrong, virtual_gpus, monkeypatch):
    a, values = numbers((37, 20)), numbers(20)
    several = gemv.Matrix(a, devices=[0, 1, 2], split="rows")
    x, expected = Array(virtual_gpus, values), several.matvec(values).tobytes()
    for _ in range(again().ONE_BY_ONE):
        several @ x
    handled = []
    monkeypatch.setattr(again(), "drop_frames", lambda error: handled.append(type(error).__name__))
    if wrong == "capture":
        virtual_gpus.break_(1, "launch", UNSUPPORTED)
    else:
        room, virtual_gpus.room[1] = virtual_gpus.room[1], 0
    try:
        several._again.of(0, several._layouts.operand(x, several.dtype, 20), 37, 0)
    finally:
        virtual_gpus.broken.clear()
        if wrong == "memory":
            virtual_gpus.room[1] = room
    assert handled == [{"capture": "CannotCapture", "memory": "MemoryError"}[wrong]]
    for _ in range(3):
        y, names = calls_of(virtual_gpus, lambda: several @ x)
        assert bits(virtual_gpus, y) == expected and "cuGraphLaunch" not in names


@pytest.mark.parametrize("columns", [(), (3,)])
@pytest.mark.parametrize("form", FORMS)
def test_vectors_in_host_memory_have_a_graph_as_well(form, columns, small_knobs, virtual_gpus):
    options, shape = FORMS[form]
    several = gemv.Matrix(numbers(shape), devices=[0, 1, 2], **options)
    x = numbers((shape[1], *columns))
    with gemv.trace() as first:
        expected = (several @ x).tobytes()
    for _ in range(again().ONE_BY_ONE - 1):
        y, names = calls_of(virtual_gpus, lambda: several @ x)
        assert y.tobytes() == expected and "cuGraphLaunch" not in names
    several @ x  # makes the graph
    for seed in (1, 2, 0):
        values = numbers((shape[1], *columns), seed)
        y, names = calls_of(virtual_gpus, lambda values=values: several @ values)
        assert [name for name in names if "Launch" in name] == ["cuGraphLaunch"]
        assert (y.tobytes() == expected) == (seed == 0)
    with gemv.trace() as calls:
        assert (several @ x).tobytes() == expected
    assert len(calls) == len(first), "each launch is told"
    memo.forget()
    y, names = calls_of(virtual_gpus, lambda: several @ x)
    assert y.tobytes() == expected and "cuGraphLaunch" not in names


@pytest.mark.parametrize("wrong", ["capture", "memory"])
def test_vectors_in_host_memory_do_without_a_graph(wrong, virtual_gpus, monkeypatch):
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1, 2], split="rows")
    x = numbers(20)
    expected = several.matvec(x).tobytes()
    tried = []

    def no_graph(*_, is_part):
        tried.append(None)
        if wrong == "memory":
            raise MemoryError
        return SimpleNamespace(is_graph=False)

    monkeypatch.setattr(sys.modules["gemv.shards.from_host"], "ShardedPlan", no_graph)
    for _ in range(again().ONE_BY_ONE + 3):
        y, names = calls_of(virtual_gpus, lambda: several.matvec(x))
        assert y.tobytes() == expected and "cuGraphLaunch" not in names
    assert len(tried) == 1, "it is tried once"


def test_an_error_of_the_graph_for_host_memory_names_no_plan(virtual_gpus):
    """Nobody has called one."""
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1, 2], split="rows")
    x = numbers(20)
    expected = [several.matvec(x).tobytes() for _ in range(again().ONE_BY_ONE + 1)][0]
    virtual_gpus.break_(0, "cuGraphLaunch")
    with pytest.raises(RuntimeError, match="^Matrix: shards on cuda:0, cuda:1, cuda:2: CUDA_ERROR"):
        several.matvec(x)
    virtual_gpus.broken.clear()
    assert several.matvec(x).tobytes() == expected


@pytest.mark.parametrize("products", [0, 1, 10])
def test_vectors_in_host_memory_break_no_capture(products, virtual_gpus, monkeypatch):
    """The default stream may be captured; so may one that waits for it."""
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1, 2], split="rows")
    x = numbers(20)
    for _ in range(products):
        several.matvec(x)

    def waited_for(stream):
        raise RuntimeError(f"stream {stream:#x} is waited for")

    for answer, kind, told in (
        (lambda stream: "a graph", ValueError, "stream 0x0 is being captured into a graph"),
        (waited_for, RuntimeError, "stream 0x0 is waited for"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(virtual_gpus.engine, "capture_of", answer)
            virtual_gpus.calls.clear()
            with pytest.raises(kind, match=f"^Matrix: {told}"):
                several.matvec(x)
            assert not virtual_gpus.calls, "it is refused before anything is allocated or copied"
    assert several.matvec(x).tobytes() == several.matvec(x).tobytes()


def test_the_graph_for_host_memory_is_made_to_be_launched_alone(virtual_gpus, monkeypatch):
    """The chains that a captured stream would get are for plans of the user's."""
    asked = []
    monkeypatch.setattr("gemv.shards.graph.chains_of", lambda *_: asked.append(None))
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1, 2], split="rows")
    x = numbers(20)
    for _ in range(again().ONE_BY_ONE + 1):
        y, names = calls_of(virtual_gpus, lambda: several.matvec(x))
    assert "cuGraphLaunch" in names and not asked
    several.plan(Array(virtual_gpus, x), Array(virtual_gpus, y))
    assert asked


@pytest.mark.parametrize("call", ["cuStreamBeginCapture", "cuGraphInstantiate"])
def test_errors_of_a_graph_that_is_made_say_whose_it_is(call, virtual_gpus):
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1, 2], split="rows")
    x, y = (Array(virtual_gpus, numbers(each)) for each in (20, 37))
    expected = several.matvec(numbers(20)).tobytes()
    shards = "shards on cuda:0, cuda:1, cuda:2: CUDA_ERROR"
    virtual_gpus.break_(0, call)
    with pytest.raises(RuntimeError, match=f"^Matrix.plan: {shards}"):
        several.plan(x, y)
    virtual_gpus.broken.clear()
    for _ in range(again().ONE_BY_ONE - 1):
        several.matvec(numbers(20))
    virtual_gpus.break_(0, call)
    with pytest.raises(RuntimeError, match=f"^Matrix: {shards}"):
        several.matvec(numbers(20))
    virtual_gpus.broken.clear()
    assert several.matvec(numbers(20)).tobytes() == expected


def test_an_error_that_says_whose_it_is_is_not_its_own_cause(virtual_gpus):
    """Whoever follows its causes would never end."""
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1], split="rows")
    place = several._fabric.places[0]
    kind = sys.modules["gemv.driver.libcuda"].CudaError
    for error in (kind("raw"), kind(f"{place._who}: said before")):
        with pytest.raises(kind, match=f"^{place._who}: ") as told, place.turn([]):
            raise error
        assert told.value.__cause__ is not told.value


def test_in_a_forked_process_every_product_says_so(virtual_gpus, monkeypatch):
    """Nothing is asked of the driver there, whose errors say less."""
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1], split="rows")
    values, x, y = numbers(20), *(Array(virtual_gpus, numbers(each)) for each in (20, 37))
    plan = several.plan(x, y)
    calls = [
        plan, lambda: several @ x, lambda: several @ values, lambda: several.matmat(values[:, None])
    ]  # fmt: skip
    for call in calls:
        call()
    monkeypatch.setattr(backend, "engine", errors.Forked)
    memo.after_fork()
    virtual_gpus.current = 1
    virtual_gpus.calls.clear()
    for call in calls:
        with pytest.raises(gemv.BackendError, match="does not survive a fork"):
            call()
    assert not virtual_gpus.calls


def test_a_setting_that_changes_makes_a_new_graph(product, virtual_gpus):
    several, cols = product
    values = numbers(cols, 6)
    x, expected = Array(virtual_gpus, values), several.matvec(values).tobytes()
    several @ x
    graphs = set(virtual_gpus.graphs)
    memo.forget()
    for _ in range(2 + again().ONE_BY_ONE):
        y, names = calls_of(virtual_gpus, lambda: several @ x)
        assert bits(virtual_gpus, y) == expected
    assert names == CALLS and not graphs & set(virtual_gpus.graphs)


def test_memory_is_given_back_behind_the_work(product, virtual_gpus, monkeypatch):
    several, cols = product
    x, done = Array(virtual_gpus, numbers(cols)), []
    gc.disable()
    try:
        several @ x
        before = dict(virtual_gpus.room)
        last = virtual_gpus._stream(0).last
        free = virtual_gpus.cuMemFree
        monkeypatch.setattr(
            virtual_gpus, "cuMemFree", lambda at: (done.append(last.done), free(at))[1],
            raising=False,
        )  # fmt: skip
        assert not last.done
        several.free()
        assert done and all(done)
        assert all(virtual_gpus.room[device] > before[device] for device in before)
        assert not virtual_gpus.graphs
    finally:
        gc.enable()


def test_a_repeated_product_enters_few_functions(product, virtual_gpus):
    """The host's time decides below a GiB."""
    several, cols = product
    x = Array(virtual_gpus, numbers(cols))
    several @ x
    room, names = str(Path(gemv.__file__).parent), Counter()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(room):
            names[frame.f_code.co_name] += 1

    sys.setprofile(note)
    try:
        several @ x
    finally:
        sys.setprofile(None)
    assert not {"turn", "_switched", "starts", "join"} & set(names)
    assert sum(names.values()) <= 90, names.most_common()
