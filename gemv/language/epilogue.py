"""The end of every kernel: y := alpha*op(A)*x + beta*y, by the rules of reference BLAS.

This file is the only one that writes y.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gemv.language.vocabulary import device, store


@device
def scaled(alpha, total):
    """What y becomes where beta = 0: alpha = 0 keeps the sum, which is the empty one then.

    A zero is positive, as that of a BLAS, which adds the product to a y that it has cleared.
    """
    if alpha == 0:
        return total
    product = alpha * total
    if product == 0:
        product = product * product
    return product


@device
def blended(alpha, total, beta, old):
    """What y becomes where beta is not 0.

    beta = 1 does not multiply, so an infinity in a complex y survives; alpha = 0 adds nothing, not
    even the zero that would turn -0 into +0.
    """
    if beta != 1:
        old = beta * old
    if alpha != 0:
        old = old + alpha * total
    return old


@device
def update(alpha, total, beta, y, index):
    """``y[index] := alpha*total + beta*y[index]`` by the rules of reference BLAS.

    beta = 0 does not read y, so a NaN there is overwritten. For alpha = 0 `total` is the empty
    sum, because no kernel walks over columns then, which is also why neither A nor x is read.
    """
    if beta == 0:
        y[index] = scaled(alpha, total)
    else:
        y[index] = blended(alpha, total, beta, y[index])


@device
def update_streaming(alpha, total, beta, y, index):
    """:func:`update` for kernels at the memory roofline: y is first to leave the L2 cache.

    Not for all kernels: around this store the compiler makes no copies of loops, as it does around
    a plain one. The first rungs were slower without them on more shapes than they were faster.
    """
    if beta == 0:
        store(y, index, scaled(alpha, total))
    else:
        store(y, index, blended(alpha, total, beta, y[index]))


@functools.cache
def unrolled(pieces: int, width: int) -> tuple[Callable, Callable, Callable]:
    """:func:`scaled`, :func:`blended` and :func:`update_streaming` for a tuple of sums.

    The sums are those of `pieces` times `width` neighbouring elements of y. A tuple has no index
    at run time, so the loops are unrolled here, in the source.
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
