"""Host arrays where there is a GPU: which of the two computes them, who says so, and how soon.

The GPU is a stand-in, whose kernels are those of the simulator.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import gemv
from gemv.calls import faster, short
from gemv.cli.main import main
from gemv.core import memo
from gemv.core.dtypes import BFLOAT16, DTYPES
from gemv.core.narrow import cast
from gemv.engines import backend
from gemv.selection import machine as selection_machine
from gemv.selection.host_or_gpu import Comparison, Work

if backend.backend() != "simulator":
    pytest.skip("kernels of the simulator stand for those of the GPU", allow_module_level=True)

from helpers.one_gpu import gpu  # noqa: F401  a fixture

A, X = np.arange(12.0).reshape(4, 3), np.ones(3)
pytestmark = pytest.mark.usefixtures("gpu")


@pytest.fixture
def quick_gpu(monkeypatch):
    """A GPU whose calls begin at once: it is faster where the host has anything else to do."""
    numbers = faster.numbers()._replace(gpu_start=faster.numbers().start)
    monkeypatch.setattr(faster, "numbers", lambda: numbers)
    return numbers


def traced(function, *arguments, **options):
    """The one call that a function leaves in a trace."""
    with gemv.trace() as calls:
        function(*arguments, **options)
    (call,) = calls
    return call


# Where a call runs ------------------------------------------------------------------------------


def test_small_arrays_stay_on_the_host_and_nobody_is_warned():
    assert gemv.backend() == "cuda"
    for function in (gemv.dgemv, gemv.gemv):
        call = traced(function, 2.0, A, X)
        assert (call.backend, call.kernel, call.geometry) == ("host", "dgemv", None)
        assert call.comparison.chosen == "host"
        assert call.comparison.host_s < call.comparison.gpu_s
    told = gemv.explain(2.0, A, X)
    assert (told.backend, told.kernel, told.comparison) == ("host", "dgemv", call.comparison)
    assert "expected to be faster than the GPU" in told.reason
    assert "the GPU with the copy of A 236 us" in str(told)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "serial"},
        {"coefficients": "arguments"},
        {"coefficients": "constant"},
        {"coefficients": gemv.Coefficients},
        {"accumulate": "wide"},
        {"accumulate": "pairs"},
        {"device_memory_limit": 10**6},
    ],
    ids=str,
)
def test_what_only_the_gpu_has_goes_there(options):
    if options.get("coefficients") is gemv.Coefficients:
        options = {"coefficients": gemv.Coefficients()}
    call = traced(gemv.dgemv, 2.0, A, X, **options)
    assert call.backend == "cuda" and call.comparison is None
    told = gemv.explain(2.0, A, X, **options)
    assert (told.backend, told.comparison) == ("cuda", None)
    assert "expected to take" not in str(told)
    assert np.array_equal(gemv.dgemv(2.0, A, X, **options), 2 * A @ X)


def test_the_gpu_that_was_asked_for_computes(monkeypatch):
    assert traced(gemv.dgemv, 1.0, A, X).backend == "host"
    gemv.use_backend("cuda")
    assert traced(gemv.dgemv, 1.0, A, X).backend == "cuda"
    assert gemv.explain(1.0, A, X).comparison is None
    assert traced(gemv.matvec, A, X).backend == "cuda"
    gemv.use_backend(None)
    assert traced(gemv.dgemv, 1.0, A, X).backend == "host"
    monkeypatch.setenv("GEMV_BACKEND", "cuda")
    memo.forget()
    assert traced(gemv.dgemv, 1.0, A, X).backend == "cuda"
    with backend.using("host"):
        call = traced(gemv.dgemv, 1.0, A, X)
        assert (call.backend, call.comparison) == ("host", None)
        assert gemv.explain(1.0, A, X).reason == "this backend was asked for"
    assert backend.chosen() == "cuda" and backend.is_by_environment()


def test_a_matrix_that_stays_is_on_the_gpu():
    with gemv.Matrix(A) as kept:
        assert "on the cuda backend" in repr(kept) and not isinstance(kept.array, np.ndarray)


def test_kernels_are_compiled_ahead_for_the_gpu(gpu):  # noqa: F811
    gemv.precompile(1.0, A, X)
    assert len(gpu.loaded) == 1


def test_the_simulator_computes_what_it_did(monkeypatch):
    monkeypatch.setattr(backend, "_probed", ("simulator", "set"))
    gemv.use_backend(None)
    call = traced(gemv.dgemv, 1.0, A, X)
    assert (call.backend, call.comparison) == ("simulator", None)
    assert gemv.explain(1.0, A, X).comparison is None


def test_nothing_to_compute_is_nothing_to_compare():
    with gemv.trace() as calls:
        gemv.dgemv(0.0, A, X, 1.0, np.ones(4))
        gemv.matvec(A[:0], X)
    assert not calls
    assert gemv.explain(0, A, X, 1, np.ones(4)).comparison is None


class Exporter:
    """An object of no library that is known here."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


