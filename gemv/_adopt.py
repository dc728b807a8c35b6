"""Arrays of any library as Operands: metadata only, nothing is copied, moved or launched.

Libraries are recognised by the protocols and attributes of their arrays and never imported.
Adding one is adding a line to :data:`_DEVICE_KINDS` and the function it names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemv._check import describe, type_error, value_error

_RANK = {"a": 2, "x": 1, "y": 1}


@dataclass(frozen=True, slots=True)
class Operand:
    """One array as the rest of the package sees it.

    Attributes
    ----------
    kind : str
        ``"numpy"`` for host memory, else the library whose device array it is.
    dtype : numpy.dtype
        Of the elements as they lie in memory.
    shape : tuple of int
        ``(m, n)`` for A, ``(length,)`` for x and y.
    strides : tuple of int
        In elements, signed. For host memory, those of the contiguous copy that is computed with
        (see :func:`host_copy`): the array itself may have any strides, in bytes.
    pointer : int
        Address of element ``[0, ..., 0]``.
    readonly : bool
        Whether its owner forbids writing.
    owner : Any
        What keeps the memory alive: the host array, or the device array.
    stream : int or None
        Stream on which the exporter may still be working on it.
    """

    kind: str
    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    pointer: int
    readonly: bool
    owner: Any
    stream: int | None = None

    @property
    def on_host(self) -> bool:
        """Whether it has to be moved before a kernel can read it."""
        return self.kind == "numpy"


def adopt(routine: str, name: str, obj: Any, dtype: np.dtype | None) -> Operand:
    """`obj` as the operand `name` of a routine that computes in `dtype`.

    Parameters
    ----------
    routine, name : str
        For error texts; the name ``"a"``, ``"x"`` or ``"y"`` also decides the rank.
    obj : Any
        A NumPy array or what converts to one, or a device array.
    dtype : numpy.dtype or None
        None for the generic routine, which asks the operands.

    Raises
    ------
    TypeError
        For a kind of object or a dtype that cannot be taken without losing something.
    ValueError
        For a wrong number of dimensions.
    """
    if is_device_array(obj):
        return _adopt_device(routine, name, obj, dtype)
    return _adopt_host(routine, name, obj, dtype)


def where(operand: Operand) -> str:
    """Where an operand lives, in words for error texts."""
    if operand.on_host:
        return "in host memory"
    return f"on the device ({operand.kind})"


# Host memory ---------------------------------------------------------------------------------


def _adopt_host(routine: str, name: str, obj: Any, dtype: np.dtype | None) -> Operand:
    array = _as_ndarray(routine, name, obj)
    if array.dtype.kind not in "biufc":
        raise type_error(
            routine, name, f"{name} must hold numbers, got an array of dtype {array.dtype}"
        )
    if dtype is not None and dtype.kind != "c" and array.dtype.kind == "c":
        raise type_error(
            routine,
            name,
            f"{name} of dtype {array.dtype} would lose its imaginary part:"
            f" {routine} computes in {dtype}",
        )
    shape = _host_shape(routine, name, array)
    return Operand(
        kind="numpy",
        dtype=array.dtype,
        shape=shape,
        strides=_contiguous_strides(shape, _copy_order(array)),
        pointer=array.__array_interface__["data"][0],
        readonly=not array.flags.writeable,
        owner=array,
    )


def _as_ndarray(routine: str, name: str, obj: Any) -> np.ndarray:
    if isinstance(obj, np.ma.MaskedArray) and np.ma.is_masked(obj):
        raise type_error(
            routine,
            name,
            f"{name} is a masked array with {np.ma.count_masked(obj)} masked elements, which"
            " a product cannot leave out; fill it first",
        )
    if isinstance(obj, np.ndarray):
        return obj
    if obj is None or isinstance(obj, (str, bytes, bytearray, set, frozenset, dict)):
        raise type_error(routine, name, f"{name} must be an array, got {describe(obj)}")
    try:
        return np.asarray(obj)
    except Exception as error:
        raise type_error(
            routine, name, f"{name} cannot be read as an array of numbers: {error}"
        ) from error


def _host_shape(routine: str, name: str, array: np.ndarray) -> tuple[int, ...]:
    if array.ndim == _RANK[name]:
        return array.shape
    if name == "a":
        hint = "; write a[:, None] for one column, a[None, :] for one row" * (array.ndim == 1)
        raise value_error(
            routine, name, f"a must have two dimensions, got shape {array.shape}{hint}"
        )
    if array.ndim == 2 and 1 in array.shape:
        # A single column or row, as SciPy takes it.
        return (array.size,)
    raise value_error(
        routine,
        name,
        f"{name} must have one dimension (or be a single row or column), got shape {array.shape}",
    )


def _copy_order(array: np.ndarray) -> str:
    """The order in which a contiguous copy keeps neighbours in memory neighbours."""
    if array.ndim != 2 or array.flags.c_contiguous:
        return "C"
    if array.flags.f_contiguous or abs(array.strides[0]) < abs(array.strides[1]):
        return "F"
    return "C"


def _contiguous_strides(shape: tuple[int, ...], order: str) -> tuple[int, ...]:
    if len(shape) == 1:
        return (1,)
    m, n = shape
    return (1, m) if order == "F" else (n, 1)


def host_copy(operand: Operand, dtype: np.dtype) -> np.ndarray:
    """A or the vector of a host operand, contiguous, aligned and of `dtype`; copied if needed.

    Its element strides are the operand's. It may be the caller's own memory: only read it.
    """
    array = np.asarray(operand.owner)
    if len(operand.shape) == 1:
        array = array.reshape(-1)
    return np.require(array, dtype, ["A", "F" if _copy_order(array) == "F" else "C"])


def writable_in_place(operand: Operand, dtype: np.dtype) -> bool:
    """SciPy's rule for ``overwrite_y`` on host memory, apart from the right to write."""
    array = operand.owner
    return array.dtype == dtype and array.flags.aligned and array.flags.c_contiguous


