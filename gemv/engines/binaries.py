"""Compiled kernels: from memory, from the disk, or compiled now.

The two functions below are the only place where a process remembers compiled code. On the disk
:mod:`gemv.engines.cache` keeps it.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from gemv.core import errors
from gemv.core.binary import Binary
from gemv.engines.cache import kept
from gemv.kernels.kernel import Kernel
from gemv.kernels.spec import Spec


@lru_cache(maxsize=1024)
def binaries(kernel: Kernel, spec: Spec, compute_capability: tuple[int, int]) -> tuple[Binary, ...]:
    """All functions of `kernel`, compiled for `spec`."""

    def compiled() -> tuple[Binary, ...]:
        errors.numba_cuda()
        from gemv.language.numba_cuda import compile

        return compile.binaries(kernel, spec, compute_capability)

    if not kernel.build.__module__.startswith("gemv."):
        return compiled()  # the key in the cache covers no source but the package's own
    return kept(kernel.name, repr(spec), compute_capability, compiled)


@lru_cache(maxsize=64)
def copy(dtype: np.dtype, compute_capability: tuple[int, int]) -> Binary:
    """The function that copies a vector of any stride to a contiguous one."""

    def compiled() -> tuple[Binary, ...]:
        errors.numba_cuda()
        from gemv.language.copy import copy
        from gemv.language.numba_cuda.compile import compile_function

        return (compile_function(copy, dtype, compute_capability, early_start=True),)

    (binary,) = kept("copy", repr(dtype), compute_capability, compiled)
    return binary


@lru_cache(maxsize=16)
def copy_lines(dtype: np.dtype, compute_capability: tuple[int, int]) -> Binary:
    """The function that copies lines of memory."""

    def compiled() -> tuple[Binary, ...]:
        errors.numba_cuda()
        from gemv.language.copy_lines import copy_lines
        from gemv.language.numba_cuda.compile import compile_function

        return (compile_function(copy_lines, dtype, compute_capability),)

    (binary,) = kept("copy_lines", repr(dtype), compute_capability, compiled)
    return binary


@lru_cache(maxsize=16)
def fetch(compute_capability: tuple[int, int]) -> Binary:
    """The function that brings memory to the L2 cache."""

    def compiled() -> tuple[Binary, ...]:
        errors.numba_cuda()
        from gemv.language.fetch import WORD, fetch
        from gemv.language.numba_cuda.compile import compile_function

        return (compile_function(fetch, WORD, compute_capability),)

    (binary,) = kept("fetch", "", compute_capability, compiled)
    return binary


#: In place of a compute capability, for code that runs on the host.
_HOST = (0, 0)


def last_step(compiled: Callable[[], bytes]) -> bytes:
    """The machine code of :mod:`gemv.driver.machine`: from the disk, or compiled now."""
    return _of_host("last_step", compiled)


def host_call(compiled: Callable[[], bytes]) -> bytes:
    """That of :mod:`gemv.driver.host_call`."""
    return _of_host("host_call", compiled)


def _of_host(name: str, compiled: Callable[[], bytes]) -> bytes:
    def functions() -> tuple[Binary, ...]:
        return (Binary(name, (), "", compiled(), ""),)

    (binary,) = kept(name, platform.machine(), _HOST, functions)
    return binary.cubin
