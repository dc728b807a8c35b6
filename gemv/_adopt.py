"""Arrays of any library as Operands: metadata only, nothing is copied, moved or launched.

What is known of each library's device arrays is in :mod:`gemv._arrays`; none of them is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gemv import _arrays, _dlpack
from gemv.core.dtypes import BFLOAT16, dtype_name
from gemv.core.narrow import cast
from gemv.core.rules import MAX_BYTES, describe, numbers, shown, type_error, value_error

_RANK = {"a": 2, "x": 1, "y": 1, "alpha": 0, "beta": 0}


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
        Stream that the array itself names, on which its exporter may still be working on it.
    device : int or None
        Ordinal of the GPU that it lives on; None for host memory and in the simulator.
    conj, neg : bool
        Whether the values are the conjugates, the negatives, of what lies in memory.
    origin : Any
        The object that was passed.
    keep : Any
        What has to live, besides the owner, until the memory has been read.
    resolve : bool
        Whether a contiguous copy of `origin` is meant, conjugated if `conj`.
    exporter : Library
        What is known of the library of a device array; None for host memory.
    """

    kind: str
    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    pointer: int
    readonly: bool
    owner: Any
    stream: int | None = None
    device: int | None = None
    conj: bool = False
    neg: bool = False
    origin: Any = None
    keep: Any = None
    resolve: bool = False
    exporter: Any = None

    @property
    def on_host(self) -> bool:
        """Whether it has to be moved before a kernel can read it."""
        return self.kind == "numpy"


class Home(Protocol):
    """Where the memory of device arrays is; adopting an array asks nobody else."""

    def in_host_memory(self) -> bool:
        """Whether device memory is host memory, as it is in the simulator."""

    def device_of(self, pointer: int) -> int | None:
        """Ordinal of the GPU that memory belongs to; None where nobody knows."""


def adopt(routine: str, name: str, obj: Any, dtype: np.dtype | None, home: Home) -> Operand:
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

    Raises
    ------
    TypeError
        For a kind of object or a dtype that cannot be taken without losing something.
    ValueError
        For a wrong number of dimensions.
    """
    try:
        library = _arrays.exporter_of(obj)
    except _arrays.Refusal as refusal:
        raise type_error(routine, name, f"{name} {refusal}") from None
    except Exception as error:  # of an object that fails as soon as it is looked at
        raise type_error(routine, name, f"{name} cannot be read as an array: {error}") from error
    if library is not None:
        return _adopt_device(routine, name, obj, library, dtype, home)
    return _adopt_host(routine, name, obj, dtype)


def where(operand: Operand) -> str:
    """Where an operand lives, in words for error texts."""
    if operand.on_host:
        return "in host memory"
    gpu = "the device" if operand.device is None else f"cuda:{operand.device}"
    return f"on {gpu} ({operand.kind})"


# Host memory ---------------------------------------------------------------------------------


def _adopt_host(routine: str, name: str, obj: Any, dtype: np.dtype | None) -> Operand:
    array = host_numbers(routine, name, obj)
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
        origin=obj,
    )


def host_numbers(routine: str, name: str, obj: Any) -> np.ndarray:
    """`obj`, or what it says as an array, of any rank: numbers alone, and none of them masked.

    An array of objects is converted, any other array is given back.
    """
    array = _as_ndarray(routine, name, obj)
    if _leaves_its_memory(array):
        raise value_error(
            routine,
            name,
            f"{name} of shape {array.shape} and byte strides {array.strides} reaches beyond the"
            " memory that it is a view of",
        )
    if array.dtype == object:
        return numbers(routine, name, array)
    if array.dtype.kind not in "biufc" and array.dtype != BFLOAT16:
        raise type_error(
            routine, name, f"{name} must hold numbers, got an array of dtype {array.dtype}"
        )
    return array


def _as_ndarray(routine: str, name: str, obj: Any) -> np.ndarray:
    _refuse_masked(routine, name, obj)
    if isinstance(obj, np.ndarray):
        return _arrays.plain_bfloat16(obj)
    if obj is None or isinstance(obj, (str, bytes, bytearray, set, frozenset, dict)):
        raise type_error(routine, name, f"{name} must be an array, got {describe(obj)}")
    try:
        array = np.asanyarray(_arrays.host_array(obj))
    except Exception as error:
        raise type_error(
            routine, name, f"{name} cannot be read as an array of numbers: {error}"
        ) from error
    _refuse_masked(routine, name, array)
    return _arrays.plain_bfloat16(np.asarray(array))


def _refuse_masked(routine: str, name: str, obj: Any, rank: int = _RANK["a"]) -> None:
    """Refuse masked elements, also those of the arrays or elements that a list is made of."""
    if isinstance(obj, (list, tuple)):
        parts = (list, tuple, np.ma.MaskedArray)
        # Each kind is looked at once: a list of numbers may be long.
        if rank > 0 and any(issubclass(kind, parts) for kind in set(map(type, obj))):
            for part in obj:
                _refuse_masked(routine, name, part, rank - 1)
    elif isinstance(obj, np.ma.MaskedArray) and np.ma.is_masked(obj):
        raise type_error(
            routine,
            name,
            f"{name} is a masked array with {np.ma.count_masked(obj)} masked elements, which"
            " a product cannot leave out; fill it first",
        )


def _leaves_its_memory(array: np.ndarray) -> bool:
    """Whether an array reaches beyond the memory that it was made from.

    NumPy keeps its own views within; ``as_strided`` and array interfaces do as they are told.
    """
    owner: Any = array
    numpys_own = True
    base = array.base
    while base is not None and (isinstance(owner, np.ndarray) or isinstance(base, np.ndarray)):
        owner, base = base, getattr(base, "base", None)
        # as_strided puts an object with a base between its view and the array.
        numpys_own = numpys_own and isinstance(owner, np.ndarray)
    if numpys_own:
        return False
    try:
        memory = owner if isinstance(owner, np.ndarray) else np.frombuffer(owner, np.uint8)
    except (TypeError, ValueError, BufferError):
        return False  # an owner that does not say how much memory it has
    low, high = np.lib.array_utils.byte_bounds(array)
    first, last = np.lib.array_utils.byte_bounds(memory)
    return array.size > 0 and (low < first or high > last)


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
    if array.ndim == 0:
        return (1,)  # a number alone, as SciPy takes it as well
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
    array = array if dtype == BFLOAT16 or array.dtype != BFLOAT16 else cast(array, dtype)
    return np.require(array, dtype, ["A", "F" if _copy_order(array) == "F" else "C"])


def writable_in_place(operand: Operand, dtype: np.dtype) -> bool:
    """SciPy's rule for ``overwrite_y`` on host memory, apart from the right to write."""
    array = operand.owner
    return (
        array.dtype == dtype
        and array.flags.aligned
        and array.flags.c_contiguous
        and _arrays.written_through(operand.origin)
        # Of an array of objects the owner is a copy.
        and not (isinstance(operand.origin, np.ndarray) and operand.origin.dtype == object)
    )


