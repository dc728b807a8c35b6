"""Rules and error texts, with plain numbers and no array in sight."""

from __future__ import annotations

import decimal
import fractions

import numpy as np
import pytest

from gemv.core import rules
from gemv.core.rules import check_arguments

F64 = np.dtype(np.float64)
C64 = np.dtype(np.complex64)


def problem(m=2, n=3, strides=None, dtype=F64, x_len=9, y_len=9, **rest):
    strides = (n, 1) if strides is None else strides
    return check_arguments("sgemv", dtype, (m, n), strides, x_len, 1, y_len, 1, **rest)


def test_fold_plain():
    p = problem()
    assert (p.m, p.n, p.rows, p.cols, p.trans, p.conj) == (2, 3, 2, 3, 0, False)
    assert (p.row_stride, p.col_stride, p.incx, p.incy, p.x_offset, p.y_offset) == (
        3, 1, 1, 1, 0, 0,
    )  # fmt: skip
    assert p.access == "dot"


@pytest.mark.parametrize("trans", [1, 2])
def test_fold_transposed(trans):
    p = problem(trans=trans)
    assert (p.rows, p.cols, p.row_stride, p.col_stride) == (3, 2, 1, 3)
    assert p.access == "axpy"


@pytest.mark.parametrize(
    ("dtype", "trans", "conj"),
    [(C64, 0, False), (C64, 1, False), (C64, 2, True), (F64, 2, False)],
)
def test_fold_conj(dtype, trans, conj):
    assert problem(dtype=dtype, trans=trans).conj is conj


def test_fold_negative_increment_starts_at_far_end():
    p = problem(incx=-2, offx=1, incy=-3, offy=2, x_len=6, y_len=6)
    assert (p.incx, p.x_offset) == (-2, 1 + 2 * 2)
    assert (p.incy, p.y_offset) == (-3, 2 + 3)


def test_fold_strides_of_the_arrays():
    p = check_arguments("g", F64, (2, 3), (-7, 0), 6, -4, 6, 5, offx=1, incx=2, offy=3, incy=-2)
    assert (p.row_stride, p.col_stride) == (-7, 0)
    assert (p.incx, p.x_offset) == (-8, -4)
    assert (p.incy, p.y_offset) == (-10, 25)


def test_increment_of_a_single_element_is_never_used():
    p = problem(m=1, n=1, incx=-(2**70), incy=2**70, offx=4)
    assert (p.incx, p.incy, p.x_offset, p.y_offset) == (1, 1, 4, 0)


@pytest.mark.parametrize(("rows", "offy", "incy", "length"), [(2, 0, 1, 2), (3, 2, -4, 11)])
def test_y_length(rows, offy, incy, length):
    assert rules.y_length(rows, offy, incy) == length
    problem(m=rows, y_len=None, offy=offy, incy=incy)


@pytest.mark.parametrize("length", [3, 4, 100])
def test_longer_vectors_accepted(length):
    assert problem(x_len=length).cols == 3


