"""Plans in captured graphs: each GPU fetches the first bytes of its part of A while it waits."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.problems import random_array

import gemv
from gemv.core.geometry import Chip, Device
from gemv.core.operand import Operand
from gemv.engines import backend

H200 = Device("H200", (9, 0), 132)
PIECE, MOST, SHARE = 2048, 16 << 20, 4


def numbers(shape, seed=0, dtype="f"):
    return np.asarray(random_array(np.random.default_rng(seed), shape, np.dtype(dtype)))


def on_gpu(virtual, values, stream):
    from helpers.virtual_gpus import Array  # which imports the simulator

    return Array(virtual, values, stream)


@pytest.fixture
def gpus(small_knobs, virtual_gpus, monkeypatch):
    """GPUs whose L2 cache holds next to nothing, and a stream of the first one."""
    # A quarter of these small parts would be less than an instruction fetches.
    monkeypatch.setattr("gemv.shards.chains.FETCHED_OF", 1)
    engine = virtual_gpus.engine
    engine.kind = engine.kind._replace(chip=Chip(cache_bytes=64))
    virtual_gpus.stream = virtual_gpus.check(virtual_gpus.cuStreamCreate(1))
    return virtual_gpus


def plan_of(virtual, shape=(96, 40), devices=(0, 1, 2), **options):
    """A plan of a matrix, x as it was, and the matrix."""
    several = gemv.Matrix(numbers(shape), devices=list(devices), **options)
    x, y = numbers(shape[1], 1), np.full(shape[0], np.nan, "f")
    return several.plan(*(on_gpu(virtual, each, virtual.stream) for each in (x, y))), x, several


def captured(virtual, *work):
    """An executable graph, and the last nodes of its capture that nothing waits for."""
    virtual.engine.fetches.clear()
    virtual.check(virtual.cuStreamBeginCapture(virtual.stream, 2))
    for each in work:
        each()
    stream = virtual._stream(virtual.stream)
    capture, front = stream.capture, [stream.last, *stream.waits]
    reached, left = set(), [each for each in front if each is not None]
    while left:
        node = left.pop()
        if id(node) not in reached:
            reached.add(id(node))
            left += node.after
    alone = capture.loose - reached
    whole = virtual.check(virtual.cuStreamEndCapture(virtual.stream))
    return virtual.check(virtual.cuGraphInstantiate(whole, 0)), alone


def run(virtual, executable):
    """The GPUs, addresses and bytes that were fetched, one for each fetch."""
    virtual.engine.fetched.clear()
    virtual.check(virtual.cuGraphLaunch(executable, virtual.stream))
    virtual.cuStreamSynchronize(virtual.stream)
    return virtual.engine.fetched


# What is fetched ----------------------------------------------------------------------------------


def stretch(*arguments):
    from gemv.shards.chains import first_bytes

    return first_bytes(*arguments)


def operand(shape, strides, dtype="f4", pointer=1 << 30):
    return Operand("numba", np.dtype(dtype), shape, strides, pointer, False, None)


def end_of(a):
    last = sum((n - 1) * step for n, step in zip(a.shape, a.strides, strict=True))
    return a.pointer + (last + 1) * a.dtype.itemsize


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c16"])
@pytest.mark.parametrize("offset", [0, 1, 3, 16, 511])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("lines", "length", "gap"),
    [(5000, 5000, 0), (7, 9, 0), (3000, 2, 1), (100, 1000, 999), (1, 4096, 3), (4096, 1, 0)],
)
def test_all_bytes_are_between_the_first_element_and_the_last(
    dtype, offset, order, lines, length, gap, virtual_gpus
):
    kind, step = np.dtype(dtype), length + gap
    shape, strides = ((lines, length), (step, 1)) if order == "C" else ((length, lines), (1, step))
    a = operand(shape, strides, dtype, (1 << 30) + offset * kind.itemsize)
    found = stretch(a, H200._replace(chip=Chip(cache_bytes=2)))
    wanted = min((end_of(a) - a.pointer) // SHARE, MOST)
    if found is None:
        assert wanted - -a.pointer % 16 < PIECE
        return
    start, pieces = found
    assert a.pointer <= start < a.pointer + 16 and start % 16 == 0
    assert start + pieces * PIECE <= end_of(a)
    assert pieces == (wanted - (start - a.pointer)) // PIECE, "as much as there may be"


def test_nothing_is_fetched_in_vain(virtual_gpus):
    small = operand((3840, 2048), (2048, 1))  # 30 MiB: half of the L2 cache
    assert stretch(small, H200) is None
    large = operand((3841, 2048), (2048, 1))
    assert stretch(large, H200) == (large.pointer, 3841 * 2048 * 4 // SHARE // PIECE)
    larger = operand((16384, 2048), (2048, 1))
    assert stretch(larger, H200) == (larger.pointer, MOST // PIECE)
    assert stretch(large, H200._replace(compute_capability=(8, 9))) is None
    gaps = operand((3841, 2048), (2 * 2048, 1))
    assert stretch(gaps, H200) is not None
    assert stretch(operand((3841, 2048), (2 * 2048 + 2, 1)), H200) is None
    assert stretch(operand((3841, 2048), (-2048, 1)), H200) is None


def test_the_kernel_asks_for_what_it_is_told_and_nothing_else(virtual_gpus, monkeypatch):
    from gemv.language import fetch as room
    from gemv.language.simulator.memory import pointer_to
    from gemv.language.simulator.scheduler import launch
    from gemv.language.simulator.thread import SimulatorError

    words = np.zeros(5 * PIECE // 8 + 2, room.WORD)
    first = -words.ctypes.data % 16 // 8
    words, asked = words[first : first + 5 * PIECE // 8], []
    prefetch = room.prefetch

    def noted(pointer, index, nbytes):
        asked.append((index * 8, nbytes))
        prefetch(pointer, index, nbytes)

    monkeypatch.setattr(room, "prefetch", noted)
    launch(room.fetch, 2, 1, [5, pointer_to(words, name="x")])
    assert sorted(asked) == [(k * PIECE, PIECE) for k in range(5)]
    with pytest.raises(SimulatorError, match="out of range"):
        launch(room.fetch, 1, 1, [6, pointer_to(words, name="x")])
    with pytest.raises(SimulatorError, match="no multiples of 16"):
        launch(room.fetch, 1, 1, [1, pointer_to(words[1:], name="x")])


# Graphs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [(0, 1), (2, 0), (0, 1, 2)])
def test_each_gpu_fetches_between_two_products(devices, gpus):
    plan, x, several = plan_of(gpus, devices=devices)
    executable, alone = captured(gpus, plan, plan, plan)
    assert gpus.engine.fetches == [], "they are nodes"
    for factor in (1, 2):
        plan.x.values()[...] = factor * x
        plan.y.values()[...] = np.nan
        done = run(gpus, executable)
        assert plan.y.values().tobytes() == several.matvec(factor * x).tobytes()
        assert sorted(gpu for gpu, *_ in done) == sorted(devices * 2)
    shards = {shard.place.index: shard.a for shard in several.kept()}
    for gpu, start, nbytes in done:
        a = shards[gpu]
        assert a.pointer <= start and start + nbytes <= end_of(a) < start + nbytes + PIECE + 16
    assert len(alone) == 2, "the first GPU's, which nothing waits for"


def test_products_of_other_plans_count_as_well(gpus):
    """Each with the y of the one before as its x; what is fetched is of the next product."""
    forth, x, several = plan_of(gpus, (96, 96))
    back = several.plan(forth.y, forth.x)
    executable, _ = captured(gpus, forth, back, forth)
    assert len(run(gpus, executable)) == 2 * 3
    expected = x
    for _ in range(3):
        expected = several.matvec(expected)
    assert forth.y.values().tobytes() == expected.tobytes()


def test_what_comes_behind_a_product_waits_for_all_of_it(gpus):
    plan, x, several = plan_of(gpus)
    copied = on_gpu(gpus, np.full(96, np.nan, "f"), gpus.stream)

    def copy():
        to, y = (each.interface["data"][0] for each in (copied, plan.y))
        gpus.check(gpus.cuMemcpyAsync(to, y, 4 * 96, gpus.stream))

    executable, _ = captured(gpus, plan, copy, plan, plan, copy)
    for factor in (1, 2):
        plan.x.values()[...] = factor * x
        done = run(gpus, executable)
        assert copied.values().tobytes() == several.matvec(factor * x).tobytes()
        assert len(done) == 3, "none across the copy"


def test_no_fetch_comes_from_another_graph(gpus):
    plan, x, several = plan_of(gpus)
    for _ in range(2):
        executable, _ = captured(gpus, plan)
        assert run(gpus, executable) == []
        assert plan.y.values().tobytes() == several.matvec(x).tobytes()


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"devices": (0, 0)}, (96, 40)),
        ({"devices": (1, 1)}, (96, 40)),
        ({"split": "columns", "reproducible": False}, (20, 371)),
        ({"split": "columns", "kernel": "vector_rows"}, (5, 411)),
    ],
)
def test_other_products_are_one_node_without_fetches(options, shape, gpus):
    plan, x, several = plan_of(gpus, shape, **options)
    gpus.calls.clear()
    executable, _ = captured(gpus, plan, plan)
    assert [name for name, _ in gpus.calls].count("cuGraphAddChildGraphNode") == 2
    assert run(gpus, executable) == []
    assert plan.y.values().tobytes() == several.matvec(x).tobytes()


def test_matrices_in_the_cache_are_not_fetched(gpus):
    gpus.engine.kind = gpus.engine.kind._replace(chip=Chip())
    plan, *_ = plan_of(gpus)
    executable, _ = captured(gpus, plan, plan)
    assert run(gpus, executable) == []


def test_several_vectors_are_fetched_for_only_in_one_group(gpus, small_blocks):
    several = gemv.Matrix(numbers((96, 40)), devices=[0, 1, 2])
    for count, fetches in ((3, 3), (17, 0)):
        x = np.asfortranarray(numbers((40, count), 1))
        y = np.full((96, count), np.nan, "f", order="F")
        plan = several.plan(*(on_gpu(gpus, each, gpus.stream) for each in (x, y)))
        executable, _ = captured(gpus, plan, plan)
        assert len(run(gpus, executable)) == fetches
        expected = b"".join(several.matvec(each).tobytes() for each in x.T)
        assert plan.y.values().T.tobytes() == expected


def test_products_beside_a_graph_are_as_they_were(gpus):
    """Where nothing is captured, a call launches its graph, and ``A @ x`` one without chains."""
    plan, x, several = plan_of(gpus)
    expected = several.matvec(x).tobytes()
    captured(gpus, plan, plan)
    gpus.engine.fetched.clear()
    plan()
    gpus.cuStreamSynchronize(gpus.stream)
    assert plan.y.values().tobytes() == expected
    for _ in range(7):
        y = several @ on_gpu(gpus, x, gpus.stream)
        gpus.current = 0
        gpus.cuStreamSynchronize(gpus.stream)
        assert y.values().tobytes() == expected
    assert gpus.engine.fetched == []


def test_graphs_end_with_their_plan(gpus):
    several = gemv.Matrix(numbers((96, 40)), devices=[0, 1, 2])
    x, y = (on_gpu(gpus, np.zeros(n, "f"), gpus.stream) for n in (40, 96))
    before = len(gpus.graphs)
    plan = several.plan(x, y)
    assert len(gpus.graphs) == before + 2 + 2 * 3, "the whole one twice, parts and fetches"
    del plan
    assert len(gpus.graphs) == before


@pytest.mark.parametrize("after", range(1, 7))
def test_an_error_leaves_no_graphs(after, gpus):
    """In each of the captures behind the first one."""
    several = gemv.Matrix(numbers((96, 40)), devices=[0, 1, 2])
    x, y = (on_gpu(gpus, np.zeros(n, "f"), gpus.stream) for n in (40, 96))
    before, begin, count = len(gpus.graphs), gpus.cuStreamBeginCapture, 0

    def refused(stream, mode):
        nonlocal count
        count += 1
        return gpus._said(999) if count > after else begin(stream, mode)

    gpus.cuStreamBeginCapture = refused
    with pytest.raises(RuntimeError):
        several.plan(x, y)
    assert count == after + 1 and len(gpus.graphs) == before


@pytest.mark.gpu
def test_two_gpus_fetch_in_a_captured_graph():
    """Of a real driver: a part for each GPU in each product, and fetches between the products."""
    if backend.backend() != "cuda":
        pytest.skip("needs an NVIDIA GPU")
    from cuda.bindings import driver
    from numba import cuda

    from gemv.driver import devices
    from gemv.driver.libcuda import check
    from gemv.driver.memory import address_of

    engine = backend.engine()
    if devices.count() < 2 or engine.device().compute_capability < (9, 0):
        pytest.skip("needs two GPUs of compute capability 9.0")
    found = range(min(4, devices.count()))
    rows = len(found) * 2500 + 3
    a = np.random.default_rng(0).standard_normal((rows, 5000), np.float32)
    x = numbers(5000, 1)
    several = gemv.Matrix(a, devices=list(found))
    cuda.current_context()
    handle = int(check(driver.cuStreamCreate(1)))
    stream = cuda.external_stream(handle)
    given = cuda.to_device(x, stream=stream)
    y = cuda.device_array(rows, np.float32, stream=stream)
    plan, expected = several.plan(given, y), several.matvec(x).tobytes()
    stream.synchronize()
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    check(driver.cuStreamBeginCapture(handle, mode))
    plan(), plan(), plan()
    whole = check(driver.cuStreamEndCapture(handle))
    nodes = [node for node in check(driver.cuGraphGetNodes(whole, 100)) if int(node)]
    assert len(nodes) == (3 + 2) * len(found)
    executable = check(driver.cuGraphInstantiate(whole, 0))
    for _ in range(3):
        check(driver.cuMemsetD8Async(address_of(y), 255, 4 * rows, handle))
        check(driver.cuGraphLaunch(executable, handle))
        stream.synchronize()
        assert y.copy_to_host().tobytes() == expected
    check(driver.cuGraphExecDestroy(executable))
    check(driver.cuGraphDestroy(whole))
