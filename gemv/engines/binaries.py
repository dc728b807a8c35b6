"""Machine code of a kernel: from the disk, or compiled now."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gemv.core.binary import Binary
from gemv.engines.cache import kept

if TYPE_CHECKING:
    from gemv.kernels.kernel import Kernel
    from gemv.kernels.spec import Spec


# What the launch path asks for -------------------------------------------------------------------


@lru_cache(maxsize=1024)
def binaries(kernel: Kernel, spec: Spec, compute_capability: tuple[int, int]) -> tuple[Binary, ...]:
    """All functions of `kernel` for `spec`, from the disk or compiled."""

    def compiled() -> tuple[Binary, ...]:
        from gemv.language.numba_cuda import compile

        return compile.binaries(kernel, spec, compute_capability)

    if not kernel.build.__module__.startswith("gemv."):
        return compiled()  # its source is not ours, so no hash covers it
    return kept(kernel.name, repr(spec), compute_capability, compiled)


@lru_cache(maxsize=64)
def copy(dtype: np.dtype, compute_capability: tuple[int, int]) -> Binary:
    """The function that copies a vector of any stride to a contiguous one."""

    def compiled() -> tuple[Binary, ...]:
        from gemv.language.copy import copy
        from gemv.language.numba_cuda.compile import compile_function

        return (compile_function(copy, dtype, compute_capability),)

    (binary,) = kept("copy", repr(dtype), compute_capability, compiled)
    return binary


#: In place of a compute capability, for code that runs on the host.
_HOST = (0, 0)


def last_step(compiled: Callable[[], bytes]) -> bytes:
    """The machine code of :mod:`gemv.driver.machine`: from the disk, or compiled now."""

    def functions() -> tuple[Binary, ...]:
        return (Binary("last_step", (), "", compiled(), ""),)

    (binary,) = kept("last_step", platform.machine(), _HOST, functions)
    return binary.cubin
