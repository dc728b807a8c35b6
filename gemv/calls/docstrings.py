"""The docstrings of gemv, sgemv, dgemv, cgemv and zgemv, and the sections that they share."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from gemv.core.dtypes import DTYPES

_Function = TypeVar("_Function", bound=Callable[..., Any])

_PARAMETERS = """
    Parameters
    ----------
    alpha : number or device array of shape ()
        Factor of the product. A 0-d device array, for device operands only, is read by the
        kernel when it runs, and has their dtype.
    a : array of shape (m, n)
        The matrix, of any strides. Let ``op(a)`` be of shape (rows, cols).
    x : array of shape (offx + 1 + (cols - 1)*abs(incx),) or longer
        The vector to multiply.
    beta : number or device array of shape (), optional
        Factor of y, as alpha. Zero, the default, does not read y, so a NaN there is overwritten.
    y : array of shape (offy + 1 + (rows - 1)*abs(incy),) or longer, optional
        The vector to add to. By default zeros of just that length; its elements outside the
        result, before `offy` and between increments, keep their values.
    offx, offy : int, optional
        How many elements to skip at the start of x and y.
    incx, incy : int, optional
        Steps between elements used of x and y, in elements. Negative ones start at the far end
        of the same stretch of memory.
    trans : {0, 1, 2, "N", "T", "C"}, optional
        Whether ``op(a)`` is a, its transpose or its conjugate transpose.
    overwrite_y : int, optional
        Whether the result may be written into y.
    kernel : str, optional
        Name of the kernel to use; by default one is selected.
    stream : stream, optional
        Stream to enqueue on, for device arrays only: an int, or an object of Numba, CuPy or
        PyTorch. By default the one that the arrays are bound to, or the default stream.
    coefficients : {"arguments", "constant", "pointer"} or Coefficients, optional
        Where the kernel finds alpha and beta, with the same result: among its arguments, the
        default for numbers; in a slot of a constant-memory symbol, a fresh one or that of a
        :class:`Coefficients`, which a captured launch needs; or behind a pointer, which is where
        0-d device arrays always are.
    accumulate : {"plain", "wide", "pairs"}, optional
        How products are added up: in the precision of their factors (float32 for float16 and
        bfloat16), or in twice as many digits, rounded once at the end. "wide" is float64 for
        numbers of up to 32 bits, where the GPU is made for that; elsewhere, and for float64, it is
        "pairs": sums of two numbers each.
    peer : bool, optional
        Let x and y be on other GPUs than a, if its GPU can reach their memory: it runs the
        kernel, after what is pending on the streams of x and y.
    device_memory_limit : int, optional
        Bytes of the GPU's memory that a call on host arrays may take; by default what is free. A
        matrix that does not fit is streamed in panels, with the same result bit for bit.

    Returns
    -------
    y : array of shape (ly,)
        For host operands a NumPy array, complete when the call returns: y itself if
        `overwrite_y` is set and y is a contiguous, aligned array of the dtype computed in, else
        a new array that shares no memory with y. For device operands a device array of the same
        library: y itself, whatever its strides, if `overwrite_y` is set, else a new contiguous
        one; the call only enqueues the work.

    Raises
    ------
    ValueError
        If a size, offset, increment, `trans` or `kernel` is not possible, or if y is to be
        overwritten and is read-only or overlaps a or x.
    TypeError
        If an argument is not a number or an array of numbers, if a real routine is given
        complex numbers, or if host and device arrays are mixed.
    MemoryError
        If the GPU's memory does not suffice; y has not been changed then.
"""

_OUT_DTYPE = """
    out_dtype : numpy.dtype, optional
        Of the y that is made when none is passed: float32, where a and x are float16 or bfloat16;
        any other must be that of a.
"""

_NOTES = """
    The rules are those of reference BLAS. If ``op(a)`` has no rows or no columns, or alpha is 0
    and beta is 1, y is returned as it was, bit for bit; lengths are checked even then. If alpha
    is 0, neither a nor x is read. A NaN or an infinity in a or x reaches y otherwise, even
    against a zero. The order of the sum is the kernel's own.

    Where there is a GPU and nobody has asked for a backend, a call on host arrays is computed by
    SciPy's BLAS on the host or by the GPU, whichever is expected to be faster; the bits of the two
    differ. `kernel`, `coefficients`, `device_memory_limit` and an `accumulate` other than "plain"
    take the GPU.

    A column or row of shape (ly, 1) or (1, ly) is taken for x or y in host memory, and so is a
    number for one of length 1. A new y has the shape and the subclass of the y that is given; SciPy
    keeps the shape alone.
"""


_OF_DTYPE = """Matrix-vector product ``alpha*op(a)*x + beta*y`` in <dtype>.

    A drop-in for :func:`scipy.linalg.blas.<routine>`: host operands are cast as it casts them.

    <parameters>

    See Also
    --------
    gemv : The same in the precision of its operands.

    Notes
    -----
    <notes>

    Examples
    --------
    >>> import gemv
<example>"""

_EXAMPLES = {
    "s": """
    >>> gemv.sgemv(1, [[1, 2], [3, 4]], [1, 1])
    array([3., 7.], dtype=float32)
""",
    "d": """
    >>> gemv.dgemv(1, [[1, 2], [3, 4]], [1, 9, 1], incx=-2)
    array([3., 7.])
""",
    "c": """
    >>> gemv.cgemv(1, [[1j, 2], [3, 4]], [1, 1], trans="C")
    array([3.-1.j, 6.+0.j], dtype=complex64)
""",
    "z": """
    >>> gemv.zgemv(1j, [[1, 2], [3, 4]], [1, 1])
    array([0.+3.j, 0.+7.j])
""",
}


#: The shared sections by their marks.
_SECTIONS = {
    mark: inspect.cleandoc(text)
    for mark, text in (
        (
            "<parameters with out_dtype>",
            _PARAMETERS.replace("\n    Returns\n", f"{_OUT_DTYPE[1:]}\n    Returns\n"),
        ),
        ("<parameters>", _PARAMETERS),
        ("<notes>", _NOTES),
    )
}


def documented(function: _Function) -> _Function:
    """Put the sections that all five routines share into the docstring of :func:`gemv.gemv`."""
    if function.__doc__:  # not under python -OO
        function.__doc__ = _filled(function.__doc__)
    return function


def of_dtype(letter: str) -> str | None:
    """The docstring of sgemv, dgemv, cgemv or zgemv; None under python -OO."""
    if sys.flags.optimize > 1:
        return None
    text = _OF_DTYPE.replace("<dtype>", DTYPES[letter].name).replace("<routine>", f"{letter}gemv")
    return _filled(text.replace("<example>", _EXAMPLES[letter].strip("\n")))


def _filled(doc: str) -> str:
    """A docstring with the shared sections in place of their marks."""
    doc = inspect.cleandoc(doc)
    for mark, text in _SECTIONS.items():
        doc = doc.replace(mark, text)
    return doc
