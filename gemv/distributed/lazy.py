"""Lazy products of Dask's arrays: one task for each chunk of the matrix, then one sum for each row.

The products of a row of chunks are added by one task, from the first chunk to the last. No
scheduler can change that order, so the bits of a result depend on the chunks alone.
"""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array

from gemv.calls import batched
from gemv.core.dtypes import DTYPES, NARROW
from gemv.distributed.arguments import operand
from gemv.families import matvec as product_of_rows
from gemv.families import vecmat as product_of_columns


def matvec(
    a: Any, x: Any, /, *, alpha: Any = 1, accumulate: str = "plain", out_dtype: Any = None
) -> da.Array:
    """``alpha*a@x`` of Dask's arrays, lazily, over leading dimensions, as :func:`gemv.matvec`.

    Parameters
    ----------
    a : dask.array.Array of shape (..., m, n)
        The matrices, in chunks along any dimensions. The chunks are arrays that
        :func:`gemv.matvec` takes: NumPy's, or CuPy's on a GPU of their worker.
    x : dask.array.Array or numpy.ndarray of shape (..., n)
        The vectors. Leading dimensions of `a` and `x` are broadcast. `x` is rechunked to the
        columns of `a`; `a` is never rechunked.
    alpha : number or array of shape (...), optional
        Factors of the products, for all items or one for each.
    accumulate : {"plain", "wide", "pairs"}, optional
        As in :func:`gemv.gemv`, within each chunk.
    out_dtype : dtype, optional
        Of the result: float32 for narrow `a` and `x`.

    Returns
    -------
    dask.array.Array of shape (..., m)
        With the chunks of the rows of `a`. Its dtype is the one that :func:`gemv.matvec` gives
        operands in host memory.

    Raises
    ------
    ValueError
        If shapes do not go together, or chunks of unknown size do not.
    TypeError
        If a dtype is not one of numbers that are multiplied.

    Notes
    -----
    Each chunk of `a` is multiplied by one task. One more task for each chunk of rows adds the
    results, in the order of the columns, so the result is the same with every scheduler. Results
    of float16 and bfloat16 are added in float32 and rounded once.

    Examples
    --------
    >>> import dask.array, gemv.dask
    >>> a = dask.array.ones((6, 4), chunks=(3, 2))
    >>> gemv.dask.matvec(a, dask.array.arange(4, chunks=2)).compute()
    array([6., 6., 6., 6., 6., 6.])
    """
    return _product("matvec", a, x, alpha, accumulate, out_dtype)


def vecmat(
    x: Any, a: Any, /, *, alpha: Any = 1, accumulate: str = "plain", out_dtype: Any = None
) -> da.Array:
    """``alpha*conj(x)@a`` of Dask's arrays, lazily, over leading dimensions.

    Parameters
    ----------
    x : dask.array.Array or numpy.ndarray of shape (..., m)
        The vectors, which are conjugated. `x` is rechunked to the rows of `a`.
    a : dask.array.Array of shape (..., m, n)
        The matrices.
    alpha, accumulate, out_dtype
        As in :func:`matvec`, which describes all arguments.

    Returns
    -------
    dask.array.Array of shape (..., n)
        With the chunks of the columns of `a`.

    Raises
    ------
    ValueError, TypeError
        As :func:`matvec` does.

    Notes
    -----
    The results of a column of chunks are added in the order of the rows.
    """
    return _product("vecmat", a, x, alpha, accumulate, out_dtype)


def _product(routine: str, a: Any, x: Any, alpha: Any, accumulate: Any, out_dtype: Any) -> da.Array:
    # In the order of the arguments, as their errors come.
    named = [("a", a), ("x", x)] if routine == "matvec" else [("x", x), ("a", a)]
    found = {name: operand(f"gemv.dask.{routine}", name, array) for name, array in named}
    a, x = found["a"], found["x"]
    for name, array, least in (("a", a, 2), ("x", x, 1)):
        if array.ndim < least:
            raise ValueError(
                f"gemv.dask.{routine}: {name} must have at least {least}"
                f" dimension{'s'[: least - 1]}, got shape {array.shape}"
            )
    of_rows = routine == "matvec"
    length = a.shape[-1 if of_rows else -2]
    if x.shape[-1] != length and not (np.isnan(x.shape[-1]) or np.isnan(length)):
        raise ValueError(
            f"gemv.dask.{routine}: x has {x.shape[-1]} elements in its last dimension, but a of"
            f" shape {a.shape} has {length} {'columns' if of_rows else 'rows'}"
        )
    x = _rechunked(routine, "x", x, -1, a.chunks[-1 if of_rows else -2])
    operands = [("a", a, 2), ("x", x, 1)]
    several = isinstance(alpha, (list, tuple)) or getattr(alpha, "ndim", None)
    if several or dask.is_dask_collection(alpha):
        alpha = operand(f"gemv.dask.{routine}", "alpha", alpha)
    if several and alpha.ndim:
        operands.append(("alpha", alpha, 0))
    operands = [(name, _ones_in_one_chunk(array, rank), rank) for name, array, rank in operands]
    batch = _chunks_of_batch(routine, operands)
    (_, a, _), (_, x, _), *_ = operands
    factor = operands[2][1] if len(operands) == 3 else alpha
    dtype, sums, asked = _dtypes(routine, a, x, factor, accumulate, out_dtype)

    # The dimensions of the batch are named from the right, as they are broadcast.
    items = tuple(f"item{k}" for k in reversed(range(len(batch))))
    own = {"a": ("kept", "summed") if of_rows else ("summed", "kept"), "x": ("summed",)}
    arguments: list[Any] = []
    for name, array, rank in operands:
        for axis in range(array.ndim - rank):
            if array.shape[axis] != 1:
                chunks = batch[len(batch) - array.ndim + rank + axis]
                array = _rechunked(routine, name, array, axis, chunks)
        indices = items[len(batch) + rank - array.ndim :] + own.get(name, ())
        arguments += [array, indices]
    if len(operands) < 3:
        arguments += [alpha, None]
    parts = da.blockwise(
        _multiply,
        (*items, "kept", "summed"),
        *arguments,
        adjust_chunks={"summed": 1, **dict(zip(items, batch, strict=True))},
        align_arrays=False,
        dtype=sums,
        meta=meta_from_array(a, ndim=len(batch) + 2, dtype=sums),
        token=f"gemv-{routine}",
        of_rows=of_rows,
        accumulate=accumulate,
        out_dtype=asked,
    )
    return da.blockwise(
        _add_in_order,
        (*items, "kept"),
        parts,
        (*items, "kept", "summed"),
        # The task gets a list of chunks. Dask would fuse products that are concatenated with it.
        concatenate=False,
        dtype=dtype,
        meta=meta_from_array(a, ndim=len(batch) + 1, dtype=dtype),
        token=f"gemv-{routine}-sum",
        result=dtype,
    )


