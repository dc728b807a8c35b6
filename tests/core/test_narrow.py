"""float16 and bfloat16: host conversions, and calls with arrays of either."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.arrays import LIBRARIES
from helpers.exporters import Export

import gemv
from gemv.core.dtypes import BFLOAT16, DTYPES, NARROW, Precision
from gemv.core.narrow import cast
from gemv.measure.reference import error_in_bounds, reference

F16, F32, F64 = (np.dtype(f"f{size}") for size in (2, 4, 8))
BY_DTYPE = pytest.mark.parametrize("dtype", NARROW, ids=["float16", "bfloat16"])
ON_SIMULATOR = pytest.mark.skipif(
    gemv.backend() != "simulator", reason="a stand-in's memory is the host's"
)


# Conversions on the host -----------------------------------------------------------------------


def all_bfloat16():
    """The finite ones, in order, with their values."""
    bits = np.arange(0x7F80, dtype=np.uint16).view(BFLOAT16)
    return bits, cast(bits, F64)


def test_every_bfloat16_survives():
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    for wide in (F32, F64):
        back = cast(cast(bits.view(BFLOAT16), wide), BFLOAT16).view(np.uint16)
        nan = np.isnan(cast(bits.view(BFLOAT16), wide))
        np.testing.assert_array_equal(back[~nan], bits[~nan])
        assert np.isnan(cast(back[nan].view(BFLOAT16), wide)).all()


def test_bfloat16_by_hand():
    values = np.array([1, -2, 0.15625, 3.3895313892515355e38, 2.0**-133, np.inf, 0.0, -0.0], "f")
    expected = [0x3F80, 0xC000, 0x3E20, 0x7F7F, 1, 0x7F80, 0, 0x8000]
    assert cast(values, BFLOAT16).view(np.uint16).tolist() == expected


@pytest.mark.parametrize("wide", [F32, F64], ids=str)
def test_bfloat16_is_rounded_to_nearest_even(wide):
    """At every tie between neighbours, and at the next number on each side of it."""
    bits, values = all_bfloat16()
    ties = (values[:-1] + values[1:]) / 2
    even = np.where(bits.view(np.uint16)[:-1] % 2 == 0, values[:-1], values[1:])
    ties = ties.astype(wide)
    for sign in (1, -1):
        np.testing.assert_array_equal(cast(cast(sign * ties, BFLOAT16), F64), sign * even)
        below = np.nextafter(ties, wide.type(0))
        np.testing.assert_array_equal(cast(cast(sign * below, BFLOAT16), F64), sign * values[:-1])
        above = np.nextafter(ties, wide.type(np.inf))
        np.testing.assert_array_equal(cast(cast(sign * above, BFLOAT16), F64), sign * values[1:])


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF])
def test_a_nan_stays_one_whatever_its_bits(bits):
    """Rounded like a number, the first becomes an infinity and the second a zero."""
    nan = np.array([bits], np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):  # of the conversion that makes it a quiet one
        wide = nan.astype(np.float64)
    for values in (nan, wide):
        assert np.isnan(cast(cast(values, BFLOAT16), np.dtype("f")))[0]


def test_bfloat16_overflows_to_infinity_past_half_a_unit():
    largest = 3.3895313892515355e38
    half = 2.0**119
    values = np.array([largest + half * (1 - 2**-40), largest + half, 1e300, np.inf])
    expected = [largest, np.inf, np.inf, np.inf]
    assert cast(cast(values, BFLOAT16), F64).tolist() == expected


def test_precision_of_each_dtype():
    for letter, dtype in DTYPES.items():
        computed = DTYPES["s"] if letter in "hb" else dtype
        assert Precision.of(dtype) == Precision(dtype, dtype, computed, computed)
    assert Precision.of(BFLOAT16, F32) == Precision(BFLOAT16, F32, F32, F32)


@BY_DTYPE
def test_the_bound_counts_one_rounding_to_the_narrow_dtype(dtype):
    digits = {F16: 11, BFLOAT16: 8}[dtype]
    exact = np.array([1.0 + 2.0**-digits])  # half way to the next number
    magnitude = exact.copy()
    for narrow in (1.0, 1.0 + 2.0 ** (1 - digits)):
        assert error_in_bounds(cast([narrow], dtype), exact, magnitude, 5, 1) <= 1
    assert error_in_bounds(cast([1.0 + 2.0 ** (2 - digits)], dtype), exact, magnitude, 5, 1) > 2
    assert error_in_bounds(cast([np.nan], dtype), exact, magnitude, 5, 1) == math.inf


# Calls with host arrays ------------------------------------------------------------------------


def operands(dtype, m=9, n=37):
    rng = np.random.default_rng(7)
    a, x, y = (cast(rng.standard_normal(shape), dtype) for shape in ((m, n), n, m))
    return a, x, y


def judge(result, alpha, a, x, beta, y):
    exact, magnitude = reference(alpha, a, x, beta, y)
    assert error_in_bounds(result, exact, magnitude, x.size, alpha) <= 1


@BY_DTYPE
@pytest.mark.parametrize("order", "CF")
def test_host_arrays(dtype, order):
    a, x, y = operands(dtype)
    a = np.asarray(a, order=order)
    result = gemv.gemv(1.5, a, x)
    assert result.dtype == dtype and result.shape == (9,)
    judge(result, 1.5, a, x, 0, None)
    before = y.copy()
    result = gemv.gemv(1.5, a, x, -0.5, y)
    assert result.dtype == dtype and not np.shares_memory(result, y)
    judge(result, 1.5, a, x, -0.5, before)
    assert gemv.gemv(1.5, a, x, -0.5, y, overwrite_y=1) is y
    assert y.tobytes() == result.tobytes()
    turned = gemv.gemv(1, a, before, trans="T")
    judge(turned, 1, a.T, before, 0, None)


@BY_DTYPE
def test_y_may_be_float32(dtype):
    a, x, y = operands(dtype)
    y = cast(y, F32)
    result = gemv.gemv(2, a, x, -1, y)
    assert result.dtype == F32
    judge(result, 2, a, x, -1, y)
    made = gemv.gemv(2, a, x, out_dtype=np.float32)
    assert made.dtype == F32
    judge(made, 2, a, x, 0, None)
    same = gemv.gemv(2, a, x, out_dtype="bfloat16" if dtype == BFLOAT16 else "float16")
    assert same.dtype == dtype


@BY_DTYPE
def test_increments_and_offsets(dtype):
    a, x, _ = operands(dtype, 3, 5)
    spread = np.repeat(x, 2)
    y = cast(np.arange(12.0), dtype)
    result = gemv.gemv(1, a, spread, 1, y, 1, 2, 2, -3)
    expected = cast(y, F64)
    expected[2:9:3] += cast(a, F64)[::-1] @ cast(x, F64)
    np.testing.assert_allclose(cast(result, F64), expected, atol=0.05)
    untouched = np.delete(np.arange(12), [2, 5, 8])
    assert result[untouched].tobytes() == y[untouched].tobytes()


def test_other_mixtures_are_computed_in_the_common_dtype():
    half, single, double = (np.ones((2, 2), f"f{size}") for size in (2, 4, 8))
    short = cast(single, BFLOAT16)
    for a, x, y, expected in (
        (half, single[0], None, F32), (single, half[0], None, F32), (half, double[0], None, F64),
        (half, half[0], double[0], F64), (half, short[0], None, F32), (short, half[0], None, F32),
        (short, single[0], half[0], F32), (half, np.ones(2, "i1"), None, F32),
        (short, [1, 1], None, F64),
    ):  # fmt: skip
        result = gemv.gemv(1, a, x, 0 if y is None else 1, y)
        assert result.dtype == expected
        assert result.tolist() == [2, 2] if y is None else [3, 3]
    assert gemv.gemv(1j, half, half[0]).dtype == np.complex64
    assert gemv.sgemv(1, short, short[0], 1, short[0]).tolist() == [3, 3]


@BY_DTYPE
def test_out_dtype_that_is_neither(dtype):
    a, x, y = operands(dtype)
    for wrong in ("float64", np.complex64, "f7", int):
        with pytest.raises(TypeError, match="gemv: out_dtype must be .* or float32"):
            gemv.gemv(1, a, x, out_dtype=wrong)
    with pytest.raises(TypeError, match="which decides, but out_dtype is 'float32'"):
        gemv.gemv(1, a, x, 1, y, out_dtype="float32")
    for wrong in ("float32", "f7", [1], object()):
        with pytest.raises(TypeError, match="out_dtype must be float64, the dtype computed in"):
            gemv.gemv(1, np.eye(2), np.ones(2), out_dtype=wrong)


@BY_DTYPE
def test_overflow_is_infinite_and_nan_stays(dtype):
    largest = 65504.0 if dtype == F16 else 3.3895313892515355e38
    a = cast([[largest, largest], [-largest, -largest], [np.nan, 0], [1, 2]], dtype)
    result = gemv.gemv(1, a, cast([1, 1], dtype))
    np.testing.assert_array_equal(cast(result, F64), [np.inf, -np.inf, np.nan, 3])


@BY_DTYPE
def test_explain_names_the_dtype_and_counts_its_bytes(dtype):
    a, x, _ = operands(dtype)
    told = gemv.explain(1, a, x)
    assert told.routine == {F16: "hgemv", BFLOAT16: "bgemv"}[dtype]
    assert told.bytes_moved == 2 * (9 * 37 + 37 + 9)
    assert gemv.explain(1, a, x, out_dtype="f4").bytes_moved == 2 * (9 * 37 + 37) + 4 * 9
    gemv.precompile(1, a, x, out_dtype="float32")


@BY_DTYPE
def test_coefficients_in_constant_memory_are_float32(dtype):
    a, x, y = operands(dtype)
    third = 1 / 3  # 24 digits of it, not 8 or 11
    plain = gemv.gemv(third, a, x, third, y, out_dtype=None)
    assert gemv.gemv(third, a, x, third, y, coefficients="constant").tobytes() == plain.tobytes()
    judge(plain, np.float32(third), a, x, np.float32(third), y)


@pytest.fixture
def rounding(request, monkeypatch):
    """By the instruction, or compiled as for a GPU that has none for bfloat16."""
    if not request.param:
        yield False
        return
    from gemv.engines.binaries import binaries
    from gemv.language.numba_cuda import ptx

    monkeypatch.setattr(ptx, "ROUNDS_TO_BFLOAT16", (99, 0))
    monkeypatch.setenv("GEMV_CACHE", "0")
    monkeypatch.setattr(gemv.engines.backend.engine().functions, "loaded", {})
    binaries.cache_clear()
    yield True
    binaries.cache_clear()  # for nobody else


@pytest.mark.parametrize("dtype", [BFLOAT16, np.dtype(np.float16)], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize(
    "rounding", [False, pytest.param(True, marks=pytest.mark.gpu)], indirect=True
)
def test_every_number_is_rounded_as_on_the_host(dtype, order, rounding):
    step = 1 if gemv.backend() == "cuda" else 197
    # another length, for which no call is remembered
    patterns = np.arange(0, 65536, step, dtype=np.uint16)[: -3 if rounding else None]
    a, x = patterns.view(dtype), cast(np.ones(1, "f"), dtype)
    for alpha in (1.0, 1.00390625, -0.3, 3e-39, 1e30):
        y = gemv.gemv(alpha, np.asarray(a[:, np.newaxis], order=order), x)
        with np.errstate(all="ignore"):
            product = np.float32(alpha) * cast(a, F32)
        expected = cast(np.where(product == 0, np.float32(0), product), dtype)
        nan = np.isnan(product)
        assert np.isnan(cast(y, F32)[nan]).all()
        assert y[~nan].tobytes() == expected[~nan].tobytes()


def test_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    a, x, y = (each.view(ml_dtypes.bfloat16) for each in operands(BFLOAT16))
    result = gemv.gemv(1, a, x, 1, y)
    assert result.dtype == ml_dtypes.bfloat16
    judge(result.view(BFLOAT16), 1, *(each.view(BFLOAT16) for each in (a, x)), 1, y.view(BFLOAT16))
    assert gemv.gemv(1, a, x, 1, y, overwrite_y=1) is y
    assert gemv.gemv(1, a, x, out_dtype=ml_dtypes.bfloat16).dtype == ml_dtypes.bfloat16


# Device arrays ---------------------------------------------------------------------------------


def exported(array):
    """A stand-in for somebody's device array, as DLPack describes it."""
    if array.dtype == BFLOAT16:
        return Export(array.view(np.uint16), code=4)
    return Export(array)


