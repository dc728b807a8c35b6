"""The stated error bounds at the ends of the range: products that underflow, sums near overflow.

A relative bound alone cannot hold where products underflow: 1e-30 times 1e-30 is 0 in float32, all
of it lost. Each kind of data here that is made for this is shown to break the bound without its
term for underflow.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from helpers.bounds import FORMATS, exact_rows, format_of_sums, in_range, ratios, wider
from helpers.problems import ALL_ROWS, Case, filled, knobs_for_tests

import gemv
from gemv.core.narrow import cast
from gemv.engines import backend
from gemv.kernels import REGISTRY

#: What selection can choose.
KERNELS = [kernel for kernel in REGISTRY.values() if not kernel.teaching]
ROWS, COLS = 5, 45


def put(case, rng, a_exponents, x_exponents):
    """Random numbers with exponents in the two ranges, of the kind of a case's arrays."""

    def numbers(shape, exponents):
        made = rng.uniform(1, 2, shape) * rng.choice([-1, 1], shape)
        return np.ldexp(made, rng.integers(*exponents, shape, endpoint=True))

    for array, exponents in ((case.a, a_exponents), (case.x, x_exponents)):
        values = numbers(array.shape, exponents)
        if case.element.kind == "c":
            values = values + 1j * numbers(array.shape, exponents)
        array[...] = cast(values, case.element)