def result_like(operand: Operand, dtype: np.dtype) -> np.ndarray:
    """A new y for the result: contiguous, of `dtype`, with the values and the class of y."""
    array = operand.owner
    if array.dtype == BFLOAT16 and dtype != BFLOAT16:
        return cast(array, dtype)
    return np.array(array, dtype=dtype, order="C", copy=True, subok=True)


# Device memory -------------------------------------------------------------------------------


def is_device_array(obj: Any) -> bool:
    """Whether `obj` exports device memory."""
    try:
        return _arrays.exporter_of(obj) is not None
    except Exception:  # what adopt() has something to say about
        return True


def _adopt_device(
    routine: str, name: str, obj: Any, library: _arrays.Library, dtype: np.dtype | None, home: Home
) -> Operand:
    operand = _device_operand(routine, name, obj, library, home)
    if len(operand.shape) != _RANK[name]:
        rank = ("no dimension", "one dimension", "two dimensions")[_RANK[name]]
        raise value_error(routine, name, f"{name} must have {rank}, got shape {operand.shape}")
    if dtype is not None and operand.dtype != dtype:
        raise type_error(
            routine,
            name,
            f"{name} has dtype {dtype_name(operand.dtype)} but {routine} computes in {dtype}"
            " and device arrays are never converted",
        )
    return operand


def _device_operand(
    routine: str, name: str, obj: Any, library: _arrays.Library, home: Home
) -> Operand:
    try:
        view = library.read(obj)
    except _arrays.Refusal as refusal:
        raise type_error(routine, name, f"{name} {refusal}") from None
    except Exception as error:  # of an array that was deleted, or that describes itself wrongly
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
        # Its device memory is host memory, whoever exports it.
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


def _check_view(routine: str, name: str, view: _arrays.View) -> None:
    """Refuse what no array can be, before a kernel follows its pointer."""
    shape, strides = view.shape, view.strides
    if min(shape, default=0) < 0 or (strides is not None and len(strides) != len(shape)):
        raise value_error(
            routine,
            name,
            f"{name} says that it has shape {shape} and byte strides {strides}, which no array has",
        )
    at = hex(view.pointer) if view.pointer.bit_length() <= 64 else shown(view.pointer)
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
    """The operand of an array that was made for this call: contiguous, ours alone."""
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
            exporter=_arrays.BY_NAME["numba"],
        )
    if isinstance(array, _dlpack.Export):
        array = array.array
    library = _arrays.exporter_of(array)
    if library is None:
        raise TypeError(f"gemv: {type(array).__name__} is no device array")
    return _device_operand("gemv", "y", array, library, home)


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
    return _array_at(pointer, shape, byte_strides, f"|V{itemsize}", readonly=True)


def _addresses_as(view: _arrays.View, typestr: str) -> np.ndarray:
    """The array of a view whose pointer the host may follow: in the simulator, any."""
    if not view.pointer:
        return np.zeros(view.shape, typestr)
    return _array_at(view.pointer, view.shape, view.strides, typestr, view.readonly)


def _array_at(
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    typestr: str,
    readonly: bool,
) -> np.ndarray:
    interface = {
        "version": 3,
        "shape": shape,
        "typestr": typestr,
        "data": (pointer, readonly),
        "strides": strides,
    }
    return np.asarray(_Addresses(interface))
