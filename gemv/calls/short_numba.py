"""The short way of Numba's arrays: it repeats a call that was made before."""

from __future__ import annotations

from typing import Any

from gemv.calls.remembered import (
    ONE,
    UNUSUAL,
    ZERO,
    LongWay,
    ShortWay,
    options_of,
    remembered_calls,
)
from gemv.core import trace


def short_ways(engine: Any) -> dict[type, ShortWay]:
    """The function by the type of A."""
    from numba import cuda
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    from gemv.driver.devices import current_device
    from gemv.driver.streams import stream_handle

    enqueue = engine.machine.enqueue
    get = remembered_calls.get
    tracing = trace.open_traces
    several = len(cuda.gpus) > 1

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
        # An array that is bound to a stream has to be waited for on it: the long way does.
        if type(x) is not DeviceNDArray or a.stream or x.stream:
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
                return LongWay(key)
            if type(beta) not in known.numbers or beta != 0:
                return UNUSUAL
        else:
            in_place = overwrite_y is ONE or overwrite_y is True
            if type(y) is not DeviceNDArray or y.stream:
                return UNUSUAL
            if several and y.gpu_data.context.device.id != device:
                return UNUSUAL
            y_at = y.gpu_data.device_ctypes_pointer.value or 0
            if not in_place:
                if (overwrite_y is not ZERO and overwrite_y is not False) or (
                    y.strides != (y.dtype.itemsize,)
                ):
                    return UNUSUAL
                given_at, y_at = y_at, 0  # the memory of the pool, which is aligned
            key = (
                routine, device, options, a.dtype, a.shape, a.strides,
                x.dtype, x.shape, x.strides, y.dtype, y.shape, y.strides,
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
        if y is None or not in_place:
            if stream is not None:
                return UNUSUAL  # a capture, perhaps, where nothing can be allocated
            if known.y_length == 0:
                return UNUSUAL
        if y is None:
            y, y_at = engine.pool().empty(known.y_length, a.dtype)
        elif not in_place:
            (length,), dtype = y.shape, y.dtype
            y, y_at = engine.pool().empty(length, dtype)
            if beta != 0 or length != known.y_length:
                try:
                    nbytes = length * dtype.itemsize
                    engine.copy_bytes(given_at, y_at, nbytes, engine.numba_stream)
                except RuntimeError:  # no GPU is current in this thread: the long way makes it so
                    return UNUSUAL
        if stream is None:
            handle = engine.numba_stream
        else:
            try:
                handle = stream_handle(stream)
            except TypeError:
                return UNUSUAL
            # Vectors of the pool are given back in the order of the default stream.
            try:
                if engine.capture_of(handle) is None and engine.runs_by_itself(handle):
                    return UNUSUAL
            except RuntimeError:  # CudaError, whose module needs the driver's library
                return UNUSUAL  # no GPU is current in this thread: the long way makes it so
        if known.plain:
            status = enqueue(known.address, handle, a_at, x_at, y_at, alpha, beta)
        else:
            status = known.launch(handle, a_at, x_at, y_at, alpha, beta)
        if status:
            return UNUSUAL
        if tracing():
            known.record()
        return y

    return {DeviceNDArray: call}