TEXTS = [
    (
        dict(x_len=8, incx=3, offx=2),
        "sgemv: x is too short: offx + 1 + (cols - 1)*|incx| = 9 elements are needed,"
        " len(x) = 8 (failed for 3rd argument x)",
    ),
    (
        dict(x_len=8, incx=-3, offx=2),
        "sgemv: x is too short: offx + 1 + (cols - 1)*|incx| = 9 elements are needed,"
        " len(x) = 8 (failed for 3rd argument x)",
    ),
    (
        dict(x_len=2, trans=1, m=4),
        "sgemv: x is too short: offx + 1 + (cols - 1)*|incx| = 4 elements are needed,"
        " len(x) = 2 (failed for 3rd argument x)",
    ),
    (
        dict(incx=2**30, x_len=3),
        "sgemv: x is too short: offx + 1 + (cols - 1)*|incx| = 2147483649 elements are"
        " needed, len(x) = 3 (failed for 3rd argument x)",
    ),
    (
        dict(incx=-(2**62), x_len=3),
        f"sgemv: x is too short: offx + 1 + (cols - 1)*|incx| = {2**63 + 1} elements are"
        " needed, len(x) = 3 (failed for 3rd argument x)",
    ),
    (
        dict(y_len=4, incy=-3, offy=1),
        "sgemv: y is too short: offy + 1 + (rows - 1)*|incy| = 5 elements are needed,"
        " len(y) = 4 (failed for 2nd keyword y)",
    ),
    (
        dict(offx=-1),
        "sgemv: offx must not be negative, got offx = -1 (failed for 3rd argument x)",
    ),
    (
        dict(offy=-2),
        "sgemv: offy must not be negative, got offy = -2 (failed for 2nd keyword y)",
    ),
    (
        dict(offy=-2, y_len=None),
        "sgemv: offy must not be negative, got offy = -2 (failed for 2nd keyword y)",
    ),
    (
        dict(n=0, x_len=0),
        "sgemv: offx must be smaller than len(x), got offx = 0, len(x) = 0"
        " (failed for 3rd argument x)",
    ),
    (
        dict(m=0, y_len=2, offy=2),
        "sgemv: offy must be smaller than len(y), got offy = 2, len(y) = 2"
        " (failed for 2nd keyword y)",
    ),
    (
        dict(m=0, y_len=None, offy=1, incy=-2),
        "sgemv: y must be passed when rows = 0: the y made by default would have"
        " 1 + offy + (rows - 1)*|incy| = 0 elements, none of them at offy = 1"
        " (failed for 2nd keyword y)",
    ),
    (dict(incx=0), "sgemv: incx must not be zero, got incx = 0 (failed for 4th keyword incx)"),
    (dict(incy=0), "sgemv: incy must not be zero, got incy = 0 (failed for 6th keyword incy)"),
]


@pytest.mark.parametrize(("arguments", "text"), TEXTS)
def test_error_text(arguments, text):
    with pytest.raises(ValueError) as caught:
        problem(**arguments)
    assert str(caught.value) == text


def test_first_rule_broken_is_the_one_reported():
    # SciPy's order: increments, then x, then y.
    with pytest.raises(ValueError, match="4th keyword incx"):
        problem(incx=0, incy=0, offx=-1, offy=-1)
    with pytest.raises(ValueError, match="6th keyword incy"):
        problem(incy=0, offx=-1)
    with pytest.raises(ValueError, match="3rd argument x"):
        problem(offx=-1, offy=-1)


@pytest.mark.parametrize(
    "value", [3, np.int8(3), np.uint64(3), np.array(3), fractions.Fraction(6, 2).numerator]
)
def test_integer_accepted(value):
    assert rules.integer("sgemv", "incx", value) == 3
    assert type(rules.integer("sgemv", "incx", value)) is int


@pytest.mark.parametrize("value", [True, np.True_])
def test_integer_accepts_bool(value):
    assert rules.integer("sgemv", "incx", value) == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.0, "float 1.0"),
        (float("nan"), "float nan"),
        ("1", "str '1'"),
        (None, "None"),
        (1j, "complex 1j"),
        ([1], "list [1]"),
        (np.float64(1), "numpy.float64"),
        (np.array([1]), "numpy.ndarray"),
        (decimal.Decimal(1), "decimal.Decimal Decimal('1')"),
    ],
)
def test_integer_refused(value, shown):
    with pytest.raises(TypeError) as caught:
        rules.integer("zgemv", "offy", value)
    text = str(caught.value)
    assert text.startswith(f"zgemv: offy must be an integer, got {shown}")
    assert text.endswith("(failed for 5th keyword offy)")


@pytest.mark.parametrize(
    ("value", "code"),
    [(0, 0), (1, 1), (2, 2), (True, 1), ("N", 0), ("n", 0), ("T", 1), ("t", 1), ("C", 2),
     ("c", 2), (np.str_("T"), 1), (np.int16(2), 2)],
)  # fmt: skip
def test_trans_accepted(value, code):
    assert rules.transposition("sgemv", value) == code


@pytest.mark.parametrize("value", [3, -1, "H", "", "NT", 2**70])
def test_trans_refused(value):
    with pytest.raises(ValueError) as caught:
        rules.transposition("sgemv", value)
    text = str(caught.value)
    assert text.startswith("sgemv: trans must be 0 or 'N'")
    assert f"got {value!r} (failed for 7th keyword trans)" in text


@pytest.mark.parametrize("value", [None, 0.0, b"T", [0]])
def test_trans_wrong_kind(value):
    with pytest.raises(TypeError, match=r"sgemv: trans must be an integer.*7th keyword trans"):
        rules.transposition("sgemv", value)


