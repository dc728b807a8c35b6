"""An array of any library becomes an Operand; nothing is copied, moved or launched.

Each library has a file with a subclass of :class:`gemv.arrays.base.Library`. None of the
libraries is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from gemv.arrays import dlpack, libraries
from gemv.arrays.base import Library, Refusal, View
from gemv.arrays.host import adopt_host, check_rank_of_batch
from gemv.core.dtypes import dtype_name
from gemv.core.operand import RANK, Operand, array_at
from gemv.core.rules import MAX_BYTES, type_error, value_error
from gemv.core.values import digits


class Home(Protocol):
    """What adopting an array asks about device memory; the backend's engine answers."""

    def in_host_memory(self) -> bool:
        """Whether device memory is host memory, as it is in the simulator."""

    def device_of(self, pointer: int) -> int | None:
        """Ordinal of the GPU that memory belongs to; None where the driver does not know it."""

    def devices_of(self, pointers: Sequence[int]) -> Sequence[int | None]:
        """The same for the memory at each of these addresses; None for the address 0."""


def adopt(
    routine: str, name: str, obj: Any, dtype: np.dtype | None, home: Home, batch: bool = False
) -> Operand:
    """`obj` as the operand `name` of a routine that computes in `dtype`.

    Parameters
    ----------
    routine, name : str
        For error texts; the name ``"a"``, ``"x"`` or ``"y"`` also decides the rank.
    obj : Any
        A NumPy array or what converts to one, or a device array.
    dtype : numpy.dtype or None
        None for the generic routine, which asks the operands.
    home : Home
        Where device memory is.
    batch : bool
        Whether it may have more dimensions, in front of those of a single product.

    Raises
    ------
    TypeError
        For a kind of object or a dtype that cannot be taken without losing something.
    ValueError
        For a wrong number of dimensions.
    """
    try:
        library, place = libraries.exporter_of(obj)
    except Refusal as refusal:
        raise type_error(routine, name, f"{name} {refusal}") from None
    except Exception as error:  # an object whose attributes raise
        raise type_error(routine, name, f"{name} cannot be read as an array: {error}") from error
    if place == "device":
        return _adopt_device(routine, name, obj, library, dtype, home, batch)
    return adopt_host(routine, name, obj, dtype, library, batch)


def is_device_array(obj: Any) -> bool:
    """Whether `obj` exports device memory."""
    try:
        return libraries.device_library(obj) is not None
    except Exception:  # adopt() raises the error with a text
        return True


def rank_of(obj: Any) -> int:
    """The number of dimensions that an array says it has.

    It is 0 for an object that does not say it, or whose attributes raise: :func:`adopt` reads such
    an object with care, and names what is wrong with it.
    """
    try:
        rank = getattr(obj, "ndim", None)
        if isinstance(rank, int):
            return rank
        if isinstance(obj, (list, tuple)):
            return 1 + (rank_of(obj[0]) if obj else 0)
        library, place = libraries.exporter_of(obj)
        if place == "device":
            return len(library.read(obj).shape)
        interface = getattr(obj, "__array_interface__", None)
        return len(obj.shape if interface is None else interface["shape"])
    except Exception:  # whatever an object's own attributes raise
        return 0


def _adopt_device(
    routine: str,
    name: str,
    obj: Any,
    library: Library,
    dtype: np.dtype | None,
    home: Home,
    batch: bool,
) -> Operand:
    operand = _device_operand(routine, name, obj, library, home)
    if batch:
        check_rank_of_batch(routine, name, operand.shape)
    elif len(operand.shape) != RANK[name]:
        rank = ("no dimension", "one dimension", "two dimensions")[RANK[name]]
        raise value_error(routine, name, f"{name} must have {rank}, got shape {operand.shape}")
    if dtype is not None and operand.dtype != dtype:
        raise type_error(
            routine,
            name,
            f"{name} has dtype {dtype_name(operand.dtype)} but {routine} computes in {dtype}"
            " and device arrays are never converted",
        )
    return operand