@pytest.mark.parametrize("make", [np.ndarray.tolist, Exporter, np.asfortranarray])
def test_everything_in_host_memory_follows_the_rule(make):
    call = traced(gemv.gemv, 1.0, make(A), X)
    assert call.backend == "host" and call.comparison.chosen == "host"


def test_right_in_both_places(quick_gpu):
    rng = np.random.default_rng(3)
    a = rng.integers(-4, 5, (5, 4))
    for dtype, where in ((np.float64, "host"), (np.int64, "cuda"), (np.float16, "cuda")):
        mine, x = a.astype(dtype), np.ones(4, dtype)
        y = np.ones(5, np.float16 if dtype is np.float16 else np.float64)
        with gemv.trace() as calls:
            new = gemv.gemv(2, mine, x)
            assert gemv.gemv(2, mine, x, -1, y, overwrite_y=1) is y
        assert {(call.backend, call.comparison.chosen) for call in calls} == {(where, where)}
        assert np.array_equal(new, 2 * a.sum(1)) and np.array_equal(y, 2 * a.sum(1) - 1)


def test_a_place_has_its_own_bits_in_every_call():
    rng = np.random.default_rng(24)
    a, x = rng.standard_normal((40, 70)), rng.standard_normal(70)
    with gemv.trace() as calls:
        by_itself = [gemv.dgemv(0.3, a, x).tobytes() for _ in range(3)]
    assert [call.backend for call in calls] == ["host"] * 3
    with backend.using("host"):
        assert {*by_itself, gemv.dgemv(0.3, a, x).tobytes()} == {by_itself[0]}
    with gemv.trace() as calls:
        limited = gemv.dgemv(0.3, a, x, device_memory_limit=10**6)
        with backend.using("cuda"):
            asked = [gemv.dgemv(0.3, a, x).tobytes() for _ in range(2)]
    assert [call.backend for call in calls] == ["cuda"] * 3
    assert {*asked, limited.tobytes()} == {asked[0]} != {by_itself[0]}


def bad_calls():
    fine = {"alpha": 1.0, "a": A, "x": X}
    yield {**fine, "x": np.ones(2)}
    yield {**fine, "a": A[0]}
    yield {**fine, "alpha": "1"}
    yield {**fine, "stream": 0}
    yield {**fine, "kernel": "no such"}
    yield {**fine, "coefficients": "nowhere"}
    yield {**fine, "accumulate": "very wide"}
    yield {**fine, "device_memory_limit": 0}
    yield {**fine, "y": np.ones(3)}
    yield {**fine, "a": np.array([["a"]])}
    yield {**fine, "trans": 7}
    yield {**fine, "beta": 1.0, "y": X, "overwrite_y": 1, "a": np.eye(3)}


def test_errors_are_the_same_in_both_places():
    def said(arguments):
        with pytest.raises((ValueError, TypeError)) as caught:
            gemv.dgemv(**arguments)
        return type(caught.value), str(caught.value)

    for arguments in bad_calls():
        by_itself = said(arguments)
        with backend.using("cuda"):
            assert said(arguments) == by_itself


# What is counted --------------------------------------------------------------------------------


def place(a, x=None, **options):
    """Where a product with this matrix would run, and what was counted for it."""
    x = np.ones(a.shape[-1], np.float64 if a.dtype == BFLOAT16 else a.dtype) if x is None else x
    return gemv.explain(1, a, x, **options).backend


