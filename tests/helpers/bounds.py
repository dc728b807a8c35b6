"""The error bounds that the guide states, computed exactly; see docs/guide/accuracy.md.

With d the depth of the sums, k = c (d + 3), c = 1 for real and 3 for complex numbers, n the length
of x, T = |alpha| |op(A)| |x| + |beta| |y|, and u and s half of eps and the smallest positive number
of the dtype that is added up in:

plain sums
    k u / (1 - k u) T + c (|alpha| n + 3) s
in one number of twice the digits
    the same, with u and s of that number
in two numbers
    4 (k u)**2 T + c (|alpha| n + 3) s

and half a unit in the last place of y where sums are not of the dtype of y.
"""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from gemv.core.dtypes import DTYPES, NARROW
from gemv.core.narrow import cast
from gemv.engines import backend
from gemv.selection.select import select


class Format(NamedTuple):
    """Digits of a number, and the exponents of the smallest with all of them and of the largest."""

    digits: int
    least: int
    most: int

    @property
    def unit(self):
        """u, half of eps."""
        return Fraction(1, 2**self.digits)

    @property
    def smallest(self):
        """s, the smallest positive number."""
        return Fraction(2) ** (self.least - self.digits + 1)

    @property
    def largest(self):
        return (2 - 2 * self.unit) * Fraction(2) ** self.most

    def half_unit(self, value):
        """Half a unit in the last place of one of its numbers."""
        exponent = max(math.frexp(float(value))[1] - 1, self.least) if value else self.least
        return Fraction(2) ** (exponent - self.digits)


SINGLE, DOUBLE = Format(24, -126, 127), Format(53, -1022, 1023)
FORMATS = {"s": SINGLE, "c": SINGLE, "d": DOUBLE, "z": DOUBLE}
FORMATS |= {"h": Format(11, -14, 15), "b": Format(8, -126, 127)}


def wider(array):
    """An array of ours as one that Python's numbers can be made of."""
    return cast(array, np.dtype(np.float64)) if array.dtype in NARROW else array


def rational(value):
    """Real and imaginary part as fractions."""
    value = complex(value)
    return Fraction(value.real), Fraction(value.imag)


def times(a, b):
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def modulus(value):
    """The absolute value, to 30 digits and more: those of a float would end at its range."""
    if not value[0] or not value[1]:
        return abs(value[0]) + abs(value[1])
    square = value[0] ** 2 + value[1] ** 2
    shift = max(0, 200 - square.numerator.bit_length() + square.denominator.bit_length()) // 2
    return Fraction(math.isqrt((square.numerator << 2 * shift) // square.denominator), 1 << shift)


class Row(NamedTuple):
    """One element of the exact result, and what its bound is made of."""

    exact: tuple[Fraction, Fraction]
    products: Fraction  # |op(A)| |x|
    size: Fraction  # T


#: Binary digits that an absolute value has behind those of its complex number.
MORE = 100


class Whole(NamedTuple):
    """Numbers as whole multiples of one power of two: their sums need no common denominators."""

    real: list[int]
    imag: list[int]
    sizes: list[int]  # the absolute values, times 2**MORE
    over: int  # 1 is this many


def whole(values):
    values = [complex(value) for value in values]
    parts = [
        [part.as_integer_ratio() for part in each]
        for each in ([value.real for value in values], [value.imag for value in values])
    ]
    over = max((below for part in parts for _, below in part), default=1)
    real, imag = ([above * (over // below) for above, below in part] for part in parts)
    sizes = [
        math.isqrt((p * p + q * q) << 2 * MORE) if p and q else abs(p + q) << MORE
        for p, q in zip(real, imag, strict=True)
    ]
    return Whole(real, imag, sizes, over)


def dot(a, b):
    return sum(map(operator.mul, a, b))


def exact_rows(case, y):
    """All elements of the result, from the y that was there before."""
    alpha, beta = rational(case.alpha), rational(case.beta)
    x = whole(wider(case.x))
    rows = []
    for line, old in zip(map(whole, wider(case.op_a)), wider(y), strict=True):
        assert len(line.real) == len(x.real)
        over = line.over * x.over
        total = (
            Fraction(dot(line.real, x.real) - dot(line.imag, x.imag), over),
            Fraction(dot(line.real, x.imag) + dot(line.imag, x.real), over),
        )
        products = Fraction(dot(line.sizes, x.sizes), over << 2 * MORE)
        total, size = times(alpha, total), modulus(alpha) * products
        if case.beta != 0:
            old = rational(old)
            more = times(beta, old)
            total = total[0] + more[0], total[1] + more[1]
            size += modulus(beta) * modulus(old)
        rows.append(Row(total, products, size))
    return rows


def choice_of(case, kernel, knobs):
    """How a kernel computes a case, and the problem with the addresses that it has."""
    a, x = (each.__array_interface__["data"][0] for each in (case.a, case.x))
    problem = case.problem.at(a, x)
    return select(problem, backend.engine().device(), kernel, knobs), problem


def format_of_sums(case):
    single = case.element != DTYPES["d"] and case.element != DTYPES["z"]
    return SINGLE if single and case.accumulate != "wide" else DOUBLE


def allowed(case, row, value, depth, underflow=True):
    """The bound for one element of y, `value`; without what underflow adds to it, if asked for."""
    sums, result = format_of_sums(case), FORMATS[case.y_dtype or case.dtype]
    c = 3 if case.element.kind == "c" else 1
    rounding = c * (depth + 3) * sums.unit
    assert rounding <= Fraction(1, 8)
    in_two = case.problem.precision.sums.fields is not None
    if in_two:
        bound = 4 * rounding**2 * row.size
    else:
        bound = rounding / (1 - rounding) * row.size
    if underflow:
        bound += c * (modulus(rational(case.alpha)) * case.cols + 3) * sums.smallest
    if in_two or sums != result:
        bound += modulus([result.half_unit(part) for part in value])
    return bound


def in_range(case, row):
    """Whether no number on the way can overflow."""
    return 2 * max(row.products, row.size) <= format_of_sums(case).largest


def ratios(case, after, y, kernel, knobs, underflow=True):
    """The error of each element of y in units of the bound."""
    choice, problem = choice_of(case, kernel, knobs)
    depth = choice.kernel.depth(problem, choice.geometry, choice.knobs)
    found = []
    for value, row in zip(wider(case.y_of(after)), exact_rows(case, y), strict=True):
        assert in_range(case, row), "the bound says nothing about such data"
        if not np.isfinite(value):
            found.append(math.inf)
            continue
        value = rational(value)
        error = modulus([got - right for got, right in zip(value, row.exact, strict=True)])
        bound = allowed(case, row, value, depth, underflow)
        found.append(float(error / bound) if bound else math.inf if error else 0.0)
    return found


def worst(case, after, y, kernel, knobs):
    """The largest of them: at most 1."""
    return max(ratios(case, after, y, kernel, knobs))
