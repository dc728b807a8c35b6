"""Calls of :func:`gemv.gemv` and its kin that ``torch.compile`` traces: operators of its graph.

``torch.compile`` runs Python code with tensors that have no memory, to record a graph. It keeps the
operators of :mod:`gemv.calls.torch_operators` as they are, and calls them when the graph runs.
"""

from __future__ import annotations

from typing import Any

import torch

from gemv.arrays.base import dtype_called
from gemv.calls import torch_operators  # noqa: F401  registers the operators
from gemv.calls.remembered import WIDE
from gemv.core.dtypes import dtype_name
from gemv.core.rules import accumulation, transposition, type_error
from gemv.core.values import shown

_PLAIN = {wide: routine for routine, wide in WIDE.items()}


def in_graph(
    routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any,
    offx: Any, incx: Any, offy: Any, incy: Any, trans: Any, overwrite_y: Any,
    kernel: Any, stream: Any, coefficients: Any, accumulate: Any = "plain", out_dtype: Any = None,
) -> Any:  # fmt: skip
    """Record a call that ``torch.compile`` is tracing as an operator of its graph."""
    if routine in _PLAIN:
        routine, accumulate = _PLAIN[routine], "wide"
    if coefficients is not None:
        raise type_error(
            routine, "coefficients", "coefficients cannot be kept in a graph of torch.compile"
        )
    for name, factor in (("alpha", alpha), ("beta", beta)):
        if isinstance(factor, torch.Tensor):
            raise type_error(
                routine,
                name,
                f"{name} is a tensor, and a graph of torch.compile keeps numbers; gemv.torch.mv and"
                " addmv take tensors",
            )
    if torch.is_grad_enabled():
        for name, tensor in (("a", a), ("x", x), ("y", y)):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                raise type_error(
                    routine,
                    name,
                    f"{name} requires a gradient, which this product does not record: call"
                    " gemv.torch.mv or addmv, which do, pass its detach(), or call under"
                    " torch.no_grad()",
                )
    options = (
        offx, incx, offy, incy, transposition(routine, trans), kernel,
        accumulation(routine, accumulate), dtype_in_graph(routine, out_dtype),
        handle_in_graph(routine, stream),
    )  # fmt: skip
    if y is not None and overwrite_y:
        torch.ops.gemv.product_(routine, alpha, a, x, beta, y, *options)
        return y
    return torch.ops.gemv.product(routine, alpha, a, x, beta, y, *options)


def dtype_in_graph(routine: str, out_dtype: Any) -> Any:
    """The dtype of PyTorch's with the name of another library's."""
    if out_dtype is None or isinstance(out_dtype, torch.dtype):
        return out_dtype
    dtype = dtype_called(out_dtype)
    if dtype is None:
        raise TypeError(
            f"{routine}: out_dtype must be the dtype computed in, got {shown(out_dtype)}"
        )
    return getattr(torch, dtype_name(dtype))


def handle_in_graph(routine: str, stream: Any) -> int | None:
    """The driver's handle of a stream, which a graph can keep as a number."""
    if stream is None or type(stream) is int:
        return stream
    try:  # no getattr with a default: the compiler of PyTorch 2.11 does not know it for a stream
        return stream.cuda_stream
    except AttributeError:
        raise type_error(
            routine,
            "stream",
            "a graph of torch.compile keeps a stream of PyTorch's, or a stream's handle as an int,"
            f" got {type(stream).__name__}",
        ) from None