def test_a_matrix_that_blas_takes_as_it_lies_stays_on_the_host(quick_gpu):
    for letter in "sdcz":
        a = np.zeros((200, 300), DTYPES[letter])
        wide, tall = np.zeros((200, 310), DTYPES[letter]), np.zeros((210, 300), DTYPES[letter], "F")
        for each in (a, a.T, np.asfortranarray(a), wide[:, :300], tall[:200], wide[:, 3:-3].T):
            assert place(each) == "host", (letter, each.strides)
    # from a thread of BLAS that reads less than the link carries
    assert Work(8, 8) == faster.work(np.zeros((1, 1)), DTYPES["d"], DTYPES["d"])


def test_what_the_host_has_to_convert_or_to_gather_goes_to_the_gpu(quick_gpu):
    a = np.zeros((200, 300))
    for each in (a.astype("f2"), cast(a, BFLOAT16)):
        assert place(each, x=np.zeros(300, each.dtype)) == "cuda"
    for each in (a.astype("i8"), a.astype(">f8"), a > 0, a.astype("f4")):
        assert place(each, x=np.ones(300)) == "cuda"
    every_second = np.zeros((400, 600))[::2, ::2]
    for each in (every_second, a[::-1], a[:, ::-1], np.broadcast_to(a[:1], a.shape)):
        assert place(each) == "cuda", each.strides
    assert place(np.zeros((400, 300))[::2]) == "host"  # rows with gaps between them


def test_the_counts():
    double, single, half = (DTYPES[letter] for letter in "dsh")
    a = np.zeros((5, 8))
    assert faster.work(a, double, double) == Work(320, 320)
    assert faster.work(a, single, single) == Work(160, 320, converted=40)
    assert faster.work(a.astype("f4"), double, double) == Work(320, 320, converted=40)
    assert faster.work(a.astype("f2"), half, single) == Work(160, 80, narrow=40)
    assert faster.work(a[:, ::2], double, double) == Work(160, 160, gathered=20)
    assert faster.work(a[:0], double, double) == Work(0, 0)


def test_a_batch_counts_its_items(monkeypatch):
    seen = []

    def compared(numbers, work):
        seen.append(work)
        return Comparison("host", 0.0, 1.0)

    monkeypatch.setattr(faster, "compared", compared)
    a, x = np.zeros((7, 4, 3)), np.zeros((7, 3))
    gemv.matvec(a, x)
    gemv.matvec(a[0], x)  # one matrix, which is sent once and read seven times
    gemv.gemv(1, a.astype("f4"), np.zeros((7, 3)))
    gemv.vecmat(np.zeros((7, 4), "f2"), a.astype("f2"))
    gemv.matvec(np.zeros((7, 4, 6))[..., ::2], x)
    gemv.matvec(a.astype("f2"), x)
    assert seen == [
        Work(672, 672, items=7),
        Work(672, 96, items=7),
        Work(672, 672, items=7, converted=84, prepared=84),
        Work(336, 168, items=7, narrow=84),
        Work(672, 672, items=7, gathered=84, prepared=84),
        Work(672, 672, items=7, narrow=84, prepared=84),
    ]


def test_a_few_items_stay_and_many_go():
    a, x = np.ones((100, 1, 2)), np.ones(2)
    few, many = traced(gemv.matvec, a[:2], x), traced(gemv.matvec, a, x)
    assert (few.backend, many.backend) == ("host", "cuda")
    for call, count in ((few, 2), (many, 100)):
        told = gemv.explain(1, a[:count], x, routine="matvec")
        assert (told.backend, told.comparison) == (call.backend, call.comparison)
        assert str(told).endswith(f" {told.comparison}")
    for options in ({"accumulate": "wide"}, {"accumulate": "pairs"}):
        assert traced(gemv.matvec, a[:2], x, **options).backend == "cuda"
    assert traced(gemv.gemv, 1, a[:2], x, kernel="serial").kernel == "serial"
    assert np.array_equal(gemv.matvec(a, x), np.full((100, 1), 2.0))


def test_more_rows_than_scipy_takes_go_to_the_gpu():
    far = np.broadcast_to(np.zeros((1, 1), np.float32), (2**31, 1))
    told = gemv.explain(1, far, np.ones(1, np.float32))
    assert (told.backend, told.comparison) == ("cuda", None)


