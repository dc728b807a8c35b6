"""The public functions of the families around one product: matvec and vecmat, for batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gemv.calls import batched, items, ragged, ragged_host, ragged_run, short
from gemv.calls.remembered import UNUSUAL, LongWay
from gemv.core.dtypes import PLAIN

if TYPE_CHECKING:
    from gemv.calls.explain_list import ListExplanation


def matvec(
    a: Any,
    x: Any,
    /,
    out: Any = None,
    *,
    alpha: Any = 1,
    beta: Any = 0,
    accumulate: str = "plain",
    out_dtype: Any = None,
    stream: Any = None,
) -> Any:
    """Matrix-vector products ``alpha*a@x + beta*out`` over leading dimensions.

    As :func:`numpy.matvec`, for arrays of every library, with factors. On a GPU one launch computes
    all products. The bits of an item do not depend on its place, on other items or on their number.

    Parameters
    ----------
    a : array of shape (..., m, n)
        The matrices, of any strides.
    x : array of shape (..., n)
        The vectors. Leading dimensions of a, x, alpha and beta are broadcast, and nothing is
        copied for that: a matrix may be shared by several vectors, and a vector by matrices.
    out : array of shape (..., m), optional
        Is overwritten by the result. Its leading dimensions are those of the batch, its dtype that
        of the result, and it shares no memory with the other operands. JAX's arrays cannot be
        written to.
    alpha, beta : number or array of shape (...), optional
        Factors of the products and of `out`, for all items or one for each. A beta other than 0
        needs `out`. Where beta is 0 `out` is not read, so a NaN there is overwritten.
    accumulate, out_dtype, stream
        As in :func:`gemv.gemv`.

    Returns
    -------
    array of shape (..., m)
        `out`, or a new contiguous array of the library of `a`.

    Raises
    ------
    ValueError
        If lengths do not go together, or if `out` overlaps an operand or itself.
    TypeError
        If an operand is no array of numbers, or if operands differ in where they are or, on a
        device, in their dtype.

    See Also
    --------
    vecmat : With vectors on the left.
    gemv : With the arguments of BLAS.

    Notes
    -----
    If n is 0, the result is zero. On a GPU the order of a sum is that of :func:`gemv.gemv` for one
    item, or for one vector, with loads of the width that all items allow. Up to 32 x 32 the order
    does not depend on addresses, strides or the width of loads, so an item has the bits of the
    single call on the same numbers. A batch of host arrays that is computed on the host, because
    its copy to a GPU would take longer, has the bits of SciPy's BLAS.

    Examples
    --------
    >>> import gemv, numpy as np
    >>> a = np.arange(12.0).reshape(2, 2, 3)
    >>> gemv.matvec(a, [1.0, 0.0, 1.0])
    array([[ 2.,  8.],
           [14., 20.]])
    >>> gemv.matvec(a[0], np.eye(3), alpha=[1.0, 10.0, 100.0])
    array([[  0.,   3.],
           [ 10.,  40.],
           [200., 500.]])
    """
    found = UNUSUAL
    if out is None and out_dtype is None and accumulate is PLAIN:
        found = short.of_family("matvec", alpha, a, x, beta, stream)
        if type(found) is not LongWay:
            return found
    checked = batched.bind_gufunc("matvec", a, x, out, alpha, beta, accumulate, out_dtype)
    return short.kept(found, items.execute(checked, None, stream))


def vecmat(
    x: Any,
    a: Any,
    /,
    out: Any = None,
    *,
    alpha: Any = 1,
    beta: Any = 0,
    accumulate: str = "plain",
    out_dtype: Any = None,
    stream: Any = None,
) -> Any:
    """Vector-matrix products ``alpha*conj(x)@a + beta*out`` over leading dimensions.

    As :func:`numpy.vecmat`: the vectors are conjugated, without a copy of them.

    Parameters
    ----------
    x : array of shape (..., m)
        The vectors.
    a : array of shape (..., m, n)
        The matrices.
    out : array of shape (..., n), optional
        Is overwritten by the result.
    alpha, beta, accumulate, out_dtype, stream
        As in :func:`matvec`, which describes all arguments.

    Returns
    -------
    array of shape (..., n)
        `out`, or a new contiguous array of the library of `a`.

    Raises
    ------
    ValueError, TypeError
        As :func:`matvec` does.

    Examples
    --------
    >>> import gemv, numpy as np
    >>> gemv.vecmat([1j, 1.0], np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([3.-1.j, 4.-2.j])
    """
    found = UNUSUAL
    if out is None and out_dtype is None and accumulate is PLAIN:
        found = short.of_family("vecmat", alpha, a, x, beta, stream)
        if type(found) is not LongWay:
            return found
    checked = batched.bind_gufunc("vecmat", a, x, out, alpha, beta, accumulate, out_dtype)
    return short.kept(found, items.execute(checked, None, stream))


def gemv_batched(
    alpha: Any,
    As: Sequence[Any],
    xs: Sequence[Any],
    beta: Any = 0,
    ys: Sequence[Any] | None = None,
    trans: Any = 0,
    *,
    overwrite_y: Any = 0,
    accumulate: str = "plain",
    out_dtype: Any = None,
    stream: Any = None,
) -> list[Any]:
    """Products ``alpha*op(A)*x + beta*y`` of matrices of different sizes, in a few launches.

    Matrices that the same machine code computes share a launch, whose blocks read the sizes and
    addresses of their item from a table. No item is padded, and device arrays are not waited for.

    Parameters
    ----------
    alpha : number or sequence of numbers
        Factors of the products, one for all items or one for each.
    As : sequence of arrays of shape (m, n)
        The matrices, of any sizes and strides, all of one dtype and in one place.
    xs : sequence of arrays of shape (n,)
        The vectors; of shape (m,) where the item is transposed.
    beta : number or sequence of numbers, optional
        Factors of `ys`, ignored if `ys` is not passed. Where beta is 0, y is not read.
    ys : sequence of arrays of shape (m,), optional
        The vectors that beta multiplies and that are added to the products; of shape (n,) where the
        item is transposed. An element may be None.
    trans : {0, 1, 2, "N", "T", "C"} or a sequence of these, optional
        A, its transpose or its conjugate transpose, for all items or for each.
    overwrite_y : int, optional
        1 to write results into `ys`. Such a y must not share memory with another array of the call.
    accumulate, out_dtype, stream
        As in :func:`gemv.gemv`, for all items.

    Returns
    -------
    list of arrays
        In the order of `As`: each y of `ys` that was overwritten, and otherwise a new array of the
        library of the first matrix. New device arrays are parts of one allocation.

    Raises
    ------
    ValueError
        If lengths do not go together, or if a y to be overwritten overlaps another array.
    TypeError
        If an operand is no array of numbers, or if items differ in where they are or, on a device,
        in their dtype. Each message names the item.
    RuntimeError
        While the stream is being captured: make a plan of a :class:`gemv.Batch` before.

    See Also
    --------
    Batch : For matrices that stay.
    explain_batched : What would be launched.
    matvec : For matrices of one shape.

    Notes
    -----
    An item has the bits that it has in every batch of :func:`gemv.gemv`. All arrays are checked and
    laid out in Python, which takes longer than the launches where there are many; a
    :class:`gemv.Batch` does that once for the matrices. Arrays of different dtypes in host memory
    are converted to a common one, and a y of another dtype than that is never overwritten.

    Examples
    --------
    >>> import gemv, numpy as np
    >>> a, b = np.eye(2), np.array([[1.0, 2.0, 3.0]])
    >>> gemv.gemv_batched([1, 10], [a, b], [[1.0, 2.0], [1.0, 1.0, 1.0]])
    [array([1., 2.]), array([60.])]
    """
    product = ragged.bind_call(alpha, As, xs, beta, ys, trans, overwrite_y, accumulate, out_dtype)
    if product.matrices.on_host:
        return ragged_host.in_host_memory(product, stream)
    return ragged_run.execute(product, stream)


def explain_batched(
    alpha: Any,
    As: Sequence[Any],
    xs: Sequence[Any],
    beta: Any = 0,
    ys: Sequence[Any] | None = None,
    trans: Any = 0,
    *,
    overwrite_y: Any = 0,
    accumulate: str = "plain",
    out_dtype: Any = None,
    stream: Any = None,
) -> ListExplanation:
    """Which launches :func:`gemv_batched` would make for these arguments, and of which items.

    Nothing is computed, moved or launched, but arguments are checked as by :func:`gemv_batched`,
    which also describes them.

    Parameters
    ----------
    alpha, As, xs, beta, ys, trans, overwrite_y, accumulate, out_dtype, stream
        As in :func:`gemv_batched`.

    Returns
    -------
    ListExplanation
        As data; ``str()`` of it has a line for each launch.

    Raises
    ------
    ValueError, TypeError
        As :func:`gemv_batched` does.

    See Also
    --------
    Batch.explain : For matrices that stay.
    explain : For a single product, and for batches of one shape.

    Examples
    --------
    >>> import gemv, numpy as np
    >>> told = gemv.explain_batched(1, [np.eye(2), np.eye(3)], [[1.0, 2.0], [0.0, 1.0, 2.0]])
    >>> told.items, told.bytes_moved, told.reads_of_a
    (2, 184, 1)
    """
    from gemv.calls import explain_list

    product = ragged.bind_call(alpha, As, xs, beta, ys, trans, overwrite_y, accumulate, out_dtype)
    return explain_list.of_product(product, stream)
