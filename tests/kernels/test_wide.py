"""``accumulate="wide"``: sums in twice the digits, held against exact ones."""

from __future__ import annotations

import functools
from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest
from helpers.arrays import LIBRARIES, MUTABLE
from helpers.bounds import FORMATS, wider, worst
from helpers.combinations import of_all
from helpers.problems import ALL_ROWS, Case, filled, knobs_for_tests, tile_of

import gemv
from gemv.calls import execute, remembered, short
from gemv.core.dtypes import (
    BFLOAT16,
    COMPLEX_PAIR,
    COMPLEX_TWOFOLD,
    DTYPES,
    PAIR,
    TWOFOLD,
    Precision,
)
from gemv.core.geometry import Device
from gemv.core.narrow import cast
from gemv.engines import backend
from gemv.kernels import REGISTRY
from gemv.selection.select import select

KERNELS = [kernel for kernel in REGISTRY.values() if not kernel.teaching]
F64 = np.dtype(np.float64)


def check(kernel, case, knobs):
    y = case.y_of(case.y_buffer).copy()
    after = case.run(kernel.name, knobs)
    ratio = worst(case, after, y, kernel.name, knobs)
    assert ratio <= 1, f"{kernel.name}: error is {ratio} bounds: {case}"
    untouched = after.copy()
    case.y_of(untouched)[...] = y
    assert untouched.tobytes() == case.y_buffer.tobytes(), f"{kernel.name} wrote beside y"
    return ratio


# Data on which plain sums lose everything --------------------------------------------------------


def cancelling(rng, shape, digits):
    """Pairs that cancel but for their last digits, far apart in the row."""
    rows, cols = shape
    a = rng.standard_normal(shape)
    half = cols // 2
    a[:, half : 2 * half] = -a[:, :half] * (1 + 2.0 ** (2 - digits) * rng.integers(-3, 4, half))
    return a


def graded(rng, shape, digits):
    """Magnitudes from large to small along the row, signs at random."""
    return rng.standard_normal(shape) * 2.0 ** np.linspace(12, -12, shape[1])


def mixed(rng, shape, digits):
    """Huge, tiny and ordinary numbers; the huge ones cancel in pairs."""
    a = rng.standard_normal(shape) * 2.0**-10
    for j in range(0, shape[1] - 1, 5):
        a[:, j], a[:, j + 1] = 2.0**12, -(2.0**12)
    return a


def tiny(rng, shape, digits):
    """Numbers near the smallest ones of their dtype."""
    least = {each.digits: each.least for each in FORMATS.values()}[digits]
    return rng.standard_normal(shape) * 2.0 ** (least + 3)


DATA = [cancelling, graded, mixed, tiny]


def case_of(kernel, dtype, order, y_dtype="", accumulate="wide"):
    tile_rows, tile_cols = tile_of(kernel)
    return Case(
        min(tile_rows + 2, 40), min(2 * tile_cols + 3, 400), dtype, order, "N", 1, alpha=1.5,
        beta=-0.5, y_dtype=y_dtype, accumulate=accumulate,
    )  # fmt: skip


@functools.cache
def has_case(kernel, dtype, order, accumulate):
    return kernel.accepts(case_of(kernel, dtype, order, "", accumulate).problem) is None


def made(kernel, dtype, data, order, y_dtype="", accumulate="wide"):
    case = case_of(kernel, dtype, order, y_dtype, accumulate)
    assert kernel.accepts(case.problem) is None
    rng = np.random.default_rng(3)
    digits = FORMATS[dtype].digits
    values = data(rng, case.a.shape, digits)
    if dtype in "cz":
        values = values + 1j * data(rng, case.a.shape, digits)
    case.a[...] = cast(values, case.element)
    if data is not tiny:
        case.x[...] = filled(case.cols, 1, case.element)
    return case


#: Every kind of data with every dtype; sums of two float32 take the steps of two float64.
SUMS = [(dtype, "wide", data) for dtype in "sdczhb" for data in DATA]
SUMS += [
    (dtype, "pairs", data)
    for dtype in "schb"
    for data in DATA
    if ALL_ROWS or data is cancelling or (dtype, data) in (("s", graded), ("s", mixed), ("b", tiny))
]


