"""Lists of products of different sizes: arguments become checked records; nothing runs yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gemv.arrays import host
from gemv.arrays.adopt import adopt, on_device
from gemv.arrays.listed import adopt_all, together
from gemv.calls.bind import common_dtype, result_dtype
from gemv.calls.ragged_factors import coefficients, converted, for_each, number_of
from gemv.calls.ragged_overlap import check_overwrite
from gemv.core.dtypes import NARROW, Precision, dtype_name
from gemv.core.operand import Operand, parts_of, where
from gemv.core.problem import Problem
from gemv.core.rules import (
    accumulation,
    flag,
    of_item,
    transposition,
    type_error,
    value_error,
)
from gemv.core.values import typed
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
        return any([a.kind == "numpy" for a in self.a])  # a list: no call for each item

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
    alphas, betas : ndarray
        A number for each item, of the dtype of factors; the sign of a lazy negative A is in alpha.
    in_place : list of bool
        Whether a y is written to; otherwise a new one is made.
    """

    matrices: Matrices
    x: list[Operand]
    y: list[Operand | None]
    alphas: np.ndarray
    betas: np.ndarray
    in_place: list[bool]

    @property
    def computed(self) -> list[int]:
        """The numbers of the items that are computed: others have no elements, or stay as they are.

        As in BLAS, a y is as it was where A has no columns.
        """
        stays = ((self.alphas == 0) & (self.betas == 1)).tolist()
        return [
            k
            for k, (problem, as_it_is) in enumerate(zip(self.matrices.problems, stays, strict=True))
            if problem.rows and problem.cols and not as_it_is
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


def bind_matrices(
    routine: str, arrays: Sequence[Any], trans: Any, accumulate: Any, out_dtype: Any,
    x: Sequence[Any] | None = None, y: Sequence[Any] | None = None, factors: Sequence[Any] = (),
) -> Matrices:  # fmt: skip
    """Check matrices. On the host `x`, `y` and `factors` take part in the common dtype."""
    accumulate = accumulation(routine, accumulate)
    given = for_each(routine, "trans", trans, len(arrays))
    a = adopt_all(routine, "a", arrays, engines_backend.HOME)
    _check_places(routine, "a", a, a)
    dtype = _common(routine, a, x, y, factors)
    result = result_dtype(routine, dtype, None, out_dtype)
    codes = converted(routine, "trans", given, lambda item, _, code: transposition(item, code))
    problems = _problems(a, codes, dtype, None if result == dtype else result, accumulate)
    return Matrices(routine, a, problems, Precision.of(dtype, result, accumulate))


def _problems(
    a: Sequence[Operand], codes: Sequence[int], dtype: np.dtype, result: np.dtype | None,
    accumulate: str,
) -> list[Problem]:  # fmt: skip
    """The product with each matrix, but for the vectors; no function is called for an item."""
    is_complex, new, made = dtype.kind == "c", tuple.__new__, []
    alone = Problem(dtype, 0, 0, 0, 0, 0, False, 0, 0, result=result, accumulate=accumulate)
    rest = alone[Problem._fields.index("incx") :]
    for own, trans in zip(a, codes, strict=True):
        (m, n), (down, across) = own.shape, own.strides
        sizes = (n, m) if trans else (m, n)
        conj = is_complex and (trans == 2) != own.conj
        steps = (across, down) if trans else (down, across)
        made.append(new(Problem, (dtype, m, n, trans, *sizes, conj, *steps, *rest)))
    return made


def _common(
    routine: str, a: Sequence[Operand], x: Sequence[Any] | None, y: Sequence[Any] | None,
    factors: Sequence[Any],
) -> np.dtype:  # fmt: skip
    """The dtype of all products. Device arrays have it; those of the host are converted to it."""
    if not a:
        return np.dtype(np.float64)
    factor = next((f for f in factors if isinstance(f, (complex, np.complexfloating))), 0)
    # Of items whose operands have the same dtypes, the first one stands for all.
    first: dict[tuple, int] = {}
    x = a if x is None else x
    y = [None] * len(a) if y is None else y
    for k, (own, own_x, own_y) in enumerate(zip(a, x, y, strict=True)):
        first.setdefault((own.dtype, own_x.dtype, None if own_y is None else own_y.dtype), k)
    of_first = {
        k: common_dtype(of_item(routine, k), factor, a[k], x[k], 0, y[k]) for k in first.values()
    }
    found = list(of_first.values())
    if not a[0].on_host:
        for k, dtype in of_first.items():
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
    places = {(own.kind, own.device) for own in operands if own is not None}
    if home is None or places <= {(home.kind, home.device), (home.kind, None)}:
        return
    for k, operand in enumerate(operands):
        if operand is None:
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
    given = [vector for vector in listed if name == "x" or vector is not None]
    found = together(name, given, engines_backend.HOME)
    if found is not None:
        each = iter(found)
        return [None if vector is None else next(each) for vector in listed]
    return [
        None
        if vector is None and name == "y"
        else adopt(of_item(routine, k), name, vector, None, engines_backend.HOME)
        for k, vector in enumerate(listed)
    ]


def whole(matrices: Matrices, x: Any) -> Operand:
    """A vector that has those of all items one behind the other."""
    routine = matrices.routine
    found = adopt(routine, "x", x, None, engines_backend.HOME)
    problems = matrices.problems
    if not problems:
        raise value_error(routine, "x", "x is one vector, but the batch has no matrices")
    length = sum([problem.cols for problem in problems])  # a list: no call for each item
    if found.shape[0] != length:
        raise value_error(
            routine,
            "x",
            f"x has {found.shape[0]} elements, but the {len(problems)} products take {length}",
        )
    if found.conj or found.neg:
        found = on_device(found.exporter.resolved(found.origin, False), engines_backend.HOME)
    return found


def parts(matrices: Matrices, whole: Operand) -> list[Operand]:
    """The vectors of all items."""
    routine = matrices.routine
    lengths = [problem.cols for problem in matrices.problems]
    starts = np.cumsum([0, *lengths]).tolist()[:-1]
    if not whole.on_host:
        return parts_of(whole, starts, lengths)
    values = np.asarray(whole.owner)
    pieces = [values[start : start + n] for start, n in zip(starts, lengths, strict=True)]
    return adopt_all(routine, "x", pieces, engines_backend.HOME)


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
        coefficients(routine, name, for_each(routine, name, values, count), dtypes.factors)
        for name, values in (("alpha", alpha), ("beta", beta))
    )
    in_place, problems = [], []
    for k, (own_a, own_x, own_y) in enumerate(zip(a, x, y, strict=True)):
        problem = matrices.problems[k]
        # Functions are called for an item only where it is not as most are: a call takes longer
        # than all that is compared here.
        if own_x.shape[0] != problem.cols or own_x.dtype != dtypes.data:
            _check_vector(routine, k, "x", own_x, problem.cols, own_a, dtypes.data)
        overwritten = False
        if own_y is not None:
            if own_y.shape[0] != problem.rows or own_y.dtype != dtypes.y:
                _check_vector(routine, k, "y", own_y, problem.rows, own_a, dtypes.y)
            if overwrite:
                usual = own_y.strides == (1,) and own_y.kind != "numpy" and not (
                    own_y.conj or own_y.neg or own_y.readonly or own_y.exporter.immutable
                )  # fmt: skip
                overwritten = usual or _overwritten(routine, k, own_y, dtypes.y)
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


def bind_call(
    alpha: Any, As: Any, xs: Any, beta: Any, ys: Any, trans: Any, overwrite_y: Any,
    accumulate: Any, out_dtype: Any,
) -> Product:  # fmt: skip
    """The arguments of :func:`gemv.gemv_batched`, checked."""
    routine = "gemv_batched"
    arrays = sequence(routine, "a", As)
    count = len(arrays)
    x = adopted(routine, "x", xs, count)
    y: list[Any] = [None] * count if ys is None else adopted(routine, "y", ys, count)
    overwrite = flag(routine, "overwrite_y", overwrite_y)
    alphas = number_of(routine, "alpha", alpha, count)
    betas = number_of(routine, "beta", beta, count)
    matrices = bind_matrices(routine, arrays, trans, accumulate, out_dtype, x, y, [*alphas, *betas])
    return bind_product(matrices, alphas, x, betas, y, overwrite)
