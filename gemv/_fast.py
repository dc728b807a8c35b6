"""The call that has been made before: from metadata to the driver in the fewest steps.

The first call of a kind goes the long way: it is adopted, checked, selected and compiled. What came
out is remembered under everything that it depended on: dtypes, shapes, strides, options, alignment
and device. The next call of that kind only reads this metadata, looks it up, compares addresses
and launches. Whatever is unusual, an error above all, goes the long way again, so that there is one
place for every rule and every text.

The functions below repeat each other: a function call costs as much as reading a tensor's
metadata, and there is no time for either to be done twice.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from gemv import _pointers
from gemv.core import memo, trace

#: Remembered calls; beyond, the oldest is forgotten.
MAX_KNOWN = 4096
#: Tensors of which a remembered call knows that they are no lazy negatives.
MAX_SEEN = 256

#: Types of alpha and beta that need no check, by the kind of dtype.
_REAL = frozenset((float, int, np.float64, np.float32))
_COMPLEX = _REAL | frozenset((complex, np.complex128, np.complex64))

#: The defaults of options, to be recognised by identity: 1.0 and True are equal to 1.
_ZERO, _ONE = 0, 1

#: What a key has in place of the routine where sums are wide.
WIDE = {f"{letter}gemv": f"{letter}gemv, wide" for letter in ("", *"sdcz")}

_known: dict[tuple, Known] = {}
#: What the operands of calls with a tensor look like, by routine, options and ``id(a)``. Only a
#: guess where to look: everything is compared, so another tensor of that id does no harm.
_expectations: dict[tuple, Any] = {}
#: Reentrant: garbage that is collected while it is held may make calls of its own.
_lock = threading.RLock()
#: The public routines by name, for operators of other libraries that call them again.
ROUTINES: dict[str, Callable[..., Any]] = {}
#: Plans that launch without asking anybody.
bound: Any = weakref.WeakSet()


class Miss:
    """The call has to go the long way; what comes out is remembered under `key`, if not None."""

    __slots__ = ("key",)

    def __init__(self, key: tuple | None) -> None:
        self.key = key


UNUSUAL = Miss(None)


class Known:
    """A checked, selected, compiled and packed call: a block of :mod:`gemv.driver.machine`."""

    __slots__ = (
        "address",
        "block",
        "choice",
        "complex",
        "device",
        "engine",
        "functions",
        "machine",
        "needs",
        "numbers",
        "plain",
        "scratch_bytes",
        "sizes",
        "spans",
        "y_length",
    )

    def __init__(self, engine: Any, choice: Any, problem: Any, y_length: int) -> None:
        self.engine, self.choice = engine, choice
        self.machine = engine.machine
        self.device = engine.device()
        self.functions = engine.load(choice, self.device)
        self.y_length = y_length
        self.complex = problem.dtype.kind == "c"
        self.numbers = _COMPLEX if self.complex else _REAL
        geometry, precision = choice.geometry, choice.spec.precision
        itemsize, y_itemsize = precision.data.itemsize, precision.y.itemsize
        self.scratch_bytes = geometry.scratch * precision.sums.itemsize
        #: Whether there is scratch memory to be shared.
        self.needs = bool(self.scratch_bytes or geometry.counters)
        #: Whether the block, addresses, alpha and beta are all that a launch needs.
        self.plain = not (self.needs or self.complex)
        self.sizes = problem.arguments(geometry)
        x_start, y_start = problem.x_offset * itemsize, problem.y_offset * y_itemsize
        self.block = engine.block(choice, self.functions, self.sizes, x_start, y_start)
        self.address = self.block.address
        #: The bytes that y, x and A span, from their addresses on.
        self.spans = (
            *_span(y_itemsize, (problem.rows, problem.incy), start=y_start),
            *_span(itemsize, (problem.cols, problem.incx), start=x_start),
            *_span(
                itemsize, (problem.rows, problem.row_stride), (problem.cols, problem.col_stride)
            ),
        )

    def launch(self, stream: int, a: int, x: int, y: int, alpha: Any, beta: Any) -> int:
        """Launch on a stream with these addresses and factors; the driver's status."""
        if self.plain:
            return self.machine.enqueue(self.address, stream, a, x, y, alpha, beta)
        values: tuple = (alpha, beta)
        if self.complex:
            values = (alpha.real, alpha.imag, beta.real, beta.imag)
        enqueue = self.machine.enqueue_complex if self.complex else self.machine.enqueue
        if not self.needs:
            return enqueue(self.address, stream, a, x, y, *values)
        from gemv.driver import capture

        if capture.capture_of(stream) is not None:
            return -1  # the long way knows where a graph's scratch memory is
        geometry = self.choice.geometry
        workspace = self.engine.workspace(geometry, self.device, stream)
        with workspace.lock:
            extra = workspace.reserve(self.scratch_bytes, geometry.counters, stream, geometry.posts)
            return enqueue(self.address, stream, a, x, y, *values, *extra)

    def record(self) -> None:
        """Leave a trace of a call, if somebody looks."""
        choice = self.choice
        trace.record(
            backend="cuda",
            kernel=choice.kernel.name,
            knobs=choice.knobs,
            geometry=choice.geometry,
            coefficients=choice.coefficients,
        )


