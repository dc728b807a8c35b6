"""A product of :mod:`gemv.torch` that was made before: made again in the fewest steps.

``gemv.torch.mv`` and ``addmv`` ask here first. They know what they multiply by what, and need not
look at all that :func:`gemv.gemv` has parameters for; so this is the short way of
:mod:`gemv.calls.short_torch` for what that has remembered, without increments and kernels by name.

A gradient is recorded here as well. The product is computed first, outside of autograd, and then
handed to a function of autograd that does nothing but keep the operands.
"""

from __future__ import annotations

from typing import Any

import torch

from gemv.calls import short_torch, torch_operators
from gemv.calls.remembered import ONE, ZERO, expectations, is_same_stream
from gemv.calls.short_torch import IN_PLACE, NEW, Tools, no_negatives
from gemv.core import trace

#: BLAS's codes of op(A), by letter.
LETTERS = {"N": 0, "T": 1, "C": 2}


def again(
    routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any, trans: Any, way: int, stream: Any
) -> Any:
    """The product, if one of its kind was made before; None if the call has to be looked at.

    Until a product was made on a GPU there is none.

    Parameters
    ----------
    routine : str
        Under whose name the call was remembered.
    a : torch.Tensor
        A plain tensor on a GPU, and :func:`torch_operators.on_memory`. The other arguments
        are as the caller got them.
    beta, y
        0 and None, or the vector that is added and its factor.
    trans : {0, 1, 2, "N", "T", "C"}
    way : int
        What becomes of y: NEW, COPY or IN_PLACE.
    stream : stream or int or None
    """
    return None


def _prepare(tools: Tools) -> None:
    """Make :func:`again` for the driver of this process."""
    global again
    if tools.enqueue is None:
        return  # an older PyTorch, of whose tensors nothing is expected
    enqueue = tools.enqueue  # no longer None, as a type checker has to know
    _, raw_stream, written, count, fresh, old_y_block, several, current_device = tools
    tensor, parameter = torch.Tensor, torch.nn.Parameter
    grad_enabled, tracing = torch.is_grad_enabled, trace.open_traces
    get, codes = expectations.get, LETTERS

    def made(
        routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any, trans: Any, way: int,
        stream: Any,
    ) -> Any:  # fmt: skip
        kind = type(x)
        if kind is not tensor and kind is not parameter:
            return None
        recorded = (a.requires_grad or x.requires_grad) and grad_enabled()
        options = None
        if trans is not ZERO:
            if type(trans) is str:
                trans = codes.get(trans)  # calls are remembered by number
            if type(trans) is not int:
                return None
            if trans:
                options = ZERO, ONE, ZERO, ONE, trans
        target = y
        try:
            if way is NEW:
                expected = get((routine, options, id(a), NEW))
                last = x
            elif way is IN_PLACE:
                if recorded or type(y) is not tensor or y.requires_grad:
                    return None
                expected = get((routine, options, id(a), IN_PLACE))
                last = y
            else:
                kind = type(y)
                if kind is not tensor and kind is not parameter:
                    return None
                recorded = recorded or (y.requires_grad and grad_enabled())
                expected = get((routine, options, id(a), y.shape))
                last = y
            if expected is None:
                return None
            known = expected.known
            numbers = known.numbers
            if (alpha is not ONE and type(alpha) not in numbers) or (
                beta is not ZERO and (type(beta) not in numbers or (beta == 1 and alpha == 0))
            ):
                return None
            if several and current_device() != known.device.index:
                return None
            if stream is not None:
                handle = raw_stream(known.device.index)
                if not is_same_stream(stream, handle):
                    return None
                stream = handle
            refs = expected.seen.get(id(last))
            if (
                refs is None or refs[0]() is not a or refs[1]() is not x or refs[2]() is not last
            ) and not no_negatives(expected, a, x, last):
                return None
            if way is IN_PLACE:
                failed = enqueue(expected.address, a, x, target, stream, alpha, beta)
            elif way is NEW:
                target = a.new_empty(known.y_length) if fresh is None else fresh(*expected.fresh)
                failed = enqueue(expected.address, a, x, target, stream, alpha, beta)
            elif beta == 0:  # y is not read, and so not compared: the new one has its dtype
                target = y.new_empty(known.y_length)
                failed = enqueue(expected.address, a, x, target, stream, alpha, beta)
            elif fresh is not None and (expected.with_old_y or old_y_block(expected, y)):
                target = fresh(*expected.fresh)
                failed = enqueue(expected.address, a, x, target, stream, alpha, beta, y)
            else:
                if not y.data_ptr():  # memory that was freed
                    return None
                # Where it comes out with a stride, the tensors are others than expected.
                target = y.detach().clone() if recorded else y.clone()
                failed = enqueue(expected.address, a, x, target, stream, alpha, beta)
            if failed:
                return None  # other tensors than expected; the short way counts such misses
        except RuntimeError:  # a tensor without memory
            return None
        if way is IN_PLACE:
            if count is None:
                written(y)
            else:
                try:  # a call of written would take as long again
                    count((y,))
                except RuntimeError:  # made in inference mode, which counts nothing
                    pass
        if tracing():
            known.record()
        if recorded:
            return _record((routine, alpha, beta, trans, target.dtype), [target], a, x, y)
        return target

    again = made


class _Recorded(torch.autograd.Function):
    """``alpha*op(A)*x + beta*y`` that was computed already.

    It is used where nothing but autograd watches, so it has no forward derivative and needs no
    ``setup_context``.
    """

    @staticmethod
    def forward(ctx: Any, how: tuple, made: list, a: Any, x: Any, y: Any) -> Any:
        _, _, for_a, for_x, _ = ctx.needs_input_grad
        # What no gradient is made of may be overwritten or freed.
        ctx.save_for_backward(a if for_x else None, x if for_a else None)
        ctx.how, ctx.dtype = how, a.dtype
        return made.pop()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        a, x = ctx.saved_tensors
        routine, alpha, beta, trans, y_dtype = ctx.how
        _, _, for_a, for_x, for_y = ctx.needs_input_grad
        of_x = None
        if for_x and grad.dtype is ctx.dtype and torch_operators.on_memory():
            # Only products of real numbers are made again, whose transpose is the conjugate one.
            back = ZERO if trans else 2
            of_x = again(routine, alpha, a, grad, ZERO, None, back, NEW, None)
        if not for_y and alpha is ONE and (of_x is not None or not for_x):
            if not for_a:
                return None, None, None, of_x, None
            if grad.dtype is ctx.dtype:  # and real, as all that is made again
                return None, None, _outer(*((x, grad) if trans else (grad, x))), of_x, None
        of_a, looked_at, of_y = torch_operators.gradients(
            routine, "plain", alpha, beta, trans, a, x, ctx.dtype, y_dtype,
            (for_a, for_x and of_x is None, for_y), grad,
        )  # fmt: skip
        return None, None, of_a, looked_at if of_x is None else of_x, of_y


_outer = torch.outer
#: Without a look at the signature of ``forward``, which takes longer than the rest.
_record = super(torch.autograd.Function, _Recorded).apply


short_torch.follow(_prepare)