def test_an_own_machine_decides(tmp_path, monkeypatch):
    h200 = selection_machine.FOLDER.joinpath("nvidia-h200.toml").read_text("utf-8")
    file = tmp_path / "mine.toml"
    monkeypatch.setenv("GEMV_MACHINE", str(file))
    for text, where in (
        (h200, "host"),
        (h200.replace("gpu_start = 2.36e-4", "gpu_start = 0.0"), "cuda"),
        (without_host(h200), "host"),  # with the numbers of the reference
    ):
        file.write_text(text, "utf-8")
        memo.forget()
        assert traced(gemv.dgemv, 1.0, A, X).backend == where
    file.write_text(h200.replace("rate = 1.28e11", "rate = 0"), "utf-8")
    memo.forget()
    for call in (gemv.dgemv, gemv.explain, gemv.gemv):
        with pytest.raises(ValueError, match="^d?gemv: machine .*host: rate must be more than 0"):
            call(1.0, A, X)


def without_host(text):
    start = text.index("\n[host]")
    return text[:start] + text[text.index("\n[[row]]", start) :]


# How soon ---------------------------------------------------------------------------------------


def test_the_second_call_takes_the_short_way(long_way):
    gemv.dgemv(1.0, A, X)
    assert len(long_way) == 1 and np.ndarray in short.short_ways
    for a in (A, A.T.copy(), np.asfortranarray(A), A[:, :2], A[::2, ::2]):
        call = traced(gemv.dgemv, 1.0, a, np.ones(a.shape[1]))
        assert call.backend == "host"
        assert call.comparison == gemv.explain(1.0, a, np.ones(a.shape[1])).comparison
    assert len(long_way) == 1
    assert traced(gemv.dgemv, 1.0, A, X, kernel="serial").backend == "cuda"
    assert traced(gemv.dgemv, 1.0, A, X, coefficients="constant").backend == "cuda"
    assert traced(gemv.dgemv, 1.0, A, X, accumulate="wide").backend == "cuda"
    assert traced(gemv.dgemv, 1.0, A, X, device_memory_limit=10**6).backend == "cuda"
    gemv.use_backend("cuda")
    assert np.ndarray not in short.short_ways


