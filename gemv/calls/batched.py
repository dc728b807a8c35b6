"""Batches: arguments with leading dimensions become checked :class:`Items`; nothing runs yet."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gemv.arrays import adopt as arrays_adopt
from gemv.arrays import host
from gemv.calls.bind import Call, check_places, common_dtype, result_dtype
from gemv.core.batch import Batch, broadcast_shapes, broadcast_strides, items_overlap
from gemv.core.dtypes import PREFIXES, Precision, dtype_name
from gemv.core.operand import Operand, matrix_view, overlap
from gemv.core.problem import Problem
from gemv.core.rules import (
    accumulation,
    check_arguments,
    coefficient,
    flag,
    integer,
    number,
    transposition,
    type_error,
    value_error,
    y_length,
)
from gemv.core.values import shown, typed
from gemv.engines import backend as engines_backend


class Items(NamedTuple):
    """A checked batch: everything that is known before memory is allocated or moved.

    Attributes
    ----------
    call : Call
        The operands with all their dimensions, and the problem of one item.
    batch : Batch
        How the items lie in the operands, as they are now; a new y is contiguous.
    nothing : bool
        Whether y stays as it is, or is zeros if it is new.
    """

    call: Call
    batch: Batch
    nothing: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        call = self.call
        if call.y is not None:
            return (*self.batch.shape, call.y.shape[-1])
        return (*self.batch.shape, y_length(call.problem.rows, call.offy, call.incy))


def bind_gufunc(
    routine: str, a: Any, x: Any, out: Any, alpha: Any, beta: Any, accumulate: Any, out_dtype: Any
) -> Items:
    """The arguments of ``matvec``, or of ``vecmat``, which multiplies the conjugate of x."""
    trans = 1 if routine == "vecmat" else 0
    operands = [
        _adopted(routine, name, array) for name, array in (("a", a), ("x", x), ("out", out))
    ]
    operand_a, operand_x, operand_y = operands
    assert operand_a is not None and operand_x is not None
    rows, cols = operand_a.shape[-2:] if trans == 0 else operand_a.shape[:-3:-1]
    for name, operand, sides, length in (
        ("x", operand_x, ("columns", "rows"), cols),
        ("y", operand_y, ("rows", "columns"), rows),
    ):
        if operand is not None and operand.shape[-1] != length:
            word = "out" if name == "y" else name
            raise value_error(
                routine,
                name,
                f"{word} has {operand.shape[-1]} elements in its last dimension, but a of shape"
                f" {operand_a.shape} has {length} {sides[trans]}",
            )
    return bind_operands(
        routine, operand_a, operand_x, operand_y, out, alpha, beta, (0, 1, 0, 1), trans,
        True, accumulate, out_dtype, gufunc=True,
    )  # fmt: skip


def bind_blas(
    alpha: Any,
    a: Any,
    x: Any,
    beta: Any,
    y: Any,
    steps: tuple[Any, Any, Any, Any],
    trans: Any,
    overwrite_y: Any,
    accumulate: Any,
    out_dtype: Any,
) -> Items:
    """The arguments of ``gemv`` with a matrix of more than two dimensions."""
    routine = "gemv"
    trans = transposition(routine, trans)
    names = ("offx", "incx", "offy", "incy")
    offx, incx, offy, incy = map(integer, [routine] * 4, names, steps)
    overwrite = flag(routine, "overwrite_y", overwrite_y)
    operands = [_adopted(routine, name, array) for name, array in (("a", a), ("x", x), ("y", y))]
    operand_a, operand_x, operand_y = operands
    assert operand_a is not None and operand_x is not None
    return bind_operands(
        routine, operand_a, operand_x, operand_y, y, alpha, beta, (offx, incx, offy, incy), trans,
        overwrite, accumulate, out_dtype, gufunc=False,
    )  # fmt: skip


def _adopted(routine: str, name: str, array: Any) -> Operand | None:
    if array is None and name in ("y", "out"):
        return None
    return arrays_adopt.adopt(routine, name, array, None, engines_backend.HOME, batch=True)


def _factor(routine: str, name: str, value: Any) -> Any:
    """alpha or beta: a number, or the operand of an array of them."""
    device = arrays_adopt.is_device_array(value)
    if device or (getattr(value, "ndim", None) and not isinstance(value, np.generic)):
        return arrays_adopt.adopt(routine, name, value, None, engines_backend.HOME, batch=True)
    if isinstance(value, (list, tuple)):
        return arrays_adopt.adopt(routine, name, value, None, engines_backend.HOME, batch=True)
    return number(routine, name, value)


def bind_operands(
    routine: str,
    a: Operand,
    x: Operand,
    y: Operand | None,
    y_object: Any,
    alpha: Any,
    beta: Any,
    steps: tuple[int, int, int, int],
    trans: int,
    overwrite: bool,
    accumulate: Any,
    out_dtype: Any,
    gufunc: bool,
) -> Items:
    """The same for arrays that are operands: `gufunc` for ``matvec`` and ``vecmat``.

    `steps` are offx, incx, offy and incy.
    """
    accumulate = accumulation(routine, accumulate)
    alpha, beta = _factor(routine, "alpha", alpha), _factor(routine, "beta", beta)
    if gufunc and y is None and (isinstance(beta, Operand) or beta != 0):
        told = f"an array of shape {beta.shape}" if isinstance(beta, Operand) else shown(beta)
        raise value_error(routine, "beta", f"beta needs out, which is None; got beta = {told}")
    on_host = [isinstance(each, Operand) and each.on_host for each in (a, alpha, beta)]
    check_places(
        routine, a, x, y,
        0 if on_host[0] and on_host[1] else alpha, 0 if on_host[0] and on_host[2] else beta, None,
    )  # fmt: skip
    # On the host a number of the same dtype stands for an array of factors.
    of_dtype = [f.dtype.type(0) if isinstance(f, Operand) and f.on_host else f
                for f in (alpha, beta)]  # fmt: skip
    dtype = common_dtype(
        routine, of_dtype[0], a, x, of_dtype[1], None if gufunc and a.on_host else y
    )
    if gufunc and y is not None and a.on_host:
        _check_out_dtype(routine, dtype, y)
    y_dtype = result_dtype(routine, dtype, y, out_dtype)
    factors = Precision.of(dtype).factors
    alpha, beta = (
        each if isinstance(each, Operand) else coefficient(routine, name, each, factors)
        for name, each in (("alpha", alpha), ("beta", beta))
    )
    wanted = _batch_shape(routine, a, x, y, alpha, beta)
    in_place = _in_place(routine, y, y_dtype, overwrite, gufunc)
    if in_place and y is not None and y.shape[:-1] != wanted:
        word = "out" if gufunc else "y"
        raise value_error(
            routine,
            "y",
            f"{word} of shape {y.shape} cannot hold a batch of shape {wanted}",
        )
    alpha = _with_sign(routine, alpha, a.neg != x.neg)
    offx, incx, offy, incy = steps
    y_step = y.strides[-1] if y is not None and in_place else 1
    rows, cols = a.shape[-2:] if trans == 0 else a.shape[:-3:-1]
    empty = rows == 0 or cols == 0
    if gufunc and empty:
        problem = _empty_problem(dtype, a, trans, rows, cols, y_dtype, y_step)
    else:
        problem = check_arguments(
            routine, dtype, a.shape[-2:], a.strides[-2:], x.shape[-1], x.strides[-1],
            None if y is None else y.shape[-1], y_step, offx, incx, offy, incy, trans, y_dtype,
        )  # fmt: skip
    is_complex = dtype.kind == "c"
    problem = problem._replace(conj=problem.conj != (a.conj and is_complex), accumulate=accumulate)
    conjugate_x = is_complex and ((gufunc and trans == 1) != x.conj)
    call = Call(
        routine=routine,
        blas_name=PREFIXES[dtype] + "gemv",
        problem=problem,
        alpha=alpha,
        beta=beta,
        a=a,
        x=x,
        y=y,
        y_object=y_object,
        offx=offx,
        offy=offy,
        incy=incy,
        in_place=in_place,
        nothing=None,
        homes=tuple(  # type: ignore[arg-type]
            "pointer" if isinstance(each, Operand) else "arguments" for each in (alpha, beta)
        ),
        owner=None,
    )
    batch = _batch(call, wanted, conjugate_x)
    if in_place and y is not None:
        _check_overwrite(call, batch)
    numbers = not isinstance(alpha, Operand) and not isinstance(beta, Operand)
    nothing = batch.items == 0 or rows == 0 or (cols == 0 and not gufunc)
    nothing = nothing or (numbers and alpha == 0 and beta == 1)
    if cols == 0 and not nothing:
        call, batch = _without_columns(call, batch)
    return Items(call, batch, nothing)


def _check_out_dtype(routine: str, dtype: np.dtype, out: Operand) -> None:
    """Refuse an out on the host that is not of the dtype of the result."""
    possible = Precision.of(dtype)
    if getattr(getattr(out.origin, "dtype", None), "kind", "") == "O":  # its numbers were copied
        raise type_error(
            routine, "y", f"out has dtype object, but the result has {dtype_name(dtype)}"
        )
    if out.dtype not in (possible.data, possible.factors):
        raise type_error(
            routine,
            "y",
            f"out has dtype {dtype_name(out.dtype)}, but the result has {dtype_name(dtype)}",
        )


def _batch_shape(
    routine: str, a: Operand, x: Operand, y: Operand | None, alpha: Any, beta: Any
) -> tuple[int, ...]:
    shapes = {"a": a.shape[:-2], "x": x.shape[:-1]}
    if y is not None:
        shapes["out" if routine != "gemv" else "y"] = y.shape[:-1]
    for name, factor in (("alpha", alpha), ("beta", beta)):
        if isinstance(factor, Operand):
            shapes[name] = factor.shape
    try:
        return broadcast_shapes(shapes)
    except ValueError as error:
        raise ValueError(f"{routine}: {error}: these lengths do not broadcast") from None


def _in_place(
    routine: str, y: Operand | None, y_dtype: np.dtype, overwrite: bool, gufunc: bool
) -> bool:
    """Whether the result is written into y; an error where it has to be and cannot."""
    if y is None or not overwrite:
        return False
    word = "out" if gufunc else "y"
    if y.conj or y.neg:
        raise type_error(
            routine,
            "y",
            f"{word} is a lazy conjugate or negative: call its resolve_conj() and resolve_neg()",
        )
    if not gufunc:
        if y.on_host:
            return host.writable_in_place(y, y_dtype)
        return not y.exporter.immutable
    if y.exporter.immutable or (y.on_host and not y.exporter.written_through(y.origin)):
        raise type_error(
            routine, "y", f"out is an array of {y.exporter.name}, which cannot be written to"
        )
    if y.on_host and not y.exporter.is_array(y.origin):
        raise type_error(
            routine, "y", f"out must be an array, which is written to, got {typed(y.origin)}"
        )
    return True


def _with_sign(routine: str, alpha: Any, negative: bool) -> Any:
    if negative and isinstance(alpha, Operand):
        raise type_error(
            routine,
            "alpha",
            "alpha is an array, and an operand is a lazy negative: call resolve_neg() on a and x"
            " first",
        )
    return -alpha if negative else alpha


def _empty_problem(
    dtype: np.dtype, a: Operand, trans: int, rows: int, cols: int, y_dtype: np.dtype, incy: int
) -> Problem:
    """Of items without rows or columns, where BLAS would ask for vectors of one element at least"""
    m, n = a.shape[-2:]
    result = None if y_dtype == dtype else y_dtype
    return Problem(dtype, m, n, trans, rows, cols, False, 1, 1, incy=incy, result=result)


def _without_columns(call: Call, batch: Batch) -> tuple[Call, Batch]:
    """Sums of no products, ``beta*y``: alpha = 0 reads no A and no x, so any place will do."""
    problem = call.problem._replace(cols=1, row_stride=0, col_stride=0, conj=False)
    still = (0,) * len(batch.shape)
    strides = (still, still, batch.of("y"), still, batch.of("beta"))
    zero = problem.precision.factors.type(0)
    homes = ("arguments", call.homes[1])
    call = call._replace(problem=problem, alpha=zero, homes=homes)
    return call, Batch(batch.shape, strides)


def _batch(call: Call, wanted: tuple[int, ...], conjugate_x: bool) -> Batch:
    """The strides of all operands over the items; those of a new y as if it were there."""
    if call.y is not None and call.in_place:
        y_strides = call.y.strides[:-1]
    else:
        rows = y_length(call.problem.rows, call.offy, call.incy)
        length = rows if call.y is None else call.y.shape[-1]
        y_strides = contiguous(wanted, length)
    return Batch(
        wanted,
        (
            over_items(call.a, 2, wanted),
            over_items(call.x, 1, wanted),
            y_strides,
            over_items(call.alpha, 0, wanted),
            over_items(call.beta, 0, wanted),
        ),
        conjugate_x,
    )


def over_items(operand: Any, rank: int, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """The strides over the items of a batch; `rank` dimensions are an item's own.

    `operand` may be a number, or None, which all items share.
    """
    if not isinstance(operand, Operand):
        return (0,) * len(wanted)
    leading = len(operand.shape) - rank
    return broadcast_strides(operand.shape[:leading], operand.strides[:leading], wanted)


def contiguous(shape: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The strides over items of `length` elements that lie one behind the other."""
    return tuple(length * math.prod(shape[k + 1 :]) for k in range(len(shape)))


