"""Products of PyTorch's tensors that PyTorch can differentiate, compile and transform.

``gemv.torch.mv`` and ``gemv.torch.addmv`` replace ``torch.mv`` and ``torch.addmv``. This module is
loaded only when it is imported, and it imports PyTorch: ``import gemv.torch``.

SciPy's BLAS computes products of tensors in host memory, whether there is a GPU or not; the kernels
of :func:`gemv.gemv` compute those of tensors on a GPU.
"""

from __future__ import annotations

from typing import Any

try:
    import torch
except ImportError as error:
    raise ImportError("gemv.torch needs PyTorch: pip install 'gemv[torch]'") from error

from gemv.calls import short, torch_again, torch_host, torch_operators
from gemv.calls.execute import long_way
from gemv.calls.remembered import (
    ONE,
    UNUSUAL,
    WIDE,
    ZERO,
    LongWay,
    public_routines,
)  # fmt: skip
from gemv.calls.short import short_ways
from gemv.calls.short_torch import COPY, IN_PLACE, NEW, in_graphs_only
from gemv.calls.torch_graph import dtype_in_graph, handle_in_graph
from gemv.calls.torch_rules import check, check_out, check_y, factor, number, wanted
from gemv.core.dtypes import PLAIN
from gemv.core.rules import accumulation, transposition

__all__ = ["addmv", "mv"]

_MV, _ADDMV = "gemv.torch.mv", "gemv.torch.addmv"
#: What stands for the routine in the key of a remembered call.
WIDE.update({name: f"{name}, wide" for name in (_MV, _ADDMV)})

_TENSOR, _PARAMETER = torch.Tensor, torch.nn.Parameter
_on_memory = torch_operators.on_memory
# What on_memory asks, asked here without a call of a function.
_compiling = torch.compiler.is_dynamo_compiling
_transforming, _modes = torch_operators.transforming, torch_operators.modes
_recording, _forward_ad = torch_operators.recording, torch_operators.forward_ad


def mv(
    a: Any,
    x: Any,
    out: Any = None,
    *,
    alpha: Any = 1,
    trans: Any = 0,
    accumulate: str = "plain",
    out_dtype: Any = None,
    stream: Any = None,
) -> Any:
    """``alpha*op(a)*x``, as ``torch.mv``.

    Parameters
    ----------
    a : torch.Tensor of shape (m, n)
        Of dtype float32, float64, complex64, complex128, float16 or bfloat16 and of any strides.
    x : torch.Tensor of shape (cols,)
        Of the dtype of `a` and on its device; cols is n, or m with `trans`.
    out : torch.Tensor of shape (rows,), optional
        Is overwritten and returned. As with PyTorch's own functions, no gradient goes through it.
    alpha : number or tensor without a dimension, optional
        A tensor may require a gradient; it multiplies the finished product.
    trans : {0, 1, 2, "N", "T", "C"}, optional
        op(a) is `a`, its transpose or its conjugate transpose.
    accumulate : {"plain", "wide", "pairs"}, optional
        As in :func:`gemv.gemv`.
    out_dtype : dtype, optional
        Of the result. It may be float32 if `a` and `x` are float16 or bfloat16.
    stream : stream or int, optional
        As in :func:`gemv.gemv`, for tensors on a GPU.

    Returns
    -------
    torch.Tensor of shape (rows,)

    Raises
    ------
    ValueError, TypeError
        For shapes that do not fit, and for dtypes or devices that differ.

    Notes
    -----
    Derivatives of any order, in forward and reverse mode, are products and outer products again.
    ``torch.func.vmap`` computes the products of a batch one after the other, each with the bits of
    a single call.
    """
    kind = type(a)
    if (kind is _TENSOR or kind is _PARAMETER) and not (
        _compiling() or _transforming() or _modes() or _recording()
        or _forward_ad["_current_level"] >= 0
    ):  # fmt: skip
        if not a.is_cuda:
            if accumulate is PLAIN and out_dtype is stream is None:
                found = torch_host.short_way(alpha, a, x, ZERO, None, trans, out)
                if found is not None:
                    return found
            short_way = None
        elif accumulate is PLAIN and out_dtype is None:
            found = torch_again.again(
                _MV, alpha, a, x, ZERO, out, trans, NEW if out is None else IN_PLACE, stream
            )
            if found is not None:
                return found
            name: str | None = _MV
            short_way = short_ways.get(kind)
        else:
            name, short_way = short.with_options(_MV, a, accumulate, False, out_dtype)
        if short_way is not None:
            found = short_way(
                name, alpha, a, x, ZERO, out, ZERO, ONE, ZERO, ONE, trans,
                ZERO if out is None else ONE, None, stream, None,
            )  # fmt: skip
            if type(found) is not LongWay:
                return found
    trans = transposition(_MV, trans)
    rows = check(_MV, a, x, trans)
    out_dtype = dtype_in_graph(_MV, out_dtype)
    options = (trans, accumulation(_MV, accumulate), out_dtype, stream)
    if out is not None:
        return _into(_MV, out, rows, wanted(_MV, a, out_dtype), alpha, a, x, 0, options)
    wanted(_MV, a, out_dtype)
    return _product(_MV, alpha, a, x, 0, None, options)


