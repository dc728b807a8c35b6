"""A call's arguments become a checked :class:`Call`; nothing is copied, moved or launched."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemv.arrays import adopt as arrays_adopt
from gemv.arrays import host
from gemv.arrays.adopt import adopt
from gemv.arrays.base import dtype_called
from gemv.core.dtypes import DTYPES, NARROW, PREFIXES, Precision, dtype_name
from gemv.core.operand import Operand, matrix_view, overlap, vector_view, where
from gemv.core.problem import Problem
from gemv.core.rules import (
    accumulation,
    check_arguments,
    coefficient,
    flag,
    integer,
    is_complex,
    number,
    result_name,
    transposition,
    type_error,
    value_error,
)
from gemv.core.values import shown
from gemv.engines import backend as engines_backend
from gemv.engines.coefficients import Coefficients, homes_of

#: The arguments of BLAS, from alpha to overwrite_y.
BlasArguments = tuple[Any, Any, Any, Any, Any, Any, Any, Any, Any, Any, Any]


class Call(NamedTuple):
    """A checked call: everything that is known before memory is allocated or moved."""

    routine: str
    blas_name: str
    problem: Problem
    alpha: Any
    beta: Any
    a: Operand
    x: Operand
    y: Operand | None
    y_object: Any
    offx: int
    offy: int
    incy: int
    in_place: bool
    nothing: str | None
    homes: tuple[str, str]
    owner: Coefficients | None

    @property
    def on_host(self) -> bool:
        return self.a.on_host

    @property
    def device(self) -> int | None:
        """Ordinal of the GPU that computes: that of A, or of x or y where A is empty."""
        operands = (self.a, self.x, self.y)
        return next((o.device for o in operands if o is not None and o.device is not None), None)


def bind(
    routine: str,
    dtype: np.dtype | None,
    alpha: Any,
    a: Any,
    x: Any,
    beta: Any,
    y: Any,
    offx: Any,
    incx: Any,
    offy: Any,
    incy: Any,
    trans: Any,
    overwrite_y: Any,
    coefficients: Any,
    accumulate: Any = "plain",
    out_dtype: Any = None,
    peer: Any = False,
) -> Call:
    """Read the arguments and check them.

    `dtype` is that of the routine; None stands for gemv, which computes in that of its operands.
    """
    trans = transposition(routine, trans)
    incx = integer(routine, "incx", incx)
    incy = integer(routine, "incy", incy)
    offx = integer(routine, "offx", offx)
    offy = integer(routine, "offy", offy)
    overwrite = flag(routine, "overwrite_y", overwrite_y)
    alpha = _number_or_operand(routine, "alpha", alpha, dtype)
    beta = _number_or_operand(routine, "beta", beta, dtype)
    on_device = isinstance(alpha, Operand), isinstance(beta, Operand)
    homes = homes_of(routine, coefficients, on_device)
    accumulate = accumulation(routine, accumulate)
    owner = coefficients if isinstance(coefficients, Coefficients) else None

    operand_a = adopt(routine, "a", a, dtype, engines_backend.HOME)
    operand_x = adopt(routine, "x", x, dtype, engines_backend.HOME)
    operand_y = None if y is None else adopt(routine, "y", y, dtype, engines_backend.HOME)
    peer = flag(routine, "peer", peer)
    check_places(routine, operand_a, operand_x, operand_y, alpha, beta, peer)
    if dtype is None:
        dtype = common_dtype(routine, alpha, operand_a, operand_x, beta, operand_y)
    y_dtype = result_dtype(routine, dtype, operand_y, out_dtype)
    factors_dtype = Precision.of(dtype).factors
    if not on_device[0]:
        alpha = coefficient(routine, "alpha", alpha, factors_dtype)
    if not on_device[1]:
        beta = coefficient(routine, "beta", beta, factors_dtype)

    in_place = (
        overwrite
        and operand_y is not None
        and (
            host.writable_in_place(operand_y, y_dtype)
            if operand_y.on_host
            else not operand_y.exporter.immutable
        )
    )
    factors = _Factors(routine, alpha, beta)
    operand_x = factors.fold(operand_a, operand_x, operand_y if in_place else None)
    alpha, beta = factors.alpha, factors.beta
    problem = check_arguments(
        routine,
        dtype,
        operand_a.shape,
        operand_a.strides,
        operand_x.shape[0],
        operand_x.strides[0],
        None if operand_y is None else operand_y.shape[0],
        operand_y.strides[0] if operand_y is not None and in_place else 1,
        offx,
        incx,
        offy,
        incy,
        trans,
        y_dtype,
    )
    problem = problem._replace(conj=problem.conj != factors.conjugate_a, accumulate=accumulate)
    if in_place and operand_y is not None:
        _check_overwrite(routine, problem, operand_a, operand_x, operand_y, alpha, beta)

    nothing = None
    if problem.rows == 0 or problem.cols == 0:
        nothing = f"A of shape {operand_a.shape} is empty"
    elif owner is None and not any(on_device) and alpha == 0 and beta == 1:
        nothing = "alpha is 0 and beta is 1"
    return Call(
        routine=routine,
        blas_name=PREFIXES[dtype] + "gemv",
        problem=problem,
        alpha=alpha,
        beta=beta,
        a=operand_a,
        x=operand_x,
        y=operand_y,
        y_object=y,
        offx=offx,
        offy=offy,
        incy=incy,
        in_place=in_place,
        nothing=nothing,
        homes=homes,
        owner=owner,
    )


class _Factors:
    """alpha and beta, changed so that a kernel can read lazy negatives and conjugates as they lie.

    A tensor may stand for the negative or the conjugate of what lies in memory. With Y, A and X for
    the memory of y, a and x, ``conj(Y) := alpha*A*X + beta*conj(Y)`` is
    ``Y := conj(alpha)*conj(A)*conj(X) + conj(beta)*Y``, and signs go into alpha.
    """

    def __init__(self, routine: str, alpha: Any, beta: Any) -> None:
        self.routine = routine
        self.alpha = alpha
        self.beta = beta
        self.conjugate_a = False

    def fold(self, a: Operand, x: Operand, y: Operand | None) -> Operand:
        """Take over what a, x and a y to be overwritten stand for; x as the kernel has to read it.

        y is None where a new one is made.
        """
        flip = y is not None and y.conj
        self.conjugate_a = a.conj != flip
        conjugate_x = x.conj != flip
        negative = a.neg != (y is not None and y.neg)
        if conjugate_x:
            # No kernel conjugates x: its conjugate is written to new memory ahead of the launch.
            x = x._replace(strides=(1,), resolve=True, conj=flip, neg=False)
        else:
            negative ^= x.neg
        if (flip or negative) and isinstance(self.alpha, Operand):
            raise type_error(
                self.routine,
                "alpha",
                "alpha is a device array, and an operand is a lazy negative or conjugate: call"
                " resolve_neg() and resolve_conj() on a, x and y first",
            )
        if flip:
            self.alpha = self.alpha.conjugate()
            self.beta = self.beta.conjugate()
        if negative:
            self.alpha = -self.alpha
        return x


def _number_or_operand(routine: str, name: str, value: Any, dtype: np.dtype | None) -> Any:
    """alpha or beta as a number, or as the operand of a 0-d device array."""
    if isinstance(value, (int, float, complex)) or not arrays_adopt.is_device_array(value):
        return number(routine, name, value)
    return arrays_adopt.adopt(routine, name, value, dtype, engines_backend.HOME)


def check_places(
    routine: str,
    a: Operand,
    x: Operand,
    y: Operand | None,
    alpha: Any,
    beta: Any,
    peer: bool | None,
) -> None:
    """Refuse host operands beside device operands, and those of several GPUs without `peer`.

    A copy between them would be a cost that the call does not show. `peer` is None for a call that
    has no such argument.
    """
    for name, factor in (("alpha", alpha), ("beta", beta)):
        if isinstance(factor, Operand) and a.on_host:
            raise type_error(
                routine,
                name,
                f"a is {where(a)} but {name} is {where(factor)};"
                " with host arrays alpha and beta must be numbers",
            )
    # An A without elements has no memory, and so no GPU.
    nowhere = not a.on_host and a.device is None and x.device is not None
    home, at = ("x", x) if nowhere else ("a", a)
    result = result_name(routine)
    for name, operand in (("x", x), (result, y), ("alpha", alpha), ("beta", beta)):
        if isinstance(operand, Operand) and (
            operand.on_host != at.on_host or _on_other_device(at, operand)
        ):
            devices = not (operand.on_host or at.on_host) and name in ("x", result)
            if peer and devices:
                continue
            hint = ""
            if devices and peer is not None:
                hint = ", or peer=True lets x and y be on another GPU"
            raise type_error(
                routine,
                name,
                f"{home} is {where(at)} but {name} is {where(operand)};"
                f" a, x and {result} must be in one place{hint}",
            )


def _on_other_device(a: Operand, operand: Operand) -> bool:
    # None: an empty operand, or memory of which the driver does not know the GPU.
    return None not in (a.device, operand.device) and a.device != operand.device


def common_dtype(
    routine: str, alpha: Any, a: Operand, x: Operand, beta: Any, y: Operand | None
) -> np.dtype:
    """The dtype that gemv computes in; see the Notes of :func:`gemv.gemv`."""
    named = [("a", a), ("x", x)] + ([(result_name(routine), y)] if y is not None else [])
    if not a.on_host:
        for name, operand in named:
            if operand.dtype not in PREFIXES:
                known = ", ".join(map(dtype_name, PREFIXES))
                raise type_error(
                    routine,
                    name,
                    f"{name} has dtype {dtype_name(operand.dtype)}; device arrays are computed in"
                    f" {known}",
                )
            if operand.dtype != a.dtype and not (
                operand is y and a.dtype in NARROW and operand.dtype == DTYPES["s"]
            ):
                raise type_error(
                    routine,
                    name,
                    f"a has dtype {dtype_name(a.dtype)} but {name} has dtype"
                    f" {dtype_name(operand.dtype)} and device arrays are never converted",
                )
        factors = Precision.of(a.dtype).factors
        for name, factor in (("alpha", alpha), ("beta", beta)):
            if isinstance(factor, Operand) and factor.dtype != factors:
                raise type_error(
                    routine,
                    name,
                    f"a has dtype {dtype_name(a.dtype)}, which needs {name} as {factors}, but"
                    f" {name} has dtype {dtype_name(factor.dtype)} and device arrays are never"
                    " converted",
                )
        return a.dtype
    for name, operand in named:
        if operand.dtype.char in "gG":
            raise type_error(
                routine,
                name,
                f"{name} has dtype {operand.dtype}, and nothing here is that precise;"
                " convert it to float64 or complex128 first",
            )
    complex_factor = is_complex(alpha) or is_complex(beta)
    single = DTYPES["s"]
    data, *others = [operand.dtype.newbyteorder("=") for _, operand in named]
    if data in NARROW and others[0] == data and not complex_factor:
        if others[-1] in (data, single):
            return data
    # Beside others a narrow dtype counts as float32: NumPy has no rule for bfloat16.
    dtype = np.result_type(*(single if o in NARROW else o for o in (data, *others)))
    if dtype.kind in "biu":
        dtype = DTYPES["d"]
    if dtype.kind == "f" and complex_factor:
        dtype = DTYPES["c" if dtype == single else "z"]
    if dtype not in PREFIXES:  # float8_e5m2 of ml_dtypes, which NumPy counts as a number
        raise type_error(
            routine,
            "a",
            f"a and x would be multiplied in {dtype_name(dtype)}, in which nothing is computed;"
            " convert one of them to float32 first",
        )
    return dtype


def result_dtype(routine: str, dtype: np.dtype, y: Operand | None, out_dtype: Any) -> np.dtype:
    """The dtype of the result of a call that computes with A and x in `dtype`."""
    narrow = dtype in NARROW
    wanted = None if out_dtype is None else dtype_called(out_dtype)
    possible = (dtype, DTYPES["s"]) if narrow else (dtype,)
    # NumPy says that None == dtype(float64).
    if out_dtype is not None and (wanted is None or wanted not in possible):
        which = "as a and x are, or float32" if narrow else "the dtype computed in"
        raise TypeError(
            f"{routine}: out_dtype must be {dtype_name(dtype)}, {which}, got {shown(out_dtype)}"
        )
    if y is None or not narrow:
        return dtype if wanted is None else wanted
    if wanted not in (None, y.dtype):
        raise type_error(
            routine,
            "y",
            f"{result_name(routine)} has dtype {dtype_name(y.dtype)}, which decides, but out_dtype"
            f" is {out_dtype!r}",
        )
    return y.dtype


def _check_overwrite(
    routine: str, problem: Problem, a: Operand, x: Operand, y: Operand, alpha: Any, beta: Any
) -> None:
    """Refuse to overwrite a y that is read-only or shares elements with an input or itself."""
    if y.readonly:
        raise value_error(routine, "y", "y is read-only, so overwrite_y=1 cannot write to it")
    if problem.rows == 0 or problem.cols == 0:
        return
    if problem.rows > 1 and problem.incy == 0:
        raise value_error(
            routine,
            "y",
            "overwrite_y=1 needs a y whose elements are apart in memory, got one of stride 0",
        )
    target = vector_view(y, problem.rows, problem.y_offset, problem.incy)
    source = vector_view(x, problem.cols, problem.x_offset, problem.incx)
    if overlap(target, source):
        raise value_error(
            routine, "y", "y overlaps x in memory, so overwrite_y=1 would change x on the way"
        )
    if overlap(target, matrix_view(a)):
        raise value_error(
            routine, "y", "y overlaps a in memory, so overwrite_y=1 would change a on the way"
        )
    for name, factor in (("alpha", alpha), ("beta", beta)):
        if isinstance(factor, Operand) and overlap(target, matrix_view(factor)):
            raise value_error(
                routine,
                "y",
                f"y overlaps {name} in memory, so overwrite_y=1 would change {name} on the way",
            )
