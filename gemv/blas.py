"""The public functions: gemv, a routine for each dtype, plan, precompile and explain.

A call first tries the short way of its arrays' library, which repeats a call that was made before.
If there is none, or anything is unusual, it goes the long way (:mod:`gemv.calls.execute`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from gemv.calls import docstrings, routines, short
from gemv.calls.execute import long_way
from gemv.calls.remembered import UNUSUAL, LongWay, public_routines
from gemv.calls.short import short_ways
from gemv.core.dtypes import DTYPES, PLAIN
from gemv.engines.coefficients import Coefficients

# A process whose first call is a product does not wait for what the others need.
if TYPE_CHECKING:
    from gemv.calls.explain import Explanation
    from gemv.calls.plan import Plan

# gemv and the four routines below have the same body, but for `out_dtype`. It is written twice: a
# function that both called would add a frame, and so some 5 % of its time, to a remembered call.


@docstrings.documented
def gemv(
    alpha: Any,
    a: Any,
    x: Any,
    beta: Any = 0,
    y: Any = None,
    offx: Any = 0,
    incx: Any = 1,
    offy: Any = 0,
    incy: Any = 1,
    trans: Any = 0,
    overwrite_y: Any = 0,
    *,
    kernel: str | None = None,
    stream: Any = None,
    coefficients: str | Coefficients | None = None,
    accumulate: str = "plain",
    out_dtype: Any = None,
    peer: bool = False,
    device_memory_limit: int | None = None,
) -> Any:
    """Matrix-vector product ``alpha*op(a)*x + beta*y`` in the precision of its operands.

    <parameters with out_dtype>

    See Also
    --------
    sgemv, dgemv, cgemv, zgemv : The same for one dtype, which host operands are cast to.
    explain : Which kernel a call would use.

    Notes
    -----
    Host operands are computed in NumPy's common dtype of a, x and y, where integers and booleans
    count as float64 in the end, as arrays of objects do that are numbers; a complex alpha or beta
    makes it complex. Long doubles are refused. Device operands share one dtype, float32, float64,
    complex64, complex128, float16 or bfloat16, and are never converted or copied.

    Where a and x are both float16 or both bfloat16, products and sums are float32, as alpha and
    beta are, and y is rounded to its dtype once: theirs, or float32 if y or `out_dtype` says so.

    <notes>

    Examples
    --------
    >>> import numpy as np
    >>> import gemv
    >>> a = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> gemv.gemv(1, a, [1.0, 0.0, -1.0])
    array([-2., -2.])
    >>> gemv.gemv(2, a, [1.0, 1.0], trans="T", beta=1, y=np.ones(3))
    array([11., 15., 19.])
    """
    if accumulate is PLAIN and peer is False and out_dtype is None:
        name: str | None = "gemv"
        short_way = short_ways.get(type(a))
    else:
        name, short_way = short.with_options("gemv", a, accumulate, peer, out_dtype)
    found = UNUSUAL
    if short_way is not None and device_memory_limit is None:
        found = short_way(
            name, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
            kernel, stream, coefficients,
        )  # fmt: skip
        if type(found) is not LongWay:
            return found
    if routines.several(a):
        from gemv.calls import items

        checked = routines.bind(
            "gemv", (alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y), accumulate,
            out_dtype, coefficients, peer, device_memory_limit,
        )  # fmt: skip
        return short.kept(found, items.execute(checked, kernel, stream))
    return long_way(
        found, name, "gemv", None,
        (alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y),
        (kernel, stream, coefficients), accumulate, out_dtype, peer, device_memory_limit,
    )  # fmt: skip


class Routine(Protocol):
    """What a type checker knows of sgemv, dgemv, cgemv and zgemv."""

    __name__: str
    __qualname__: str

    def __call__(
        self, alpha: Any, a: Any, x: Any, beta: Any = 0, y: Any = None, offx: Any = 0,
        incx: Any = 1, offy: Any = 0, incy: Any = 1, trans: Any = 0, overwrite_y: Any = 0, *,
        kernel: str | None = None, stream: Any = None,
        coefficients: str | Coefficients | None = None, accumulate: str = "plain",
        peer: bool = False, device_memory_limit: int | None = None,
    ) -> Any: ...  # fmt: skip


def _of_dtype(letter: str) -> Routine:
    """The routine that computes in the dtype of one of BLAS's letters, s, d, c or z."""
    # Interned: machine code compares it by its address.
    routine, dtype = sys.intern(letter + "gemv"), DTYPES[letter]

    def product(
        alpha: Any,
        a: Any,
        x: Any,
        beta: Any = 0,
        y: Any = None,
        offx: Any = 0,
        incx: Any = 1,
        offy: Any = 0,
        incy: Any = 1,
        trans: Any = 0,
        overwrite_y: Any = 0,
        *,
        kernel: str | None = None,
        stream: Any = None,
        coefficients: str | Coefficients | None = None,
        accumulate: str = "plain",
        peer: bool = False,
        device_memory_limit: int | None = None,
    ) -> Any:
        if accumulate is PLAIN and peer is False:
            name: str | None = routine
            short_way = short_ways.get(type(a))
        else:
            name, short_way = short.with_options(routine, a, accumulate, peer)
        found = UNUSUAL
        if short_way is not None and device_memory_limit is None:
            found = short_way(
                name, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
                kernel, stream, coefficients,
            )  # fmt: skip
            if type(found) is not LongWay:
                return found
        return long_way(
            found, name, routine, dtype,
            (alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y),
            (kernel, stream, coefficients), accumulate, None, peer, device_memory_limit,
        )  # fmt: skip

    product.__name__ = product.__qualname__ = routine
    # What tracebacks and profilers show.
    product.__code__ = product.__code__.replace(co_name=routine, co_qualname=routine)
    product.__doc__ = docstrings.of_dtype(letter)
    return product


