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

import ctypes
import struct
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from gemv import _pointers, _trace

#: Remembered calls; beyond, the oldest is forgotten.
MAX_KNOWN = 4096

#: Calls in place with tensors after which it pays to compile for the host, beside the calls: Numba
#: and its compiler take a second or more, and each call is some 2 us cheaper then.
PATIENCE = 1000

#: Types of alpha and beta that need no check, by the kind of dtype.
_REAL = frozenset((float, int, np.float64, np.float32))
_COMPLEX = _REAL | frozenset((complex, np.complex128, np.complex64))

#: The defaults of options, to be recognised by identity: 1.0 and True are equal to 1.
_ZERO, _ONE = 0, 1

#: ``cuLaunchKernelEx``'s configuration: grid, block, shared bytes, then what changes in each call.
_CONFIG = struct.Struct("=7I4x")
_CONFIG_SIZE = 56
_STREAM = 32

_known: dict[tuple, Known] = {}
#: What the operands of calls with a tensor look like, by routine, options and ``id(a)``. Only a
#: guess where to look: everything is compared, so another tensor of that id does no harm.
_expectations: dict[tuple, Any] = {}
_lock = threading.Lock()


class Miss:
    """The call has to go the long way; what comes out is remembered under `key`, if not None."""

    __slots__ = ("key",)

    def __init__(self, key: tuple | None) -> None:
        self.key = key


UNUSUAL = Miss(None)


