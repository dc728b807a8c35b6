"""From a kernel function to machine code: everything that touches Numba's compiler.

The steps need neither a GPU nor a driver: Numba types the function and lowers it to PTX, and
nvJitLink assembles PTX to a cubin for one compute capability. numba-cuda is in maintenance mode; a
compiler that takes its place becomes a folder beside this one.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Protocol

import numba
import numpy as np
from numba import types
from numba.cuda import dispatcher as _dispatcher

from gemv.core.binary import Binary
from gemv.core.dtypes import Precision
from gemv.core.geometry import TABLES
from gemv.language.numba_cuda.formats import pointer_type
from gemv.language.numba_cuda.ptx import (
    COEFFICIENTS,
    WAIT,
    beside,
    bringing_own_bytes,
    check_constant_memory,
    in_clusters,
    waiting,
    with_rounding,
    x_by_value,
)

#: Parameters that point to alpha or beta in device memory.
_FACTOR_POINTERS = {"alpha_pointer", "beta_pointer"}
_lock = threading.RLock()


def argument_types(function: Callable, precision: Precision) -> tuple[types.Type, ...]:
    """The Numba types of a kernel function's parameters, which follow from their names."""
    factor = numba.from_dtype(precision.factors)
    data = {
        "a": pointer_type(precision.data, precision.sums, exact=True),
        "x": pointer_type(precision.data, precision.sums, exact=True),
        "y": pointer_type(precision.y, precision.sums),
        "old": pointer_type(precision.y, precision.sums),
        "scratch": pointer_type(precision.sums, precision.sums),
    }
    kinds: list[types.Type] = []
    for name in inspect.signature(function).parameters:
        if name in data:
            kinds.append(data[name])
        elif name in _FACTOR_POINTERS:
            kinds.append(types.CPointer(factor))
        elif name == "counters":
            kinds.append(types.CPointer(types.uint32))
        elif name in TABLES:
            kinds.append(types.CPointer(types.int64))
        elif name in COEFFICIENTS:
            kinds.append(factor)
        else:  # sizes and strides
            kinds.append(types.int64)
    return tuple(kinds)


@contextmanager
def _compiling_for(compute_capability: tuple[int, int]) -> Iterator[None]:
    """Let device functions compile without a GPU.

    Numba asks the current device for its compute capability each time a kernel calls a device
    function, even where it was told the capability; the question is answered here.
    """
    with _lock:
        original = _dispatcher.get_current_device
        answer = SimpleNamespace(compute_capability=compute_capability)
        _dispatcher.get_current_device = lambda: answer
        try:
            yield
        finally:
            _dispatcher.get_current_device = original


def compile_ptx(
    function: Callable, precision: Precision | np.dtype, compute_capability: tuple[int, int]
) -> str:
    """The PTX of one kernel function; the entry point has the function's name.

    A dtype in place of the precision means that all numbers have it.
    """
    if isinstance(precision, np.dtype):
        precision = Precision.of(precision)
    signature = types.void(*argument_types(function, precision))
    # (threads of a block, blocks that must fit on a multiprocessor) limits a thread's registers.
    bounds = getattr(function, "launch_bounds", None)
    with _compiling_for(compute_capability):
        ptx, _ = numba.cuda.compile_ptx(
            function, signature, cc=compute_capability, launch_bounds=bounds
        )
    # Numba's mangled names run to hundreds of characters; parameters repeat them.
    (entry,) = re.findall(r"\.visible \.entry (\w+)\(", ptx)
    ptx = ptx.replace(entry, function.__name__)
    check_constant_memory(ptx)
    ptx = with_rounding(ptx, compute_capability)
    ptx = in_clusters(ptx, function, compute_capability)
    value_bytes = getattr(function, "value_bytes", 0)
    return x_by_value(ptx, function, precision.data, value_bytes) if value_bytes else ptx


class AssemblerError(RuntimeError):
    """What nvJitLink says of PTX that it refuses."""


def assemble(ptx: str, compute_capability: tuple[int, int]) -> tuple[bytes, str]:
    """The cubin and the assembler's report. nvJitLink makes them, which needs no driver."""
    from cuda.bindings import nvjitlink

    major, minor = compute_capability
    handle = nvjitlink.create(2, [f"-arch=sm_{major}{minor}", "-verbose"])
    try:
        data = ptx.encode()
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "gemv")
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            log = bytearray(nvjitlink.get_error_log_size(handle))
            nvjitlink.get_error_log(handle, log)
            raise AssemblerError(f"nvJitLink: {error}: {log.decode(errors='replace')}") from error
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
    finally:
        nvjitlink.destroy(handle)
    return bytes(cubin), log.decode(errors="replace")


def compile_function(
    function: Callable,
    precision: Precision | np.dtype,
    compute_capability: tuple[int, int],
    early_start: bool = False,
    is_beside: bool = False,
    sparse: bool = False,
) -> Binary:
    """One kernel function as machine code.

    With `early_start` it may start while the kernel before it runs, and begins with a wait for that
    one: see :func:`waiting`. With `is_beside` it ends with this wait instead: see :func:`beside`.
    With `sparse` its loads bring nothing but their own bytes: see :func:`bringing_own_bytes`.
    """
    ptx = compile_ptx(function, precision, compute_capability)
    if sparse:
        ptx = bringing_own_bytes(ptx)
    if is_beside:
        ptx = beside(ptx, compute_capability)
    elif early_start:
        ptx = waiting(ptx, compute_capability)
    cubin, log = assemble(ptx, compute_capability)
    arguments = tuple(inspect.signature(function).parameters)
    return Binary(function.__name__, arguments, ptx, cubin, log, waits=WAIT in ptx)


class Source(Protocol):
    """A kernel: it makes the functions that are compiled for a spec."""

    def functions(self, spec: Any) -> tuple[Callable, ...]: ...


def binaries(kernel: Source, spec: Any, compute_capability: tuple[int, int]) -> tuple[Binary, ...]:
    """All functions of `kernel` for `spec` as machine code.

    The launches of a list of products need nothing of each other.
    """
    is_beside = bool(spec.table)
    return tuple(
        compile_function(
            function, spec.precision, compute_capability, not is_beside, is_beside, spec.sparse
        )
        for function in kernel.functions(spec)
    )