sgemv, dgemv, cgemv, zgemv = map(_of_dtype, "sdcz")
public_routines.update({f.__name__: f for f in (gemv, sgemv, dgemv, cgemv, zgemv)})


def plan(
    a: Any,
    x: Any = None,
    y: Any = None,
    *,
    offx: Any = 0,
    incx: Any = 1,
    offy: Any = 0,
    incy: Any = 1,
    trans: Any = 0,
    kernel: str | None = None,
    stream: Any = None,
    accumulate: str = "plain",
    out_dtype: Any = None,
    peer: bool = False,
    routine: str = "gemv",
) -> Plan:
    """A product with the same device matrix, and perhaps the same vectors, to be made many times.

    The arguments are those of :func:`gemv`, which describes them. They are checked, a kernel is
    selected and compiled, and where both vectors are given the launch is packed, all of it once.

    Parameters
    ----------
    a : device array of shape (m, n) or (..., m, n)
    x, y : device array, optional
        Vectors that the plan is bound to. It overwrites y; without one, each call makes a new one.
        A batch needs x.
    offx, incx, offy, incy, trans, kernel, stream, accumulate, out_dtype, peer
        As in :func:`gemv`.
    routine : {"gemv", "matvec", "vecmat"}, optional
        The function whose call is planned; the y of matvec and vecmat is their `out`. A matrix of
        more than two dimensions is a batch for each of them. Calls of a plan with x and y bound,
        and with numbers for alpha and beta, launch the parts of the batch in order and check
        nothing else; all other calls are checked as those of the function are.

    Returns
    -------
    Plan
        Call it as ``plan(alpha, beta)``, or ``plan(alpha, beta, x, y)`` with other vectors.

    Raises
    ------
    ValueError, TypeError
        As :func:`gemv` does; also for a matrix in host memory, which would move in every call.

    Examples
    --------
    >>> import gemv, numpy as np
    >>> from numba import cuda
    >>> a, x = cuda.to_device(np.eye(2)), cuda.to_device(np.array([1.0, 2.0]))
    >>> y = cuda.to_device(np.zeros(2))
    >>> twice = gemv.plan(a, x, y)
    >>> twice(2.0).copy_to_host()
    array([2., 4.])
    >>> twice(1.0, beta=1.0).copy_to_host()
    array([3., 6.])
    """
    if routines.is_batch(routine, a):
        from gemv.calls import plan_batch

        return plan_batch.make(
            routine, a, x, y, (offx, incx, offy, incy, trans), kernel, stream, accumulate,
            out_dtype, peer,
        )  # fmt: skip
    from gemv.calls import plan as calls_plan

    return calls_plan.make(
        gemv, a, x, y, (offx, incx, offy, incy, trans), kernel, stream, accumulate, out_dtype, peer
    )


