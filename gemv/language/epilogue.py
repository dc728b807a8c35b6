"""The end of every kernel: y := alpha*op(A)*x + beta*y, by the rules of reference BLAS.

Every kernel computes y by these functions; only the teaching kernel with atomics adds to it as
well. Their roundings are the same in all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gemv.language.vocabulary import device, plus_zero, store, times


@device
def product_of(alpha, total):
    """``alpha * total``, where a zero is positive, also as a part of a complex number.

    BLAS adds the product to a y that it has set to zero. And where all products of a sum underflow,
    the sign of `total` depends on whether a load went past the end of a line: it brings zeros, and
    -0 + 0 is +0. So y does not depend on it.
    """
    return plus_zero(times(alpha, total))


@device
def scaled(alpha, total):
    """The new y where beta = 0. For alpha = 0 it is `total`, the sum of no products then."""
    if alpha == 0:
        return total
    return product_of(alpha, total)


@device
def blended(alpha, total, beta, old):
    """The new y where beta is not 0.

    beta = 1 does not multiply, so an infinity in a complex y stays what it is. alpha = 0 adds
    nothing, not even a zero, which would turn -0 into +0.
    """
    if beta != 1:
        old = times(beta, old)
    if alpha != 0:
        old = old + product_of(alpha, total)
    return old


@device
def update(alpha, total, beta, y, index):
    """``y[index] := alpha*total + beta*y[index]`` by the rules of reference BLAS.

    beta = 0 does not read y, so a NaN there is overwritten. For alpha = 0 kernels add up no
    columns, so they read neither A nor x, and `total` is the sum of no products.
    """
    if beta == 0:
        y[index] = scaled(alpha, total)
    else:
        y[index] = blended(alpha, total, beta, y[index])


@device
def update_streaming(alpha, total, beta, y, index):
    """:func:`update` for kernels at the memory's rate: the line of y leaves the L2 cache first.

    The first rungs do not use it. The compiler makes copies of a loop around a plain store, but not
    around this one, and without them these rungs were slower on more shapes than they were faster.
    """
    if beta == 0:
        store(y, index, scaled(alpha, total))
    else:
        store(y, index, blended(alpha, total, beta, y[index]))


@functools.cache
def unrolled(pieces: int, width: int) -> tuple[Callable, Callable, Callable]:
    """Make :func:`scaled`, :func:`blended` and :func:`update_streaming` for a tuple of sums.

    The sums belong to `pieces` groups of `width` neighbours of y. A tuple has no index at run time,
    so the loops over it are unrolled in the source, here.
    """
    count = range(pieces * width)
    scales = ", ".join(f"scaled(alpha, totals[{k}])" for k in count)
    blends = ", ".join(f"blended(alpha, totals[{k}], beta, olds[{k}])" for k in count)
    source = f"def scaled_all(alpha, totals):\n    return ({scales},)\n"
    source += f"def blended_all(alpha, totals, beta, olds):\n    return ({blends},)\n"
    source += "def update_all(alpha, totals, beta, y, index, distance, limit, incy):\n"
    for k in count:
        piece, lane = divmod(k, width)
        source += f"    i = index + {piece} * distance + {lane}\n    if i < limit:\n"
        source += f"        update(alpha, totals[{k}], beta, y, i * incy)\n"
    scope: dict[str, Any] = {"scaled": scaled, "blended": blended, "update": update_streaming}
    exec(source, scope)
    return tuple(device(scope[name]) for name in ("scaled_all", "blended_all", "update_all"))
