"""From a kernel function to machine code: everything that touches Numba's compiler.

The steps need neither a GPU nor a driver: Numba types the function and lowers it to PTX, and
nvJitLink assembles PTX to a cubin for one compute capability. numba-cuda is in maintenance mode;
what takes its place will have to be met here and in :mod:`gemv._intrinsics` only.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace

import numba
import numpy as np
from numba import types
from numba.cuda import dispatcher as _dispatcher

from gemv._cache import Binary
from gemv.core.dtypes import Precision
from gemv.core.geometry import CONSTANT_BYTES
from gemv.kernels._base import Kernel, Spec

_FACTOR_POINTERS = {"alpha_pointer", "beta_pointer"}
_COEFFICIENTS = {"alpha", "beta"}
_lock = threading.RLock()


def argument_types(function: Callable, precision: Precision) -> tuple[types.Type, ...]:
    """Numba types of a kernel function's parameters, which are known by their names."""
    from gemv._formats import pointer_type

    factor = numba.from_dtype(precision.factors)
    data = {
        "a": pointer_type(precision.data, precision.sums, exact=True),
        "x": pointer_type(precision.data, precision.sums, exact=True),
        "y": pointer_type(precision.y, precision.sums),
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
        elif name in _COEFFICIENTS:
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
    """PTX of one kernel function, its entry point named like the function.

    A dtype in place of the precision stands for all numbers alike.
    """
    if isinstance(precision, np.dtype):
        precision = Precision.of(precision)
    signature = types.void(*argument_types(function, precision))
    # (threads per block, blocks to fit on a multiprocessor): how many registers a thread may use.
    bounds = getattr(function, "launch_bounds", None)
    with _compiling_for(compute_capability):
        ptx, _ = numba.cuda.compile_ptx(
            function, signature, cc=compute_capability, launch_bounds=bounds
        )
    # Numba's mangled names run to hundreds of characters; parameters repeat them.
    (entry,) = re.findall(r"\.visible \.entry (\w+)\(", ptx)
    ptx = ptx.replace(entry, function.__name__)
    _check_constant_memory(ptx)
    if compute_capability < _ROUNDS_TO_BFLOAT16:
        ptx = _rounding_by_integers(ptx)
    value_bytes = getattr(function, "value_bytes", 0)
    return _x_by_value(ptx, function, precision.data, value_bytes) if value_bytes else ptx


#: The first compute capability with an instruction that rounds to bfloat16.
_ROUNDS_TO_BFLOAT16 = (8, 0)


def _rounding_by_integers(ptx: str) -> str:
    """The same where that instruction is missing."""
    from gemv._formats import TO_BFLOAT16

    def written_out(found: re.Match) -> str:
        lines = [".reg .b32 %upper, %lower, %carry;", ".reg .pred %nan;"]
        for half, number in zip(("%upper", "%lower"), found.groups()[1:], strict=True):
            lines += [
                f"mov.b32 {half}, {number};",
                # Half of the last bit that stays, less a little where that bit is 0: ties to even.
                f"bfe.u32 %carry, {half}, 16, 1;",
                "add.u32 %carry, %carry, 0x7FFF;",
                f"add.u32 %carry, %carry, {half};",
                # The carry would make an infinity of a NaN, or a zero.
                f"setp.nan.f32 %nan, {number}, {number};",
                f"or.b32 {half}, {half}, 0x400000;",
                f"selp.b32 {half}, {half}, %carry, %nan;",
            ]
        lines.append(f"prmt.b32 {found[1]}, %lower, %upper, 0x7632;")
        return "{ " + " ".join(lines) + " }"

    instruction = rf"{re.escape(TO_BFLOAT16)} (%\w+), (\w+|%\w+), (\w+|%\w+);"
    return re.sub(instruction, written_out, ptx)


def _check_constant_memory(ptx: str) -> None:
    """Refuse constant symbols that cannot be placed; the assembler would not name the limit."""
    sizes = {
        name: int(size)
        for name, size in re.findall(r"^\S*\s*\.const \.align \d+ \.b8 (\w+)\[(\d+)\]", ptx, re.M)
    }
    if sum(sizes.values()) > CONSTANT_BYTES:
        listed = " + ".join(f"{size} ({name})" for name, size in sizes.items())
        raise ValueError(
            f"constant memory: {listed} = {sum(sizes.values())} bytes, but a module has"
            f" {CONSTANT_BYTES} bytes (64 KB) of it"
        )


def _x_by_value(ptx: str, function: Callable, dtype: np.dtype, value_bytes: int) -> str:
    """Declare the parameter x as an array; see :func:`gemv._intrinsics.parameter_load`."""
    from gemv._intrinsics import PARAMETER

    before = list(inspect.signature(function).parameters).index("x")
    if dtype.kind == "c":  # a complex number is two parameters
        names = list(inspect.signature(function).parameters)[:before]
        before += sum(name in _COEFFICIENTS for name in names)
    parameter = f"{function.__name__}_param_{before}"
    declared = f".param .align 16 .b8 {parameter}[{value_bytes}]"
    ptx, found = re.subn(rf"\.param \.u64 (?:\.ptr[^,\n]*? )?{parameter}\b", declared, ptx, count=1)
    if not found or f"[{parameter}]" in ptx:
        raise RuntimeError(f"{function.__name__}: x is not a parameter that nothing else reads")
    return ptx.replace(PARAMETER, parameter)


#: The first compute capability whose kernels can start before the one ahead of them has ended.
_EARLY_START = (9, 0)
_WAIT = "griddepcontrol.wait;"
#: Blocks of a grid that is so small that who follows may come at once.
_FEW_BLOCKS = 64
_BEGINNING = "".join(
    f"\t{line}\n"
    for line in (
        _WAIT,
        "{",
        ".reg .b32 %across, %down;",
        ".reg .pred %few;",
        "mov.u32 %across, %nctaid.x;",
        "mov.u32 %down, %nctaid.y;",
        "mul.lo.u32 %across, %across, %down;",
        f"setp.le.u32 %few, %across, {_FEW_BLOCKS};",
        "@%few griddepcontrol.launch_dependents;",
        "}",
    )
)


def waiting(ptx: str, compute_capability: tuple[int, int]) -> str:
    """Let a kernel start while the one before it ends, where the GPU can (*programmatic dependent
    launch*).

    Its blocks come to the multiprocessors when those of the kernel before have left, and wait
    until its results are in memory. Only then is anything read: A and x may be what that kernel
    writes, y what it reads. As everything waits, so does everybody who waits for this kernel, and
    no two products of a chain ever overlap.

    A kernel of a few blocks says that whoever follows may come while it runs. In a larger one that
    costs more than the start it hides: blocks that only wait take places, then the others are
    spread unevenly, and some multiprocessors have work long after the rest.
    """
    if compute_capability < _EARLY_START:
        return ptx
    body = ptx.index("{", ptx.index(".entry"))
    found = re.search(r"^\t(?=[a-z@])", ptx[body:], re.M)
    assert found is not None
    first = body + found.start()
    return ptx[:first] + _BEGINNING + ptx[first:]


def assemble(ptx: str, compute_capability: tuple[int, int]) -> tuple[bytes, str]:
    """Cubin and assembler's report, by nvJitLink, which needs no driver."""
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
            raise RuntimeError(f"nvJitLink: {error}: {log.decode(errors='replace')}") from error
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
) -> Binary:
    """One kernel function as machine code; with `early_start` as :func:`waiting` has it."""
    ptx = compile_ptx(function, precision, compute_capability)
    if early_start:
        ptx = waiting(ptx, compute_capability)
    cubin, log = assemble(ptx, compute_capability)
    arguments = tuple(inspect.signature(function).parameters)
    return Binary(function.__name__, arguments, ptx, cubin, log, waits=_WAIT in ptx)


@lru_cache(maxsize=1024)
def binaries(kernel: Kernel, spec: Spec, compute_capability: tuple[int, int]) -> tuple[Binary, ...]:
    """All functions of `kernel` for `spec`, compiled once in this process."""
    return tuple(
        compile_function(function, spec.precision, compute_capability, early_start=True)
        for function in kernel.functions(spec)
    )
