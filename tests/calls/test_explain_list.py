"""What explain_batched and Batch.explain say of lists, beside what the calls then launch."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import gemv
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.engines import backend
from gemv.kernels import BATCHED
from gemv.selection.forecast import forecast, seconds_of_list
from gemv.selection.machine import machine
from gemv.selection.ragged import groups

needs_kernels = pytest.mark.skipif(
    gemv.backend() == "host", reason="no GPU and no simulator to launch kernels"
)
SHAPES = [(40, 36), (3, 0), (20, 20), (64, 80), (0, 5), (100, 36), (48, 64), (5, 4), (40, 36)]


def to_device(array):
    from numba import cuda

    return cuda.to_device(array)


def lists(dtype="f", make=np.asarray):
    a = [make(np.ones(shape, dtype)) for shape in SHAPES]
    x = [make(np.ones(n, dtype)) for _, n in SHAPES]
    y = [make(np.ones(m, dtype)) for m, _ in SHAPES]
    return a, x, y


def launched(calls):
    return [(call.backend, call.kernel, call.knobs, call.geometry.launches) for call in calls]


def told_of(told):
    return [(told.backend, each.kernel, each.knobs, each.launches) for each in told.launches]


@needs_kernels
@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("overwrite", [0, 1])
@pytest.mark.parametrize("dtype", ["f", "D"])
def test_what_is_told_is_what_is_launched(place, overwrite, dtype):
    a, x, y = lists(dtype, np.asarray if place == "host" else to_device)
    trans = [0, 1, 0, 2, 0, 0, 0, 0, 0]
    x[3], y[3] = y[3], x[3]  # that of a transposition
    x[1], y[1] = y[1], x[1]
    arguments = 2, a, x, [0, 1, 1, 0, 1, 0, 1, 1, 1], y, trans
    told = gemv.explain_batched(*arguments, overwrite_y=overwrite)
    with gemv.trace() as calls:
        gemv.gemv_batched(*arguments, overwrite_y=overwrite)
    assert launched(calls) == told_of(told) != []
    batch = gemv.Batch(a, trans)
    with gemv.trace() as calls:
        batch @ x
    told = batch.explain()
    assert launched(calls) == told_of(told) != []
    assert told.routine == "Batch" and told.transfer == ""


@needs_kernels
def test_views_of_vectors_have_launches_of_their_own():
    a, x = lists(make=to_device)[:2]
    wide = [to_device(np.ones(2 * n + 1, "f"))[1::2] for _, n in SHAPES]
    for vectors in (x, wide):
        told = gemv.explain_batched(1, a, vectors)
        with gemv.trace() as calls:
            gemv.gemv_batched(1, a, vectors)
        assert launched(calls) == told_of(told)


@needs_kernels
def test_items_bytes_and_reads_are_counted():
    a, x, y = lists()
    a[8] = a[0]
    trans = [0, 0, 1, 0, 0, 0, 0, 0, 0]  # a square one is read along the other side
    told = gemv.explain_batched(1, a, x, [0] * 8 + [3], y, trans)
    assert len(told.launches) >= 2
    assert told.items == 9 and told.backend == gemv.backend() and told.reason == ""
    computed = [k for k, shape in enumerate(SHAPES) if 0 not in shape]
    assert sorted(k for each in told.launches for k in each.items) == computed
    assert told.reads_of_a == 2
    moved = {k: 4 * (m * n + n + m) for k, (m, n) in enumerate(SHAPES)}
    moved[8] += 4 * 40  # its y is read as well
    assert told.bytes_moved == sum(moved[k] for k in computed)
    for launch in told.launches:
        assert launch.shapes == tuple(SHAPES[k] for k in launch.items)
        assert launch.bytes_moved == sum(moved[k] for k in launch.items)
        assert launch.reads_of_a == (2 if {0, 8} <= set(launch.items) else 1)
        assert launch.accumulate == "plain" and launch.reason and launch.depth >= 1
        assert (launch.rung is None) == (launch.kernel in BATCHED)
        assert launch.seconds is None or told.backend == "cuda"
    assert [each.bytes_moved for each in told.launches] == sorted(
        (each.bytes_moved for each in told.launches), reverse=True
    )
    lines = str(told).splitlines()
    assert lines[0].startswith(f"7 items in {len(told.launches)} launches on the")
    assert lines[1 : 1 + len(told.launches)] == [str(each) for each in told.launches]
    both = next(each for each in told.launches if 0 in each.items)
    (m, n), (most_m, most_n) = min(both.shapes), max(both.shapes)
    said = f"{both.kernel}: {len(both.items)} items of {m} x {n}"
    assert str(both).startswith(said + f" to {most_m} x {most_n}, " * ((m, n) != (most_m, most_n)))
    assert pickle.loads(pickle.dumps(told)) == told


@needs_kernels
def test_the_depth_is_that_of_the_deepest_item():
    a = [to_device(np.ones((40, n), "f")) for n in (36, 2000)]
    x = [to_device(np.ones(n, "f")) for n in (36, 2000)]
    deepest = max(each.depth for each in gemv.explain_batched(1, a, x).launches)
    one = [gemv.explain_batched(1, a[k : k + 1], x[k : k + 1]).launches[0].depth for k in (0, 1)]
    assert deepest == max(one) and one[0] < one[1]


def test_nothing_is_computed():
    told = gemv.explain_batched(1, [], [])
    assert told.backend is None and told.launches == () and told.reads_of_a == 0
    assert str(told) == "gemv_batched computes nothing for 0 items: it is empty."
    y = [np.ones(2)]
    for arguments in ((1, [np.ones((2, 0))], [[]], 1, y), (0, [np.eye(2)], [[1.0, 1.0]], 1, y)):
        told = gemv.explain_batched(*arguments)
        assert told.backend is None and told.bytes_moved == 0
        assert "no item has both rows and columns, and changes y" in str(told)
    assert gemv.Batch([np.ones((0, 3))]).explain().backend is None


def test_the_host_computes():
    gemv.use_backend("host")
    try:
        told = gemv.explain_batched(1, *lists()[:2])
        of_batch = gemv.Batch(lists()[0]).explain()
    finally:
        gemv.use_backend(None)
    for each in (told, of_batch):
        assert each.backend == "host" and each.launches == () and each.seconds is None
        assert each.reason == "this backend was asked for"
        assert each.bytes_moved == 4 * sum(m * n + m + n for m, n in SHAPES if m and n)
        assert "9 items, one after the other, by SciPy's BLAS on the host" in str(each)


def test_nothing_is_written_or_launched(monkeypatch):
    a, x, y = lists()
    if gemv.backend() != "host":
        monkeypatch.setattr(type(backend.engine()), "run", None)
    gemv.explain_batched(1, a, x, 0, y, overwrite_y=1)
    assert all((each == 1).all() for each in y)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"As": 3}, TypeError, "As must be a sequence of arrays"),
        ({"xs": [np.ones(3)]}, ValueError, "are 1 vectors x, but 9 matrices"),
        ({"stream": 0}, ValueError, "stream only applies to device arrays"),
        ({"trans": "no"}, ValueError, "item 0: trans must be 0 or 'N'"),
    ],
)
def test_arguments_are_checked_as_by_the_call(changes, error, words):
    a, x, _ = lists()
    arguments = {"alpha": 1, "As": a, "xs": x, **changes}
    for function in (gemv.explain_batched, gemv.gemv_batched):
        with pytest.raises(error, match=f"gemv_batched: .*{words}"):
            function(**arguments)


@needs_kernels
def test_device_arrays_need_a_gpu():
    a, x, _ = lists(make=to_device)
    gemv.use_backend("host")
    try:
        with pytest.raises(TypeError, match="gemv_batched: item 0: a is on the device"):
            gemv.explain_batched(1, a, x)
    finally:
        gemv.use_backend(None)


def test_the_expected_time_is_that_of_the_formula_with_the_work_of_all_items():
    h200 = Device("NVIDIA H200", (9, 0), 132)
    one = Problem(np.dtype("f"), 64, 4096, 0, 64, 4096, False, 4096, 1).at(0, 0)
    (single,) = groups([one], [(0, 0, 0)], h200)
    (many,) = groups([one] * 500, [(0, 0, 0)] * 500, h200)
    alone = seconds_of_list(single.choice, [one], h200)
    latency = machine(h200).numbers.cache_latency
    choice = single.choice
    own = choice._replace(geometry=choice.kernel.geometry(one, h200, choice.knobs))
    assert alone - 2 * latency == pytest.approx(forecast(own, one, h200).seconds)
    together = seconds_of_list(many.choice, [one] * 500, h200)
    moved = 500 * one.bytes_moved(True) / machine(h200).numbers.memory_rate
    assert moved < together < 2 * moved and together < 50 * alone
    small = Problem(np.dtype("f"), 8, 8, 0, 8, 8, False, 8, 1).at(0, 0)
    (group,) = groups([small], [(0, 0, 0)], h200)
    assert group.choice.kernel.work is None
    assert 1e-6 < seconds_of_list(group.choice, [small], h200) < 1e-5
