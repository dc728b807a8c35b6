"""Calls as operators of PyTorch, which a graph of ``torch.compile`` can keep.

``torch.compile`` runs Python code with tensors that have no memory, to record a graph. It keeps the
operators registered here as they are, and calls them when the graph runs. This file is imported
only where PyTorch has been.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import library as operators

from gemv.calls.remembered import UNUSUAL, WIDE, public_routines
from gemv.core.rules import transposition, type_error, y_length

_OPTIONS = "int offx, int incx, int offy, int incy, int trans, str? kernel"

_library = operators.Library("gemv", "DEF")
_library.define(
    "product(str routine, Scalar alpha, Tensor a, Tensor x, Scalar beta, Tensor? y,"
    f" {_OPTIONS}) -> Tensor"
)
_library.define(
    "product_(str routine, Scalar alpha, Tensor a, Tensor x, Scalar beta, Tensor(y!) y,"
    f" {_OPTIONS}) -> ()"
)


def in_graph(
    routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any,
    offx: Any, incx: Any, offy: Any, incy: Any, trans: Any, overwrite_y: Any,
    kernel: Any, stream: Any, coefficients: Any,
) -> Any:  # fmt: skip
    """Record a call that ``torch.compile`` is tracing as an operator of its graph."""
    if routine in WIDE.values():  # no operator has accumulate="wide"
        return UNUSUAL
    for name, value in (("stream", stream), ("coefficients", coefficients)):
        if value is not None:
            raise type_error(routine, name, f"{name} cannot be kept in a graph of torch.compile")
    for name, factor in (("alpha", alpha), ("beta", beta)):
        if isinstance(factor, torch.Tensor):
            raise type_error(
                routine, name, f"{name} is a tensor, and a graph of torch.compile keeps numbers"
            )
    if torch.is_grad_enabled():
        for name, tensor in (("a", a), ("x", x), ("y", y)):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                raise type_error(
                    routine,
                    name,
                    f"{name} requires a gradient, which this product does not record: pass its"
                    " detach(), or call under torch.no_grad()",
                )
    options = (offx, incx, offy, incy, transposition(routine, trans), kernel)
    if y is not None and overwrite_y:
        torch.ops.gemv.product_(routine, alpha, a, x, beta, y, *options)
        return y
    return torch.ops.gemv.product(routine, alpha, a, x, beta, y, *options)


def _product(
    routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any, offx: int, incx: int, offy: int,
    incy: int, trans: int, kernel: str | None,
) -> Any:  # fmt: skip
    result = public_routines[routine](
        alpha, a, x, beta, y, offx, incx, offy, incy, trans, 0, kernel=kernel
    )
    # The graph has to know which results share memory with an input: this one never does.
    return result.clone() if result is y else result


def _product_in_place(
    routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any, offx: int, incx: int, offy: int,
    incy: int, trans: int, kernel: str | None,
) -> None:  # fmt: skip
    result = public_routines[routine](
        alpha, a, x, beta, y, offx, incx, offy, incy, trans, 1, kernel=kernel
    )
    if result is not y:  # host memory that BLAS cannot write to as it lies
        y.copy_(result)


def _shape_of_product(
    routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any, offx: int, incx: int, offy: int,
    incy: int, trans: int, kernel: str | None,
) -> Any:  # fmt: skip
    if y is not None:
        return torch.empty_like(y, memory_format=torch.contiguous_format)
    rows = a.shape[1] if trans else a.shape[0]
    return a.new_empty(y_length(rows, offy, incy))


def _nothing(*arguments: Any) -> None:
    """The operator that overwrites y has no result, and so no shape to tell."""


for _place in ("CPU", "CUDA"):
    _library.impl("product", _product, _place)
    _library.impl("product_", _product_in_place, _place)
# Tensors without memory. ``register_fake`` does the same and takes 8 ms longer, because it looks up
# the source lines of its caller.
_library.impl("product", _shape_of_product, "Meta")
_library.impl("product_", _nothing, "Meta")