def name_of(value):
    """A test id without the address of an object: every process must find the same ids."""
    return type(value).__name__ if " at 0x" in repr(value) else repr(value)


class HasFloat:
    def __float__(self):
        return 2.0


class HasComplex:
    def __complex__(self):
        return 2j


class HasIndex:
    def __index__(self):
        return 2


class ComplexInDisguise(HasComplex):
    def __float__(self):
        raise TypeError("not real")


class ComplexTensor(HasComplex):
    def __float__(self):
        raise RuntimeError("value cannot be converted to type double without overflow")


class SeveralNumbers:
    def __float__(self):
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")

    __complex__ = __index__ = __float__


REAL_TWO = [
    2,
    2.0,
    np.float32(2),
    np.longdouble(2),
    np.array(2),
    np.array([2]),
    np.array([[2.0]]),
    np.array(2, object),
    fractions.Fraction(2),
    decimal.Decimal(2),
    HasFloat(),
    HasIndex(),
    np.uint8(2),
]


@pytest.mark.parametrize("value", REAL_TWO, ids=name_of)
@pytest.mark.parametrize("dtype", "fdFD")
def test_coefficient_real(value, dtype):
    got = rules.coefficient("gemv", "alpha", value, np.dtype(dtype))
    assert got == 2 and got.dtype == dtype and isinstance(got, np.generic)


@pytest.mark.parametrize(
    "value",
    [2j, np.complex64(2j), np.array(2j), HasComplex(), ComplexInDisguise(), ComplexTensor()],
    ids=name_of,
)
def test_coefficient_complex(value):
    for dtype in "FD":
        got = rules.coefficient("gemv", "beta", value, np.dtype(dtype))
        assert got == 2j and got.dtype == dtype
    with pytest.raises(TypeError) as caught:
        rules.coefficient("dgemv", "beta", value, F64)
    text = str(caught.value)
    assert text.startswith("dgemv: beta = ") and "2j is complex" in text.replace(")", "")
    assert text.endswith("(failed for 1st keyword beta)")


def test_coefficient_of_several_numbers():
    with pytest.raises(TypeError, match="gemv: alpha must be a number.*1st argument alpha"):
        rules.coefficient("gemv", "alpha", SeveralNumbers(), F64)


def test_coefficient_complex_type_refused_whatever_its_value():
    with pytest.raises(TypeError, match="imaginary part.*1st argument alpha"):
        rules.coefficient("sgemv", "alpha", 1 + 0j, np.dtype(np.float32))


def test_coefficient_overflows_to_infinity_quietly():
    assert rules.coefficient("sgemv", "alpha", 1e300, np.dtype("f")) == np.inf
    assert rules.coefficient("sgemv", "alpha", -1e300, np.dtype("f")) == -np.inf
    assert rules.coefficient("cgemv", "alpha", 1e300, C64).real == np.inf
    assert np.isnan(rules.coefficient("sgemv", "alpha", float("nan"), np.dtype("f")))


def test_coefficient_keeps_the_sign_of_zero():
    assert np.signbit(rules.coefficient("sgemv", "beta", -0.0, np.dtype("f")))


@pytest.mark.parametrize("dtype", "fdFD")
def test_coefficient_integer_too_large(dtype):
    with pytest.raises(ValueError, match="gemv: alpha does not fit .*1st argument alpha"):
        rules.coefficient("gemv", "alpha", 10**400, np.dtype(dtype))


@pytest.mark.parametrize(
    "value",
    [
        None,
        "1",
        b"1",
        [1],
        [],
        {1},
        np.array([1, 2]),
        np.array([]),
        np.array("1"),
        np.array(None),
        np.datetime64(1, "s"),
        np.timedelta64(1, "s"),
        np.ma.array([1.0], mask=[True]),
        np.ma.masked,
        object(),
    ],
    ids=name_of,
)
def test_coefficient_refused(value):
    with pytest.raises(TypeError) as caught:
        rules.coefficient("zgemv", "alpha", value, np.dtype("D"))
    text = str(caught.value)
    assert text.startswith("zgemv: alpha must be ")
    assert text.endswith("(failed for 1st argument alpha)")
