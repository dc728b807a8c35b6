"""Sums in twice the digits: the rounded sum and what rounding has lost, by error-free steps.

``h = a*b`` and ``fma(a, b, -h)`` are a product and its error, exactly; the six operations of
:func:`two_sum` are a sum and its error (T. J. Dekker, 1971, and D. E. Knuth's version of the sum).
Adding up the errors beside the sums gives the result as if it had been computed in twice the
precision and rounded once (T. Ogita, S. M. Rump, S. Oishi, "Accurate sum and dot product", 2005).

A compiler that fuses a product and a sum would destroy the errors. So every operation is a PTX
instruction that names its rounding, which the assembler does not change.

The two numbers are float64, or float32 on a GPU with few units for float64, where that is faster.

Kernels see none of this. Elements of A and x are *exact* numbers, whose product is a sum of two;
kernels add sums of two, and multiply them by alpha and beta, with the usual operators. A store to y
rounds the sum of the two. If that is not finite it stores the first number, an infinity or a NaN as
plain sums would give it, because the error means nothing then.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from gemv.core.dtypes import COMPLEX_PAIR, COMPLEX_TWOFOLD, PAIR, TWOFOLD


def two_sum(a: float, b: float) -> tuple[float, float]:
    """``a + b`` rounded, and the error of that."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def two_product(a: Any, b: Any) -> tuple[Any, Any]:
    """``a * b`` rounded, and the error of that, as an fma gives it."""
    if isinstance(a, np.float32):
        product = float(a) * float(b)  # all of it
        single = np.float32(product)
        return single, np.float32(product - float(single))
    high = a * b
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(high)):
        return high, math.nan
    return high, float(Fraction(a) * Fraction(b) - Fraction(high))


class Twofold:
    """The simulator's sum of two float64; compiled kernels use only the zero of sums."""

    __slots__ = ("high", "low")
    __array_ufunc__ = None  # a NumPy scalar on the left leaves the product to this class
    number: Any = float

    def __init__(self, high: Any = 0.0, low: Any = 0.0) -> None:
        self.high, self.low = self.number(high), self.number(low)

    def __add__(self, other: Twofold) -> Twofold:
        high, error = two_sum(self.high, other.high)
        return type(self)(high, self.low + other.low + error)

    def __eq__(self, number: object) -> bool:
        return self.high == number and self.low == 0

    __hash__ = None  # type: ignore[assignment]

    def __mul__(self, other: Twofold) -> Twofold:
        high, error = two_product(self.high, other.high)
        return type(self)(high, self.high * other.low + self.low * other.high + error)

    def __rmul__(self, factor: Any) -> Twofold:
        factor = self.number(factor)
        high, error = two_product(factor, self.high)
        return type(self)(high, factor * self.low + error)

    def plus_zero(self) -> Twofold:
        return type(self)(self.high + self.number(0), self.low)

    def rounded(self) -> float:
        """The sum as one float64, even if it is of two float32: a store rounds it once."""
        high, low = float(self.high), float(self.low)
        total = high + low
        return total if low and math.isfinite(self.number(total)) else high


class Pair(Twofold):
    """A sum of two float32."""

    __slots__ = ()
    number = np.float32


class ComplexTwofold:
    """The simulator's complex sum: a sum of two in each part."""

    __slots__ = ("imag", "real")
    __array_ufunc__ = None
    part: Any = Twofold

    def __init__(self, real: Twofold | None = None, imag: Twofold | None = None) -> None:
        self.real, self.imag = real or self.part(), imag or self.part()

    def __add__(self, other: ComplexTwofold) -> ComplexTwofold:
        return type(self)(self.real + other.real, self.imag + other.imag)

    def __eq__(self, number: object) -> bool:
        return self.real == number and self.imag == 0

    __hash__ = None  # type: ignore[assignment]

    def __mul__(self, other: ComplexTwofold) -> ComplexTwofold:
        return type(self)(
            self.real * other.real + -1.0 * (self.imag * other.imag),
            self.real * other.imag + self.imag * other.real,
        )

    def __rmul__(self, factor: complex) -> ComplexTwofold:
        real, imag = factor.real, factor.imag
        return type(self)(real * self.real + -imag * self.imag, real * self.imag + imag * self.real)

    def plus_zero(self) -> ComplexTwofold:
        return type(self)(self.real.plus_zero(), self.imag.plus_zero())

    def rounded(self) -> complex:
        return complex(self.real.rounded(), self.imag.rounded())


class ComplexPair(ComplexTwofold):
    """A complex sum of two float32 in each part."""

    __slots__ = ()
    part = Pair


class Exact:
    """The simulator's element of A or x; the product of two is a sum of two, without any error."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def conjugate(self) -> Exact:
        return Exact(self.value.conjugate())

    def __mul__(self, other: Exact) -> Twofold | ComplexTwofold:
        a, b = self.value, other.value
        single = isinstance(a, (np.float32, np.complex64))
        sums = Pair if single else Twofold
        if not np.iscomplexobj(a):
            return sums(*two_product(a, b))
        p, q, r, s = (
            sums(*two_product(u, v))
            for u, v in ((a.real, b.real), (-a.imag, b.imag), (a.real, b.imag), (a.imag, b.real))
        )
        return (ComplexPair if single else ComplexTwofold)(p + q, r + s)


NUMBERS: dict[np.dtype, Any] = {
    TWOFOLD: Twofold,
    COMPLEX_TWOFOLD: ComplexTwofold,
    PAIR: Pair,
    COMPLEX_PAIR: ComplexPair,
}


def zero(sums: np.dtype) -> Any:
    """The number that sums of the dtype `sums` start from."""
    return NUMBERS[sums]()


def number_of(sums: np.dtype, value: Any, exact: bool) -> Any:
    """The simulator's number for an element of an array: a factor if `exact`, else a sum."""
    kind = NUMBERS[sums]
    if issubclass(kind, ComplexTwofold):
        single = kind is ComplexPair
        value = np.complex64(value) if single else complex(value)
        return Exact(value) if exact else kind(kind.part(value.real), kind.part(value.imag))
    value = kind.number(value)
    return Exact(value) if exact else kind(value)