def _span(itemsize: int, *axes: tuple[int, int], start: int = 0) -> tuple[int, int]:
    """First and last byte that an operand touches, from its pointer on."""
    low = high = start
    for count, stride in axes:
        reach = (count - 1) * stride * itemsize
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + itemsize


def expect_again(hint: tuple, made: Any, key: tuple, known: Known) -> None:
    """Keep what the operands of a remembered call look like, unless it was forgotten by now."""
    with _lock:
        if _known.get(key) is not known:
            return
        if len(_expectations) >= MAX_KNOWN:
            _expectations.clear()
        _expectations[hint] = made


def options_of(offx: Any, incx: Any, offy: Any, incy: Any, trans: Any) -> tuple | None:
    """The options as a part of the key; None for what has to be checked.

    Only true ints: 1.0 and True are equal to 1 as keys, and one of them is an error.
    """
    if type(offx) is type(incx) is type(offy) is type(incy) is int and type(trans) in (int, str):
        return offx, incx, offy, incy, trans
    return None


def wide(
    routine: str, a: Any, accumulate: Any, peer: Any, out_dtype: Any = None
) -> tuple[str, Callable[..., Any] | None]:
    """What a key has in place of the routine where sums are wide, and what such a call tries first.

    Nothing is tried first with any other option.
    """
    known = type(accumulate) is str and accumulate == "wide" and peer is False and out_dtype is None
    return WIDE[routine], CALLS.get(type(a)) if known else None


def remember(key: tuple, since: int, engine: Any, choice: Any, call: Any) -> None:
    """Keep what a call found out, if the next one of its kind can be made from that alone.

    Not if calls were forgotten `since` then: what it found out may no longer be so.
    """
    if not packable(engine, choice, call) or (
        call.y is None and (call.offy or abs(call.incy) != 1)
    ):
        return
    known = Known(engine, choice, call.problem, call.problem.rows)
    with _lock:
        if since != memo.generation():
            return
        _known[key] = known
        while len(_known) > MAX_KNOWN:
            del _known[next(iter(_known))]


def packable(engine: Any, choice: Any, call: Any) -> bool:
    """Whether a call is made of addresses, sizes and two numbers, and of nothing else."""
    lazy = any(o.conj or o.neg for o in (call.a, call.x, call.y) if o is not None)
    return (
        engine.name == "cuda"
        and not _pointers.FULL
        and call.homes == ("arguments", "arguments")
        and choice.kernel.x_home(choice.knobs) == "pointer"
        and not lazy
    )


def stream_of(operand: Any) -> Callable[[], int] | None:
    """A function that tells the stream its library works on now; None where there is no such."""
    import sys

    device = operand.device
    if operand.kind == "torch":
        torch = sys.modules["torch"]
        raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        return None if raw_stream is None else lambda: raw_stream(device)
    if operand.kind == "cupy":
        current_stream = sys.modules["cupy"].cuda.get_current_stream
        return lambda: current_stream(device).ptr
    if operand.kind == "numba" and operand.stream is None:
        from gemv.engines.backend import engine

        stream = engine().numba_stream
        return lambda: stream
    return None


def bind(plan: Any, since: int, *what: Any) -> None:
    """Let a plan launch without asking, unless calls were forgotten `since` then."""
    with _lock:
        if since == memo.generation():
            plan._bind(*what)
            bound.add(plan)


def forget() -> None:
    """Forget all calls."""
    with _lock:
        for plan in list(bound):
            plan._unbind()
        bound.clear()
        _known.clear()
        _expectations.clear()