@ON_SIMULATOR
@BY_DTYPE
def test_exported_arrays(dtype):
    a, x, y = operands(dtype)
    expected = gemv.gemv(2, a, x, 0.5, y)
    result = gemv.gemv(2, exported(a), exported(x), 0.5, exported(y)).copy_to_host()
    assert result.tobytes() == expected.tobytes()
    target = exported(y)
    assert gemv.gemv(2, exported(a), exported(x), 0.5, target, overwrite_y=1) is target
    assert y.tobytes() == expected.tobytes()
    single = gemv.gemv(2, exported(a), exported(x), 1, exported(np.ones(9, "f"))).copy_to_host()
    judge(single, 2, a, x, 1, np.ones(9, "f"))
    made = gemv.plan(exported(a), exported(x), out_dtype="float32")(2).copy_to_host()
    assert made.dtype == F32
    judge(made, 2, a, x, 0, None)


@ON_SIMULATOR
@BY_DTYPE
def test_device_dtypes_that_do_not_go_together(dtype):
    a, x, y = operands(dtype)
    name = "bfloat16" if dtype == BFLOAT16 else "float16"
    single, double = np.ones(9, "f"), np.ones(9)
    single_a, single_x = exported(cast(a, F32)), exported(cast(x, F32))
    for arguments, text in (
        ((1, exported(a), single_x), f"a has dtype {name} but x has dtype float32"),
        ((1, exported(a), exported(x), 1, exported(double)), f"{name} but y has dtype float64"),
        ((1, single_a, single_x, 1, exported(y)), f"y has dtype {name}"),
        ((exported(y[0:1].reshape(())), exported(a), exported(x)), "needs alpha as float32"),
    ):
        with pytest.raises(TypeError, match=text):
            gemv.gemv(*arguments)
    with pytest.raises(TypeError, match=f"a has dtype {name} but sgemv computes in float32"):
        gemv.sgemv(1, exported(a), exported(x), 1, exported(single))
    factor = Export(np.array(2, "f"))
    result = gemv.gemv(factor, exported(a), exported(x)).copy_to_host()
    assert result.tobytes() == gemv.gemv(2, a, x).tobytes()


