"""Calls with JAX's arrays: arguments are checked by shape and dtype, values may be traced."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.backend import backends

from gemv.calls import jax_handlers, jax_operators
from gemv.calls.jax_rules import (
    array_of,
    check_factor,
    check_lengths,
    check_options,
    dtype_of,
    result_dtype,
)
from gemv.calls.remembered import ONE
from gemv.core import memo
from gemv.core.dtypes import DTYPES, dtype_name
from gemv.core.rules import (
    accumulation,
    check_arguments,
    flag,
    integer,
    transposition,
    y_length,
)
from gemv.engines import backend as engines_backend

_MATVEC = "gemv.jax.matvec"
#: The class of arrays that have values; known from the first one on.
_array_class: Any = None
#: Types of `trans`; True and 1.0 are equal to 1.
_CODES = (int, str)
_MOST_COMPILED = 256
#: Stands for a factor that a compiled call has as an argument.
PASSED = object()
#: Compiled calls that were checked before, by the avals of A and x, and the options.
_compiled: dict[tuple, Any] = {}
memo.on_forget(_compiled.clear)


def matvec(
    a: Any,
    x: Any,
    y: Any = None,
    *,
    alpha: Any = 1,
    beta: Any = 1,
    trans: Any = 0,
    accumulate: str = "plain",
    out_dtype: Any = None,
    kernel: str | None = None,
) -> Any:
    """``alpha*op(a)*x``, or ``alpha*op(a)*x + beta*y`` where `y` is passed.

    Parameters
    ----------
    a : jax.Array of shape (m, n)
        Of dtype float32, float64, complex64, complex128, float16 or bfloat16.
    x : jax.Array of shape (cols,)
        Of the dtype of `a`; cols is n, or m with `trans`.
    y : jax.Array of shape (rows,), optional
        Of the dtype of the result. It is not read where `beta` is the number 0.
    alpha, beta : number or array without a dimension, optional
        May be traced. An array multiplies the product that is there already; where `alpha` is the
        number 0, `a` and `x` are not read.
    trans : {0, 1, 2, "N", "T", "C"}, optional
    accumulate : {"plain", "wide", "pairs"}, optional
        As in :func:`gemv.gemv`.
    out_dtype : dtype, optional
        Of the result: float32 for narrow `a` and `x`.
    kernel : str, optional
        As in :func:`gemv.gemv`; on a GPU only.

    Returns
    -------
    jax.Array of shape (rows,)

    Raises
    ------
    ValueError, TypeError
        For shapes that do not fit, for dtypes that differ, and for arrays on a GPU where the host
        backend was chosen.

    Notes
    -----
    Works under ``jax.jit``, ``grad``, ``jvp``, ``vmap`` and what is made of these, to any order.
    The items of a batch have the bits that those of :func:`gemv.matvec` have.
    """
    global _array_class
    usual, kinds, rest = y is None and alpha is ONE, None, ()
    plain = out_dtype is kernel is None and type(trans) in _CODES and type(accumulate) is str
    if plain and type(a) is type(x) is _array_class:
        if not usual:
            kinds, rest = _kinds(alpha, beta, y)
        if usual or kinds is not None:
            # An aval is shape, dtype and what else compiled code depends on.
            compiled = _compiled.get((a.aval, x.aval, kinds, trans, accumulate))
            if compiled is not None:
                try:
                    return compiled(a, x, *rest)
                except (RuntimeError, ValueError):  # an array that was deleted or donated
                    pass
    generation, beta = memo.generation(), 0 if y is None else beta
    if any(isinstance(value, jax.core.Tracer) for value in (a, x, y, alpha, beta)):
        return _traced(
            _MATVEC, None, alpha, a, x, beta, y, 0, 1, 0, 1, trans, accumulate, out_dtype, kernel
        )
    check_options(_MATVEC, kernel, out_dtype)
    # Numbers that change must not compile anew, but 1 and 0 save a step each, and 0 reads nothing.
    fixed = (
        _zero_or_one(alpha), _zero_or_one(beta),
        transposition(_MATVEC, trans), accumulation(_MATVEC, accumulate), out_dtype, kernel,
    )  # fmt: skip
    given_a, given_x, given_y = a, x, y
    a, x = array_of(_MATVEC, "a", a, 2), array_of(_MATVEC, "x", x, 1)
    y = None if y is None else array_of(_MATVEC, "y", y, 1)
    alpha, beta = check_factor(_MATVEC, "alpha", alpha, a), check_factor(_MATVEC, "beta", beta, a)
    if any(platform != "cpu" for platform in _platforms(a)):
        jax_handlers.refuse_on_host()  # XLA would tell it late, where the result is read
    compiled = at_once(*fixed, y is not None)
    further = [] if y is None else [y]
    further += [value for value, known in zip((alpha, beta), fixed[:2], strict=True)
                if known is None]  # fmt: skip
    result = compiled(a, x, *further)
    kept = plain and a is given_a and x is given_x and y is given_y and _has_one_place()
    if kept and generation == memo.generation():
        _array_class = type(a)
        kinds = None if usual else _kinds(alpha, beta, y)[0]
        if usual or kinds is not None:
            if len(_compiled) >= _MOST_COMPILED:
                _compiled.clear()
            _compiled[a.aval, x.aval, kinds, trans, accumulate] = compiled
    return result


def _kinds(alpha: Any, beta: Any, y: Any) -> tuple[tuple | None, tuple]:
    """What the compiled call for these depends on, and what it is called with beside A and x.

    The first is None where they have to be looked at: other types, and a 0, which is no argument.
    """
    kinds, rest = [], []
    if y is not None:
        if type(y) is not _array_class:
            return None, ()
        kinds.append(y.aval)
        rest.append(y)
    for factor in (alpha,) if y is None else (alpha, beta):
        kind = type(factor)
        if kind is np.float64 or kind is np.float32:
            factor, kind = factor.item(), float
        if kind is float and factor != 0 and factor != 1:
            kinds.append(float)
        elif kind is _array_class:
            kinds.append(factor.aval)
        elif factor is ONE:
            kinds.append(1)
            continue
        else:
            return None, ()
        rest.append(factor)
    return (*kinds,), (*rest,)


def _has_one_place() -> bool:
    """Whether arrays of one aval need no look at where they lie.

    An aval does not tell, and the host backend refuses those on a GPU.
    """
    return engines_backend.backend() != "host" or set(backends()) == {"cpu"}


def _platforms(array: Any) -> set[str]:
    """Those that an array lies on: ``"cpu"`` is host memory."""
    return {device.platform for device in array.devices()}


def at_once(
    alpha: Any, beta: Any, trans: int, accumulate: str, out_dtype: Any, kernel: Any, has_y: bool
) -> Any:
    """A compiled call, for arrays that have values: a, x, y and those factors that are None."""
    factors = (PASSED if factor is None else factor for factor in (alpha, beta))
    return compiled_call(
        _MATVEC, None, *factors, 0, 1, 0, 1, trans, accumulate, out_dtype, kernel, has_y
    )


# Typed: True and 1 + 0j are equal to 1, and the first call of a kind has to look at them.
@functools.lru_cache(maxsize=_MOST_COMPILED, typed=True)
def compiled_call(
    routine: str, dtype: Any, alpha: Any, beta: Any, offx: Any, incx: Any, offy: Any, incy: Any,
    trans: Any, accumulate: Any, out_dtype: Any, kernel: Any, has_y: bool,
) -> Any:  # fmt: skip
    """A function of a, x, y and those factors that are :data:`PASSED`, compiled by JAX.

    JAX keeps what it makes of one: its trace, its derivatives, its batches, and their programs.
    """

    def call(a: Any, x: Any, *further: Any) -> Any:
        rest = list(further)
        y = rest.pop(0) if has_y else None
        first = rest.pop(0) if alpha is PASSED else alpha
        second = rest.pop(0) if beta is PASSED else beta
        return _call(
            routine, dtype, first, a, x, second, y, offx, incx, offy, incy, trans, accumulate,
            out_dtype, kernel,
        )  # fmt: skip

    # Inline: a program that this is a part of has the product itself, as without this function.
    return jax.jit(call, inline=True)


def _traced(
    routine: str, dtype: Any, alpha: Any, a: Any, x: Any, beta: Any, y: Any, *options: Any
) -> Any:
    """A call with arguments that JAX traces, through a function that it has traced before.

    Outside of ``jit`` each ``grad`` and each ``vmap`` traces its function anew, and would come
    through all of :func:`_call` and dispatch each operation in it by itself.
    """
    arrays = [a, x] if y is None else [a, x, y]
    factors = [PASSED if isinstance(factor, jax.Array) else factor for factor in (alpha, beta)]
    if all(map(_is_usable, arrays)):
        try:
            function = compiled_call(routine, dtype, *factors, *options, y is not None)
        except TypeError:  # what is no number and no option, perhaps
            pass
        else:
            passed = (
                factor for factor, fixed in zip((alpha, beta), factors, strict=True)
                if fixed is PASSED
            )  # fmt: skip
            return function(*arrays, *passed)
    return _call(routine, dtype, alpha, a, x, beta, y, *options)


def _is_usable(array: Any) -> bool:
    """Whether an array is one of JAX's that can be read."""
    if isinstance(array, jax.core.Tracer):
        return True
    return isinstance(array, jax.Array) and not array.is_deleted()


