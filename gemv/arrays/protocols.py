"""Arrays of a library without a file of its own here, if it offers ``__cuda_array_interface__`` or
DLPack.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from gemv.arrays import dlpack
from gemv.arrays.base import Library, Place, Refusal, View
from gemv.core.values import digits, typed

#: DLPack's device types for CUDA memory, and for host memory (plain and pinned).
CUDA_TYPES = (2, 13)
HOST_TYPES = (1, 3)


class Interface(Library):
    """Any other array with ``__cuda_array_interface__``."""

    name = "cuda_array_interface"

    held_until_done = True

    def place(self, obj: Any) -> Place | None:
        return "device" if hasattr(obj, "__cuda_array_interface__") else None

    def read(self, obj: Any) -> View:
        return read_interface(obj)


class DLPack(Library):
    """Any other array with ``__dlpack__``."""

    name = "dlpack"
    ordered_by_export = True

    def place(self, obj: Any) -> Place | None:
        if not (hasattr(type(obj), "__dlpack__") and hasattr(type(obj), "__dlpack_device__")):
            return None
        kind = int(obj.__dlpack_device__()[0])
        if kind not in CUDA_TYPES + HOST_TYPES:
            raise Refusal(f"lies on a device of DLPack's type {kind}, which is no CUDA GPU")
        return "device" if kind in CUDA_TYPES else "host"

    def read(self, obj: Any) -> View:
        # -1: metadata only, wait for nothing. The call asks again with its stream.
        tensor = dlpack.read(dlpack.export(obj, -1))
        if not isinstance(tensor.dtype, np.dtype):
            raise Refusal(f"has dtype {tensor.dtype}, in which nothing is computed here")
        return View(
            tensor.dtype,
            tensor.shape,
            None if tensor.strides is None else tuple(s * tensor.itemsize for s in tensor.strides),
            tensor.pointer,
            tensor.readonly,
            tensor.device,
            keep=tensor.capsule,
        )


def read_interface(obj: Any) -> View:
    """The view that ``__cuda_array_interface__`` gives, version 2 or 3.

    Raises
    ------
    Refusal
        If an entry is missing or of another type than the protocol says.
    """
    interface = obj.__cuda_array_interface__
    if not isinstance(interface, dict):
        raise Refusal(f"has a CUDA array interface that is no dict but {typed(interface)}")
    for name in ("version", "data", "typestr", "shape"):
        if name not in interface:
            raise Refusal(f"has a CUDA array interface without {name!r}")
    version = _entry("version", interface["version"])
    if version < 2:
        raise Refusal(f"has a CUDA array interface of version {digits(version)}, not 2 or 3")
    if interface.get("mask") is not None:
        raise Refusal("is a masked device array, and a mask cannot be honoured")
    data = interface["data"]
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise _wrong("data", data, "an address and whether it is read-only")
    pointer, readonly = data
    if not isinstance(readonly, (bool, int, np.bool_)):
        raise _wrong("read-only flag", readonly, "True or False")
    typestr = interface["typestr"]
    if not isinstance(typestr, str):  # NumPy would take None for float64
        raise _wrong("typestr", typestr, "a string like '<f8'")
    try:
        dtype = np.dtype(typestr)
    except Exception:  # NumPy has several for strings that it cannot read
        raise _wrong("typestr", typestr, "a dtype that NumPy knows") from None
    stream = interface.get("stream")
    if stream is not None:
        stream = _entry("stream", stream)
        if not 0 <= stream < 2**64:
            raise _wrong("stream", stream, "the handle of a stream")
    strides = interface.get("strides")
    return View(
        dtype,
        _entries("shape", interface["shape"]),
        None if strides is None else _entries("strides", strides),
        0 if pointer is None else _entry("address", pointer),
        bool(readonly),
        stream=stream,
    )


def _entry(name: str, value: Any) -> int:
    """An int of an interface; True, which is equal to 1, is refused."""
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)
        except Exception:  # whatever an object's own method raises
            pass
    raise _wrong(name, value, "an integer")


def _entries(name: str, values: Any) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)):
        raise _wrong(name, values, "a tuple of integers")
    try:
        numbers = tuple(_entry(name, value) for value in values)
    except Refusal:
        raise _wrong(name, values, "a tuple of integers") from None
    if any(number.bit_length() > 64 for number in numbers):
        raise _wrong(name, values, "a tuple of integers of 64 bits")
    return numbers


def _wrong(name: str, value: Any, rule: str) -> Refusal:
    return Refusal(f"has a CUDA array interface whose {name} is {typed(value)}, not {rule}")