def _device_operand(routine: str, name: str, obj: Any, library: Library, home: Home) -> Operand:
    try:
        view = library.read(obj)
    except Refusal as refusal:
        raise type_error(routine, name, f"{name} {refusal}") from None
    except Exception as error:  # a deleted array, or wrong metadata
        raise type_error(
            routine, name, f"{name} cannot be read as a device array: {error!r}"
        ) from error
    dtype = view.dtype
    _check_view(routine, name, view)
    if view.pointer and view.pointer % dtype.alignment:
        raise type_error(
            routine,
            name,
            f"{name} starts at address {view.pointer:#x}, which is not aligned for"
            f" {dtype_name(dtype)},"
            " and device arrays are never copied",
        )
    owner, device = obj, view.device
    if isinstance(view.keep, np.ndarray):
        owner = view.keep
    elif home.in_host_memory():
        # In the simulator every library's device memory is host memory.
        owner = _addresses_as(view, dtype.str).view(dtype)
    elif device is None and view.pointer:
        device = home.device_of(view.pointer)
    return Operand(
        kind=library.name,
        dtype=dtype,
        shape=tuple(view.shape),
        strides=(
            _c_strides(view.shape)
            if view.strides is None
            else _in_elements(routine, name, tuple(view.strides), dtype)
        ),
        pointer=view.pointer,
        readonly=view.readonly,
        owner=owner,
        stream=view.stream,
        device=device,
        conj=view.conj,
        neg=view.neg,
        origin=obj,
        keep=view.keep,
        exporter=library,
    )


def _check_view(routine: str, name: str, view: View) -> None:
    """Refuse metadata that no array can have, before a kernel follows its pointer."""
    shape, strides = view.shape, view.strides
    if min(shape, default=0) < 0 or (strides is not None and len(strides) != len(shape)):
        raise value_error(
            routine,
            name,
            f"{name} says that it has shape {shape} and byte strides {strides}, which no array has",
        )
    at = hex(view.pointer) if view.pointer.bit_length() <= 64 else digits(view.pointer)
    if not 0 <= view.pointer <= MAX_BYTES:
        raise value_error(
            routine, name, f"{name} says that it starts at address {at}, where no memory can be"
        )
    if 0 in shape:
        return
    if not view.pointer:
        raise value_error(
            routine,
            name,
            f"{name} of shape {shape} has no memory: it was deleted, or its memory was freed",
        )
    steps = _c_strides(shape) if strides is None else strides
    size = 1 if strides is not None else view.dtype.itemsize
    spans = [size * (length - 1) * step for length, step in zip(shape, steps, strict=True)]
    if sum(map(abs, spans)) + view.dtype.itemsize > MAX_BYTES:
        raise value_error(
            routine,
            name,
            f"{name} of shape {shape} and byte strides {strides} is larger than any memory",
        )
    first = view.pointer + sum(span for span in spans if span < 0)
    end = view.pointer + sum(span for span in spans if span > 0) + view.dtype.itemsize
    if first <= 0 or end > MAX_BYTES:
        raise value_error(
            routine,
            name,
            f"{name} of shape {shape} and byte strides {strides}, which starts at address {at},"
            f" reaches from {first:#x} to {end:#x}, where no memory can be",
        )


def _c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def _in_elements(
    routine: str, name: str, byte_strides: tuple[int, ...], dtype: np.dtype
) -> tuple[int, ...]:
    if any(stride % dtype.itemsize for stride in byte_strides):
        raise type_error(
            routine,
            name,
            f"{name} has byte strides {byte_strides}, not multiples of the {dtype.itemsize}"
            f" bytes of a {dtype_name(dtype)}, and device arrays are never copied",
        )
    return tuple(stride // dtype.itemsize for stride in byte_strides)


def on_device(array: Any, home: Home) -> Operand:
    """The operand of a new array, made for this call."""
    if isinstance(array, np.ndarray):
        # The simulator's device memory is host memory.
        return Operand(
            kind="numba",
            dtype=array.dtype,
            shape=array.shape,
            strides=tuple(stride // array.itemsize for stride in array.strides),
            pointer=array.__array_interface__["data"][0],
            readonly=False,
            owner=array,
            origin=array,
            exporter=libraries.BY_NAME["numba"],
        )
    if isinstance(array, dlpack.Export):
        array = array.array
    library = libraries.device_library(array)
    if library is None:
        raise TypeError(f"gemv: {type(array).__name__} is no device array")
    return _device_operand("gemv", "y", array, library, home)


def _addresses_as(view: View, typestr: str) -> np.ndarray:
    """A view as a NumPy array, in the simulator, where the host can follow its pointer."""
    if not view.pointer:
        return np.zeros(view.shape, typestr)
    return array_at(view.pointer, view.shape, view.strides, typestr, view.readonly)
