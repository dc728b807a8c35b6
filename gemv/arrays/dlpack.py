"""DLPack in plain ctypes: reading what others export, exporting memory of our own.

Only what vectors and matrices need of the protocol is here. Reading is for libraries without an
interface of their own here; exporting is for JAX, whose allocator cannot be called.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from gemv.core.dtypes import BFLOAT16

_READ_ONLY = 1
_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_CODES = {code: kind for kind, code in _KINDS.items()}
#: More than any array library has. A wrong number would be followed as far as it says.
_MAX_DIMENSIONS = 64
#: DLPack's code of bfloat16, which is no dtype of NumPy's.
_BFLOAT = 4


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _DLTensor),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


def _python(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_capsule_is = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_capsule_pointer = _python(
    "PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p
)
# The destructor gets a bare address: the capsule is dying and must not be referenced again.
_dying_is = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_dying_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_capsule_new = _python(
    "PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)


class Tensor(NamedTuple):
    """An exported tensor; it lives as long as its capsule."""

    dtype: Any
    """A numpy.dtype, or words for a type that is none of ours."""
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """In elements."""
    pointer: int
    readonly: bool
    device_type: int
    device: int
    capsule: Any


def export(obj: Any, stream: int) -> Any:
    """``obj.__dlpack__``, of the newer form where the exporter knows it.

    Parameters
    ----------
    stream : int
        The stream that has to wait until the data is there; -1 to wait for nothing.
    """
    try:
        return obj.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:  # an exporter from before versions had numbers
        return obj.__dlpack__(stream=stream)


def read(capsule: Any) -> Tensor:
    """What a capsule holds; it is not consumed, so its owner frees it with the capsule."""
    readonly = False
    if _capsule_is(capsule, b"dltensor_versioned"):
        address = _capsule_pointer(capsule, b"dltensor_versioned")
        versioned = _ManagedVersioned.from_address(address)
        if versioned.major != 1:
            raise BufferError(f"DLPack of major version {versioned.major}, not 1")
        readonly = bool(versioned.flags & _READ_ONLY)
        tensor = versioned.tensor
    elif _capsule_is(capsule, b"dltensor"):
        tensor = _Managed.from_address(_capsule_pointer(capsule, b"dltensor")).tensor
    else:
        raise BufferError("__dlpack__ gave no capsule of DLPack")
    if not 0 <= tensor.ndim <= _MAX_DIMENSIONS:
        raise BufferError(f"a DLPack tensor of {tensor.ndim} dimensions")
    if tensor.ndim and not tensor.shape:
        raise BufferError(f"a DLPack tensor of {tensor.ndim} dimensions without a shape")
    itemsize = tensor.bits * tensor.lanes // 8
    name = f"{tensor.code}:{tensor.bits}x{tensor.lanes}"
    dtype: Any = f"of DLPack's type {name}"
    if tensor.lanes == 1 and tensor.code == _BFLOAT and tensor.bits == 16:
        dtype = BFLOAT16
    elif tensor.lanes == 1 and tensor.code in _CODES and tensor.bits % 8 == 0:
        try:
            dtype = np.dtype(f"{_CODES[tensor.code]}{itemsize}")
        except TypeError:  # a number of so many bytes, which NumPy has not
            pass
    return Tensor(
        dtype,
        itemsize,
        tuple(tensor.shape[: tensor.ndim]),
        tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None,
        # Without memory there is no address either, whatever the offset.
        tensor.data + tensor.byte_offset if tensor.data else 0,
        readonly,
        tensor.device_type,
        tensor.device_id,
        capsule,
    )


#: What exported memory needs to live, by the address of its description, until it is deleted.
#: Without a lock: a deleter may run within another one, as memory that is freed frees more.
_exported: dict[int, tuple] = {}


def _delete(address: int) -> None:
    _exported.pop(address, None)


def _destroy(capsule: int) -> None:
    # A consumer renames the capsule and calls the deleter itself.
    if _dying_is(capsule, b"dltensor"):
        _delete(_dying_pointer(capsule, b"dltensor"))


_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)
_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy)
# Consumers may call these while the interpreter clears its modules: they must outlive this one.
for _callback in (_deleter, _destructor):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))


class Export:
    """A contiguous vector of ours on a CUDA device, for another library to take over.

    Attributes
    ----------
    array : device array
        What the memory belongs to.
    before_export : callable or None
        Called with the consumer's stream, which has to wait for the work that fills the memory.
    """

    def __init__(self, array: Any, device: int, dtype: np.dtype | None = None) -> None:
        self.array = array
        self.before_export: Any = None
        self._device = device
        self._dtype = dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._device)

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        if self.before_export is not None and stream != -1:
            self.before_export(0 if stream is None else int(stream))
        interface = self.array.__cuda_array_interface__
        dtype = np.dtype(interface["typestr"]) if self._dtype is None else self._dtype
        shape = (ctypes.c_int64 * 1)(interface["shape"][0])
        strides = (ctypes.c_int64 * 1)(1)
        managed = _Managed()
        tensor = managed.tensor
        tensor.data = interface["data"][0] or None
        tensor.device_type, tensor.device_id = self.__dlpack_device__()
        tensor.ndim, tensor.lanes = 1, 1
        tensor.code = _BFLOAT if dtype == BFLOAT16 else _KINDS[dtype.kind]
        tensor.bits = dtype.itemsize * 8
        tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
        managed.deleter = ctypes.cast(_deleter, ctypes.c_void_p).value
        address = ctypes.addressof(managed)
        _exported[address] = (managed, shape, strides, self.array)
        destructor = ctypes.cast(_destructor, ctypes.c_void_p).value
        return _capsule_new(address, b"dltensor", destructor)