def is_summed(dtype, accumulate, data, order, kernel):
    """Unless all rows are asked for, kinds of data go round with kernels and dtypes.

    A kernel whose loads are of one number has the same loops for each dtype, and one that takes
    both orders gets them in turn.
    """
    place = DATA.index(data) + KERNELS.index(kernel)
    if kernel.wide:  # with each dtype two kinds of data, and all kinds with some of the dtypes
        in_turn = (place + "sdczhb".index(dtype)) % 3 == 0
        few = in_turn or data is cancelling or accumulate == "pairs"
    else:
        few = order == "CF"[place % 2] and dtype in "scb"
    if not (ALL_ROWS or few) or (dtype, accumulate, data) not in SUMS:
        return False
    return has_case(kernel, dtype, order, accumulate)


@of_all(
    is_summed, dtype="sdczhb", accumulate=("wide", "pairs"), data=DATA, order="CF", kernel=KERNELS
)
def test_within_the_bound(kernel, dtype, accumulate, order, data):
    case = made(kernel, dtype, data, order, accumulate=accumulate)
    check(kernel, case, knobs_for_tests(kernel))


@pytest.mark.parametrize("name", ["vector_rows", "vector_columns", "long_columns", "last_block"])
@pytest.mark.parametrize("dtype", "hb")
@pytest.mark.parametrize("accumulate", ["wide", "pairs"])
def test_narrow_data_with_y_in_float32(name, dtype, accumulate):
    kernel = REGISTRY[name]
    order = "C" if name == "vector_rows" else "F"
    case = made(kernel, dtype, cancelling, order, "s", accumulate)
    check(kernel, case, knobs_for_tests(kernel))


@pytest.mark.parametrize("dtype", "sdcz")
def test_plain_sums_are_far_outside_of_it(dtype):
    """So that the tests above can fail."""
    case = made(REGISTRY["vector_rows"], dtype, mixed, "C")
    knobs = knobs_for_tests(REGISTRY["vector_rows"])
    case.accumulate = "plain"
    y = case.y_of(case.y_buffer).copy()
    after = case.run("vector_rows", knobs)
    case.accumulate = "wide"  # whose bound they are held to
    assert worst(case, after, y, "vector_rows", knobs) > 20


@pytest.mark.parametrize("dtype, accumulate", [("s", "wide"), ("z", "wide"), ("c", "pairs")])
@pytest.mark.parametrize("op, order", [("T", "C"), ("C", "F"), ("C", "C")])
def test_transposed_and_conjugated(dtype, accumulate, op, order):
    for name in ("vector_rows", "vector_columns", "last_block"):
        case = Case(13, 21, dtype, order, op, 2, -2, 3, 1.5, 0.5, accumulate=accumulate)
        if REGISTRY[name].accepts(case.problem) is None:
            check(REGISTRY[name], case, knobs_for_tests(REGISTRY[name]))


@pytest.mark.parametrize("name", ["vector_rows", "vector_columns", "long_columns", "last_block"])
@pytest.mark.parametrize("dtype", "sdhb")
@pytest.mark.parametrize("accumulate", ["wide", "pairs"])
def test_where_twice_the_digits_are_not_finite_plain_sums_decide(name, dtype, accumulate):
    """The error of an infinite sum is NaN, and must not reach y."""
    kernel = REGISTRY[name]
    largest = {"h": 65504.0, "b": 3.3895313892515355e38}.get(dtype)
    largest = float(np.finfo(DTYPES[dtype]).max) if largest is None else largest
    rows = [
        ([largest, largest, 0], np.inf), ([-largest, -largest, 1], -np.inf),
        ([np.inf, 1, 1], np.inf), ([np.inf, -np.inf, 1], np.nan), ([np.nan, 1, 1], np.nan),
        ([-np.inf, 5, 1], -np.inf), ([largest, 0, 0], largest), ([0, 0, 0], 0),
    ]  # fmt: skip
    order = "C" if name in ("vector_rows", "last_block") else "F"
    case = Case(len(rows), 3, dtype, order, accumulate=accumulate)
    values = np.array([row for row, _ in rows])
    case.a[...] = cast(values, case.element)
    case.x[...] = filled(3, 1, case.element)
    result = wider(case.y_of(case.run(name, knobs_for_tests(kernel))))
    np.testing.assert_array_equal(result, [value for _, value in rows])