def traced(
    routine: str, dtype: Any, arguments: tuple, options: tuple, accumulate: Any, out_dtype: Any,
    peer: Any, limit: Any,
) -> Any:  # fmt: skip
    """A call of :func:`gemv.gemv` or its kin with arguments that JAX traces."""
    kernel, stream, coefficients = options
    for name, value in (
        ("stream", stream), ("coefficients", coefficients), ("device_memory_limit", limit),
        ("peer", flag(routine, "peer", peer) or None),
    ):  # fmt: skip
        if value is not None:
            raise TypeError(
                f"{routine}: {name} cannot be kept in what JAX traces: XLA orders the work and"
                " owns the memory"
            )
    alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite = arguments
    flag(routine, "overwrite_y", overwrite)  # y is never overwritten, as with all of JAX's arrays
    return _traced(
        routine, dtype, alpha, a, x, beta, y, offx, incx, offy, incy, trans, accumulate, out_dtype,
        kernel,
    )  # fmt: skip


def _call(
    routine: str, dtype: Any, alpha: Any, a: Any, x: Any, beta: Any, y: Any, offx: Any, incx: Any,
    offy: Any, incy: Any, trans: Any, accumulate: Any, out_dtype: Any, kernel: Any,
) -> Any:  # fmt: skip
    trans = transposition(routine, trans)
    offx, incx = integer(routine, "offx", offx), integer(routine, "incx", incx)
    offy, incy = integer(routine, "offy", offy), integer(routine, "incy", incy)
    accumulate = accumulation(routine, accumulate)
    check_options(routine, kernel, out_dtype)
    a, x = array_of(routine, "a", a, 2), array_of(routine, "x", x, 1)
    y = None if y is None else array_of(routine, "y", y, 1)
    computed = dtype_of(routine, "a", a)
    if dtype is not None and computed != dtype:
        raise TypeError(
            f"{routine}: a has dtype {a.dtype} but {routine} computes in {dtype} and traced arrays"
            " are never converted"
        )
    if x.dtype != a.dtype:
        raise TypeError(f"{routine}: x must have the dtype of a, {a.dtype}, got {x.dtype}")
    result = result_dtype(routine, computed, y, out_dtype)
    whole = routine == _MATVEC
    if whole:
        rows, cols = a.shape[::-1] if trans else a.shape
        check_lengths(routine, a, x, y, rows, cols)
        length = rows
    else:
        problem = check_arguments(
            routine, computed, a.shape, (a.shape[1], 1), x.shape[0], 1,
            None if y is None else y.shape[0], 1, offx, incx, offy, incy, trans, result,
        )  # fmt: skip
        rows, cols = problem.rows, problem.cols
        length = y_length(rows, offy, incy) if y is None else y.shape[0]
    name = "bfloat16" if result not in (*DTYPES.values(),) else dtype_name(result)
    alpha, beta = check_factor(routine, "alpha", alpha, a), check_factor(routine, "beta", beta, a)
    if not rows or not cols:
        # BLAS leaves y as it is, an empty sum is 0.
        if y is None:
            return jnp.zeros(length, name)
        if not whole:
            return y
        return jnp.zeros(length, name) if _is_zero(beta) else (y * beta).astype(name)
    window = x if (offx, incx) == (0, 1) and x.shape[0] == cols else x[_walk(offx, incx, cols)]
    number = alpha if isinstance(alpha, (int, float, complex)) else 1.0
    new = jax_operators.product(
        a, window, alpha=number, trans=trans, accumulate=accumulate, out_dtype=name, kernel=kernel
    )
    if number is not alpha:
        new = (new * alpha).astype(name)
    whole = whole or ((offy, abs(incy)) == (0, 1) and length == rows)
    if incy < 0 and whole:
        new = new[::-1]
    place = _walk(offy, incy, rows)
    if y is not None and not _is_zero(beta):
        new = (new + beta * (y if whole else y[place])).astype(name)
    if whole:
        return new
    return (jnp.zeros(length, name) if y is None else y).at[place].set(new)


def _zero_or_one(factor: Any) -> int | None:
    """A number of Python or NumPy that is 0 or 1; None for any other, and for arrays."""
    is_number = isinstance(factor, (int, float, np.floating, np.integer))
    return int(factor) if is_number and factor in (0, 1) else None  # True is 1, as everywhere


def _is_zero(factor: Any) -> bool:
    return isinstance(factor, (int, float, complex)) and factor == 0


def _walk(start: int, step: int, count: int) -> Any:
    """The places of a vector's elements, which begin at the far end for a negative step."""
    places = start + abs(step) * np.arange(count)
    return places if step > 0 else places[::-1]