def test_beyond_its_bounds_the_short_way_leaves_the_choice_to_the_long_one(monkeypatch, long_way):
    numbers = faster.numbers()._replace(rate=1e9)  # less than the link has
    monkeypatch.setattr(faster, "numbers", lambda: numbers)
    reach = faster.reach(True)
    assert 8 < reach.most_gathered < reach.most < 10**6
    side = int((reach.most / 8) ** 0.5)
    at, beyond = np.ones((side, side)), np.ones((side + 2, side))
    gathered = np.ones((side, 2 * side))[:, ::2]
    gemv.dgemv(1.0, A, X)
    long_way.clear()
    assert traced(gemv.dgemv, 1.0, at, at[0]).backend == "host"
    assert not long_way
    assert reach.most_gathered < gathered.nbytes <= reach.most
    for a in (beyond, gathered):
        assert gemv.explain(1.0, a, np.ones(a.shape[1])).backend == "cuda"
        found = short.short_ways[np.ndarray](
            "dgemv", 1.0, a, np.ones(a.shape[1]), 0, None, 0, 1, 0, 1, 0, 0, None, None, None
        )
        assert isinstance(found, type(short.UNUSUAL))
    narrow = gathered[: side // 8, : side // 8]
    assert narrow.nbytes < reach.most_gathered
    assert traced(gemv.dgemv, 1.0, narrow, np.ones(narrow.shape[1])).backend == "host"
    assert not long_way


def test_a_setting_that_changes_while_a_call_is_compared_is_heeded(monkeypatch):
    real = faster.comparison

    def changing(*arguments):
        found = real(*arguments)
        gemv.use_backend("cuda")
        return found

    monkeypatch.setattr(faster, "comparison", changing)
    gemv.dgemv(1.0, A, X)
    assert np.ndarray not in short.short_ways


def test_no_engine_is_made_for_what_stays_on_the_host(monkeypatch):
    def engine():
        raise AssertionError("the GPU was touched")

    monkeypatch.setattr(backend, "engine", engine)
    for _ in range(2):
        assert np.array_equal(gemv.dgemv(1.0, A, X), A @ X)
    assert np.array_equal(gemv.matvec(A[None], X), (A @ X)[None])
    assert gemv.explain(1.0, A, X).backend == "host"


# Commands ---------------------------------------------------------------------------------------


def test_commands_show_the_gpu(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("A", A)
    np.save("x", X)
    assert main("run --a A.npy --x x.npy -o y.npy".split()) == 0
    assert " on cuda" in capsys.readouterr().out
    assert main("run --a A.npy --x x.npy -o y.npy --backend host".split()) == 0
    assert " on host" in capsys.readouterr().out
    assert main(["info"]) == 0
    report = capsys.readouterr().out
    assert "on cuda, equal to NumPy" in report and "the faster of this GPU and" in report
    assert backend.compares()


def test_no_warning_in_any_way():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gemv.dgemv(1.0, A, X)
        gemv.matvec(A, X)
        gemv.explain(1.0, A, X)
    assert traced(gemv.dgemv, 1.0, A, X).backend == "host"


def test_a_list_counts_its_items(monkeypatch):
    seen = []

    def compared(numbers, work):
        seen.append(work)
        return Comparison("host", 0.0, 1.0)

    monkeypatch.setattr(faster, "compared", compared)
    a, x = (
        [np.zeros((4, 3)), np.zeros((2, 8)), np.zeros((0, 5))],
        [np.zeros(3), np.zeros(8), np.zeros(5)],
    )
    gemv.gemv_batched(1, a, x)
    gemv.gemv_batched(1, [a[0], np.zeros((2, 16))[:, ::2]], x[:2])
    gemv.gemv_batched(1, [each.astype("f2") for each in a], [each.astype("f2") for each in x])
    assert seen == [
        Work(224, 224, items=2, prepared=28),
        Work(224, 224, items=2, gathered=16, prepared=28),
        Work(112, 56, items=2, narrow=28, prepared=28),
    ]
    gemv.gemv_batched(1, a[2:], x[2:])
    assert len(seen) == 3, "there is nothing to compare"


def test_lists_go_to_the_faster_place_and_a_batch_stays_on_the_gpu():
    few, many = [np.ones((1, 2))] * 2, [np.ones((1, 2))] * 300
    vectors = [np.ones(2)] * 300
    call = traced(gemv.gemv_batched, 1, few, vectors[:2])
    assert (call.backend, call.comparison.chosen) == ("host", "host")
    call = traced(gemv.gemv_batched, 1, many, vectors)
    assert (call.backend, call.comparison.chosen) == ("cuda", "cuda")
    call = traced(gemv.gemv_batched, 1, few, vectors[:2], accumulate="wide")
    assert (call.backend, call.comparison) == ("cuda", None)
    call = traced(gemv.Batch(few).gemv, 1, vectors[:2])
    assert (call.backend, call.comparison) == ("cuda", None)
    (first, second) = gemv.gemv_batched(1, few, vectors[:2])
    assert first.tolist() == second.tolist() == [2.0]


#: A list, one item of which has no elements.
LIST = [np.ones(shape, np.float32) for shape in ((40, 36), (20, 20), (0, 5), (100, 36))]
VECTORS = [np.ones(a.shape[1], np.float32) for a in LIST]


def test_a_gpu_has_an_expected_time(gpu):  # noqa: F811
    backend.use_backend("cuda")
    told = gemv.explain_batched(1, LIST, VECTORS)
    assert told.backend == "cuda" and told.comparison is None
    numbers = selection_machine.machine(gpu.device()).numbers
    for each in told.launches:
        assert each.seconds > numbers.start + each.bytes_moved / numbers.memory_rate
    assert told.seconds == pytest.approx(sum(each.seconds for each in told.launches))
    assert f"{told.seconds * 1e6:.2f} us" in str(told)
    nbytes = sum(a.nbytes for a in LIST)
    assert told.transfer == f"3 matrices of {nbytes} bytes are copied to the GPU in each call"
    assert "gemv.Batch would keep them there." in str(told)
    assert gemv.Batch(LIST).explain().transfer == ""


def test_a_list_goes_to_the_faster_one():
    told = gemv.explain_batched(1, LIST, VECTORS)
    assert told.backend == told.comparison.chosen == "host"
    assert "expected to be faster than the GPU" in told.reason
    assert str(told.comparison) in str(told)