# Through the call --------------------------------------------------------------------------------


def test_precision_of_each_dtype():
    for letter, sums in zip("sdczhb", "d2z4dd", strict=True):
        wanted = {"2": TWOFOLD, "4": COMPLEX_TWOFOLD}.get(sums) or DTYPES[sums]
        assert Precision.of(DTYPES[letter], None, "wide").sums == wanted
        pairs = {"s": PAIR, "c": COMPLEX_PAIR, "h": PAIR, "b": PAIR}.get(letter, wanted)
        assert Precision.of(DTYPES[letter], None, "pairs").sums == pairs


@pytest.mark.parametrize("dtype", "sczhb")
def test_pairs_where_float64_is_slow(dtype):
    """What "wide" is, follows the GPU; what is asked for by name, does not."""
    problem = Case(9, 50, dtype, "C").problem
    for ratio, slow in ((1, False), (2, False), (32, True), (64, True)):
        wanted = "pairs" if slow and dtype != "z" else "wide"
        device = Device("any", (8, 9), 20, 0, ratio)
        for way, made_ in (("wide", wanted), ("pairs", "pairs"), ("plain", "plain")):
            for kernel in (None, "vector_rows"):
                choice = select(problem._replace(accumulate=way), device, kernel)
                assert choice.spec.accumulate == made_


@pytest.mark.parametrize("dtype", ["f", "d", "F", "D", "e", BFLOAT16], ids=str)
def test_call(dtype):
    a = cast(np.array([[2.0**7, 1, -(2.0**7)], [1, 2, 3]]), np.dtype(dtype))
    x = cast(np.ones(3), np.dtype(dtype))
    if np.dtype(dtype) == F64 or np.dtype(dtype) == np.complex128:
        a[0] = [2.0**60, 1, -(2.0**60)]
    result = gemv.gemv(1, a, x, accumulate="wide")
    assert result.dtype == a.dtype and wider(result).tolist() == [1, 6]
    told = gemv.explain(1, a, x, accumulate="wide")
    in_float64 = Precision.of(np.dtype(dtype), None, "wide").sums.fields is None
    if in_float64 and backend.engine().device().has_few_doubles:
        assert told.accumulate == "pairs"
    else:
        assert told.accumulate == "wide" and "adding up in twice the precision" in str(told)
    gemv.precompile(1, a, x, accumulate="wide")
    assert wider(gemv.gemv(1, a, x, accumulate="pairs")).tolist() == [1, 6]
    told = gemv.explain(1, a, x, accumulate="pairs")
    assert told.accumulate == "pairs" and "adding up in sums of two numbers" in str(told)


@pytest.mark.skipif(gemv.backend() == "host", reason="no device arrays")
def test_plan_and_device_arrays():
    from numba import cuda

    a, x = np.array([[2.0**60, 1, -(2.0**60)]]), np.ones(3)
    device = [cuda.to_device(each) for each in (a, x, np.zeros(1))]
    plan = gemv.plan(*device, accumulate="wide")
    for _ in range(2):
        assert plan().copy_to_host().tolist() == [1]
        wide_y = gemv.dgemv(1, *device[:2], accumulate="wide")
        assert wide_y.copy_to_host().tolist() == [1]
        assert gemv.dgemv(1, *device[:2]).copy_to_host().tolist() == [0]


ROUTINES = ("gemv", "sgemv", "dgemv", "cgemv", "zgemv")


@pytest.mark.parametrize("routine", ROUTINES)
def test_remembered_calls_are_told_apart(routine, monkeypatch):
    """The short way is asked for the one or the other, and never with options it does not know."""
    asked = []
    monkeypatch.setitem(short.short_ways, np.ndarray, lambda *call: asked.append(call[0]))
    call, a, x = getattr(gemv, routine), np.eye(2), np.ones(2)
    for accumulate in ("plain", "wide", "".join(["wi", "de"])):
        call(1, a, x, accumulate=accumulate)
    assert asked == [routine, remembered.WIDE[routine], remembered.WIDE[routine]]
    options = [{"accumulate": "narrow"}, {"accumulate": ["wide"]}, {"device_memory_limit": 1 << 20}]
    options += [{"peer": flag, "accumulate": way} for flag in (0, 1) for way in ("plain", "wide")]
    if routine == "gemv":
        options += [{"out_dtype": "float64", "accumulate": way} for way in ("plain", "wide")]
    for others in options:
        with suppress(TypeError, ValueError):
            call(1, a, x, **others)
    assert len(asked) == 3


