"""Memory as a kernel sees it: pointers and arrays that check each access.

A :class:`Pointer` checks bounds, and holds a store back until a fence or a barrier shows it to
other threads. A :class:`CheckedArray` is a shared or local array.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from operator import index as as_index
from typing import Any

import numpy as np
from greenlet import getcurrent

from gemv.core.dtypes import BFLOAT16, NARROW
from gemv.core.narrow import cast
from gemv.language.simulator.thread import SimulatorError, Stores, Thread
from gemv.language.twofold import number_of


class Pointer:
    """What a kernel gets for a device pointer: bounds-checked access to a flat array.

    Parameters
    ----------
    flat : ndarray
        One-dimensional contiguous array: all the memory that may be touched.
    origin : int
        Position in `flat` of the element with index 0.
    writable : bool
        Whether the kernel may store; never true for a read-only `flat`.
    name : str
        Name for error messages.
    """

    __slots__ = ("address", "flat", "itemsize", "name", "origin", "scalar", "size", "writable")
    one_by_one = False  # whether a subclass has to see each element that is loaded

    def __init__(
        self, flat: np.ndarray, origin: int = 0, writable: bool = True, name: str = ""
    ) -> None:
        if flat.ndim != 1 or (flat.size > 1 and flat.strides[0] != flat.itemsize):
            raise ValueError("a pointer needs a one-dimensional contiguous array")
        self.flat = flat
        self.origin = as_index(origin)
        self.writable = bool(writable and flat.flags.writeable)
        self.name = name or "pointer"
        self.size = flat.size
        self.itemsize = flat.itemsize
        self.scalar = flat.dtype.type
        self.address = flat.__array_interface__["data"][0]

    def __repr__(self) -> str:
        return f"<Pointer {self.name}: {self.flat.dtype}, {self._valid()}>"

    def _valid(self) -> str:
        return f"valid {-self.origin} .. {self.size - 1 - self.origin}" if self.size else "empty"

    def _position(self, i: int, action: str) -> int:
        position = self.origin + as_index(i)
        if not 0 <= position < self.size:
            raise SimulatorError(f"{action} out of range: {self.name}[{i}], {self._valid()}")
        return position

    @property
    def nothing(self) -> Any:
        """The zero that a load gives in place of an element that is not there."""
        return self.scalar(0)

    def moved(self, count: int) -> Pointer:
        """The pointer to the element with index `count`; the bounds stay where they are."""
        further = self._copied()
        further.origin += as_index(count)
        return further

    def _copied(self) -> Any:
        """A copy, written out: copy.copy takes longer, and kernels copy pointers often."""
        other = object.__new__(type(self))
        other.flat, other.origin, other.size = self.flat, self.origin, self.size
        other.address, other.itemsize, other.scalar = self.address, self.itemsize, self.scalar
        other.writable, other.name = self.writable, self.name
        return other

    def storable(self, i: int) -> int:
        position = self._position(i, "write")
        if not self.writable:
            raise SimulatorError(f"write to read-only memory: {self.name}[{i}]")
        return position

    def __getitem__(self, i: int) -> Any:
        # _position written out: this is the hot path of every kernel.
        position = self.origin + (i if type(i) is int else as_index(i))
        if not 0 <= position < self.size:
            self._position(i, "read")
        thread = getcurrent()
        if type(thread) is Thread and thread.block.has_stores:
            key = self.address + position * self.itemsize
            for stores in (thread.stores, thread.warp.stores, thread.block.stores):
                if key in stores:
                    return stores[key][2]
        return self.flat[position]

    def elements(self, i: int, count: int) -> Sequence[Any]:
        """``self[i]`` and those behind it, read together where no store is held back."""
        i = as_index(i)
        first, thread = self.origin + i, getcurrent()
        held_back = type(thread) is Thread and thread.block.has_stores
        if held_back or first < 0 or first + count > self.size:
            return [self[k] for k in range(i, i + count)]
        return self.numbers_of(self.flat[first : first + count])

    def elements_apart(self, i: int, step: int, count: int) -> Sequence[Any]:
        """``self[i + k*step]`` for all k below `count`, read together as in :meth:`elements`."""
        first, thread = self.origin + as_index(i), getcurrent()
        end = first + (count - 1) * step + 1
        held_back = self.one_by_one or type(thread) is Thread and thread.block.has_stores
        if held_back or step <= 0 or first < 0 or end > self.size:
            return [self[i + k * step] for k in range(count)]
        return self.numbers_of(self.flat[first:end:step])

    def vectors(self, i: int, step: int, count: int, width: int) -> list[Any]:
        """What :func:`vector_load` gives at ``i + k*step``, for all k below `count`, in one list.

        All of it is written out here: most of what kernels load comes this way.
        """
        at, size, flat = self.origin + as_index(i), self.size, self.flat
        address, itemsize, is_plain = self.address, self.itemsize, type(self) is Pointer
        nbytes = width * itemsize
        thread = getcurrent()
        held_back = self.one_by_one or type(thread) is Thread and thread.block.has_stores
        values: list[Any] = []
        for k in range(count):
            at += step if k else 0
            if held_back or at < 0 or at + width > size or (address + at * itemsize) % nbytes:
                values += vector_load(self, i + k * step, width)
            elif is_plain:
                values.extend(flat[at : at + width])
            else:
                values += self.numbers_of(flat[at : at + width])
        return values

    def stored(self, i: int, count: int) -> np.ndarray:
        """``self[i]`` and those behind it as they are stored, for a copy."""
        first = self._position(i, "read")
        self._position(i + count - 1, "read")
        return self.flat[first : first + count]

    def numbers_of(self, stored: np.ndarray) -> Sequence[Any]:
        """What a kernel reads, element by element, from the memory where it is stored."""
        return list(stored)

    def __setitem__(self, i: int, value: Any) -> None:
        position = self.storable(i)
        value = self.scalar(value)
        thread = getcurrent()
        if type(thread) is not Thread:
            self.flat[position] = value
            return
        if self in thread.block.grid.mixed:
            raise SimulatorError(f"{self.name} overlaps an argument of another data type")
        thread.block.has_stores = True
        thread.stores[self.address + position * self.itemsize] = (self.flat, position, value)


@functools.cache
def _all_numbers(storage: np.dtype, number: np.dtype) -> list[Any]:
    """The number of each pattern of 16 bits, because a cast for each load takes far longer."""
    return list(cast(np.arange(1 << 16, dtype=np.uint16).view(storage), number))


class _Converting(Pointer):
    """A pointer to numbers that have one format in memory and another one in the kernel."""

    __slots__ = ("format", "number", "numbers")

    def __init__(self, pointer: Pointer, storage: np.dtype, number: np.dtype) -> None:
        super().__init__(pointer.flat, pointer.origin, pointer.writable, pointer.name)
        self.format, self.number = storage, number
        self.numbers = _all_numbers(storage, number) if storage in NARROW else None

    def _copied(self) -> Any:
        other = super()._copied()
        other.format, other.number, other.numbers = self.format, self.number, self.numbers
        return other

    @property
    def nothing(self) -> Any:
        return self.number.type(0)

    def __getitem__(self, i: int) -> Any:
        value = super().__getitem__(i)
        return cast(value, self.number)[()] if self.numbers is None else self.numbers[value]

    def numbers_of(self, stored: np.ndarray) -> Sequence[Any]:
        if self.numbers is None:
            return list(cast(stored, self.number))
        return list(map(self.numbers.__getitem__, stored.tolist()))

    def __setitem__(self, i: int, value: Any) -> None:
        super().__setitem__(i, cast(self.number.type(value), self.format).view(self.flat.dtype)[()])


class _Twofold(Pointer):
    """A pointer to numbers whose products the kernel adds up in sums of two numbers."""

    __slots__ = ("exact", "format", "singles", "sums")

    def __init__(self, pointer: Pointer, storage: np.dtype, sums: np.dtype, exact: bool) -> None:
        super().__init__(pointer.flat, pointer.origin, pointer.writable, pointer.name)
        self.format, self.sums, self.exact = storage, sums, exact
        single = np.dtype(np.float32)
        self.singles = _all_numbers(storage, single) if storage in NARROW else None

    def _copied(self) -> Any:
        other = super()._copied()
        other.format, other.sums, other.exact = self.format, self.sums, self.exact
        other.singles = self.singles
        return other

    @property
    def nothing(self) -> Any:
        return number_of(self.sums, 0, self.exact)

    def __getitem__(self, i: int) -> Any:
        value = super().__getitem__(i)
        if self.singles is not None:
            value = self.singles[value]
        return number_of(self.sums, value.item(), self.exact)

    def numbers_of(self, stored: np.ndarray) -> Sequence[Any]:
        values = stored.tolist()
        if self.singles is not None:
            values = [self.singles[pattern].item() for pattern in values]
        return [number_of(self.sums, value, self.exact) for value in values]

    def __setitem__(self, i: int, value: Any) -> None:
        number = value.rounded()
        if self.format in NARROW:
            number = cast(np.float64(number), self.format).view(self.flat.dtype)[()]
        super().__setitem__(i, number)


def pointer_to(
    array: np.ndarray,
    offset: int = 0,
    name: str = "",
    writable: bool | None = None,
    number: np.dtype | None = None,
    exact: bool = False,
) -> Pointer:
    """Point to an element of an array, however the array is strided.

    Parameters
    ----------
    array : ndarray
        The pointer covers exactly the memory from the lowest to the highest byte of this view.
        Strides may be negative or zero, but must be multiples of the item size.
    offset : int
        Distance in elements from element ``[0, ..., 0]`` to the target of the pointer.
    name : str
        Name for error messages.
    writable : bool, optional
        Whether the kernel may store; as the array's own flag if not given.
    number : numpy.dtype, optional
        The dtype that the kernel computes in, if it is not that of the array.
    exact : bool
        Whether the array is A or x: where sums are of two numbers, its elements are single ones.

    Returns
    -------
    Pointer
        Shares the memory of `array`.
    """
    if number is not None and number != array.dtype:
        storage = BFLOAT16 if array.dtype.kind == "V" else array.dtype
        bits = array.view(np.uint16) if storage in NARROW else array
        pointer = pointer_to(bits, offset, name, writable)
        if number.fields is not None:
            return _Twofold(pointer, storage, number, exact)
        return _Converting(pointer, storage, number)
    itemsize = array.itemsize
    if array.size and any(stride % itemsize for stride in array.strides):
        raise ValueError("strides must be multiples of the item size")
    writable = array.flags.writeable if writable is None else writable
    if not array.size:
        return Pointer(np.empty(0, array.dtype), offset, writable, name)
    spans = [
        (length - 1) * (stride // itemsize)
        for length, stride in zip(array.shape, array.strides, strict=True)
    ]
    below = -sum(span for span in spans if span < 0)
    above = sum(span for span in spans if span > 0)
    # Reversing the axes that run backwards brings the lowest element to the front. The ellipsis
    # keeps a zero-dimensional array an array.
    forward: list[Any] = [slice(None, None, -1 if span < 0 else 1) for span in spans]
    lowest = array[(*forward, ...)]
    flat = np.lib.stride_tricks.as_strided(lowest, (below + above + 1,), (itemsize,))
    return Pointer(flat, below + offset, writable, name)


def _check_vector(pointer: Pointer, i: int, count: int, action: str) -> None:
    position = pointer._position(i, action)
    pointer._position(i + count - 1, action)
    address, width = pointer.address + position * pointer.itemsize, count * pointer.itemsize
    if address % width:
        raise SimulatorError(
            f"misaligned vector {action}: {pointer.name}[{i}] is {address % width} bytes past "
            f"a multiple of {width} bytes"
        )


def vector_load(pointer: Pointer, index: int, count: int) -> tuple:
    """Load `count` consecutive elements, the first at an address that is a multiple of the width.

    Raises
    ------
    SimulatorError
        If the address is misaligned or an element is out of range.
    """
    first, itemsize = pointer.origin + as_index(index), pointer.itemsize
    inside = 0 <= first and first + count <= pointer.size
    if not inside or (pointer.address + first * itemsize) % (count * itemsize):
        _check_vector(pointer, index, count, "read")
    return tuple(pointer.elements(index, count))


def vector_store(pointer: Pointer, index: int, values: Sequence[Any]) -> None:
    """Store consecutive elements; alignment and range are checked as in :func:`vector_load`."""
    _check_vector(pointer, index, len(values), "write")
    for k, value in enumerate(values):
        pointer[index + k] = value


class CheckedArray:
    """A shared or local array: filled with NaN at first, and it refuses indices out of range."""

    __slots__ = ("data", "dtype", "ndim", "shape", "size")

    def __init__(self, data: np.ndarray) -> None:
        self.data = data
        self.dtype, self.ndim, self.shape, self.size = data.dtype, data.ndim, data.shape, data.size

    @classmethod
    def poisoned(cls, shape: Any, dtype: Any) -> CheckedArray:
        data = np.empty(shape, dtype)
        if data.size == 0:
            raise SimulatorError("an array of a kernel needs a positive size")
        if data.dtype.kind == "c":
            data.fill(complex(math.nan, math.nan))
        elif data.dtype.kind == "f":
            data.fill(math.nan)
        elif data.dtype.kind == "O":
            data.fill(None)  # nothing can be added to it
        else:
            data.view(np.uint8).fill(0xA5)
        return cls(data)

    def __len__(self) -> int:
        return self.shape[0]

    def elements(self, i: int, count: int) -> tuple:
        """``self[i]`` and those behind it, of one dimension."""
        if type(i) is int and self.ndim == 1 and 0 <= i <= self.shape[0] - count:
            return tuple(self.data[i : i + count])
        return tuple(self[i + k] for k in range(count))

    def _checked(self, i: Any) -> Any:
        # Most indices are one or two Python integers in range.
        shape = self.shape
        if type(i) is int:
            if 0 <= i < shape[0]:
                return i
        elif type(i) is tuple and len(i) == len(shape) == 2:
            row, column = i
            plain = type(row) is int and type(column) is int
            if plain and 0 <= row < shape[0] and 0 <= column < shape[1]:
                return i
        indices = tuple(map(as_index, i if isinstance(i, tuple) else (i,)))
        inside = all(0 <= k < n for k, n in zip(indices, self.shape, strict=False))
        if len(indices) > self.ndim or not inside:
            raise SimulatorError(f"index {i} out of range for an array of shape {self.shape}")
        return indices if len(indices) > 1 else indices[0]

    def __getitem__(self, i: Any) -> Any:
        value = self.data[self._checked(i)]
        return CheckedArray(value) if type(value) is np.ndarray else value

    def __setitem__(self, i: Any, value: Any) -> None:
        self.data[self._checked(i)] = value


def write_back(stores: Stores) -> None:
    """Write stores that were held back to memory, in their order."""
    for flat, position, value in stores.values():
        flat[position] = value
    stores.clear()