def _check_overwrite(call: Call, batch: Batch) -> None:
    """Refuse to overwrite a y that is read-only or shares elements with an input or itself."""
    y, problem = call.y, call.problem
    assert y is not None
    word = "y" if call.routine == "gemv" else "out"
    if y.readonly:
        raise value_error(call.routine, "y", f"{word} is read-only")
    if batch.items == 0 or problem.rows == 0:
        return
    if y.on_host:
        strides = np.asarray(y.owner).strides
        apart, step, width = strides[:-1], strides[-1] * abs(call.incy), y.dtype.itemsize
    else:
        apart, step, width = y.strides[:-1], abs(problem.incy), 1
    if items_overlap(batch.shape, apart, problem.rows, step, width):
        raise value_error(
            call.routine,
            "y",
            f"{word} has items that share elements, or elements of stride 0: its strides are"
            f" {y.strides} for shape {y.shape}",
        )
    for name, other in (
        ("a", call.a), ("x", call.x), ("alpha", call.alpha), ("beta", call.beta),
    ):  # fmt: skip
        if isinstance(other, Operand) and 0 not in other.shape and overlap(_view(y), _view(other)):
            raise value_error(call.routine, "y", f"{word} overlaps {name} in memory")


def _view(operand: Operand) -> np.ndarray:
    return np.asarray(operand.owner) if operand.on_host else matrix_view(operand)
