"""What is kept of a vector that was read or made before, so that the next one takes fewer steps.

A vector on a GPU is read in full once: its library is looked for, its metadata are checked, it
becomes an :class:`Operand`. The next array of that type has another address, but mostly the same
dtype, length and strides. So the metadata alone are read and compared, every one of them, and the
operand is the one that is kept with another address. Whatever differs is read in full again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemv.arrays import adopt
from gemv.arrays.base import Library, View
from gemv.core.geometry import LOAD_BYTES
from gemv.core.operand import Operand
from gemv.engines import backend

#: How many layouts a matrix keeps; one more, and all are forgotten.
MAX_LAYOUTS = 64


class Layout:
    """A contiguous vector on a GPU: all of its operand but the address.

    Parameters
    ----------
    operand : Operand
    """

    __slots__ = ("_library", "_operand", "_shape", "_strides")

    def __init__(self, operand: Operand) -> None:
        self._library = operand.exporter
        # Nobody's memory is kept.
        self._operand = operand._replace(owner=None, origin=None, keep=None, pointer=0, stream=None)
        self._shape = operand.shape
        self._strides = (None, (operand.dtype.itemsize,))

    def read(self, array: Any) -> Operand | None:
        """The operand of an array; None unless it is such a vector, aligned to 16 bytes."""
        library, kept = self._library, self._operand
        try:
            if library.place(array) != "device":
                return None
            view: View = library.read(array)
        except Exception:  # whatever a library raises; reading in full names x in the error
            return None
        pointer = view.pointer
        if (
            view.dtype != kept.dtype
            or view.shape != self._shape
            or view.strides not in self._strides
            or not pointer
            or pointer % LOAD_BYTES
            or view.conj
            or view.neg
            or view.keep is not None
        ):
            return None
        device = backend.HOME.device_of(pointer) if view.device is None else view.device
        return kept._replace(
            pointer=pointer, readonly=view.readonly, owner=array, stream=view.stream,
            device=device, origin=array,
        )  # fmt: skip


class Layouts:
    """The layouts of vectors of one dtype, by their type and length."""

    def __init__(self) -> None:
        self._known: dict[tuple[type, int], Layout] = {}
        #: Of each type of array that was read here, its library.
        self._libraries: dict[type, Library] = {}

    def on_device(self, array: Any) -> bool:
        """Whether an array of a type that was read before is on a GPU; False if it is not known."""
        library = self._libraries.get(type(array))
        try:
            return library is not None and library.place(array) == "device"
        except Exception:  # whatever a library raises; reading in full names x in the error
            return False

    def operand(self, array: Any, dtype: np.dtype, length: int) -> Operand:
        """A vector that should have this length as an operand: by its layout, or read in full."""
        key = (type(array), length)
        known = self._known.get(key)
        found = None if known is None else known.read(array)
        if found is not None:
            return found
        operand = adopt.adopt("Matrix", "x", array, dtype, backend.HOME, batch=True)
        plain = not (operand.conj or operand.neg or operand.keep is not None)
        fits = operand.shape == (length,) and operand.strides == (1,)
        if operand.device is not None and plain and fits:
            if len(self._known) >= MAX_LAYOUTS:
                self._known.clear()
                self._libraries.clear()
            self._known[key] = Layout(operand)
            self._libraries[type(array)] = operand.exporter
        return operand