def _multiply(a: Any, x: Any, alpha: Any, *, of_rows: bool, accumulate: str, out_dtype: Any) -> Any:
    """The product of a chunk, with a last dimension that counts the chunks that are added."""
    options = {"alpha": alpha, "accumulate": accumulate, "out_dtype": out_dtype}
    y = product_of_rows(a, x, **options) if of_rows else product_of_columns(x, a, **options)
    return y[..., None]


def _add_in_order(parts: list[Any], *, result: np.dtype) -> Any:
    """The sum of the products of some chunks, from the first to the last."""
    total, *others = (part[..., 0] for part in parts)
    with np.errstate(invalid="ignore", over="ignore"):  # as a product in one piece
        for other in others:
            total = total + other
    return total.astype(result, copy=False)


def _rechunked(
    routine: str, name: str, array: da.Array, axis: int, chunks: tuple[Any, ...]
) -> da.Array:
    """`array` with the chunks along an axis that another operand has."""
    found = array.chunks[axis]
    if not np.isnan([*found, *chunks]).any():
        if found == chunks:
            return array
        made = array.rechunk({axis % array.ndim: chunks})
        if made.chunks[axis] != chunks:  # Dask leaves arrays without elements as they are
            wanted = list(made.chunks)
            wanted[axis] = chunks
            made = da.empty_like(array, chunks=tuple(wanted))
        return made
    if len(found) == len(chunks) and np.isnan([*found]).all() and np.isnan([*chunks]).all():
        return array  # as results of one selection; the products themselves compare the lengths
    raise ValueError(
        f"gemv.dask.{routine}: the chunks of {name} along dimension {axis % array.ndim} are"
        f" {found}, and those that they meet are {chunks}: sizes that are unknown (nan) cannot be"
        " matched. Call compute_chunk_sizes() on the array first"
    )


def _ones_in_one_chunk(array: da.Array, rank: int) -> da.Array:
    """`array` without empty chunks beside those of leading dimensions of length 1."""
    axes = {
        axis: 1
        for axis in range(array.ndim - rank)
        if array.shape[axis] == 1 and len(array.chunks[axis]) > 1
    }
    return array.rechunk(axes) if axes else array


def _chunks_of_batch(routine: str, operands: list[tuple[str, da.Array, int]]) -> list[Any]:
    """The chunks of the leading dimensions: those of the first operand that has them."""
    batch: list[Any] = []
    for name, array, rank in operands:
        leading = array.chunks[: array.ndim - rank]
        batch[:0] = [(1,)] * (len(leading) - len(batch))
        for axis, chunks in enumerate(leading, start=len(batch) - len(leading)):
            if sum(batch[axis]) == 1:
                batch[axis] = chunks
            elif sum(chunks) not in (1, sum(batch[axis])) and not np.isnan(sum(chunks)):
                raise ValueError(
                    f"gemv.dask.{routine}: leading dimensions cannot be broadcast: {name} has shape"
                    f" {array.shape}, the operands before it have {tuple(map(sum, batch))}"
                )
    return batch


def _dtypes(
    routine: str, a: da.Array, x: da.Array, alpha: Any, accumulate: Any, out_dtype: Any
) -> tuple[np.dtype, np.dtype, Any]:
    """The dtypes of the result and of its parts, and the ``out_dtype`` that the parts ask for."""
    one_a, one_x = np.empty((1, 1), a.dtype), np.empty(1, x.dtype)
    factor = np.empty(1, alpha.dtype) if np.ndim(alpha) else alpha
    try:
        checked = batched.bind_gufunc(routine, one_a, one_x, None, factor, 0, accumulate, out_dtype)
    except (TypeError, ValueError) as error:
        raise type(error)(f"gemv.dask.{error}") from None
    problem = checked.call.problem
    if problem.dtype not in NARROW:
        return problem.dtype, problem.dtype, None
    # What is rounded once is the sum, so its parts are not rounded before.
    single = DTYPES["s"]
    return (a.dtype if problem.y_dtype in NARROW else single), single, single