def result_like(operand: Operand, dtype: np.dtype) -> np.ndarray:
    """A new y for the result: contiguous, of `dtype`, with the values and the class of y."""
    return np.array(operand.owner, dtype=dtype, order="C", copy=True, subok=True)


# Device memory -------------------------------------------------------------------------------


def is_device_array(obj: Any) -> bool:
    """Whether `obj` exports device memory."""
    if type(obj) is np.ndarray or type(obj) is list:
        return False
    return hasattr(obj, "__cuda_array_interface__") or hasattr(obj, "__cuda_ndarray__")


def _adopt_device(routine: str, name: str, obj: Any, dtype: np.dtype | None) -> Operand:
    library = type(obj).__module__
    for prefix, adopt_kind in _DEVICE_KINDS.items():
        if library == prefix or library.startswith(prefix + "."):
            operand = adopt_kind(routine, name, obj)
            break
    else:
        raise type_error(
            routine,
            name,
            f"{name} is a {library}.{type(obj).__name__}, a kind of device array that is not"
            f" supported yet; numba.cuda.as_cuda_array({name}) gives a view that is",
        )
    if len(operand.shape) != _RANK[name]:
        rank = "two dimensions" if name == "a" else "one dimension"
        raise value_error(routine, name, f"{name} must have {rank}, got shape {operand.shape}")
    if dtype is not None and operand.dtype != dtype:
        raise type_error(
            routine,
            name,
            f"{name} has dtype {operand.dtype} but {routine} computes in {dtype}"
            " and device arrays are never converted",
        )
    return operand


