"""Which calls are batches, and their arguments by the name of the function that they are for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemv.arrays.adopt import rank_of
from gemv.core.rules import flag
from gemv.core.values import is_integer, is_word, shown

if TYPE_CHECKING:
    from gemv.calls.batched import Items
    from gemv.calls.bind import BlasArguments

#: The functions that ``routine=`` may name.
ROUTINES = ("gemv", "matvec", "vecmat")


def is_batch(routine: str, a: Any) -> bool:
    """Whether the function of this name computes the items of a batch for this `a`."""
    if not is_word(routine, ROUTINES):
        known = ", ".join(map(repr, ROUTINES))
        raise ValueError(f"gemv: routine must be one of {known}, got {shown(routine)}")
    return routine != "gemv" or several(a)


def several(a: Any) -> bool:
    """Whether `a` is more than one matrix."""
    return rank_of(a) > 2


def bind(
    routine: str,
    arguments: BlasArguments,
    accumulate: Any,
    out_dtype: Any,
    coefficients: Any = None,
    peer: Any = False,
    device_memory_limit: Any = None,
) -> Items:
    """The arguments of a batch, checked. They come in the order of gemv for every routine."""
    from gemv.calls import batched

    alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y = arguments
    of_one_matrix = {
        "coefficients": coefficients is not None,
        "peer": flag(routine, "peer", peer),
        "device_memory_limit": device_memory_limit is not None,
    }
    for option, given in of_one_matrix.items():
        if given:
            raise ValueError(
                f"{routine}: {option} is for a matrix of two dimensions, not for a batch"
            )
    if routine == "gemv":
        steps = (offx, incx, offy, incy)
        return batched.bind_blas(
            alpha, a, x, beta, y, steps, trans, overwrite_y, accumulate, out_dtype
        )
    of_gemv = {"offx": offx, "incx": incx, "offy": offy, "incy": incy, "trans": trans}
    for name, value in of_gemv.items():
        if not is_integer(value) or value != (1 if name.startswith("inc") else 0):
            raise ValueError(f"{routine}: {name} is an argument of gemv, and {routine} has none")
    return batched.bind_gufunc(routine, a, x, y, alpha, beta, accumulate, out_dtype)