def addmv(
    y: Any,
    a: Any,
    x: Any,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    out: Any = None,
    trans: Any = 0,
    accumulate: str = "plain",
    stream: Any = None,
) -> Any:
    """``beta*y + alpha*op(a)*x``, as ``torch.addmv``.

    Parameters
    ----------
    y : torch.Tensor of shape (rows,), or one that can be broadcast to it
        Of the dtype of `a`; it may be float32 if `a` and `x` are float16 or bfloat16. It is not
        read if `beta` is 0, and it is overwritten if it is passed as `out` as well.
    a, x, trans, accumulate, stream
        As in :func:`mv`.
    beta, alpha : number or tensor without a dimension, optional
        Tensors may require a gradient.
    out : torch.Tensor of shape (rows,), optional
        Is overwritten and returned.

    Returns
    -------
    torch.Tensor of shape (rows,)

    Raises
    ------
    ValueError, TypeError
        As :func:`mv` does.
    """
    kind = type(a)
    usual = y is not None and (out is None or out is y)
    if usual and (kind is _TENSOR or kind is _PARAMETER) and not (
        _compiling() or _transforming() or _modes() or _recording()
        or _forward_ad["_current_level"] >= 0
    ):  # fmt: skip
        if not a.is_cuda:
            if accumulate is PLAIN and stream is None:
                found = torch_host.short_way(alpha, a, x, beta, y, trans, out)
                if found is not None:
                    return found
            short_way = None
        elif accumulate is PLAIN:
            found = torch_again.again(
                _ADDMV, alpha, a, x, beta, y, trans, COPY if out is None else IN_PLACE, stream
            )
            if found is not None:
                return found
            name: str | None = _ADDMV
            short_way = short_ways.get(kind)
        else:
            name, short_way = short.with_options(_ADDMV, a, accumulate, False)
        if short_way is not None:
            found = short_way(
                name, alpha, a, x, beta, y, ZERO, ONE, ZERO, ONE, trans,
                ZERO if out is None else ONE, None, stream, None,
            )  # fmt: skip
            if type(found) is not LongWay:
                return found
    trans = transposition(_ADDMV, trans)
    rows = check(_ADDMV, a, x, trans)
    options = (trans, accumulation(_ADDMV, accumulate), None, stream)
    check_y(_ADDMV, y, a, rows)
    if out is None:
        if y.shape != (rows,):
            y = y.expand(rows).contiguous()
        return _product(_ADDMV, alpha, a, x, beta, y, options)
    if out is not y and not (type(beta) in (int, float, complex) and beta == 0):
        check_out(_ADDMV, out, rows, y.dtype, a)
        for name, value in (("alpha", alpha), ("beta", beta)):
            factor(_ADDMV, name, value, a)
        torch_operators.refuse_gradients(
            (_ADDMV, alpha, a, x, beta, out), y=y, alpha=alpha, beta=beta
        )
        # Whatever else is refused is refused before `out` is written to.
        if not a.is_cuda or _shares_memory(out, a, x, y):
            new = y.expand(rows).contiguous() if y.shape != (rows,) else y
            return out.copy_(_product(_ADDMV, alpha, a, x, beta, new, options))
        out.copy_(y)
    return _into(_ADDMV, out, rows, y.dtype, alpha, a, x, beta, options)


# Where a call goes ------------------------------------------------------------------------------


def _is_plain(*tensors: Any) -> bool:
    """Whether a product of these is all that is wanted: memory, and nobody who watches it."""
    return (
        _on_memory()
        and torch_operators.are_memory(*tensors)
        and not torch_operators.watched(*tensors)
    )


def _shares_memory(out: Any, *others: Any) -> bool:
    """Whether `out` may overlap one of these: they are parts of one allocation."""
    if not (_on_memory() and torch_operators.are_memory(out, *others)):
        return False
    start = out.untyped_storage().data_ptr()
    return any(each.untyped_storage().data_ptr() == start for each in others)


