""":class:`Operand`: an array of a call, of whatever library, and whether two share memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

#: Makes a named tuple, in half the time that its own constructor takes.
_new = tuple.__new__

#: Number of dimensions by argument.
RANK = {"a": 2, "x": 1, "y": 1, "out": 1, "alpha": 0, "beta": 0}


class Operand(NamedTuple):
    """An array of a call: its metadata, and what keeps its memory alive.

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
        What else has to stay alive until the memory has been read.
    resolve : bool
        Whether `origin` is replaced by a contiguous copy of its values before the launch; of their
        conjugates if `conj`.
    exporter : Library
        The array's library; see :mod:`gemv.arrays.base`.
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


def where(operand: Operand) -> str:
    """Where an operand's memory is, in words for error texts."""
    if operand.on_host:
        return "in host memory"
    gpu = "the device" if operand.device is None else f"cuda:{operand.device}"
    return f"on {gpu} ({operand.kind})"


#: Steps that NumPy may take to find an element that two interleaved arrays share.
_MAX_WORK: Any = 100_000


# Overlap -------------------------------------------------------------------------------------


def vector_view(operand: Operand, count: int, offset: int, inc: int) -> np.ndarray:
    """An array at the addresses of a vector's elements ``offset + i*inc``; it must not be read."""
    return _addresses(operand, (count,), (inc,), offset)


def matrix_view(operand: Operand) -> np.ndarray:
    """An array at the addresses of A's elements; it must not be read."""
    return _addresses(operand, operand.shape, operand.strides, 0)


def overlap(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether two views share an element; True as well where finding out takes too long."""
    if not np.may_share_memory(left, right):
        return False
    try:
        return np.shares_memory(left, right, max_work=_MAX_WORK)
    except np.exceptions.TooHardError:
        return True


def part_of(
    operand: Operand, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Operand:
    """The operand that begins `offset` elements behind a device operand, with other strides."""
    size, owner = operand.dtype.itemsize, operand.owner
    pointer = operand.pointer + offset * size
    if isinstance(owner, np.ndarray) and 0 not in shape:  # the simulator's device memory
        steps = tuple(stride * size for stride in strides)
        owner = array_at(pointer, shape, steps, operand.dtype.str, operand.readonly)
        owner = owner.view(operand.dtype)
    return operand._replace(pointer=pointer, owner=owner, shape=shape, strides=strides)


def parts_of(operand: Operand, starts: Sequence[int], lengths: Sequence[int]) -> list[Operand]:
    """The parts of a device vector from its element ``starts[k]`` on, ``lengths[k]`` each."""
    kind, dtype, _, strides, pointer, *rest = operand
    step = strides[0] * dtype.itemsize
    owner, pointers = operand.owner, [pointer + start * step for start in starts]
    owners: Iterable[Any] = repeat(owner)
    if isinstance(owner, np.ndarray):  # the simulator's device memory
        owners = [owner[start : start + n] for start, n in zip(starts, lengths, strict=True)]
    readonly, _, *others = rest
    return list(
        map(
            _new, repeat(Operand),
            zip(
                repeat(kind), repeat(dtype), zip(lengths), repeat(strides), pointers,
                repeat(readonly), owners, *map(repeat, others),
            ),
        )
    )  # fmt: skip


class _Addresses:
    """An object with an array interface, from which NumPy makes an array at any address."""

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
    return array_at(pointer, shape, byte_strides, f"|V{itemsize}", readonly=True)


def array_at(
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    typestr: str,
    readonly: bool,
) -> np.ndarray:
    """A NumPy array of memory at an address; `strides` are in bytes."""
    interface = {
        "version": 3,
        "shape": shape,
        "typestr": typestr,
        "data": (pointer, readonly),
        "strides": strides,
    }
    return np.asarray(_Addresses(interface))