def vanishing(case, rng):
    """Every product is a little less than what is rounded to more than zero; alpha is large."""
    sums = format_of_sums(case)
    root = math.ldexp(1 - 2.0**-8, (sums.least - sums.digits) // 2)
    number = root * (1 + 1j) if case.element.kind == "c" else root
    case.a[...], case.x[...] = (
        filled(each.shape, number, case.element) for each in (case.a, case.x)
    )
    case.alpha, case.beta = (type(case.alpha)(each) for each in (2.0**60, 0))


def gradual(case, rng):
    """Products from half the smallest number to some hundred of it, and such a y."""
    sums = format_of_sums(case)
    low = (sums.least - sums.digits) // 2
    put(case, rng, (low, low + 4), (low, low + 4))
    old = rng.integers(-99, 99, ROWS) * math.ldexp(1, sums.least - sums.digits + 1)
    case.y_of(case.y_buffer)[...] = cast(old, case.y_element)


def small_factors(case, rng):
    """Ordinary sums, and an alpha and a beta whose products with them underflow."""
    sums = format_of_sums(case)
    put(case, rng, (-9, 0), (-2, 0))
    tiny = math.ldexp(1.5, sums.least - sums.digits + 3)
    case.alpha, case.beta = (type(case.alpha)(each) for each in (tiny, -tiny / 2))


def largest(case, rng):
    """As large as the condition on overflow allows, or as the dtype of A and x does."""
    data, result = FORMATS[case.dtype], FORMATS[case.y_dtype or case.dtype]
    top = min(format_of_sums(case).most, result.most)
    a_exponent = min((top - 11) // 2, data.most - 1)
    x_exponent = min(top - 11 - a_exponent, data.most - 1)
    put(case, rng, (a_exponent - 4, a_exponent), (x_exponent, x_exponent))
    rows = exact_rows(case, case.y_of(case.y_buffer).copy())
    assert all(in_range(case, row) for row in rows)
    assert any(row.size > 2 ** (a_exponent + x_exponent) for row in rows)


def cases(data, dtype, y_dtype, accumulate):
    """The kernels that take it, each with the data in a case.

    Kernels that take both orders get one of them, in turn, unless all rows are asked for.
    """
    for k, kernel in enumerate(KERNELS):
        for order in "CF" if ALL_ROWS or kernel.wide else "CF"[k % 2]:
            case = Case(
                ROWS, COLS, dtype, order, alpha=1.5, beta=-0.5, y_dtype=y_dtype,
                accumulate=accumulate,
            )  # fmt: skip
            if kernel.accepts(case.problem) is None:
                data(case, np.random.default_rng(5))
                yield kernel, case


def errors(kernel, case):
    """In units of the bound, with what it says of underflow and without."""
    knobs = knobs_for_tests(kernel)
    y = case.y_of(case.y_buffer).copy()
    after = case.run(kernel.name, knobs)
    return tuple(
        ratios(case, after, y, kernel.name, knobs, underflow) for underflow in (True, False)
    )


#: Products of float16 do not underflow in float32, and none of single precision do in float64.
PLAIN = [("s", ""), ("d", ""), ("c", ""), ("z", ""), ("b", "s")]
UNDERFLOW = [(dtype, y_dtype, "plain") for dtype, y_dtype in PLAIN]
UNDERFLOW += [("d", "", "wide"), ("z", "", "wide"), ("s", "", "pairs"), ("c", "", "pairs")]
UNDERFLOW += [("b", "s", "pairs")]
ALL = [*UNDERFLOW, ("h", "", "plain"), ("b", "", "plain"), ("h", "s", "plain")]
ALL += [(dtype, "", "wide") for dtype in "schb"] + [("h", "", "pairs"), ("b", "", "pairs")]
#: Those whose small factors are held to the bound with and without its term for underflow.
SMALL = [*UNDERFLOW, ("h", "s", "plain")]


@pytest.mark.parametrize("dtype, y_dtype, accumulate", UNDERFLOW)
@pytest.mark.parametrize("data", [vanishing, gradual])
def test_products_that_underflow(data, dtype, y_dtype, accumulate):
    seen, without, reached = set(), 0, 0.0
    for kernel, case in cases(data, dtype, y_dtype, accumulate):
        bounded, relative = errors(kernel, case)
        assert max(bounded) <= 1, (kernel.name, case.order)
        without += max(relative) > 1
        seen.add(kernel.name)
        reached = max(reached, *bounded)
    assert seen == {kernel.name for kernel in KERNELS}
    if data is vanishing:
        assert without >= len(seen), "no product was lost"
        assert reached > 0.1, "the bound is far from what happens"
    elif accumulate == "plain":
        assert without, "a relative bound would have done"


@pytest.mark.parametrize("dtype, y_dtype, accumulate", SMALL)
def test_factors_whose_products_underflow(dtype, y_dtype, accumulate):
    without = 0
    for kernel, case in cases(small_factors, dtype, y_dtype, accumulate):
        bounded, relative = errors(kernel, case)
        assert max(bounded) <= 1, (kernel.name, case.order)
        without += max(relative) > 1
    assert without or accumulate != "plain", "a relative bound would have done"


@pytest.mark.parametrize("data, dtype, y_dtype, accumulate", [
    (data, *each)
    for data, others in ((gradual, UNDERFLOW), (small_factors, SMALL), (largest, []))
    for each in ALL if each not in others
])  # fmt: skip
def test_both_ends_of_the_range(data, dtype, y_dtype, accumulate):
    """What the two tests above have not held to the bound."""
    for kernel, case in cases(data, dtype, y_dtype, accumulate):
        assert max(errors(kernel, case)[0]) <= 1, (kernel.name, case.order)


@pytest.mark.parametrize("alpha", [1.0, 2.0**-9])
def test_sums_that_overflow_on_the_way(alpha):
    """The bound says nothing of them, though the exact result is an ordinary number."""
    case = Case(1, 3, "d", alpha=alpha)
    case.a[...], case.x[...] = [1e308, 1e308, -1e308], 1
    y = case.y_of(case.y_buffer).copy()
    (row,) = exact_rows(case, y)
    assert not in_range(case, row)
    assert case.y_of(case.run("serial"))[0] == math.inf
    case.a[...] /= 8
    (row,) = exact_rows(case, y)
    assert in_range(case, row)
    assert case.y_of(case.run("serial"))[0] == pytest.approx(alpha * 1e308 / 8)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", "scb")
def test_float64_has_room_for_sums_of_float32(kernel, dtype):
    """Sums of two float32 have the range of one, and the guide says so."""
    for order in "CF":
        for accumulate, sums in (("wide", "d"), ("pairs", "s")):
            case = Case(1, 40, dtype, order, accumulate=accumulate)
            if kernel.accepts(case.problem) is not None:
                continue
            case.a[...] = filled(case.a.shape, 2.0**127, case.element)
            case.a[0, 20:] = filled(20, -(2.0**127), case.element)
            case.a[0, -1] = filled((), 0, case.element)
            case.x[...] = filled(40, 1, case.element)
            y = case.y_of(case.y_buffer).copy()
            assert in_range(case, exact_rows(case, y)[0]) == (sums == "d")
            if sums == "d":
                assert max(errors(kernel, case)[0]) <= 1
                assert wider(case.y_of(case.run(kernel.name, knobs_for_tests(kernel))))[0] == 2**127


def test_the_square_of_a_small_number():
    """1e-30 squared is lost in float32, and 1e30 times nothing is nothing."""
    if backend.backend() == "host":
        pytest.skip("SciPy's kernels scale x first")
    tiny = np.float32(1e-30)
    got = gemv.sgemv(1e30, [[tiny]], [tiny])
    exact = Fraction(float(tiny)) ** 2 * Fraction(1e30)
    told = gemv.explain(1e30, np.array([[tiny]]), np.array([tiny]))
    smallest, unit = Fraction(1, 2**149), Fraction(1, 2**24)
    assert got[0] == 0 and told.depth == 0
    assert exact > (told.depth + 3) * unit / (1 - 3 * unit) * exact
    assert exact <= 3 * unit * exact + (Fraction(1e30) + 3) * smallest
