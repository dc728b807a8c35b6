"""The short way of CuPy's arrays: it repeats a call that was made before."""

from __future__ import annotations

import sys
from typing import Any

from gemv.calls.remembered import (
    ONE,
    UNUSUAL,
    ZERO,
    LongWay,
    ShortWay,
    is_same_stream,
    options_of,
    remembered_calls,
)
from gemv.core import trace


def short_ways(engine: Any) -> dict[type, ShortWay]:
    """The function by the type of A; CuPy has been imported."""
    from gemv.driver.devices import current_device

    cupy: Any = sys.modules["cupy"]
    ndarray, empty = cupy.ndarray, cupy.empty
    current_stream = cupy.cuda.get_current_stream
    enqueue = engine.machine.enqueue
    get = remembered_calls.get
    tracing = trace.open_traces
    several = cupy.cuda.runtime.getDeviceCount() > 1

    def call(
        routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any,
        offx: Any, incx: Any, offy: Any, incy: Any, trans: Any, overwrite_y: Any,
        kernel: Any, stream: Any, coefficients: Any,
    ) -> Any:  # fmt: skip
        key: tuple
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
                return LongWay(key)
            if type(beta) not in known.numbers or beta != 0:
                return UNUSUAL
        else:
            in_place = overwrite_y is ONE or overwrite_y is True
            if not in_place and overwrite_y is not ZERO and overwrite_y is not False:
                return UNUSUAL
            if type(y) is not ndarray:
                return UNUSUAL
            y_memory = y.data
            if several and y_memory.device_id != device:
                return UNUSUAL
            y_at, y_strides = y_memory.ptr, y.strides
            if not in_place:  # those of a copy, which CuPy's allocator aligns
                y_at, y_strides = 0, (y.itemsize,)
            key = (
                routine, device, options, a.dtype, a.shape, a.strides,
                x.dtype, x.shape, x.strides, y.dtype, y.shape, y_strides,
                ((a_at | x_at | y_at) & 15) and (a_at & 15, x_at & 15, y_at & 15),
            )  # fmt: skip
            known = get(key)
            if known is None:
                return LongWay(key)
            y_low, y_high, x_low, x_high, a_low, a_high = known.spans
            low, high = y_at + y_low, y_at + y_high
            if in_place and (
                (low < x_at + x_high and x_at + x_low < high)
                or (low < a_at + a_high and a_at + a_low < high)
            ):
                return UNUSUAL  # or windows that interleave
        numbers = known.numbers
        if type(alpha) not in numbers or type(beta) not in numbers or (alpha == 0 and beta == 1):
            return UNUSUAL
        if several and current_device() != device:
            return UNUSUAL
        handle = current_stream().ptr
        if stream is not None and not is_same_stream(stream, handle):
            return UNUSUAL
        if y is None:
            y = empty(known.y_length, a.dtype)
            y_at = y.data.ptr
        elif not in_place:
            try:
                if engine.capture_of(handle) is not None:
                    return UNUSUAL  # where CuPy can make no array: the long way says so
            except RuntimeError:  # no GPU is current in this thread: the long way makes it so
                return UNUSUAL
            if beta == 0 and y.shape == (known.y_length,):
                y = empty(known.y_length, y.dtype)
            else:
                y = y.copy()
            y_at = y.data.ptr
        if known.plain:
            status = enqueue(known.address, handle, a_at, x_at, y_at, alpha, beta)
        else:
            status = known.launch(handle, a_at, x_at, y_at, alpha, beta)
        if status:
            return UNUSUAL
        if tracing():
            known.record()
        return y

    return {ndarray: call}
