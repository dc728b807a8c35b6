"""Lists of products of different sizes: arguments become checked records; nothing runs yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gemv.arrays import host
from gemv.arrays.adopt import adopt, is_device_array, on_device, rank_of
from gemv.calls.bind import common_dtype, result_dtype
from gemv.calls.ragged_overlap import check_overwrite
from gemv.core.dtypes import NARROW, Precision, dtype_name
from gemv.core.operand import Operand, part_of, where
from gemv.core.problem import Problem
from gemv.core.rules import (
    accumulation,
    coefficient,
    number,
    of_item,
    transposition,
    type_error,
    typed,
    value_error,
)
from gemv.engines import backend as engines_backend


class Matrices(NamedTuple):
    """Checked matrices, each with its product but for the vectors.

    Attributes
    ----------
    routine : str
        For error texts.
    a : list of Operand
    problems : list of Problem
        With x and y contiguous, and no alignment; lazy conjugates are folded into them.
    precision : Precision
        The dtypes of all products.
    """

    routine: str
    a: list[Operand]
    problems: list[Problem]
    precision: Precision

    @property
    def on_host(self) -> bool:
        return any(a.on_host for a in self.a)

    @property
    def device(self) -> int | None:
        """Ordinal of the GPU of all matrices that have elements."""
        return next((a.device for a in self.a if a.device is not None), None)


class Product(NamedTuple):
    """A checked call.

    Attributes
    ----------
    matrices : Matrices
        Their problems have the strides of x and y.
    x : list of Operand
    y : list of (Operand or None)
    alphas, betas : list of number
        Of the dtype of factors; the sign of a lazy negative A is in alpha.
    in_place : list of bool
        Whether a y is written to; otherwise a new one is made.
    """

    matrices: Matrices
    x: list[Operand]
    y: list[Operand | None]
    alphas: list[Any]
    betas: list[Any]
    in_place: list[bool]

    @property
    def computed(self) -> list[int]:
        """The numbers of the items that are computed: others have no elements, or stay as they are.

        As in BLAS, a y is as it was where A has no columns.
        """
        return [
            k
            for k, problem in enumerate(self.matrices.problems)
            if problem.rows and problem.cols and not (self.alphas[k] == 0 and self.betas[k] == 1)
        ]


def sequence(routine: str, name: str, values: Any) -> list[Any]:
    """`values` as a list of arrays; an array with a leading dimension holds one for each index."""
    try:
        if isinstance(values, (str, bytes, dict, set)):
            raise TypeError
        return list(values)
    except Exception:  # what has no elements, or an object's own error
        word = {"x": "xs", "y": "ys"}.get(name, "As" if routine == "gemv_batched" else "arrays")
        raise type_error(
            routine, name, f"{word} must be a sequence of arrays, got {typed(values)}"
        ) from None


def for_each(routine: str, name: str, value: Any, count: int) -> list[Any]:
    """One value for all items, or a sequence with one for each."""
    if isinstance(value, str) or not (isinstance(value, range) or rank_of(value) == 1):
        return [value] * count
    if is_device_array(value):
        raise type_error(
            routine,
            name,
            f"{name} is an array on a device; pass a number, or a sequence of {count} numbers on"
            " the host",
        )
    if len(value) != count:
        raise value_error(
            routine, name, f"{name} has {len(value)} values, but there are {count} matrices"
        )
    return list(value)


def bind_matrices(
    routine: str, arrays: Sequence[Any], trans: Any, accumulate: Any, out_dtype: Any,
    x: Sequence[Any] | None = None, y: Sequence[Any] | None = None, factors: Sequence[Any] = (),
) -> Matrices:  # fmt: skip
    """Check matrices. On the host `x`, `y` and `factors` take part in the common dtype."""
    accumulate = accumulation(routine, accumulate)
    codes = for_each(routine, "trans", trans, len(arrays))
    a = [
        adopt(of_item(routine, k), "a", array, None, engines_backend.HOME)
        for k, array in enumerate(arrays)
    ]
    _check_places(routine, "a", a, a)
    dtype = _common(routine, a, x, y, factors)
    result = result_dtype(routine, dtype, None, out_dtype)
    problems = [
        _problem(of_item(routine, k), own, code, dtype, result, accumulate)
        for k, (own, code) in enumerate(zip(a, codes, strict=True))
    ]
    return Matrices(routine, a, problems, Precision.of(dtype, result, accumulate))


def _problem(
    routine: str, a: Operand, trans: Any, dtype: np.dtype, result: np.dtype, accumulate: str
) -> Problem:
    trans = transposition(routine, trans)
    (m, n), strides = a.shape, a.strides
    rows, cols = (m, n) if trans == 0 else (n, m)
    row_stride, col_stride = strides if trans == 0 else strides[::-1]
    conj = dtype.kind == "c" and (trans == 2) != a.conj
    return Problem(
        dtype, m, n, trans, rows, cols, conj, row_stride, col_stride,
        result=None if result == dtype else result, accumulate=accumulate,
    )  # fmt: skip


def _common(
    routine: str, a: Sequence[Operand], x: Sequence[Any] | None, y: Sequence[Any] | None,
    factors: Sequence[Any],
) -> np.dtype:  # fmt: skip
    """The dtype of all products. Device arrays have it; those of the host are converted to it."""
    if not a:
        return np.dtype(np.float64)
    factor = next((f for f in factors if isinstance(f, (complex, np.complexfloating))), 0)
    found = []
    for k, own in enumerate(a):
        item = of_item(routine, k)
        own_x = own if x is None else x[k]
        found.append(common_dtype(item, factor, own, own_x, 0, None if y is None else y[k]))
    if not a[0].on_host:
        for k, dtype in enumerate(found):
            if dtype != found[0]:
                raise type_error(
                    of_item(routine, k),
                    "a",
                    f"a has dtype {dtype_name(dtype)} but that of item 0 has"
                    f" {dtype_name(found[0])}, and device arrays are never converted",
                )
        return found[0]
    if all(dtype == found[0] for dtype in found):
        return found[0]
    return np.result_type(*(np.float32 if dtype in NARROW else dtype for dtype in found))


def _check_places(
    routine: str, name: str, operands: Sequence[Operand | None], a: Sequence[Operand]
) -> None:
    """Refuse operands that are not where the matrices are."""
    # An A without elements has no memory, and so no GPU.
    home = next((own for own in a if 0 not in own.shape), a[0] if a else None)
    for k, operand in enumerate(operands):
        if operand is None or home is None:
            continue
        other = None not in (home.device, operand.device) and home.device != operand.device
        if operand.on_host != home.on_host or other:
            raise type_error(
                of_item(routine, k),
                name,
                f"{name} is {where(operand)}, but the first matrix is {where(home)}; all arrays"
                " must be in one place",
            )


def adopted(routine: str, name: str, arrays: Any, count: int) -> list[Any]:
    """The operands of one vector for each item; None for a y that is None."""
    listed = sequence(routine, name, arrays)
    if len(listed) != count:
        raise value_error(
            routine, name, f"there are {len(listed)} vectors {name}, but {count} matrices"
        )
    return [
        None
        if vector is None and name == "y"
        else adopt(of_item(routine, k), name, vector, None, engines_backend.HOME)
        for k, vector in enumerate(listed)
    ]


def parts(matrices: Matrices, x: Any) -> list[Operand]:
    """The vectors of all items from one that has them one behind the other."""
    routine = matrices.routine
    whole = adopt(routine, "x", x, None, engines_backend.HOME)
    lengths = [problem.cols for problem in matrices.problems]
    if not lengths:
        raise value_error(routine, "x", "x is one vector, but the batch has no matrices")
    if whole.shape[0] != sum(lengths):
        raise value_error(
            routine,
            "x",
            f"x has {whole.shape[0]} elements, but the {len(lengths)} products take {sum(lengths)}",
        )
    if whole.conj or whole.neg:
        whole = on_device(whole.exporter.resolved(whole.origin, False), engines_backend.HOME)
    found, start = [], 0
    for length in lengths:
        end = start + length
        if whole.on_host:
            own = adopt(
                routine, "x", np.asarray(whole.owner)[start:end], None, engines_backend.HOME
            )
        else:
            own = part_of(whole, start * whole.strides[0], (length,), whole.strides)
        found.append(own)
        start = end
    return found


def bind_product(
    matrices: Matrices, alpha: Any, x: list[Operand], beta: Any, y: list[Operand | None],
    overwrite: bool,
) -> Product:  # fmt: skip
    """Check the vectors and factors of a call."""
    routine, a = matrices.routine, matrices.a
    count = len(a)
    _check_places(routine, "x", x, a)
    _check_places(routine, "y", y, a)
    dtypes = matrices.precision
    alphas, betas = (
        _converted(
            routine, name, for_each(routine, name, values, count),
            partial(coefficient, dtype=dtypes.factors),
        )
        for name, values in (("alpha", alpha), ("beta", beta))
    )  # fmt: skip
    in_place, problems = [], []
    for k, (own_a, own_x, own_y) in enumerate(zip(a, x, y, strict=True)):
        problem = matrices.problems[k]
        _check_vector(routine, k, "x", own_x, problem.cols, own_a, dtypes.data)
        overwritten = False
        if own_y is not None:
            _check_vector(routine, k, "y", own_y, problem.rows, own_a, dtypes.y)
            overwritten = overwrite and _overwritten(routine, k, own_y, dtypes.y)
        in_place.append(overwritten)
        if own_a.neg:
            alphas[k] = -alphas[k]
        plain = own_x.conj or own_x.neg  # then a contiguous copy of its values is read
        incx = 1 if plain or problem.cols < 2 else own_x.strides[0]
        incy = own_y.strides[0] if overwritten and own_y is not None and problem.rows > 1 else 1
        if (incx, incy) != (problem.incx, problem.incy):
            problem = problem._replace(incx=incx, incy=incy)
        problems.append(problem)
    made = Product(matrices._replace(problems=problems), x, y, alphas, betas, in_place)
    check_overwrite(routine, a, x, y, in_place)
    return made


def _check_vector(
    routine: str, k: int, name: str, vector: Operand, length: int, a: Operand, dtype: np.dtype
) -> None:
    if vector.shape[0] != length:
        raise value_error(
            of_item(routine, k),
            name,
            f"{name} has {vector.shape[0]} elements, but the product with a of shape {a.shape}"
            f" needs {length}",
        )
    if vector.on_host:
        if not np.can_cast(vector.dtype, dtype, "same_kind") and vector.dtype.kind not in "biu":
            raise type_error(
                of_item(routine, k),
                name,
                f"{name} has dtype {dtype_name(vector.dtype)}, but the products are in"
                f" {dtype_name(dtype)}",
            )
    elif vector.dtype != dtype:
        raise type_error(
            of_item(routine, k),
            name,
            f"{name} has dtype {dtype_name(vector.dtype)}, but the products are in"
            f" {dtype_name(dtype)}, and device arrays are never converted",
        )


def _overwritten(routine: str, k: int, y: Operand, dtype: np.dtype) -> bool:
    """Whether the result is written into y; an error where it cannot be."""
    if y.conj or y.neg:
        raise type_error(
            of_item(routine, k),
            "y",
            "y is a lazy conjugate or negative: call its resolve_conj() and resolve_neg()",
        )
    possible = host.writable_in_place(y, dtype) if y.on_host else not y.exporter.immutable
    if possible and y.readonly:
        raise value_error(of_item(routine, k), "y", "y is read-only, so it cannot be written to")
    if possible and y.shape[0] > 1 and 0 in y.strides:
        raise value_error(
            of_item(routine, k),
            "y",
            "y has elements of stride 0, so it cannot be written to",
        )
    return possible


def _converted(
    routine: str, name: str, values: list[Any], convert: Callable[[str, str, Any], Any]
) -> list[Any]:
    """``convert(item, name, value)`` of each value; once where all items have the same object."""
    if len(set(map(id, values))) == 1:
        return [convert(of_item(routine, 0), name, values[0])] * len(values)
    return [convert(of_item(routine, k), name, value) for k, value in enumerate(values)]


def number_of(routine: str, name: str, values: Any, count: int) -> list[Any]:
    """Factors as numbers, before the dtype of the products is known."""
    return _converted(routine, name, for_each(routine, name, values, count), number)