def _renew_lock() -> None:
    """A lock for a forked process, where another thread may have held the old one."""
    global _lock
    _lock = threading.RLock()


memo.on_forget(forget, _renew_lock)


def _torch_call(torch: Any) -> Callable[..., Any]:
    from gemv import _torch
    from gemv.arrays.libraries import BY_NAME

    tensor, parameter = torch.Tensor, torch.nn.Parameter
    expectations = _expectations
    exchange: Any
    enqueue: Any
    try:
        from gemv.driver.exchange import Exchange

        exchange = Exchange(tensor, _machine())
    except Exception:  # an older PyTorch: a little slower
        exchange = enqueue = None
    else:
        enqueue = exchange.enqueue

    def expect(hint: tuple, key: tuple, known: Known, a: Any, x: Any, y: Any) -> None:
        made = exchange.expect(known, a, x, y)
        if made is None:
            return
        expect_again(hint, made, key, known)

    raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw_stream is None:

        def raw_stream(device: int) -> int:
            return torch.cuda.current_stream(device).cuda_stream

    def see(expected: Any, a: Any, x: Any, y: Any) -> bool:
        """Whether memory has the values of these tensors; remembered for as long as they live."""
        if a.is_neg() or x.is_neg() or y.is_neg():
            return False
        if len(expected.seen) >= MAX_SEEN:
            expected.seen.clear()
        expected.seen[id(y)] = weakref.ref(a), weakref.ref(x), weakref.ref(y)
        return True

    grad_enabled = torch.is_grad_enabled
    compiling = torch.compiler.is_compiling
    in_graph = _torch.in_graph
    written = BY_NAME["torch"].notes_writes or (lambda tensor: None)
    get = _known.get
    tracing = trace.open_traces
    several = torch.cuda.device_count() > 1
    current_device = _current_device

    def call(
        routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any,
        offx: Any, incx: Any, offy: Any, incy: Any, trans: Any, overwrite_y: Any,
        kernel: Any, stream: Any, coefficients: Any,
    ) -> Any:  # fmt: skip
        key: tuple
        known: Any
        if compiling():
            return in_graph(
                routine, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
                kernel, stream, coefficients,
            )  # fmt: skip
        if kernel is not None or coefficients is not None:
            return UNUSUAL
        if (
            offx is _ZERO and incx is _ONE and offy is _ZERO and incy is _ONE and trans is _ZERO
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
        if y is not None and (
            (overwrite_y is not _ONE and overwrite_y is not True)
            or type(y) is not tensor
            or y.requires_grad
        ):
            return UNUSUAL
        target = y
        try:
            hint = (routine, options, id(a), y is None)
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
                    if not _same(stream, handle):
                        return UNUSUAL
                    stream = handle
                # is_neg() lets go of the interpreter's lock, which other threads then hand to and
                # fro, so a tensor is not asked again; nor does its answer change.
                last = x if y is None else y
                refs = expected.seen.get(id(last))
                if (
                    refs is None
                    or refs[0]() is not a
                    or refs[1]() is not x
                    or refs[2]() is not last
                ) and not see(expected, a, x, last):
                    return UNUSUAL
                if y is None:
                    target = a.new_empty(known.y_length)
                if not enqueue(expected.address, a, x, target, stream, alpha, beta):
                    if y is not None:
                        written(y)
                    if tracing():
                        known.record()
                    return target
                # Another tensor at the old one's address, or other vectors.
                expected.misses += 1
                if expected.misses > 100:
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
                    return Miss(key)
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
                key = (
                    routine, device, options, a.dtype, a.shape, a.stride(),
                    x.dtype, x.shape, x.stride(), y.dtype, y.shape, y.stride(),
                    ((a_at | x_at | y_at) & 15) and (a_at & 15, x_at & 15, y_at & 15),
                )  # fmt: skip
                known = get(key)
                if known is None:
                    return Miss(key)
                y_low, y_high, x_low, x_high, a_low, a_high = known.spans
                low, high = y_at + y_low, y_at + y_high
                if (low < x_at + x_high and x_at + x_low < high) or (
                    low < a_at + a_high and a_at + a_low < high
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
        if stream is not None and stream != handle and not _same(stream, handle):
            return UNUSUAL
        if known.launch(handle, a_at, x_at, y_at, alpha, beta):
            return UNUSUAL
        if y is not None:
            written(y)
        if exchange is not None and known.plain and hint not in expectations:
            expect(hint, key, known, a, x, target)
        if tracing():
            known.record()
        return target

    return call


def _cupy_call(cupy: Any) -> Callable[..., Any]:
    ndarray, empty = cupy.ndarray, cupy.empty
    current_stream = cupy.cuda.get_current_stream
    enqueue = _machine().enqueue
    get = _known.get
    tracing = trace.open_traces
    several = cupy.cuda.runtime.getDeviceCount() > 1
    current_device = _current_device

    def call(
        routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any,
        offx: Any, incx: Any, offy: Any, incy: Any, trans: Any, overwrite_y: Any,
        kernel: Any, stream: Any, coefficients: Any,
    ) -> Any:  # fmt: skip
        key: tuple
        if kernel is not None or coefficients is not None:
            return UNUSUAL
        if (
            offx is _ZERO and incx is _ONE and offy is _ZERO and incy is _ONE and trans is _ZERO
        ):  # fmt: skip
            options = None
        else:
            options = options_of(offx, incx, offy, incy, trans)
            if options is None:
                return UNUSUAL
        if type(x) is not ndarray:
            return UNUSUAL
        memory, x_memory = a.data, x.data
        device = 0
        if several:
            device = memory.device_id
            if x_memory.device_id != device:
                return UNUSUAL
        a_at, x_at = memory.ptr, x_memory.ptr
        if y is None:
            key = (
                routine, device, options, a.dtype, a.shape, a.strides,
                x.dtype, x.shape, x.strides, ((a_at | x_at) & 15) and (a_at & 15, x_at & 15),
            )  # fmt: skip
            known = get(key)
            if known is None:
                return Miss(key)
            if type(beta) not in known.numbers or beta != 0:
                return UNUSUAL
        else:
            if (overwrite_y is not _ONE and overwrite_y is not True) or type(y) is not ndarray:
                return UNUSUAL
            y_memory = y.data
            if several and y_memory.device_id != device:
                return UNUSUAL
            y_at = y_memory.ptr
            key = (
                routine, device, options, a.dtype, a.shape, a.strides,
                x.dtype, x.shape, x.strides, y.dtype, y.shape, y.strides,
                ((a_at | x_at | y_at) & 15) and (a_at & 15, x_at & 15, y_at & 15),
            )  # fmt: skip
            known = get(key)
            if known is None:
                return Miss(key)
            y_low, y_high, x_low, x_high, a_low, a_high = known.spans
            low, high = y_at + y_low, y_at + y_high
            if (low < x_at + x_high and x_at + x_low < high) or (
                low < a_at + a_high and a_at + a_low < high
            ):
                return UNUSUAL  # or windows that interleave
        numbers = known.numbers
        if type(alpha) not in numbers or type(beta) not in numbers or (alpha == 0 and beta == 1):
            return UNUSUAL
        if several and current_device() != device:
            return UNUSUAL
        if y is None:
            y = empty(known.y_length, a.dtype)
            y_at = y.data.ptr
        handle = current_stream().ptr
        if stream is not None and not _same(stream, handle):
            return UNUSUAL
        if known.plain:
            status = enqueue(known.address, handle, a_at, x_at, y_at, alpha, beta)
        else:
            status = known.launch(handle, a_at, x_at, y_at, alpha, beta)
        if status:
            return UNUSUAL
        if tracing():
            known.record()
        return y

    return call


def _numba_call(device_array: Any) -> Callable[..., Any]:
    from numba import cuda

    from gemv.driver.streams import stream_handle

    enqueue = _machine().enqueue
    get = _known.get
    tracing = trace.open_traces
    several = len(cuda.gpus) > 1
    current_device = _current_device

    def call(
        routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any,
        offx: Any, incx: Any, offy: Any, incy: Any, trans: Any, overwrite_y: Any,
        kernel: Any, stream: Any, coefficients: Any,
    ) -> Any:  # fmt: skip
        key: tuple
        if kernel is not None or coefficients is not None:
            return UNUSUAL
        if (
            offx is _ZERO and incx is _ONE and offy is _ZERO and incy is _ONE and trans is _ZERO
        ):  # fmt: skip
            options = None
        else:
            options = options_of(offx, incx, offy, incy, trans)
            if options is None:
                return UNUSUAL
        # A bound stream is a promise that the long way keeps.
        if type(x) is not device_array or a.stream or x.stream:
            return UNUSUAL
        device = 0
        if several:
            device = a.gpu_data.context.device.id
            if x.gpu_data.context.device.id != device:
                return UNUSUAL
        a_at = a.gpu_data.device_ctypes_pointer.value or 0  # an empty array has none
        x_at = x.gpu_data.device_ctypes_pointer.value or 0
        if y is None:
            key = (
                routine, device, options, a.dtype, a.shape, a.strides,
                x.dtype, x.shape, x.strides, ((a_at | x_at) & 15) and (a_at & 15, x_at & 15),
            )  # fmt: skip
            known = get(key)
            if known is None:
                return Miss(key)
            if type(beta) not in known.numbers or beta != 0:
                return UNUSUAL
        else:
            if (
                (overwrite_y is not _ONE and overwrite_y is not True)
                or type(y) is not device_array
                or y.stream
            ):
                return UNUSUAL
            if several and y.gpu_data.context.device.id != device:
                return UNUSUAL
            y_at = y.gpu_data.device_ctypes_pointer.value or 0
            key = (
                routine, device, options, a.dtype, a.shape, a.strides,
                x.dtype, x.shape, x.strides, y.dtype, y.shape, y.strides,
                ((a_at | x_at | y_at) & 15) and (a_at & 15, x_at & 15, y_at & 15),
            )  # fmt: skip
            known = get(key)
            if known is None:
                return Miss(key)
            y_low, y_high, x_low, x_high, a_low, a_high = known.spans
            low, high = y_at + y_low, y_at + y_high
            if (low < x_at + x_high and x_at + x_low < high) or (
                low < a_at + a_high and a_at + a_low < high
            ):
                return UNUSUAL  # or windows that interleave
        numbers = known.numbers
        if type(alpha) not in numbers or type(beta) not in numbers or (alpha == 0 and beta == 1):
            return UNUSUAL
        engine = known.engine
        if several and current_device() != device:
            return UNUSUAL
        if y is None:
            if stream is not None:
                return UNUSUAL  # a capture, perhaps, where nothing can be allocated
            if known.y_length == 0:
                return UNUSUAL
            y, y_at = engine.pool().empty(known.y_length, a.dtype)
        if stream is None:
            handle = engine.numba_stream
        else:
            try:
                handle = stream_handle(stream)
            except TypeError:
                return UNUSUAL
            # Vectors of the pool are given back in the order of the default stream.
            if engine.capture_of(handle) is None and engine.runs_by_itself(handle):
                return UNUSUAL
        if known.plain:
            status = enqueue(known.address, handle, a_at, x_at, y_at, alpha, beta)
        else:
            status = known.launch(handle, a_at, x_at, y_at, alpha, beta)
        if status:
            return UNUSUAL
        if tracing():
            known.record()
        return y

    return call


def _same(stream: Any, handle: int) -> bool:
    from gemv.driver.streams import stream_handle

    try:
        return stream_handle(stream) == handle
    except TypeError:
        return False


def _current_device() -> int:
    from gemv.driver.devices import current_device

    return current_device()


def _machine() -> Any:
    from gemv.engines.backend import engine

    return engine().machine


#: What calls with an A of these types try first; filled when a library's array is first met.
CALLS: dict[type, Callable[..., Any]] = {}
_met: set[str] = set()


def meet(kind: str) -> None:
    """Get ready for the device arrays of a library, which has been imported by now."""
    import sys

    if kind in _met or _pointers.FULL:
        return  # FULL: only the long way asks the driver
    if kind == "torch":
        torch = sys.modules["torch"]
        CALLS[torch.Tensor] = CALLS[torch.nn.Parameter] = _torch_call(torch)
    elif kind == "cupy":
        cupy = sys.modules["cupy"]
        CALLS[cupy.ndarray] = _cupy_call(cupy)
    elif kind == "numba":
        from numba.cuda.cudadrv.devicearray import DeviceNDArray

        CALLS[DeviceNDArray] = _numba_call(DeviceNDArray)
    _met.add(kind)


def expect_tracing() -> None:
    """Let ``torch.compile`` keep the first call already, if PyTorch has been imported by now."""
    import sys

    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "compiler") or not hasattr(torch, "library"):
        return  # not there, too old, or in the middle of its own import
    from gemv import _torch

    compiling, in_graph = torch.compiler.is_compiling, _torch.in_graph

    def call(*arguments: Any) -> Any:
        return in_graph(*arguments) if compiling() else UNUSUAL

    CALLS.setdefault(torch.Tensor, call)
    CALLS.setdefault(torch.nn.Parameter, call)
