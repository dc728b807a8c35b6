"""What :mod:`gemv.torch` asks of tensors and numbers, and how it words what it refuses."""

from __future__ import annotations

from typing import Any

import torch

from gemv.core.values import typed

_NUMBERS = (int, float, complex, torch.SymInt, torch.SymFloat)
_FLOATING = (
    torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float16, torch.bfloat16,
)  # fmt: skip
_NARROW = _FLOATING[-2:]


def check(routine: str, a: Any, x: Any, trans: int) -> Any:
    """Refuse operands that do not fit together; the length of the result."""
    for name, tensor, rank in (("a", a, 2), ("x", x, 1)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{routine}: {name} must be a tensor, got {typed(tensor)}")
        _check_layout(routine, name, tensor)
        if tensor.dim() != rank:
            dimensions = "two dimensions" if rank == 2 else "one dimension"
            raise ValueError(
                f"{routine}: {name} must have {dimensions}, got shape {tuple(tensor.shape)}"
            )
    if a.dtype not in _FLOATING:
        raise TypeError(f"{routine}: a has dtype {a.dtype}, in which nothing is computed here")
    _check_like_a(routine, "x", x, a, (a.dtype,))
    rows, cols = (a.shape[1], a.shape[0]) if trans else (a.shape[0], a.shape[1])
    if x.shape[0] != cols:
        of_a = "rows" if trans else "columns"
        raise ValueError(
            f"{routine}: x must have as many elements as a has {of_a}, {cols}, got {x.shape[0]}"
        )
    return rows


def _check_layout(routine: str, name: str, tensor: Any) -> None:
    """Refuse what has no strides, before anything else is asked of it."""
    if tensor.is_nested:
        raise TypeError(f"{routine}: {name} is a nested tensor; only dense ones can be used here")
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"{routine}: {name} is a tensor of layout {tensor.layout}; only dense ones can be used"
            " here: call its to_dense() first"
        )


def _check_like_a(routine: str, name: str, tensor: Any, a: Any, dtypes: tuple) -> None:
    if tensor.dtype not in dtypes:
        also = " or float32" if len(dtypes) > 1 else ""
        raise TypeError(
            f"{routine}: {name} must have the dtype of a, {a.dtype}{also}, got {tensor.dtype}"
        )
    if tensor.device != a.device:
        raise TypeError(
            f"{routine}: {name} must be on the device of a, {a.device}, got {tensor.device}"
        )


def check_y(routine: str, y: Any, a: Any, rows: Any) -> None:
    if not isinstance(y, torch.Tensor):
        raise TypeError(f"{routine}: y must be a tensor, got {typed(y)}")
    _check_layout(routine, "y", y)
    _check_like_a(routine, "y", y, a, _y_dtypes(a))
    if y.dim() > 1 or (y.dim() == 1 and y.shape[0] != rows and y.shape[0] != 1):
        raise ValueError(
            f"{routine}: y must have the shape of the product, ({rows},), or be broadcast to it,"
            f" got {tuple(y.shape)}"
        )


def check_out(routine: str, out: Any, rows: Any, dtype: Any, a: Any) -> None:
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"{routine}: out must be a tensor, got {typed(out)}")
    _check_layout(routine, "out", out)
    if dtype is not None and out.dtype != dtype:
        raise TypeError(
            f"{routine}: out must have the dtype of the result, {dtype}, got {out.dtype}"
        )
    _check_like_a(routine, "out", out, a, (dtype,) if dtype is not None else _y_dtypes(a))
    if out.dim() != 1 or out.shape[0] != rows:
        raise ValueError(
            f"{routine}: out must have the shape of the product, ({rows},), got {tuple(out.shape)}"
        )
    if out.shape[0] > 1 and out.stride(0) == 0:
        raise ValueError(
            f"{routine}: out must have elements that are apart in memory, got stride 0: call its"
            " clone() first"
        )


def _y_dtypes(a: Any) -> tuple:
    return (a.dtype, torch.float32) if a.dtype in _NARROW else (a.dtype,)


def wanted(routine: str, a: Any, out_dtype: Any) -> Any:
    """`out_dtype`, if a product with `a` can have it."""
    if out_dtype is not None and out_dtype not in _y_dtypes(a):
        which = "as a and x are, or float32" if a.dtype in _NARROW else "as a and x are"
        raise TypeError(f"{routine}: out_dtype must be {a.dtype}, {which}, got {out_dtype}")
    return out_dtype


def number(routine: str, name: str, value: Any, a: Any) -> Any:
    """alpha or beta as a number of Python's, or one that a graph has not fixed."""
    if not isinstance(value, _NUMBERS):
        item = getattr(value, "item", None)
        value = item() if item is not None and getattr(value, "ndim", 1) == 0 else value
        if not isinstance(value, _NUMBERS):
            raise TypeError(
                f"{routine}: {name} must be a number or a tensor without a dimension, got"
                f" {typed(value)}"
            )
    if type(value) is int:
        try:
            float(value)
        except OverflowError:
            raise ValueError(f"{routine}: {name} does not fit {a.dtype}: too large") from None
    if isinstance(value, complex) and not a.dtype.is_complex:
        raise TypeError(
            f"{routine}: {name} must be real for a of dtype {a.dtype}, got {typed(value)}"
        )
    return value


def factor(routine: str, name: str, value: Any, a: Any) -> Any:
    """alpha or beta as what a vector is multiplied by."""
    if not isinstance(value, torch.Tensor):
        return number(routine, name, value, a)
    if value.dim():
        raise ValueError(
            f"{routine}: {name} must be a number or a tensor without a dimension, got shape"
            f" {tuple(value.shape)}"
        )
    if value.device != a.device and value.device.type != "cpu":
        raise TypeError(
            f"{routine}: {name} must be on the device of a, {a.device}, or on the CPU, got"
            f" {value.device}"
        )
    if value.dtype.is_complex and not a.dtype.is_complex:
        raise TypeError(
            f"{routine}: {name} must be real for a of dtype {a.dtype}, got {value.dtype}"
        )
    return value
