"""The short way of PyTorch's tensors: it repeats a call that was made before.

A tensor's attributes cost Python 2 us for the three of a call. So machine code compares the tensors
with an *expectation*, what those of an earlier call looked like (:mod:`gemv.driver.exchange`), and
launches if nothing differs; only where something does are the attributes read for the key.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from gemv.arrays.libraries import BY_NAME
from gemv.arrays.torch import counts_many
from gemv.calls import torch_old_y
from gemv.calls.remembered import (
    COMPLEX_NUMBERS,
    ONE,
    UNUSUAL,
    ZERO,
    LongWay,
    RememberedCall,
    ShortWay,
    expectations,
    is_same_stream,
    keep_expectation,
    options_of,
    remembered_calls,
)
from gemv.core import trace

#: How many sets of tensors an expectation knows to be no lazy negatives.
MAX_SEEN = 256

#: What becomes of y: a new one is made, or a copy of it is overwritten, or y itself is.
NEW, COPY, IN_PLACE = 0, 1, 2
#: The strides of a copy.
ONE_BY_ONE = (1,)

#: How often an expectation may be wrong before it is dropped.
MAX_MISSES = 100


class Tools(NamedTuple):
    """What a short way of tensors works with, once a tensor on a GPU was passed."""

    #: That of :class:`gemv.driver.exchange.Exchange`; None where tensors cannot be described.
    enqueue: Callable[..., int] | None
    #: The handle of PyTorch's current stream on a GPU.
    raw_stream: Callable[[int], int]
    #: Called with a tensor that was overwritten.
    written: Callable[[Any], None]
    #: What that calls, PyTorch's own function for a tuple of tensors; None where it has none. It
    #: raises a RuntimeError for one that was made in inference mode, which counts nothing.
    count_many: Callable[[tuple[Any, ...]], Any] | None
    #: ``fresh(lengths, strides, dtype)``: a tensor without values on the current GPU; None for a
    #: PyTorch that has no such function, which takes the half of ``new_empty``.
    fresh: Callable[..., Any] | None
    #: The block that ``old_y_block(expectation, y)`` makes, or None: see
    #: :func:`gemv.calls.torch_old_y.block_for`.
    old_y_block: Callable[[Any, Any], Any]
    #: Whether there are several GPUs, and the current one.
    several: bool
    current_device: Callable[[], int]


_tools: Tools | None = None
_followers: list[Callable[[Tools], None]] = []


def follow(prepare: Callable[[Tools], None]) -> None:
    """Have another short way of tensors prepared whenever this one is; now, if it was before."""
    _followers.append(prepare)
    if _tools is not None:
        prepare(_tools)


def _prepare_all(tools: Tools) -> None:
    global _tools
    _tools = tools
    for prepare in _followers:
        prepare(tools)


def no_negatives(expected: Any, a: Any, x: Any, y: Any) -> bool:
    """Whether memory has the values of these tensors; remembered for as long as they live.

    Not remembered of parts of complex numbers: ``x.data = z.conj().imag`` makes a negative of one.
    """
    if a.is_neg() or x.is_neg() or y.is_neg():
        return False
    if _may_be_part(a) or _may_be_part(x) or _may_be_part(y):
        return True
    if len(expected.seen) >= MAX_SEEN:
        expected.seen.clear()
    expected.seen[id(y)] = weakref.ref(a), weakref.ref(x), weakref.ref(y)
    return True


def _may_be_part(tensor: Any) -> bool:
    """Whether a tensor lies in memory as the imaginary part of another one does."""
    lengths = zip(tensor.shape, tensor.stride(), strict=True)
    return not any(length > 1 and step % 2 for length, step in lengths)


def _fresh(torch: Any) -> Callable[..., Any] | None:
    """The allocation that PyTorch's own compiled graphs call, if this one has it."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    found: Callable[..., Any] | None = getattr(guards, "_empty_strided_cuda", None)
    try:
        usable = found is not None and found((1,), (1,), torch.float32).shape == (1,)
    except Exception:  # it is no public function
        return None
    return found if usable else None


def in_graphs_only() -> dict[type, ShortWay]:
    """Functions that only keep calls in graphs of ``torch.compile``; none without PyTorch.

    They stand in for the short way until the first call on a GPU has made it, so that a graph can
    keep the very first call.
    """
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "compiler") or not hasattr(torch, "library"):
        return {}  # not imported, too old, or in the middle of its own import
    from gemv.calls import torch_graph

    compiling, in_graph = torch.compiler.is_compiling, torch_graph.in_graph

    def call(*arguments: Any) -> Any:
        return in_graph(*arguments) if compiling() else UNUSUAL

    return {torch.Tensor: call, torch.nn.Parameter: call}


