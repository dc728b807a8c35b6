"""Shards on GPUs that a stand-in for the driver plays: order of streams, faults, graphs."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.problems import random_array

import gemv
from gemv.arrays import dlpack
from gemv.arrays.base import Library
from gemv.engines import backend
from gemv.shards import plan as plan_of_shards
from gemv.shards.remembered import Layouts
from gemv.shards.vectors import NewVector

if backend.backend() != "simulator":
    pytest.skip("with a GPU the real driver is tested", allow_module_level=True)

from helpers.virtual_gpus import LOST, Array

UNSUPPORTED = 900  # while a stream is captured

#: How a product runs: arguments of the matrix, and its shape.
FORMS = {
    "within": ({"split": "rows"}, (37, 20)),
    "in parts": ({"split": "rows", "gather": None}, (37, 20)),
    "everywhere": ({"split": "rows", "gather": "all"}, (37, 20)),
    "in order": ({"split": "columns", "reproducible": False}, (20, 37)),
    "across": ({"split": "columns", "kernel": "vector_rows"}, (5, 411)),
}


def numbers(shape, seed=0):
    return np.asarray(random_array(np.random.default_rng(seed), shape, np.dtype("f")))


def wait_for(virtual, stream=0, device=0):
    """Do what the work on a stream needs, and no other work."""
    virtual.current = device
    virtual.cuStreamSynchronize(stream)
    virtual.current = 0


def bits(virtual, y):
    """Those of a y, or of its parts, for who waits for the default stream of their GPUs alone."""
    parts = y if isinstance(y, list) else [y]
    for part in parts:
        pointer, _ = part.interface["data"]
        wait_for(virtual, part.interface["stream"] or 0, virtual.block_at(pointer)[1])
    return b"".join(part.values().tobytes() for part in parts)


def bits_of_columns(virtual, y):
    """Those of each column, one after the other."""
    bits(virtual, y)
    return b"".join(np.ascontiguousarray(each).tobytes() for each in y.values().T)


@pytest.fixture(params=FORMS)
def product(request, small_knobs, virtual_gpus):
    """A matrix on three GPUs, an x, and the bits of their product."""
    options, shape = FORMS[request.param]
    a, x = numbers(shape), numbers(shape[1], 1)
    several = gemv.Matrix(a, devices=[0, 1, 2], **options)
    expected = several.matvec(x)
    assert np.allclose(expected, a @ x, atol=1e-4)
    if options.get("reproducible", True):
        alone = gemv.Matrix(a, devices=[1], kernel=options.get("kernel"))
        assert alone.matvec(x).tobytes() == expected.tobytes()
    return several, x, expected.tobytes() * (3 if options.get("gather") == "all" else 1)


def test_a_product_is_seen_by_the_streams_of_x_and_y(product, virtual_gpus):
    several, x, expected = product
    for _ in range(3):
        assert bits(virtual_gpus, several @ Array(virtual_gpus, x)) == expected


@pytest.fixture
def one_by_one(virtual_gpus, monkeypatch):
    """No product gets a graph, however often it comes; see test_again.py for those."""
    monkeypatch.setattr(sys.modules["gemv.shards.again"], "ONE_BY_ONE", 1 << 40)


@pytest.mark.usefixtures("one_by_one")
def test_launches_before_an_error_are_waited_for(product, virtual_gpus):
    several, x, expected = product
    on_device = Array(virtual_gpus, x)
    several @ on_device
    launched, failed = virtual_gpus.engine.launched, 0
    for device in (0, 1, 2):
        virtual_gpus.engine.computes = False  # which takes long, and here only the order matters
        for name in ("launch", "cuMemcpyAsync", "cuStreamWaitEvent", "cuEventRecord"):
            for after in (0, 1, 2):
                launched.clear()
                virtual_gpus.break_(device, name, LOST, after)
                try:
                    several @ on_device
                except RuntimeError as error:
                    failed += 1
                    assert f"on cuda:{device}: CUDA_ERROR_UNKNOWN" in str(error)
                virtual_gpus.broken.clear()
                wait_for(virtual_gpus)
                if name in ("launch", "cuMemcpyAsync"):  # else there is nothing to wait for
                    assert all(each.done for each in launched), "x may be freed now"
        virtual_gpus.engine.computes = True
        assert bits(virtual_gpus, several @ on_device) == expected, "nothing is left of it"
    assert failed > 12


def test_a_lost_gpu_is_named(product, virtual_gpus):
    several, x, _ = product
    for device in (1, 2):
        virtual_gpus.break_(device)
        with pytest.raises(RuntimeError, match=rf"^Matrix: .* on cuda:{device}: CUDA"):
            several @ Array(virtual_gpus, x)
        virtual_gpus.broken.clear()


@pytest.mark.parametrize("device", [1, 2])
def test_a_full_gpu_is_named(device, virtual_gpus):
    a, x = numbers((37, 20)), Array(virtual_gpus, numbers(20))
    several = gemv.Matrix(a, devices=[0, 1, 2])
    room, virtual_gpus.room[device] = virtual_gpus.room[device], 0
    words = rf"^Matrix: shard {device} on cuda:{device}: 80 bytes are needed, and 0 are free"
    with pytest.raises(MemoryError, match=words):
        several @ x
    with pytest.raises(MemoryError, match=words):
        several.plan(x, Array(virtual_gpus, np.zeros(37, "f")))
    with pytest.raises(MemoryError, match=f"shard {device} on cuda:{device}: .* bytes are needed"):
        gemv.Matrix(a, devices=[0, 1, 2])
    virtual_gpus.room[0] = 0
    with pytest.raises(MemoryError, match="a vector of 148 bytes does not fit on cuda:0"):
        several @ x
    virtual_gpus.room[device] = virtual_gpus.room[0] = room
    assert bits(virtual_gpus, several @ x) == several.matvec(x.values()).tobytes()


@pytest.mark.parametrize("form", FORMS)
def test_a_plan_is_one_graph_with_the_bits_of_the_product(form, small_knobs, virtual_gpus):
    options, shape = FORMS[form]
    a, x = numbers(shape), numbers(shape[1], 1)
    several = gemv.Matrix(a, devices=[0, 1, 2], **options)
    expected = several.matvec(x).tobytes()
    on_device, y = Array(virtual_gpus, x), Array(virtual_gpus, np.zeros(shape[0], "f"))
    plan = several.plan(on_device, y)
    assert plan.is_graph
    for _ in range(2):
        y.values()[...] = np.nan
        virtual_gpus.calls.clear()
        assert bits(virtual_gpus, plan()) == expected
        names = [name for name, _ in virtual_gpus.calls if name != "cuStreamSynchronize"]
        assert names == ["cuGraphLaunch"]


@pytest.fixture(params=FORMS)
def plan_on_a_stream(request, small_knobs, virtual_gpus):
    """A matrix on three GPUs, x, both vectors of a plan, and their stream."""
    options, shape = FORMS[request.param]
    several = gemv.Matrix(numbers(shape), devices=[0, 1, 2], **options)
    stream = virtual_gpus.check(virtual_gpus.cuStreamCreate(1))
    x = numbers(shape[1], 1)
    vectors = [Array(virtual_gpus, each, stream) for each in (x, np.zeros(shape[0], "f"))]
    plan = several.plan(*vectors)
    assert plan.is_graph
    return several, x, plan, stream


def test_a_plan_on_a_captured_stream_is_a_node_of_that_graph(plan_on_a_stream, virtual_gpus):
    several, x, plan, stream = plan_on_a_stream
    virtual_gpus.check(virtual_gpus.cuStreamBeginCapture(stream, 2))
    virtual_gpus.calls.clear()
    plan(), plan()
    names = [name for name, _ in virtual_gpus.calls]
    assert names.count("cuGraphAddChildGraphNode") == 2 and "cuGraphLaunch" not in names
    whole = virtual_gpus.check(virtual_gpus.cuStreamEndCapture(stream))
    executable = virtual_gpus.check(virtual_gpus.cuGraphInstantiate(whole, 0))
    for factor in (1, 2):
        plan.x.values()[...] = factor * x
        plan.y.values()[...] = np.nan
        virtual_gpus.check(virtual_gpus.cuGraphLaunch(executable, stream))
        assert bits(virtual_gpus, plan.y) == several.matvec(factor * x).tobytes()
    # A stream that is captured no more gets launches again.
    virtual_gpus.calls.clear()
    plan.y.values()[...] = np.nan
    assert bits(virtual_gpus, plan()) == several.matvec(2 * x).tobytes()
    assert ("cuGraphLaunch", 0) in virtual_gpus.calls


def test_a_node_that_the_driver_refuses_is_an_error_of_the_plan(plan_on_a_stream, virtual_gpus):
    *_, plan, stream = plan_on_a_stream
    virtual_gpus.check(virtual_gpus.cuStreamBeginCapture(stream, 2))
    virtual_gpus.break_(0, "cuGraphAddChildGraphNode")
    with pytest.raises(RuntimeError, match=r"Matrix\.plan: shards on cuda:0, cuda:1, cuda:2: "):
        plan()


@pytest.mark.parametrize("form", FORMS)
def test_several_vectors_are_one_graph_as_well(form, small_knobs, small_blocks, virtual_gpus):
    options, shape = FORMS[form]
    a, x = numbers(shape), np.asfortranarray(numbers((shape[1], 3), 1))
    several = gemv.Matrix(a, devices=[0, 1, 2], **options)
    expected = b"".join(several.matvec(each).tobytes() for each in x.T)
    on_device = Array(virtual_gpus, x)
    y = Array(virtual_gpus, np.full((shape[0], 3), np.nan, "f", order="F"))
    virtual_gpus.engine.apart = {(1, 0)}  # whose y is copied
    got = several @ on_device
    if options.get("gather") == "all":
        got = got[0]
    if options.get("gather", "x") is not None:
        assert bits_of_columns(virtual_gpus, got) == expected
    strided = Array(virtual_gpus, np.zeros((20 + shape[1], 3), "f"))  # packed on the way
    strided.values()[20:] = x
    pointer, _ = strided.interface["data"]
    strided.interface |= {"shape": shape[::-1][:1] + (3,), "data": (pointer + 240, False)}
    strided.shape = strided.interface["shape"]
    got = several @ strided
    if options.get("gather", "x") == "x":
        assert bits_of_columns(virtual_gpus, got) == expected
    plan = several.plan(on_device, y)
    assert plan.is_graph
    wait_for(virtual_gpus)
    plan()
    wait_for(virtual_gpus)
    assert b"".join(each.tobytes() for each in y.values().T) == expected


@pytest.mark.parametrize("form", ["within", "across"])
def test_a_graph_has_all_groups_of_vectors(form, small_knobs, small_blocks, virtual_gpus):
    options, shape = FORMS[form]
    a, x = numbers(shape)[:, :171], np.asfortranarray(numbers((shape[1], 17), 1)[:171])
    several = gemv.Matrix(a, devices=[0, 1, 2], **options)
    expected = b"".join(several.matvec(each).tobytes() for each in x.T)
    y = Array(virtual_gpus, np.full((len(a), 17), np.nan, "f", order="F"))
    plan = several.plan(Array(virtual_gpus, x), y)
    for _ in range(2):
        plan()
        wait_for(virtual_gpus)
        assert b"".join(each.tobytes() for each in y.values().T) == expected


@pytest.mark.parametrize("can_capture", [True, False])
def test_a_plan_follows_the_streams_that_its_arrays_name(can_capture, virtual_gpus):
    a, x = numbers((37, 20)), numbers(20, 1)
    streams = [virtual_gpus.cuStreamCreate(1)[1] for _ in range(4)]
    several = gemv.Matrix(a, devices=[0, 1, 2])
    expected = several.matvec(x).tobytes()
    on_device = Array(virtual_gpus, np.full(20, np.nan, "f"), streams[0])
    y = Array(virtual_gpus, np.zeros(37, "f"), streams[1])
    if not can_capture:
        virtual_gpus.break_(1, "launch", UNSUPPORTED)
    plan = several.plan(on_device, y)
    virtual_gpus.broken.clear()
    assert plan.is_graph == can_capture
    for of_x, of_y in (streams[:2], streams[2:], (streams[0], streams[0])):
        on_device.interface["stream"], y.interface["stream"] = of_x, of_y
        on_device.values()[...] = y.values()[...] = np.nan
        pending = virtual_gpus._stream(of_x)
        virtual_gpus.enqueue(pending, lambda: on_device.values().__setitem__(..., x))
        plan()
        wait_for(virtual_gpus, of_y)
        assert y.values().tobytes() == expected


@pytest.mark.parametrize("several", [True, False])
def test_a_thread_that_has_not_used_cuda_launches_a_plan(several, virtual_gpus):
    """It has no current GPU, and the default stream belongs to the current one."""
    virtual_gpus.engine.several = several
    a, x = numbers((37, 20)), numbers(20, 1)
    matrix = gemv.Matrix(a, devices=[0, 0])
    y = Array(virtual_gpus, np.zeros(37, "f"))
    plan, raised = matrix.plan(Array(virtual_gpus, x), y), []

    def elsewhere():
        try:
            plan()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert plan.is_graph and not raised
    assert bits(virtual_gpus, y) == matrix.matvec(x).tobytes()


def test_a_plan_that_fails_for_another_reason_raises(virtual_gpus):
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1, 2])
    vectors = Array(virtual_gpus, numbers(20)), Array(virtual_gpus, np.zeros(37, "f"))
    for name in ("launch", "cuMemcpyAsync", "cuEventRecord"):
        # Only what a GPU does not reach is copied by the driver.
        virtual_gpus.engine.apart = {(1, 0)} if name == "cuMemcpyAsync" else set()
        virtual_gpus.break_(1, name)
        with pytest.raises(RuntimeError, match="^Matrix: shard 1 on cuda:1: CUDA_ERROR_UNKNOWN"):
            several.plan(*vectors)
        virtual_gpus.broken.clear()
        assert not virtual_gpus.graphs
        plan = several.plan(*vectors)
        # The graph, and what was made of it to be launched.
        assert plan.is_graph and len(virtual_gpus.graphs) == 2
        virtual_gpus.break_(0, "cuGraphLaunch")
        with pytest.raises(RuntimeError, match=r"^Matrix.plan: shards on cuda:0, cuda:1, cuda:2: "):
            plan()
        virtual_gpus.broken.clear()
        del plan


def test_an_error_that_is_handled_holds_no_memory(virtual_gpus, monkeypatch):
    """Its frames are dropped, and those of its causes: under Python 3.13 they hold each other."""
    handled = []
    monkeypatch.setattr(plan_of_shards, "drop_frames", lambda error: handled.append(error))
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1, 2])
    vectors = Array(virtual_gpus, numbers(20)), Array(virtual_gpus, np.zeros(37, "f"))
    virtual_gpus.break_(1, "launch", UNSUPPORTED)
    assert not several.plan(*vectors).is_graph
    assert [type(error).__name__ for error in handled] == ["CannotCapture"]


def test_a_vector_that_differs_from_the_one_before_is_on_its_own_gpu(virtual_gpus):
    layouts, values = Layouts(), numbers(20, 1)
    here = Array(virtual_gpus, values)
    virtual_gpus.current = 1
    there = Array(virtual_gpus, values)
    virtual_gpus.current = 0
    for array, device in ((here, 0), (here, 0), (there, 1), (here, 0)):
        assert layouts.operand(array, values.dtype, 20).device == device


def test_a_vector_that_differs_from_the_one_before_is_read_in_full(virtual_gpus):
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1])
    x = numbers(44, 1)
    expected = several.matvec(x[:20]).tobytes()
    for _ in range(2):
        assert bits(virtual_gpus, several @ Array(virtual_gpus, x[:20])) == expected
    pending = virtual_gpus.cuStreamCreate(1)[1]

    def view(**changed):
        array = Array(virtual_gpus, x)
        pointer, _ = array.interface["data"]
        start = changed.pop("start", 0)
        array.interface |= {"shape": (20,), "strides": None, "data": (pointer + start, False)}
        array.interface |= changed
        array.shape, array.strides = array.interface["shape"], array.interface["strides"]
        return array

    one_further, every_other = several.matvec(x[1:21]), several.matvec(x[:40:2])
    for array, y in (
        (view(), expected),
        (view(start=4), one_further.tobytes()),
        (view(strides=(8,)), every_other.tobytes()),
        (view(data=(view().interface["data"][0], True)), expected),
        (view(), expected),
    ):
        assert bits(virtual_gpus, several @ array) == y
    late = view(stream=pending)
    late.values()[...] = np.nan
    virtual_gpus.enqueue(
        virtual_gpus._stream(pending), lambda: late.values().__setitem__(..., x[:20])
    )
    assert bits(virtual_gpus, several @ late) == expected, "the stream it names is waited for"
    for wrong, error, words in (
        (view(typestr="<f8"), TypeError, "x has dtype float64"),
        (view(shape=(19,)), ValueError, "x must have 20 elements, got 19"),
        (view(mask=1), TypeError, "masked"),
        (view(shape=(4, 5, 1)), ValueError, "x must have one or two dimensions"),
        (view(data=(0, False)), ValueError, "no memory"),
    ):
        with pytest.raises(error, match=words):
            several @ wrong
    virtual_gpus.current = 2
    assert bits(virtual_gpus, several @ Array(virtual_gpus, x[:20])) == expected, "another GPU"


def every_other(virtual, count, stream):
    """So many columns of 20 elements that are no neighbours; one vector if there is no count."""
    wide = numbers(40 if count is None else (40, count))
    x = Array(virtual, wide, stream)
    return x._view((20, *wide.shape[1:]), (2 * x.strides[0], *x.strides[1:]))


def test_a_copy_of_x_is_waited_for_or_not_made(virtual_gpus, monkeypatch):
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1], gather=2)
    named, engine = int(virtual_gpus.cuStreamCreate(1)[1]), virtual_gpus.engine
    one, two = every_other(virtual_gpus, None, named), every_other(virtual_gpus, 2, named)
    several @ one, several @ two
    copy, copied = engine.copy, []

    def counting(source, target, stream):
        if len(copied) == 1:
            raise RuntimeError("lost")
        copy(source, target, stream)
        copied.append(virtual_gpus._stream(stream).last)

    monkeypatch.setattr(engine, "copy", counting)
    room, virtual_gpus.room[2] = virtual_gpus.room[2], 0
    for x in (one, two):
        with pytest.raises(MemoryError, match="does not fit on cuda:2"):
            several @ x
    assert not copied, "nothing reads x"
    virtual_gpus.room[2] = room
    with pytest.raises(RuntimeError, match="lost"):
        several @ two
    wait_for(virtual_gpus, named)
    assert [each.done for each in copied] == [True], "x may be overwritten now"
    copied.clear()
    virtual_gpus.break_(0, "cuEventRecord", after=2)  # behind those that order the copy
    with pytest.raises(RuntimeError, match="on cuda:0"):
        several @ one
    virtual_gpus.broken.clear()
    wait_for(virtual_gpus, named)
    assert [each.done for each in copied] == [True]


def test_a_vector_that_cannot_be_read_is_named_at_every_call(virtual_gpus):
    class Deleted(Array):
        @property
        def __cuda_array_interface__(self):
            if self.interface is None:
                raise RuntimeError("the array has been deleted")
            return self.interface

    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1])
    x, said = Deleted(virtual_gpus, numbers(20)), []
    for _ in range(2):
        kept, x.interface = x.interface, None
        with pytest.raises(Exception, match="^Matrix: x .*has been deleted") as caught:
            several @ x
        said.append((type(caught.value), str(caught.value)))
        x.interface = kept
        several @ x
    assert said[0] == said[1]


@pytest.fixture
def no_garbage_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("planned", [False, True])
def test_memory_is_given_back_without_garbage_collection(planned, form, small_knobs, virtual_gpus):
    options, shape = FORMS[form]
    a, x = numbers(shape), Array(virtual_gpus, numbers(shape[1]))
    y, room = Array(virtual_gpus, np.zeros(shape[0], "f")), virtual_gpus.room
    before = dict(room)
    several = gemv.Matrix(a, devices=[0, 1, 2], **options)
    if planned:
        plan = several.plan(x, y)
        assert plan.is_graph
        virtual_gpus.break_(1, "launch", UNSUPPORTED)
        enqueued = several.plan(x, y)
        assert not enqueued.is_graph
        virtual_gpus.broken.clear()
        plan(), enqueued()
        del plan, enqueued
    kept = several @ x
    made = kept if isinstance(kept, list) else [kept]
    for each in made:  # which the caller owns: the stand-in does not free arrays
        room[virtual_gpus.block_at(each.interface["data"][0])[1]] += each.values().nbytes
    several.free()
    assert room == before


def used_by(virtual, make):
    """The bytes of each GPU that a product takes, without its y; and that product."""
    before = dict(virtual.room)
    y = make()
    for each in y if isinstance(y, list) else [y]:  # which the stand-in never frees
        virtual.room[virtual.block_at(each.interface["data"][0])[1]] += each.values().nbytes
    return {device: before[device] - virtual.room[device] for device in before}, y


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("form", ["everywhere", "in order"])
def test_numbers_of_vectors_share_memory(form, small_blocks, virtual_gpus):
    options, shape = FORMS[form]
    several = gemv.Matrix(numbers(shape), devices=[0, 1, 2], **options)
    x = np.asfortranarray(numbers((shape[1], 7), 1))
    expected = [several.matvec(each).tobytes() for each in x.T]
    most = {}
    for count in (6, 2, 5, 1, 3, 7, 2):
        given = Array(virtual_gpus, x[:, :count])
        used, y = used_by(virtual_gpus, lambda given=given: several @ given)
        first = y[0] if isinstance(y, list) else y
        assert bits_of_columns(virtual_gpus, first) == b"".join(expected[:count]), count
        if count in (6, 7):
            most[count] = used
        else:
            assert max(used.values()) < 20 * 4, "no vector is new"
    assert 0 < sum(most[7].values()) < sum(most[6].values()), "that of 6 vectors is freed"


def test_memory_for_vectors_of_the_host_is_kept_for_few_numbers(virtual_gpus, monkeypatch):
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1])
    engine, made = virtual_gpus.engine, []
    vectors = engine.vectors

    def noted(*sizes):
        found = vectors(*sizes)
        made.append(weakref.ref(found.x))
        return found

    monkeypatch.setattr(engine, "vectors", noted)
    engine.computes = False
    for count in (1, 2, 3, 16, 4, 20):
        several @ numbers((20, count))
    gc.collect()
    assert len(made) == 5, "20 are 16 and 4"
    assert sum(each() is not None for each in made) == 3


def test_a_vector_that_a_library_takes_over_is_exported_once(virtual_gpus, monkeypatch):
    dtype, exports, said = np.dtype("f"), [], []

    class TakesOver(Library):
        def empty(self, like, length, dtype, device):
            exports.append(dlpack.Export(Array(virtual_gpus, np.zeros(length, dtype)), device))
            return exports[-1]

        def finished(self, made, wait):
            return made

    like = SimpleNamespace(exporter=TakesOver(), origin=None)
    monkeypatch.setattr(dlpack.Export, "__dlpack__", lambda *_, **__: said.append("exported"))
    layouts = Layouts()
    for _ in range(2):
        made = NewVector(like, 0, 37, dtype, layouts)
        pointer, _ = exports[-1].array.interface["data"]
        assert (made.operand.pointer, made.operand.shape) == (pointer, (37,))
        assert made.finished() is exports[-1]
    full = []
    monkeypatch.setattr("gemv.arrays.adopt.adopt", lambda *arguments, **_: full.append(arguments))
    NewVector(like, 0, 37, dtype, layouts)
    assert not said and not full, "the third is read by its layout"


def test_no_vectors_have_the_parts_that_two_have(virtual_gpus):
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1, 2], gather=None)
    none, two = (several @ Array(virtual_gpus, numbers((20, count))) for count in (0, 2))
    assert [len(y.shape) for y in none] == [2] * 3
    assert [(y.shape[0], 2) for y in none] == [y.shape for y in two]


@pytest.mark.parametrize("gather", ["all", None])
def test_cupy_gets_no_list(gather, virtual_gpus):
    several = gemv.Matrix(numbers((20, 20)), devices=[0, 1], gather=gather)
    with pytest.raises(ValueError, match=f"gather must be .*, got {gather!r}"):
        several.cupy_operator()


def test_the_stand_in_has_a_current_gpu_for_each_thread(virtual_gpus):
    seen = []

    def elsewhere():
        seen.append(virtual_gpus.current)
        virtual_gpus.cuCtxPushCurrent(2)
        virtual_gpus.cuCtxPopCurrent()

    virtual_gpus.cuCtxPushCurrent(3)
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [-1] and virtual_gpus.current == 2
    virtual_gpus.cuCtxPopCurrent()
    assert virtual_gpus.current == 0


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("form", FORMS)
def test_memory_is_freed_behind_the_work_of_all_gpus(form, small_knobs, virtual_gpus, monkeypatch):
    options, shape = FORMS[form]
    several = gemv.Matrix(numbers(shape), devices=[0, 1, 2], **options)
    several @ Array(virtual_gpus, numbers(shape[1]))
    launched, pending = virtual_gpus.engine.launched, []
    free = virtual_gpus.cuMemFree

    def noted(pointer):
        pending.append(sum(not each.done for each in launched))
        return free(pointer)

    monkeypatch.setattr(virtual_gpus, "cuMemFree", noted, raising=False)
    assert not all(each.done for each in launched)
    several.free()
    assert pending and not any(pending)


def entered(call):
    """How many functions of the package a call enters, by name."""
    room, names = str(Path(gemv.__file__).parent), Counter()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(room):
            names[frame.f_code.co_name] += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


def test_a_repeated_product_enters_few_functions(virtual_gpus):
    """The host's time decides below a GiB; what is known of a vector is not found out again."""
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1, 2], split="rows")
    x = Array(virtual_gpus, numbers(20))
    first = entered(lambda: several @ x)
    assert first["adopt"] and first["exporter_of"]
    names = entered(lambda: several @ x)
    assert not {"adopt", "exporter_of", "device_library", "select", "packed"} & set(names)
    assert names["_switched"] == 2 * 2, "two GPUs that are not current"
    assert sum(names.values()) <= 200, names.most_common()


def test_a_vector_of_a_known_type_may_lie_elsewhere(virtual_gpus):
    """Its library is asked each time where it is, and what it raises is told by the long way."""
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1, 2], split="rows")
    x = numbers(20)
    expected = several.matvec(x)
    assert not several._layouts.on_device(x)

    given = Array(virtual_gpus, x)
    assert bits(virtual_gpus, several @ given) == expected.tobytes()
    library = several._layouts._libraries[Array]
    assert several._layouts.on_device(given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(library), "place", lambda self, array: "host")
        assert not several._layouts.on_device(given)
        patch.setattr(type(library), "place", lambda self, array: 1 / 0)
        assert not several._layouts.on_device(given)