@pytest.mark.gpu
@BY_DTYPE
@pytest.mark.parametrize("name", ["torch", "jax", "cupy"])
@pytest.mark.parametrize(("m", "n"), [(9, 37), (1000, 3000), (3, 200001)])
def test_arrays_of_libraries(dtype, name, m, n):
    library = LIBRARIES[name]()
    if name == "cupy" and dtype == BFLOAT16:
        pytest.skip("the arrays of CuPy are not made in bfloat16 here")

    def device(array):
        if array.dtype != BFLOAT16:
            return library.array(array)
        return as_bfloat16(library, library.array(cast(array, F32)))

    def host(array):
        if "bfloat16" in str(array.dtype):
            array = in_float32(library, array)
            return cast(library.host(array), BFLOAT16)
        return library.host(array)

    a, x, y = operands(dtype, m, n)
    da, dx, dy = device(a), device(x), device(y)
    for _ in range(2):  # the first call and a remembered one
        result = gemv.gemv(2, da, dx, 0.5, dy)
        assert library.is_mine(result) and result.dtype == da.dtype
        judge(host(result), 2, a, x, 0.5, y)
        judge(host(gemv.gemv(2, da, dx)), 2, a, x, 0, None)
        single = gemv.gemv(2, da, dx, out_dtype="float32")
        assert library.is_mine(single) and "float32" in str(single.dtype)
        judge(host(single), 2, a, x, 0, None)
        judge(host(gemv.gemv(2, da, dy, trans="T")), 2, a.T, y, 0, None)
        if name != "jax":
            target = device(np.ones(m, "f"))
            assert gemv.gemv(2, da, dx, 1, target, overwrite_y=1) is target
            judge(host(target), 2, a, x, 1, np.ones(m, "f"))
            target = device(y)
            assert gemv.gemv(2, da, dx, 1, target, overwrite_y=1) is target
            judge(host(target), 2, a, x, 1, y)
            plan = gemv.plan(da, dx, device(y))
            judge(host(plan(2, 0.5)), 2, a, x, 0.5, y)


def as_bfloat16(library, array):
    return array.bfloat16() if library.name == "torch" else array.astype("bfloat16")


def in_float32(library, array):
    return array.float() if library.name == "torch" else array.astype("float32")


def test_8_bits_of_ml_dtypes_are_refused():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    a, x = np.ones((2, 3), ml_dtypes.float8_e5m2), np.ones(3, ml_dtypes.float8_e5m2)
    for call in (
        lambda: gemv.gemv(1, a, x),
        lambda: gemv.matvec(a, x),
        lambda: gemv.gemv_batched(1, [a], [x]),
        lambda: gemv.Batch([a]),
    ):
        with pytest.raises(TypeError, match="float8_e5m2, in which nothing is computed"):
            call()
    assert gemv.gemv(1, a, x.astype(np.float32)).tolist() == [3.0, 3.0]
