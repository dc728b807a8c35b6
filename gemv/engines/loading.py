"""Kernel functions loaded into the GPU, and their arguments packed for a launch."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver

from gemv.core.binary import Binary
from gemv.driver import library as driver_library
from gemv.driver.library import check as _check

#: ``CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION``, as the driver lays attributes out.
EARLY = (driver_library.LaunchAttribute * 1)(driver_library.LaunchAttribute(6, 0, (1,)))

_REAL = {4: ctypes.c_float, 8: ctypes.c_double}


@dataclass(frozen=True)
class LoadedFunction:
    """A loaded kernel function, whose alpha and beta are of `dtype`; `module` keeps it loaded."""

    handle: Any
    binary: Binary
    dtype: np.dtype
    module: Any

    @property
    def attributes(self) -> Any:
        """Of its launches: it may start early if it waits itself for the kernel before it."""
        return EARLY if self.binary.waits else None


def load(binary: Binary, dtype: np.dtype) -> LoadedFunction:
    module = _check(driver.cuModuleLoadData(binary.cubin))
    handle = _check(driver.cuModuleGetFunction(module, binary.name.encode()))
    return LoadedFunction(handle, binary, dtype, module)


_POINTERS = {"a", "x", "y", "scratch", "counters", "alpha_pointer", "beta_pointer"}


def pack(names: tuple[str, ...], values: dict[str, Any], dtype: np.dtype) -> tuple:
    """Values and ctypes of a kernel's parameters; a complex number is two reals."""
    packed: list[Any] = []
    kinds: list[Any] = []
    for name in names:
        value = values[name]
        if name in ("alpha", "beta"):
            real = _REAL[dtype.itemsize // (2 if dtype.kind == "c" else 1)]
            if dtype.kind == "c":
                packed += [float(value.real), float(value.imag)]
                kinds += [real, real]
            else:
                packed.append(float(value))
                kinds.append(real)
        elif name in _POINTERS:
            packed.append(value)
            kinds.append(ctypes.c_void_p)
        else:
            packed.append(value)
            kinds.append(ctypes.c_int64)
    return tuple(packed), tuple(kinds)


def pack_by_address(packed: tuple) -> tuple[int, Any]:
    """The same as addresses of the parameters, one of which is an array; and what holds them."""
    held: list[Any] = [
        value.ctypes if isinstance(value, np.ndarray) else kind(value)
        for value, kind in zip(*packed, strict=True)
    ]
    addresses = [each.data if hasattr(each, "data") else ctypes.addressof(each) for each in held]
    table = (ctypes.c_void_p * len(held))(*addresses)
    return ctypes.addressof(table), (table, held)