def _product(routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any, options: tuple) -> Any:
    """A new vector: computed at once, or by the operator that others see through."""
    traced = any(isinstance(factor, _TENSOR) for factor in (alpha, beta))
    if _is_plain(a, x, y) and not traced:
        return _compute(routine, number(routine, "alpha", alpha, a), a, x,
                        number(routine, "beta", beta, a), y, 0, options)  # fmt: skip
    trans, accumulate, out_dtype, stream = options
    stream = handle_in_graph(routine, stream)
    if not traced:
        alpha, beta = number(routine, "alpha", alpha, a), number(routine, "beta", beta, a)
        return torch_operators.product(
            routine, alpha, a, x, beta, y, trans, accumulate, out_dtype, stream
        )
    result_dtype = out_dtype if y is None else y.dtype
    part = torch_operators.product(
        routine, 1, a, x, 0, None, trans, accumulate, result_dtype, stream
    )
    part = part * factor(routine, "alpha", alpha, a)
    return part if y is None else part + y * factor(routine, "beta", beta, a)


def _into(
    routine: str, out: Any, rows: Any, dtype: Any, alpha: Any, a: Any, x: Any, beta: Any,
    options: tuple,
) -> Any:  # fmt: skip
    """The same, written over `out`."""
    check_out(routine, out, rows, dtype, a)
    trans, accumulate, _, stream = options
    options = (trans, accumulate, None, stream)
    if isinstance(alpha, _TENSOR) or isinstance(beta, _TENSOR):
        start = None if type(beta) in (int, float, complex) and beta == 0 else out
        options = (trans, accumulate, out.dtype, stream)
        return out.copy_(_product(routine, alpha, a, x, beta, start, options))
    alpha, beta = number(routine, "alpha", alpha, a), number(routine, "beta", beta, a)
    if _is_plain(a, x, out):
        return _compute(routine, alpha, a, x, beta, out, 1, options)
    torch.ops.gemv.product_(
        routine, alpha, a, x, beta, out, 0, 1, 0, 1, trans, None, accumulate, None,
        handle_in_graph(routine, stream),
    )  # fmt: skip
    return out


def _compute(
    routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any, overwrite: int, options: tuple
) -> Any:
    """A product of memory."""
    trans, accumulate, out_dtype, stream = options
    if not a.numel():
        # BLAS would leave y as it is, PyTorch does not.
        new = x.new_zeros(a.shape[1] if trans else a.shape[0], dtype=out_dtype or a.dtype)
        if y is None:
            return new
        if beta == 0:  # y is not read: it may be NaN
            return y.zero_() if overwrite else torch.zeros_like(y)
        return y.mul_(beta) if overwrite else y * beta
    if not a.is_cuda:
        if stream is not None:
            raise ValueError(f"{routine}: stream only applies to tensors on a GPU, a is on the CPU")
        if accumulate == "plain" and out_dtype is None and not overwrite:
            found = torch_host.short_way(alpha, a, x, beta, y, trans, None)
            if found is not None:
                return found
        return torch_host.long_way(
            routine, alpha, a, x, beta, y, overwrite, trans, accumulate, out_dtype
        )
    arguments = (alpha, a, x, beta, y, 0, 1, 0, 1, trans, overwrite)
    plain = accumulate == "plain" and out_dtype is None
    name = routine if plain else WIDE[routine] if accumulate == "wide" else None
    found = UNUSUAL
    if name is not None and out_dtype is None:
        # Asked again for the key under which the call is remembered, unless it was made meanwhile.
        short_way = short_ways.get(type(a))
        if short_way is not None:
            found = short_way(name, *arguments, None, stream, None)
            if type(found) is not LongWay:
                return found
    else:
        name = None
    return long_way(
        found, name, routine, None, arguments, (None, stream, None), accumulate, out_dtype, False,
        None,
    )  # fmt: skip


def _as_routine(routine: str) -> Any:
    """The function that the operators call on memory, with the parameters of :func:`gemv.gemv`."""

    def product(
        alpha: Any, a: Any, x: Any, beta: Any, y: Any, offx: Any, incx: Any, offy: Any, incy: Any,
        trans: Any, overwrite_y: Any, *, kernel: Any, accumulate: Any, stream: Any,
        out_dtype: Any = None,
    ) -> Any:  # fmt: skip
        options = (trans, accumulate, out_dtype, stream)
        return _compute(routine, alpha, a, x, beta, y, overwrite_y, options)

    return product


# Where PyTorch was imported after gemv, calls of gemv.gemv are kept in graphs from here on.
for _kind, _way in in_graphs_only().items():
    short_ways.setdefault(_kind, _way)
public_routines.update({name: _as_routine(name) for name in (_MV, _ADDMV)})