class Known:
    """A checked, selected, compiled and packed call.

    Parameters of a kernel lie in a buffer beside the launch configuration and the table of their
    addresses, which never change: a launch writes what is new with one ``pack_into``. A buffer is
    one launch's alone until the driver has read it, so there are as many as threads that call at
    the same time.
    """

    __slots__ = (
        "_build",
        "a_span",
        "choice",
        "complex",
        "device",
        "engine",
        "functions",
        "direct",
        "needs",
        "numbers",
        "pack",
        "pool",
        "scratch_bytes",
        "spans",
        "x_span",
        "y_length",
        "y_offset",
        "y_span",
    )

    def __init__(self, engine: Any, choice: Any, problem: Any, y_length: int) -> None:
        from gemv._streams import launch_kernel_ex

        self.engine = engine
        self.choice = choice
        self.device = engine.device()
        self.functions = engine.load(choice, self.device)
        self.y_length = y_length
        self.complex = problem.dtype.kind == "c"
        self.numbers = _COMPLEX if self.complex else _REAL
        precision = problem.precision
        self.scratch_bytes = choice.geometry.scratch * precision.sums.itemsize
        itemsize, y_itemsize = precision.data.itemsize, precision.y.itemsize
        x_start = problem.x_offset * itemsize
        self.y_offset = problem.y_offset * y_itemsize
        self.x_span = _span(itemsize, (problem.cols, problem.incx), start=x_start)
        self.y_span = _span(y_itemsize, (problem.rows, problem.incy), start=self.y_offset)
        self.a_span = _span(
            itemsize, (problem.rows, problem.row_stride), (problem.cols, problem.col_stride)
        )
        real = {4: "f", 8: "d"}[precision.factors.itemsize // (2 if self.complex else 1)]
        number = real * (2 if self.complex else 1)
        needs = self.needs = bool(self.scratch_bytes or choice.geometry.counters)
        #: stream, no attributes, a, x, y, alpha, beta and, if needed, scratch and counters
        self.pack = struct.Struct(f"=Q16xQQQ{number * 2}{'QQ' if needs else ''}").pack_into
        self._build = _builder(self.functions, choice, problem, number, x_start, needs)
        self.pool: list[tuple] = []
        #: What a launch of one real function without scratch memory needs, to be unpacked at once.
        self.direct: tuple | None = None
        if not needs and len(self.functions) == 1 and not self.complex:
            (function,) = self.functions
            self.direct = (
                self.pool, self._build, self.pack, launch_kernel_ex,
                ctypes.c_void_p(int(function.handle)), x_start, self.y_offset,
            )  # fmt: skip
        #: The numbers that y, x and a are apart by, from their addresses on.
        self.spans = (*self.y_span[:2], *self.x_span[:2], *self.a_span[:2])

    def launch(self, stream: int, a: int, x: int, y: int, alpha: Any, beta: Any) -> int:
        """Launch on a stream with these addresses and factors; the driver's status."""
        if self.direct is None:
            return self._launch_all(stream, a, x, y, alpha, beta)
        pool, build, pack, launch_ex, function, x_start, y_start = self.direct
        try:
            packed = pool.pop()
        except IndexError:
            packed = build()
        buffer, (config,), (table,) = packed
        pack(buffer, _STREAM, stream, a, x + x_start, y + y_start, alpha, beta)
        status = launch_ex(config, function, table, None)
        pool.append(packed)
        return status

    def _launch_all(self, stream: int, a: int, x: int, y: int, alpha: Any, beta: Any) -> int:
        """Launch several functions, or one that needs scratch memory."""
        from gemv import _streams

        engine, geometry = self.engine, self.choice.geometry
        extra: tuple = ()
        if self.scratch_bytes or geometry.counters:
            if _streams.capture_of(stream) is not None:
                return -1  # the long way knows where a graph's scratch memory is
            workspace = engine.workspace(geometry, self.device, stream)
            lock = workspace.lock
        else:
            workspace, lock = None, threading.Lock()
        try:
            buffer, configs, tables = self.pool.pop()
        except IndexError:
            buffer, configs, tables = self._build()
        values: tuple = (alpha, beta)
        if self.complex:
            values = (alpha.real, alpha.imag, beta.real, beta.imag)
        with lock:
            if workspace is not None:
                extra = workspace.reserve(self.scratch_bytes, geometry.counters, stream)
            x_start = self.x_span[2]
            self.pack(buffer, _STREAM, stream, a, x + x_start, y + self.y_offset, *values, *extra)
            for k in range(1, len(self.functions)):
                struct.pack_into("=Q", buffer, _stream_at(k, buffer), stream)
            for function, config, table in zip(self.functions, configs, tables, strict=True):
                status = _streams.launch_kernel_ex(
                    config, ctypes.c_void_p(int(function.handle)), table, None
                )
                if status:
                    return status
        self.pool.append((buffer, configs, tables))
        return 0

    def packed(self, a: int, x: int, y: int, alpha: Any, beta: Any) -> tuple:
        """A buffer of its own with these values in it, for who launches by other means."""
        buffer, configs, tables = self._build()
        values = (alpha.real, alpha.imag, beta.real, beta.imag) if self.complex else (alpha, beta)
        extra = (0, 0) if self.needs else ()
        self.pack(buffer, _STREAM, 0, a, x + self.x_span[2], y + self.y_offset, *values, *extra)
        return buffer, configs, tables

    def record(self) -> None:
        """Leave a trace of a call, if somebody looks."""
        choice = self.choice
        _trace.record(
            backend="cuda",
            kernel=choice.kernel.name,
            knobs=choice.knobs,
            geometry=choice.geometry,
            coefficients=choice.coefficients,
        )


def _span(itemsize: int, *axes: tuple[int, int], start: int = 0) -> tuple[int, int, int]:
    """First and last byte that an operand touches, from its pointer on, and where it starts."""
    low = high = start
    for count, stride in axes:
        reach = (count - 1) * stride * itemsize
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + itemsize, start


def _stream_at(function: int, buffer: Any) -> int:
    """Where the stream of a further function's configuration lies: from the end backwards."""
    return len(buffer) - function * _CONFIG_SIZE + _STREAM


def _builder(
    functions: tuple, choice: Any, problem: Any, number: str, x_start: int, needs: bool
) -> Callable[[], tuple]:
    """A function that makes one more buffer with everything that never changes in it."""
    real = number[0]
    size = {"f": 4, "d": 8}[real]
    step = size * len(number)
    head = _CONFIG_SIZE
    dynamic = {"a": head, "x": head + 8, "y": head + 16, "alpha": head + 24}
    dynamic["beta"] = dynamic["alpha"] + step
    dynamic["scratch"] = dynamic["beta"] + step
    dynamic["counters"] = dynamic["scratch"] + 8
    end = dynamic["counters"] + 8 if needs else dynamic["scratch"]
    end += -end % 8
    sizes = {
        "rows": problem.rows,
        "cols": problem.cols,
        "row_stride": problem.row_stride,
        "col_stride": problem.col_stride,
        "incx": problem.incx,
        "incy": problem.incy,
        **choice.geometry.sizes,
    }
    fixed = {name: end + 8 * k for k, name in enumerate(sizes)}
    end += 8 * len(sizes)
    places = []
    for function in functions:
        offsets = []
        for name in function.binary.arguments:
            if name in ("alpha", "beta"):
                offsets += [dynamic[name] + part * size for part in range(len(number))]
            else:
                offsets.append(fixed[name] if name in fixed else dynamic[name])
        places.append(offsets)
    tables = []
    for offsets in places:
        tables.append(end)
        end += 8 * len(offsets)
    total = end + _CONFIG_SIZE * (len(functions) - 1)
    launches = choice.geometry.launches

    def build() -> tuple:
        buffer = ctypes.create_string_buffer(total)
        base = ctypes.addressof(buffer)
        for name, value in sizes.items():
            struct.pack_into("=q", buffer, fixed[name], value)
        configs = []
        for k, launch in enumerate(launches):
            at = 0 if k == 0 else total - k * _CONFIG_SIZE
            _CONFIG.pack_into(buffer, at, *launch.grid, *launch.block, 0)
            configs.append(ctypes.c_void_p(base + at))
        for at, offsets in zip(tables, places, strict=True):
            for k, offset in enumerate(offsets):
                struct.pack_into("=Q", buffer, at + 8 * k, base + offset)
        return buffer, tuple(configs), tuple(ctypes.c_void_p(base + at) for at in tables)

    return build


def options_of(offx: Any, incx: Any, offy: Any, incy: Any, trans: Any) -> tuple | None:
    """The options as a part of the key; None for what has to be checked.

    Only true ints: 1.0 and True are equal to 1 as keys, and one of them is an error.
    """
    if type(offx) is type(incx) is type(offy) is type(incy) is int and type(trans) in (int, str):
        return offx, incx, offy, incy, trans
    return None


def remember(key: tuple, engine: Any, choice: Any, call: Any) -> None:
    """Keep what a call found out, if the next one of its kind can be made from that alone."""
    if not packable(engine, choice, call) or (
        call.y is None and (call.offy or abs(call.incy) != 1)
    ):
        return
    known = Known(engine, choice, call.problem, call.problem.rows)
    with _lock:
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
        from gemv._backend import engine

        stream = engine().numba_stream
        return lambda: stream
    return None


def forget() -> None:
    """Forget all calls."""
    with _lock:
        _known.clear()
        _expectations.clear()


def after_fork() -> None:
    """Forget all calls in a forked process, where another thread may have held the lock."""
    global _lock
    _lock = threading.Lock()
    forget()


def _torch_call(torch: Any) -> Callable[..., Any]:
    tensor, parameter = torch.Tensor, torch.nn.Parameter
    expectations = _expectations
    match: Any = None
    exchange: Any = None
    function: Any = 0
    clear: Any = 0
    scratch: Any = 0
    calls = 0

    def compile_exchange() -> None:
        nonlocal exchange, match, function, clear, scratch
        try:
            from gemv._exchange import Exchange

            made = Exchange(tensor)
        except Exception:  # an older PyTorch, or a Numba that compiles nothing: a little slower
            return
        exchange, match, (function, clear, scratch) = made, made.match, made.constants

    def expect(hint: tuple, known: Known, a: Any, x: Any, y: Any) -> None:
        nonlocal calls
        if exchange is None:
            calls += 1
            if calls == PATIENCE:
                threading.Thread(target=compile_exchange, daemon=True).start()
            return
        made = exchange.expect(known, a, x, y)
        if made is not None:
            if len(expectations) >= MAX_KNOWN:
                expectations.clear()
            expectations[hint] = made

    raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw_stream is None:

        def raw_stream(device: int) -> int:
            return torch.cuda.current_stream(device).cuda_stream

    grad_enabled = torch.is_grad_enabled
    compiling = torch.compiler.is_compiling
    get = _known.get
    tracing = _trace._calls.get
    several = torch.cuda.device_count() > 1
    current_device = _current_device

    def call(
        routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any,
        offx: Any, incx: Any, offy: Any, incy: Any, trans: Any, overwrite_y: Any,
        kernel: Any, stream: Any, coefficients: Any,
    ) -> Any:  # fmt: skip
        key: tuple
        known: Any
        if kernel is not None or coefficients is not None or compiling():
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
        try:
            if y is None:
                device = a.get_device()
                if device < 0 or x.get_device() != device:
                    return UNUSUAL
                a_at, x_at = a.data_ptr(), x.data_ptr()
                if not (a_at and x_at):  # memory that was freed
                    return UNUSUAL
                key = (
                    routine, device, options, a.dtype, a.shape, a.stride(),
                    x.dtype, x.shape, x.stride(), ((a_at | x_at) & 15) and (a_at & 15, x_at & 15),
                )  # fmt: skip
                known = get(key)
                if known is None:
                    return Miss(key)
                if type(beta) not in known.numbers or beta != 0:
                    return UNUSUAL
                if a.is_neg() or x.is_neg():
                    return UNUSUAL
                y = a.new_empty(known.y_length)
                y_at = y.data_ptr()
            else:
                if overwrite_y is not _ONE and overwrite_y is not True:
                    return UNUSUAL
                if type(y) is not tensor or y.requires_grad:
                    return UNUSUAL
                if a.is_neg() or x.is_neg() or y.is_neg():
                    return UNUSUAL
                hint = (routine, options, id(a))
                expected = expectations.get(hint)
                if expected is not None:
                    a_at, x_at, y_at = match(
                        function, clear, scratch, id(a), id(x), id(y), expected.address
                    )
                    if a_at >= 0:
                        known = expected.known
                        device = known.device.index
                    else:
                        # Another tensor at the old one's address, or other vectors.
                        expected.misses += 1
                        if expected.misses > 100:
                            expectations.pop(hint, None)
                        expected = None
                if expected is None:
                    device = a.get_device()
                    if device < 0 or x.get_device() != device or y.get_device() != device:
                        return UNUSUAL
                    a_at, x_at, y_at = a.data_ptr(), x.data_ptr(), y.data_ptr()
                    if not (a_at and x_at and y_at):  # memory that was freed
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
                    if hint not in expectations:
                        expect(hint, known, a, x, y)
        except RuntimeError:  # a tensor without memory: sparse, or inside a transformation
            return UNUSUAL
        if known.complex and (a.is_conj() or x.is_conj() or y.is_conj()):
            return UNUSUAL
        numbers = known.numbers
        if type(alpha) not in numbers or type(beta) not in numbers or (alpha == 0 and beta == 1):
            return UNUSUAL
        if several and current_device() != device:
            return UNUSUAL
        try:
            handle = raw_stream(device)
            if stream is not None and not _same(stream, handle):
                return UNUSUAL
            direct = known.direct
            if direct is None:
                status = known.launch(handle, a_at, x_at, y_at, alpha, beta)
            else:  # known.launch again, without calling it
                pool, build, pack, launch, handle_of, x_start, y_start = direct
                try:
                    packed = pool.pop()
                except IndexError:
                    packed = build()
                buffer, (config,), (table,) = packed
                pack(buffer, _STREAM, handle, a_at, x_at + x_start, y_at + y_start, alpha, beta)
                status = launch(config, handle_of, table, None)
                pool.append(packed)
        except OverflowError:  # a number that its dtype makes infinite, with a care of its own
            return UNUSUAL
        if status:
            return UNUSUAL
        if tracing():
            known.record()
        return y

    return call


def _cupy_call(cupy: Any) -> Callable[..., Any]:
    ndarray, empty = cupy.ndarray, cupy.empty
    current_stream = cupy.cuda.get_current_stream
    get = _known.get
    tracing = _trace._calls.get
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
        try:
            handle = current_stream().ptr
            if stream is not None and not _same(stream, handle):
                return UNUSUAL
            direct = known.direct
            if direct is None:
                status = known.launch(handle, a_at, x_at, y_at, alpha, beta)
            else:  # known.launch again, without calling it
                pool, build, pack, launch, function, x_start, y_start = direct
                try:
                    packed = pool.pop()
                except IndexError:
                    packed = build()
                buffer, (config,), (table,) = packed
                pack(buffer, _STREAM, handle, a_at, x_at + x_start, y_at + y_start, alpha, beta)
                status = launch(config, function, table, None)
                pool.append(packed)
        except OverflowError:
            return UNUSUAL
        if status:
            return UNUSUAL
        if tracing():
            known.record()
        return y

    return call


def _numba_call(device_array: Any) -> Callable[..., Any]:
    from numba import cuda

    from gemv._launch import stream_handle

    get = _known.get
    tracing = _trace._calls.get
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
            y = engine.empty(known.y_length, a.dtype)
            y_at = y.gpu_data.device_ctypes_pointer.value
        try:
            # Freeing memory of Numba waits for its last use, whatever the stream.
            handle = engine.numba_stream if stream is None else stream_handle(stream)
            direct = known.direct
            if direct is None:
                status = known.launch(handle, a_at, x_at, y_at, alpha, beta)
            else:  # known.launch again, without calling it
                pool, build, pack, launch, function, x_start, y_start = direct
                try:
                    packed = pool.pop()
                except IndexError:
                    packed = build()
                buffer, (config,), (table,) = packed
                pack(buffer, _STREAM, handle, a_at, x_at + x_start, y_at + y_start, alpha, beta)
                status = launch(config, function, table, None)
                pool.append(packed)
        except (OverflowError, TypeError):
            return UNUSUAL
        if status:
            return UNUSUAL
        if tracing():
            known.record()
        return y

    return call


def _same(stream: Any, handle: int) -> bool:
    from gemv._launch import stream_handle

    try:
        return stream_handle(stream) == handle
    except TypeError:
        return False


def _current_device() -> int:
    from gemv._streams import current_device

    return current_device()


#: What calls with an A of these types try first; filled when a library's array is first met.
CALLS: dict[type, Callable[..., Any]] = {}


def meet(kind: str) -> None:
    """Get ready for the arrays of a library, which has been imported by now."""
    import sys

    if _pointers.FULL:
        return  # only the long way asks the driver

    if kind == "torch":
        torch = sys.modules["torch"]
        if torch.Tensor not in CALLS:
            CALLS[torch.Tensor] = CALLS[torch.nn.Parameter] = _torch_call(torch)
    elif kind == "cupy":
        cupy = sys.modules["cupy"]
        if cupy.ndarray not in CALLS:
            CALLS[cupy.ndarray] = _cupy_call(cupy)
    elif kind == "numba":
        from numba.cuda.cudadrv.devicearray import DeviceNDArray

        if DeviceNDArray not in CALLS:
            CALLS[DeviceNDArray] = _numba_call(DeviceNDArray)