def precompile(
    alpha: Any,
    a: Any,
    x: Any,
    beta: Any = 0,
    y: Any = None,
    offx: Any = 0,
    incx: Any = 1,
    offy: Any = 0,
    incy: Any = 1,
    trans: Any = 0,
    overwrite_y: Any = 0,
    *,
    kernel: str | None = None,
    coefficients: str | Coefficients | None = None,
    accumulate: str = "plain",
    out_dtype: Any = None,
    peer: bool = False,
    routine: str = "gemv",
) -> None:
    """Compile and load what :func:`gemv` would run for these arguments, without running it.

    A kernel that was not loaded before cannot be used in a CUDA graph capture: call this with the
    arguments of the call, or of one of the same dtype and shape, ahead of the capture. With host
    arrays it is the kernel of the GPU as well, even if the host would compute the call.

    Parameters
    ----------
    alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y
        As in :func:`gemv`, or in the function that `routine` names, whose `out` is y here.
    kernel, coefficients, accumulate, out_dtype, peer
        As in :func:`gemv`.
    routine : {"gemv", "matvec", "vecmat"}, optional
        The function that will be called. A matrix of more than two dimensions is a batch for each
        of them.

    Raises
    ------
    ValueError, TypeError
        As :func:`gemv` does.

    Examples
    --------
    >>> import gemv
    >>> gemv.precompile(1.0, [[1.0, 2.0]], [3.0, 4.0])
    """
    if routines.is_batch(routine, a):
        from gemv.calls import explain_batch

        checked = routines.bind(
            routine, (alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y),
            accumulate, out_dtype, coefficients, peer,
        )  # fmt: skip
        return explain_batch.precompile(checked, kernel)
    from gemv.calls import precompile as calls_precompile

    calls_precompile.precompile(
        (alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y),
        kernel, coefficients, accumulate, out_dtype, peer,
    )  # fmt: skip


def explain(
    alpha: Any,
    a: Any,
    x: Any,
    beta: Any = 0,
    y: Any = None,
    offx: Any = 0,
    incx: Any = 1,
    offy: Any = 0,
    incy: Any = 1,
    trans: Any = 0,
    overwrite_y: Any = 0,
    *,
    kernel: str | None = None,
    stream: Any = None,
    coefficients: str | Coefficients | None = None,
    accumulate: str = "plain",
    out_dtype: Any = None,
    peer: bool = False,
    device_memory_limit: int | None = None,
    routine: str = "gemv",
) -> Explanation:
    """Which kernel :func:`gemv` would use for these arguments, and how it would be launched.

    Nothing is computed, moved or launched, but arguments are checked as by :func:`gemv`, which
    also describes them.

    Parameters
    ----------
    alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y
        As in :func:`gemv`, or in the function that `routine` names, whose `out` is y here.
    kernel, stream, coefficients, accumulate, out_dtype, peer, device_memory_limit
        As in :func:`gemv`.
    routine : {"gemv", "matvec", "vecmat"}, optional
        The function that would be called. A matrix of more than two dimensions is a batch for each
        of them.

    Returns
    -------
    Explanation
        As data; ``str()`` of it is a sentence. For a batch, and for matvec and vecmat in general,
        it is a :class:`BatchExplanation`.

    Raises
    ------
    ValueError, TypeError
        As :func:`gemv` does.

    Examples
    --------
    >>> import gemv
    >>> print(gemv.explain(0, [[1.0, 2.0]], [1.0, 1.0], beta=1, y=[5.0]))
    dgemv computes nothing and returns y as it was: alpha is 0 and beta is 1.
    """
    if routines.is_batch(routine, a):
        from gemv.calls import explain_batch

        checked = routines.bind(
            routine, (alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y),
            accumulate, out_dtype, coefficients, peer, device_memory_limit,
        )  # fmt: skip
        return explain_batch.explain(checked, kernel, stream)
    from gemv.calls import explain as calls_explain

    return calls_explain.explain(
        (alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y),
        (kernel, stream, coefficients), accumulate, out_dtype, peer, device_memory_limit,
    )  # fmt: skip
