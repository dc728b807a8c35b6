"""Products as operators of PyTorch: what its graphs keep, its autograd differentiates and its
transformations see through.

One operator makes a new y, one overwrites it. ``torch.compile`` keeps a call of
:func:`gemv.gemv` as one of them (:mod:`gemv.calls.torch_graph`); :mod:`gemv.torch` calls them
wherever a plain product of memory is not enough. This file is imported only where PyTorch has been.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch import library as operators

from gemv.calls.remembered import public_routines
from gemv.core.rules import y_length

_OPTIONS = (
    "int offx, int incx, int offy, int incy, int trans, str? kernel, str accumulate='plain',"
    " ScalarType? out_dtype=None, int? stream=None"
)

_library = operators.Library("gemv", "DEF")
_library.define(
    "product(str routine, Scalar alpha, Tensor a, Tensor x, Scalar beta, Tensor? y,"
    f" {_OPTIONS}) -> Tensor"
)
_library.define(
    "product_(str routine, Scalar alpha, Tensor a, Tensor x, Scalar beta, Tensor(y!) y,"
    f" {_OPTIONS}) -> ()"
)

# PyTorch has no public names for these, with which it makes its own operators in Python.
_own = vars(torch._C)
_below_autograd = _own["_AutoDispatchBelowAutograd"]
#: Whether a transformation of ``torch.func`` is at work.
transforming: Any = _own["_are_functorch_transforms_active"]
_levels = vars(_own["_functorch"])
_allow_single_level: Any = _levels["set_single_level_autograd_function_allowed"]
_single_level_allowed: Any = _levels["get_single_level_autograd_function_allowed"]
_living: Any = _levels["unwrap_if_dead"]
#: ``forward_ad["_current_level"]`` is negative outside of forward derivatives.
forward_ad: Any = vars(torch.autograd.forward_ad)
_forward_mode = forward_ad["_set_fwd_grad_enabled"]
_compiling = torch.compiler.is_compiling
#: How many modes see each operator, and whether ``torch.jit.trace`` does.
modes: Any = _own["_len_torch_dispatch_stack"]
recording: Any = _own["_is_tracing"]
_is_batch: Any = _levels["is_legacy_batchedtensor"]
_is_wrapped: Any = _levels["is_functorch_wrapped_tensor"]
_is_zeros: Any = vars(torch._C.TensorBase)["_is_zerotensor"]
_PLAIN = (torch.Tensor, torch.nn.Parameter)


# On memory --------------------------------------------------------------------------------------


def _compute(
    routine: str, overwrite: int, arguments: tuple, trans: int, kernel: str | None,
    accumulate: str, out_dtype: Any, stream: int | None,
) -> Any:  # fmt: skip
    """Call the routine of that name; `arguments` are alpha to incy."""
    options: dict[str, Any] = {"kernel": kernel, "accumulate": accumulate, "stream": stream}
    if out_dtype is not None:
        options["out_dtype"] = out_dtype
    if torch.is_grad_enabled():
        with torch.no_grad():
            result = public_routines[routine](*arguments, trans, overwrite, **options)
    else:
        result = public_routines[routine](*arguments, trans, overwrite, **options)
    if stream is not None and result.is_cuda:
        # A graph reuses memory in the order of its own stream.
        used = torch.cuda.ExternalStream(stream, device=result.device)
        torch.cuda.current_stream(result.device).wait_stream(used)
    return result


def _product(
    routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any, offx: int, incx: int, offy: int,
    incy: int, trans: int, kernel: str | None, accumulate: str = "plain", out_dtype: Any = None,
    stream: int | None = None,
) -> Any:  # fmt: skip
    arguments = (alpha, a, x, beta, y, offx, incx, offy, incy)
    result = _compute(routine, 0, arguments, trans, kernel, accumulate, out_dtype, stream)
    # The graph has to know which results share memory with an input: this one never does.
    return result.clone() if result is y else result


def _product_in_place(
    routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any, offx: int, incx: int, offy: int,
    incy: int, trans: int, kernel: str | None, accumulate: str = "plain", out_dtype: Any = None,
    stream: int | None = None,
) -> None:  # fmt: skip
    arguments = (alpha, a, x, beta, y, offx, incx, offy, incy)
    result = _compute(routine, 1, arguments, trans, kernel, accumulate, out_dtype, stream)
    if result is not y:  # host memory that BLAS cannot write to as it lies
        y.copy_(result)


# Without memory ---------------------------------------------------------------------------------


def _shape_of_product(
    routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any, offx: int, incx: int, offy: int,
    incy: int, trans: int, kernel: str | None, accumulate: str = "plain", out_dtype: Any = None,
    stream: int | None = None,
) -> Any:  # fmt: skip
    if y is not None:
        return torch.empty_like(y, memory_format=torch.contiguous_format)
    rows = a.shape[1] if trans else a.shape[0]
    return a.new_empty(y_length(rows, offy, incy), dtype=out_dtype or a.dtype)


def _nothing(*arguments: Any) -> None:
    """The operator that overwrites y has no result, and so no shape to tell."""


# Derivatives ------------------------------------------------------------------------------------


def product(
    routine: str, alpha: Any, a: Any, x: Any, beta: Any = 0, y: Any = None, trans: int = 0,
    accumulate: str = "plain", out_dtype: Any = None, stream: int | None = None,
) -> Any:  # fmt: skip
    """The product for vectors that are used whole, which has derivatives.

    It is the operator of PyTorch, unless nobody but autograd would see that: two passes through the
    dispatcher take longer than most products.
    """
    inputs = (
        routine, alpha, a, x, beta, y, 0, 1, 0, 1, trans, None, accumulate, out_dtype, stream,
    )  # fmt: skip
    if not on_memory() or not are_memory(a, x, y):
        return torch.ops.gemv.product(*inputs)
    if not watched(a, x, y):
        return _product(*inputs)
    return super(torch.autograd.Function, _ProductOfMemory).apply(*inputs)


def on_memory() -> bool:
    """Whether nothing watches: no tracing, transformation, forward derivatives or mode."""
    return (
        not _compiling()
        and not transforming()
        and forward_ad["_current_level"] < 0
        and not modes()
        and not recording()
    )


def are_memory(*tensors: Any) -> bool:
    """Whether these, or None, are plain tensors in the memory of the host or of a GPU.

    Three kinds have the type of a plain tensor and no such memory: the batches that
    ``torch.autograd.grad`` makes with ``is_grads_batched``, zeros that are never written out, and
    what a transformation of ``torch.func`` has left behind.
    """
    for tensor in tensors:
        if tensor is not None and (
            type(tensor) not in _PLAIN
            or not (tensor.is_cuda or tensor.is_cpu)
            or _is_batch(tensor)
            or _is_wrapped(tensor)
            or _is_zeros(tensor)
        ):
            return False
    return True


def gradients(
    routine: str, accumulate: str, alpha: Any, beta: Any, trans: int, a: Any, x: Any,
    dtype: Any, y_dtype: Any, needed: tuple[bool, bool, bool], grad: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """What `grad` becomes for A, for x and for y; None for those that are not needed.

    `dtype` is that of A and x, which are None where none of these is made of them.
    They are products and outer products again, so derivatives of any order follow.
    """
    for_a, for_x, for_y = needed
    of_a = of_x = of_y = None
    if for_a:
        left, right = (x, grad) if trans else (grad, x)
        if dtype.is_complex:
            left, right = (left.conj(), right) if trans == 1 else (left, right.conj())
        of_a = _scaled(torch.outer(left, right), alpha if trans == 2 else _conjugate(alpha))
        of_a = _in_dtype(of_a, dtype)
    if for_x:
        matrix, back = (a, 0 if trans == 2 else 2) if trans != 1 else (a.conj(), 0)
        narrow = _in_dtype(grad, dtype)
        of_x = product(
            routine, _conjugate(alpha), matrix, narrow, trans=back, accumulate=accumulate
        )
    if for_y:
        of_y = _in_dtype(_scaled(grad, _conjugate(beta)), y_dtype)
    return of_a, of_x, of_y


class _Product(torch.autograd.Function):
    """``alpha*op(A)*x + beta*y`` for vectors that are used whole.

    Its derivatives are products and outer products again, so those of any order follow.
    """

    @staticmethod
    def forward(*inputs: Any) -> Any:
        with _below_autograd():
            if not transforming():
                return torch.ops.gemv.product(*inputs)
            # Transformations further out still have to see this product.
            with torch.enable_grad(), _forward_mode(True):
                return torch.ops.gemv.product(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        routine, alpha, a, x, beta, y = inputs[:6]
        _, _, for_a, for_x = ctx.needs_input_grad[:4]
        # What no gradient is made of may be overwritten or freed.
        ctx.save_for_backward(a if for_x else None, x if for_a else None)
        ctx.save_for_forward(a, x)
        ctx.count, ctx.alpha, ctx.beta = len(inputs), alpha, beta
        ctx.dtype, ctx.result = a.dtype, output.dtype
        ctx.y_dtype = None if y is None else y.dtype
        ctx.trans = inputs[10]
        ctx.how = routine, *(inputs[12:13] or ("plain",))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        a, x = ctx.saved_tensors
        routine, accumulate = ctx.how
        _, _, for_a, for_x, _, for_y = ctx.needs_input_grad[:6]
        of_a, of_x, of_y = gradients(
            routine, accumulate, ctx.alpha, ctx.beta, ctx.trans, a, x, ctx.dtype,
            ctx.y_dtype, (for_a, for_x, for_y), grad,
        )  # fmt: skip
        return (None, None, of_a, of_x, None, of_y, *[None] * (ctx.count - 6))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        a, x = ctx.saved_tensors
        of_a, of_x, of_y = tangents[2], tangents[3], tangents[5]
        routine, accumulate = ctx.how
        total = None
        for matrix, vector in ((of_a, x), (a, of_x)):
            if matrix is not None and vector is not None:
                part = product(
                    routine, ctx.alpha, matrix, vector, trans=ctx.trans, accumulate=accumulate,
                    out_dtype=None if ctx.result == a.dtype else ctx.result,
                )  # fmt: skip
                total = part if total is None else total + part
        if of_y is not None:
            part = _scaled(of_y, ctx.beta)
            total = part.clone() if total is None else total + part
        return total


class _ProductOfMemory(_Product):
    """The same, without the dispatcher."""

    forward = staticmethod(_product)


def _in_dtype(tensor: Any, dtype: Any) -> Any:
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def _conjugate(number: Any) -> Any:
    return number.conjugate() if isinstance(number, complex) else number


def _scaled(tensor: Any, number: Any) -> Any:
    return tensor if isinstance(number, (int, float, complex)) and number == 1 else tensor * number


@contextlib.contextmanager
def _single_level() -> Generator[None]:
    """Let a transformation of ``torch.func`` differentiate at its own level, and no further."""
    before = _single_level_allowed()
    _allow_single_level(True)
    try:
        yield
    finally:
        _allow_single_level(before)


def _differentiable(*inputs: Any) -> Any:
    if inputs[6:10] != (0, 1, 0, 1) or inputs[11] is not None:
        refuse_gradients(inputs)
        with _below_autograd():
            return torch.ops.gemv.product(*inputs)
    # What a transformation has left behind stands for the tensor inside.
    inputs = tuple(_living(value) if isinstance(value, torch.Tensor) else value for value in inputs)
    apply = super(torch.autograd.Function, _Product).apply  # without a look at its signature
    if transforming():
        with _single_level():
            return apply(*inputs)
    if watched(inputs[2], inputs[3], inputs[5]):
        return apply(*inputs)
    with _below_autograd():
        return torch.ops.gemv.product(*inputs)


def watched(*tensors: Any) -> bool:
    """Whether derivatives of a product of these may be asked for."""
    if forward_ad["_current_level"] >= 0:
        return True
    return torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in tensors
    )


def _not_differentiable(*inputs: Any) -> None:
    refuse_gradients(inputs)
    with _below_autograd():
        torch.ops.gemv.product_(*inputs)


def refuse_gradients(inputs: tuple, **others: Any) -> None:
    """Refuse vectors and matrices that need gradients which go through no overwritten vector.

    `others` are further arguments by name; those that are no tensors need none.
    """
    routine, _, a, x, _, y = inputs[:6]
    if not torch.is_grad_enabled():
        return
    result = "out" if routine.startswith("gemv.torch.") else "y"
    for name, tensor in (("a", a), ("x", x), (result, y), *others.items()):
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            raise TypeError(
                f"{routine}: {name} requires a gradient, and this product overwrites a vector or"
                " uses a part of one, which is not recorded: pass its detach(), or call under"
                " torch.no_grad()"
            )


# Batches ----------------------------------------------------------------------------------------


def _product_of_batch(info: Any, in_dims: tuple, *inputs: Any) -> Any:
    """One product after the other: an item has the bits that it has alone."""
    results = []
    for item in range(info.batch_size):
        chosen = [
            value if dim is None else value.select(dim, item)
            for value, dim in zip(inputs, in_dims, strict=True)
        ]
        results.append(torch.ops.gemv.product(*chosen))
    if results:
        return torch.stack(results), 0
    nobody = list(inputs)
    for place in (2, 3, 5):
        if in_dims[place] is not None:
            tensor = inputs[place]
            nobody[place] = tensor.new_empty(_without(tensor.shape, in_dims[place]))
    one = _shape_of_product(*nobody)
    return one.new_empty((0, *one.shape)), 0


def _without(shape: Any, dim: int) -> list:
    """The lengths of an item of a batch."""
    return [length for place, length in enumerate(shape) if place != dim]


def _no_batch_in_place(info: Any, in_dims: tuple, *inputs: Any) -> Any:
    raise TypeError(
        f"{inputs[0]}: a vector cannot be overwritten inside torch.func.vmap: leave out= away, and"
        " a new one is made"
    )


for _name, _kernel, _meta, _autograd, _batch in (
    ("product", _product, _shape_of_product, _differentiable, _product_of_batch),
    ("product_", _product_in_place, _nothing, _not_differentiable, _no_batch_in_place),
):
    for _place in ("CPU", "CUDA"):
        _library.impl(_name, _kernel, _place)
    # Tensors without memory. ``register_fake`` does the same and takes 8 ms longer, because it
    # looks up the source lines of its caller.
    _library.impl(_name, _meta, "Meta")
    _library.impl(_name, _autograd, "Autograd")
    # Kernels read lazy conjugates and negatives as they lie: PyTorch need not write them out.
    for _lazy in ("Conjugate", "Negative"):
        _library.impl(_name, operators.fallthrough_kernel, _lazy)
    operators.register_vmap(f"gemv::{_name}", _batch, lib=_library)