@pytest.mark.gpu
@pytest.mark.parametrize("library", MUTABLE)
@pytest.mark.parametrize("dtype", ["f", "d", "F"])
def test_wide_calls_are_remembered(library, dtype, monkeypatch):
    """From the second one on without a check, with the sums that were asked for, in any order."""
    library, rng = LIBRARIES[library](), np.random.default_rng(4)
    a, x, y = (library.array(rng.random(s).astype(dtype)) for s in ((7, 5000), 5000, 7))

    def bits(options):
        made = gemv.gemv(1.5, a, x, **options)
        gemv.gemv(1.5, a, x, 0.0, y, overwrite_y=1, **options)
        assert library.host(y).tobytes() == library.host(made).tobytes()
        return library.host(made).tobytes()

    ways = [{}, {"accumulate": "wide"}]
    first = [bits(way) for way in ways]
    assert first[0] != first[1]

    def checked(*arguments, **keywords):
        raise AssertionError("a call that was made before went the long way")

    monkeypatch.setattr(execute, "bind", checked)
    for way, wanted in 3 * list(zip(ways, first, strict=True)):
        assert bits(way) == wanted


def test_bad_value():
    for wrong, error in (("narrow", ValueError), (None, TypeError), (2, TypeError)):
        for call in (gemv.gemv, gemv.sgemv, gemv.explain):
            with pytest.raises(
                error, match="accumulate must be one of 'plain', 'wide', 'pairs', got"
            ):
                call(1, np.eye(2), np.ones(2), accumulate=wrong)


def test_host_backend():
    a = np.array([[2.0**30, 1, -(2.0**30)]], "f")
    try:
        gemv.use_backend("host")
        assert gemv.gemv(1, a, np.ones(3, "f"), accumulate="wide").tolist() == [1]
        with pytest.raises(ValueError, match="dgemv: accumulate='wide' in float64 needs a GPU"):
            gemv.dgemv(1, a, np.ones(3), accumulate="wide")
        with pytest.raises(ValueError, match="accumulate='pairs' in float32 needs a GPU"):
            gemv.gemv(1, a, np.ones(3, "f"), accumulate="pairs")
    finally:
        gemv.use_backend(None)


def test_simulated_steps_are_error_free():
    from gemv.language.twofold import two_product, two_sum

    rng = np.random.default_rng(0)
    for a, b in rng.standard_normal((200, 2)) * 2.0 ** rng.integers(-40, 40, (200, 2)):
        assert sum(map(Fraction, two_sum(a, b))) == Fraction(a) + Fraction(b)
        assert sum(map(Fraction, two_product(a, b))) == Fraction(a) * Fraction(b)
        a, b = map(np.float32, (a, b))
        for pair, exact in (
            (two_sum(a, b), Fraction(float(a)) + Fraction(float(b))),
            (two_product(a, b), Fraction(float(a)) * Fraction(float(b))),
        ):
            assert all(type(each) is np.float32 for each in pair)
            assert sum(Fraction(float(each)) for each in pair) == exact


if backend.backend() == "simulator":

    @pytest.mark.parametrize("name", ["vector_rows", "vector_columns", "last_block"])
    def test_same_bits_under_every_schedule(name):
        from gemv.language.simulator.scheduler import Schedule, scheduled

        kernel = REGISTRY[name]
        results, random = set(), [Schedule("random", seed) for seed in range(3)]
        for schedule in [Schedule("reversed", late=True), *random]:
            case = made(kernel, "z", cancelling, "F" if name == "vector_columns" else "C")
            with scheduled(schedule):
                results.add(case.run(name, knobs_for_tests(kernel)).tobytes())
        assert len(results) == 1