def in_graph_with(a: Any, accumulate: Any, out_dtype: Any) -> ShortWay | None:
    """The function that keeps a call with these options in a graph; None where none is traced."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(a, torch.Tensor) or not torch.compiler.is_compiling():
        return None
    from gemv.calls import torch_graph

    return functools.partial(torch_graph.in_graph, accumulate=accumulate, out_dtype=out_dtype)


def short_ways(engine: Any) -> dict[type, ShortWay]:
    """The function by the type of A; PyTorch has been imported."""
    from gemv.calls import torch_graph
    from gemv.driver.devices import current_device

    torch: Any = sys.modules["torch"]
    tensor, parameter = torch.Tensor, torch.nn.Parameter
    exchange: Any
    enqueue: Any
    try:
        from gemv.driver.exchange import Exchange

        exchange = Exchange(tensor, engine.machine)
    except Exception:  # an older PyTorch: a little slower
        exchange = enqueue = None
    else:
        enqueue = exchange.enqueue

    def expect(
        hint: tuple, key: tuple, known: RememberedCall, a: Any, x: Any, y: Any, old: Any
    ) -> None:
        """Make the expectation that the next call with this A is compared with.

        `old` is the y that was read for the new one, or None.
        """
        made = exchange.expect(known, a, x, y)
        if made is not None:
            made.fresh = (known.y_length,), ONE_BY_ONE, y.dtype
            if old is not None and fresh is not None:
                old_y_block(made, old)  # compiled now, so that no later call takes that long
            keep_expectation(hint, made, key, known)

    def long_way(hint: tuple, key: tuple, a: Any, x: Any, old: Any = None) -> LongWay:
        """Go the long way, and make the expectation as soon as the call is remembered."""

        def expect_again(known: RememberedCall, y: Any) -> None:
            if exchange is not None and known.plain and hint not in expectations:
                expect(hint, key, known, a, x, y, old)

        return LongWay(key, expect_again)

    contiguous = torch.contiguous_format

    def copied(y: Any, beta: Any, length: int) -> Any:
        """A new tensor to be overwritten in the place of y; without its values if none is used."""
        if beta == 0 and y.shape == (length,):
            return y.new_empty(length)
        return y.clone(memory_format=contiguous)

    grad_enabled = torch.is_grad_enabled
    compiling = torch.compiler.is_compiling
    in_graph = torch_graph.in_graph
    raw_stream = BY_NAME["torch"].stream_getter()
    assert raw_stream is not None  # for the type checker
    written: Callable[[Any], None] = BY_NAME["torch"].notes_writes or (lambda tensor: None)
    get = remembered_calls.get
    tracing = trace.open_traces
    several = torch.cuda.device_count() > 1
    fresh = _fresh(torch)

    def old_y_block(expected: Any, y: Any) -> Any:
        return torch_old_y.block_for(expected, y, raw_stream(expected.known.device.index))

    _prepare_all(
        Tools(
            enqueue, raw_stream, written, counts_many(), fresh, old_y_block, several,
            current_device,
        )
    )  # fmt: skip

    def call(
        routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any,
        offx: Any, incx: Any, offy: Any, incy: Any, trans: Any, overwrite_y: Any,
        kernel: Any, stream: Any, coefficients: Any,
    ) -> Any:  # fmt: skip
        key: tuple
        known: Any
        old: tuple
        if compiling():
            return in_graph(
                routine, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
                kernel, stream, coefficients,
            )  # fmt: skip
        if kernel is not None or coefficients is not None:
            return UNUSUAL
        if (
            offx is ZERO and incx is ONE and offy is ZERO and incy is ONE and trans is ZERO
        ):  # fmt: skip
            options = None
        else:
            options = options_of(offx, incx, offy, incy, trans)
            if options is None:
                return UNUSUAL
        kind = type(x)
        if kind is not tensor and kind is not parameter:
            return UNUSUAL
        if (a.requires_grad or x.requires_grad) and grad_enabled():
            return UNUSUAL
        way = NEW
        if y is not None:
            if overwrite_y is ONE or overwrite_y is True:
                way = IN_PLACE
                if type(y) is not tensor or y.requires_grad:
                    return UNUSUAL
            elif overwrite_y is ZERO or overwrite_y is False:
                way = COPY
                kind = type(y)
                if (kind is not tensor and kind is not parameter) or (
                    y.requires_grad and grad_enabled()
                ):
                    return UNUSUAL
            else:
                return UNUSUAL
        target, old = y, ()
        try:
            # With the shape of y, which is compared before y is copied.
            hint = (routine, options, id(a), y.shape if way is COPY else way)
            expected = expectations.get(hint)
            if expected is not None:
                known = expected.known
                numbers = known.numbers
                if (
                    type(alpha) not in numbers
                    or type(beta) not in numbers
                    or (beta == 1 and alpha == 0)
                    or (y is None and beta != 0)
                ):
                    return UNUSUAL
                device = known.device.index
                if several and current_device() != device:
                    return UNUSUAL
                if stream is not None:
                    handle = raw_stream(device)
                    if not is_same_stream(stream, handle):
                        return UNUSUAL
                    stream = handle
                # is_neg() releases the interpreter's lock, for which threads would then compete. So
                # each tensor is asked once, if its answer cannot change.
                last = x if y is None else y
                refs = expected.seen.get(id(last))
                if (
                    refs is None
                    or refs[0]() is not a
                    or refs[1]() is not x
                    or refs[2]() is not last
                ) and not no_negatives(expected, a, x, last):
                    return UNUSUAL
                if way is NEW:
                    target = (
                        a.new_empty(known.y_length) if fresh is None else fresh(*expected.fresh)
                    )
                elif way is COPY:
                    if not y.data_ptr():  # memory that was freed
                        return UNUSUAL
                    # A y that is not read is not compared either: the new one has its dtype.
                    if fresh is None or beta == 0 or not old_y_block(expected, y):
                        target = copied(y, beta, known.y_length)
                    else:
                        target, old = fresh(*expected.fresh), (y,)
                if not enqueue(expected.address, a, x, target, stream, alpha, beta, *old):
                    if way is IN_PLACE:
                        written(y)
                    if tracing():
                        known.record()
                    return target
                # Another tensor at the old one's address, or other vectors.
                expected.misses += 1
                if expected.misses > MAX_MISSES:
                    expectations.pop(hint, None)
            if a.is_neg() or x.is_neg() or (y is not None and y.is_neg()):
                return UNUSUAL
            device = a.get_device()
            if device < 0 or x.get_device() != device:
                return UNUSUAL
            a_at, x_at = a.data_ptr(), x.data_ptr()
            if not (a_at and x_at):  # memory that was freed
                return UNUSUAL
            if y is None:
                key = (
                    routine, device, options, a.dtype, a.shape, a.stride(),
                    x.dtype, x.shape, x.stride(), ((a_at | x_at) & 15) and (a_at & 15, x_at & 15),
                )  # fmt: skip
                known = get(key)
                if known is None:
                    return long_way(hint, key, a, x)
                if type(beta) not in known.numbers or beta != 0:
                    return UNUSUAL
                target = a.new_empty(known.y_length)
                y_at = target.data_ptr()
            else:
                if y.get_device() != device:
                    return UNUSUAL
                y_at = y.data_ptr()
                if not y_at:
                    return UNUSUAL
                if way is COPY:  # PyTorch's allocator aligns it
                    y_at, y_strides = 0, ONE_BY_ONE
                    # Nobody knows yet if beta is a number: the comparison of an array on the GPU
                    # would wait for the GPU, and that of a longer one has no single answer.
                    read = None if type(beta) in COMPLEX_NUMBERS and beta == 0 else y
                else:
                    read, y_strides = None, y.stride()
                key = (
                    routine, device, options, a.dtype, a.shape, a.stride(),
                    x.dtype, x.shape, x.stride(), y.dtype, y.shape, y_strides,
                    ((a_at | x_at | y_at) & 15) and (a_at & 15, x_at & 15, y_at & 15),
                )  # fmt: skip
                known = get(key)
                if known is None:
                    return long_way(hint, key, a, x, read)
                y_low, y_high, x_low, x_high, a_low, a_high = known.spans
                low, high = y_at + y_low, y_at + y_high
                if way is IN_PLACE and (
                    (low < x_at + x_high and x_at + x_low < high)
                    or (low < a_at + a_high and a_at + a_low < high)
                ):
                    return UNUSUAL  # or windows that interleave
        except RuntimeError:  # a tensor without memory: sparse, or inside a transformation
            return UNUSUAL
        if known.complex and (a.is_conj() or x.is_conj() or target.is_conj()):
            return UNUSUAL
        numbers = known.numbers
        if type(alpha) not in numbers or type(beta) not in numbers or (alpha == 0 and beta == 1):
            return UNUSUAL
        if several and current_device() != device:
            return UNUSUAL
        handle = raw_stream(device)
        if stream is not None and stream != handle and not is_same_stream(stream, handle):
            return UNUSUAL
        if way is COPY:
            if target is y or beta == 0 or old:  # else it was copied before, for an expectation
                target = copied(y, beta, known.y_length)
            y_at = target.data_ptr()
        if known.launch(handle, a_at, x_at, y_at, alpha, beta):
            return UNUSUAL
        if way is IN_PLACE:
            written(y)
        if exchange is not None and known.plain and hint not in expectations:
            expect(hint, key, known, a, x, target, y if way is COPY and beta != 0 else None)
        if tracing():
            known.record()
        return target

    return {tensor: call, parameter: call}