def _adopt_numba(routine: str, name: str, obj: Any) -> Operand:
    fake = getattr(obj, "_ary", None)
    if isinstance(fake, np.ndarray):
        # Numba's simulator: a wrapper around host memory.
        return Operand(
            kind="numba",
            dtype=fake.dtype,
            shape=fake.shape,
            strides=_in_elements(routine, name, fake.strides, fake.dtype),
            pointer=fake.__array_interface__["data"][0],
            readonly=not fake.flags.writeable,
            owner=fake,
        )
    # Its interface calls broadcast arrays contiguous and leaves their zero strides out.
    return _from_interface(routine, name, obj, "numba", getattr(obj, "strides", None))


def _from_interface(
    routine: str, name: str, obj: Any, kind: str, byte_strides: tuple[int, ...] | None = None
) -> Operand:
    """An operand from ``__cuda_array_interface__``, version 2 or 3."""
    interface = obj.__cuda_array_interface__
    version = interface.get("version", 0)
    if version < 2:
        raise type_error(
            routine, name, f"{name} has a CUDA array interface of version {version}, not 2 or 3"
        )
    if interface.get("mask") is not None:
        raise type_error(
            routine, name, f"{name} is a masked device array, and a mask cannot be honoured"
        )
    dtype = np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    if byte_strides is None:
        byte_strides = interface.get("strides")
    pointer, readonly = interface["data"]
    if pointer and pointer % dtype.alignment:
        raise type_error(
            routine,
            name,
            f"{name} starts at address {pointer:#x}, which is not aligned for {dtype},"
            " and device arrays are never copied",
        )
    return Operand(
        kind=kind,
        dtype=dtype,
        shape=shape,
        strides=(
            _c_strides(shape)
            if byte_strides is None
            else _in_elements(routine, name, tuple(byte_strides), dtype)
        ),
        pointer=pointer or 0,
        readonly=bool(readonly),
        owner=obj,
        stream=interface.get("stream"),
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
            f" bytes of a {dtype}, and device arrays are never copied",
        )
    return tuple(stride // dtype.itemsize for stride in byte_strides)


#: Where device arrays of a library are read, by the package their class comes from.
_DEVICE_KINDS: dict[str, Callable[[str, str, Any], Operand]] = {
    "numba": _adopt_numba,
    "numba_cuda": _adopt_numba,
}


def on_device(array: Any) -> Operand:
    """The operand of an array that the engine made: contiguous, ours alone."""
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
        )
    return _adopt_numba("gemv", "a", array)


#: How long to search for a shared element of two interleaved arrays before giving up.
_MAX_WORK: Any = 100_000


# Overlap -------------------------------------------------------------------------------------


def vector_view(operand: Operand, count: int, offset: int, inc: int) -> np.ndarray:
    """The elements ``offset + i*inc`` of a vector, as addresses: the array must not be read."""
    return _addresses(operand, (count,), (inc,), offset)


def matrix_view(operand: Operand) -> np.ndarray:
    """The elements of A, as addresses: the array must not be read."""
    return _addresses(operand, operand.shape, operand.strides, 0)


def overlap(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether two views share an element, or might, where finding out takes too long."""
    if not np.may_share_memory(left, right):
        return False
    try:
        return np.shares_memory(left, right, max_work=_MAX_WORK)
    except np.exceptions.TooHardError:
        return True


class _Addresses:
    """Exports an array interface, so that NumPy does arithmetic on addresses of any memory."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _addresses(
    operand: Operand, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> np.ndarray:
    itemsize = operand.dtype.itemsize
    if operand.on_host:
        # Strides of host operands are those of the copy: take the array's own.
        array = np.asarray(operand.owner)
        if len(shape) == 2:
            return array
        array = array.reshape(-1) if array.ndim != 1 else array
        step = array.strides[0]
        pointer = operand.pointer + offset * step
        byte_strides = tuple(inc * step for inc in strides)
    else:
        pointer = operand.pointer + offset * itemsize
        byte_strides = tuple(stride * itemsize for stride in strides)
    return np.asarray(
        _Addresses(
            {
                "version": 3,
                "shape": shape,
                "typestr": f"|V{itemsize}",
                "data": (pointer, True),
                "strides": byte_strides,
            }
        )
    )
