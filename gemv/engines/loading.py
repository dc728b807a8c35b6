"""Kernel functions loaded into GPUs: from compiled code to what a launch needs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from cuda.bindings import driver

from gemv.core import errors
from gemv.core.binary import Binary
from gemv.core.dtypes import NARROW
from gemv.core.geometry import Device
from gemv.driver import libcuda
from gemv.driver.capture import capture_of
from gemv.driver.libcuda import check
from gemv.engines import binaries
from gemv.selection.select import Choice

#: The launch attribute that lets a kernel start before the one ahead of it on the stream has ended:
#: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, in the layout of the driver's structure.
_EARLY_START = (libcuda.LaunchAttribute * 1)(libcuda.LaunchAttribute(6, 0, (1,)))
#: Blocks that a cluster has on every GPU with clusters; a function is asked for if it has more.
_PORTABLE_CLUSTER = 8
_LARGER_CLUSTERS = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
#: The most dynamic shared memory of a function: launches with more than 48 KB have to be announced.
_DYNAMIC_BYTES = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class LoadedFunction(NamedTuple):
    """A kernel function on a GPU.

    Attributes
    ----------
    handle : CUfunction
    binary : Binary
        The compiled code, with the names of its parameters.
    dtype : numpy.dtype
        Of its parameters alpha and beta.
    module : CUmodule
        Keeps the function loaded.
    """

    handle: Any
    binary: Binary
    dtype: np.dtype
    module: Any

    @property
    def attributes(self) -> Any:
        """Attributes of its launches, or None.

        A function that waits itself for the kernel ahead of it may start before that one has ended.
        """
        return _EARLY_START if self.binary.waits else None


def load(binary: Binary, dtype: np.dtype) -> LoadedFunction:
    """Load a compiled function into the current GPU; its alpha and beta are of `dtype`."""
    module = check(driver.cuModuleLoadData(binary.cubin))
    handle = check(driver.cuModuleGetFunction(module, binary.name.encode()))
    return LoadedFunction(handle, binary, dtype, module)


class LoadedFunctions:
    """All functions that this process has loaded; each is compiled and loaded at first use."""

    def __init__(self) -> None:
        #: By name of the kernel, what it is compiled for, and ordinal of the GPU.
        self.loaded: dict[tuple, tuple[LoadedFunction, ...]] = {}

    def of(
        self, choice: Choice, device: Device, stream: int | None = None
    ) -> tuple[LoadedFunction, ...]:
        """The functions of the chosen kernel on `device`.

        Raises
        ------
        RuntimeError
            If they have to be loaded now and `stream` is being captured: loading would break it.
        """
        key = (choice.kernel.name, choice.spec, device.index)
        loaded = self.loaded.get(key)
        if loaded is None:
            _refuse_in_capture(f"kernel {choice.kernel.name!r}", stream)
            with errors.compiling():
                compiled = binaries.binaries(choice.kernel, choice.spec, device.compute_capability)
            loaded = tuple(load(binary, choice.spec.precision.factors) for binary in compiled)
            if choice.knobs.get("CLUSTER", 1) > _PORTABLE_CLUSTER:
                for function in loaded:
                    check(driver.cuFuncSetAttribute(function.handle, _LARGER_CLUSTERS, 1))
            for function, launch in zip(loaded, choice.geometry.launches, strict=True):
                if launch.shared:
                    check(driver.cuFuncSetAttribute(function.handle, _DYNAMIC_BYTES, launch.shared))
            # Of two threads, both take the functions of the first: those have the slots.
            loaded = self.loaded.setdefault(key, loaded)
        return loaded

    def copy(self, dtype: np.dtype, device: Device, stream: int | None = None) -> LoadedFunction:
        """The function that copies a vector of any stride to a contiguous one; raises as `of`."""
        # Bits are copied: the kernel would convert narrow numbers on the way.
        dtype = np.dtype(np.uint16) if dtype in NARROW else dtype
        key = ("copy", dtype, device.index)
        loaded = self.loaded.get(key)
        if loaded is None:
            _refuse_in_capture("the copy of y", stream)
            with errors.compiling():
                binary = binaries.copy(dtype, device.compute_capability)
            loaded = self.loaded[key] = (load(binary, dtype),)
        return loaded[0]

    def copy_lines(self, word: np.dtype, device: Device) -> LoadedFunction:
        """The function that copies lines of memory, in such words."""
        key = ("copy_lines", word, device.index)
        loaded = self.loaded.get(key)
        if loaded is None:
            with errors.compiling():
                binary = binaries.copy_lines(word, device.compute_capability)
            loaded = self.loaded[key] = (load(binary, word),)
        return loaded[0]

    def fetch(self, device: Device) -> LoadedFunction:
        """The function that brings memory to the L2 cache."""
        key = ("fetch", device.index)
        loaded = self.loaded.get(key)
        if loaded is None:
            with errors.compiling():
                binary = binaries.fetch(device.compute_capability)
            loaded = self.loaded[key] = (load(binary, np.dtype(np.float64)),)
        return loaded[0]


def _refuse_in_capture(what: str, stream: int | None) -> None:
    """Raise if `stream` is being captured: loading a module waits for the whole GPU."""
    if stream is not None and capture_of(stream) is not None:
        raise RuntimeError(
            f"{what} is not compiled yet, and a stream is being captured: call gemv.precompile"
            " with the same arguments before the capture"
        )
