"""Device arrays of other libraries: how each is recognised, read, made, ordered and kept alive.

No library is imported here. One of its arrays was passed, so the library is in ``sys.modules``.
A :class:`Library` is what the rest of the package knows about one of them; adding one is adding a
subclass to :data:`LIBRARIES`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gemv.core.dtypes import BFLOAT16, DTYPES


class View(NamedTuple):
    """What a library says about one of its arrays."""

    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """In bytes; None where the array is C-contiguous."""
    pointer: int
    readonly: bool = False
    device: int | None = None
    """Ordinal of its GPU; None where only the pointer can tell."""
    stream: int | None = None
    """A stream that the array itself names."""
    conj: bool = False
    neg: bool = False
    keep: Any = None
    """What else has to live as long as the view."""


class Refusal(TypeError):
    """An array of a kind that cannot be computed with; the text follows the argument's name."""


def element_type(dtype: Any) -> Any:
    """A NumPy dtype as this package names it: ml_dtypes' bfloat16 is ours."""
    return BFLOAT16 if getattr(dtype, "name", None) == "bfloat16" else dtype


def dtype_called(name: Any) -> np.dtype | None:
    """The dtype that a name, or the dtype of some library, stands for; None for no such."""
    text = getattr(name, "name", None) or getattr(name, "__name__", None) or str(name)
    text = text.removeprefix("torch.")
    for dtype in DTYPES.values():
        if text in (dtype.name, dtype.str) or name == dtype:
            return dtype
    return BFLOAT16 if text == "bfloat16" else None


def plain_bfloat16(array: np.ndarray) -> np.ndarray:
    """The same memory, with our name for ml_dtypes' bfloat16."""
    return array.view(BFLOAT16) if element_type(array.dtype) is BFLOAT16 else array


class Library:
    """One source of device arrays."""

    name = ""
    #: Its arrays never change, so y is always a new one.
    immutable = False
    #: Whether its allocator may be called while a stream is captured.
    allocates_in_capture = False
    #: Whether work on an array is ordered by asking the array itself, at each call.
    ordered_by_export = False
    #: Whether its arrays belong to CUDA's default stream where they name no other: work on them is
    #: enqueued there, and their memory is given back in its order.
    on_default_stream = False

    def owns(self, obj: Any) -> bool:
        """Whether `obj` is a device array of this library."""
        raise NotImplementedError

    def read(self, obj: Any) -> View:
        """Its metadata: nothing is copied, moved, launched or waited for."""
        raise NotImplementedError

    def stream_getter(self) -> Callable[[int], int] | None:
        """A function that names the library's current stream on a GPU; None without such a thing.

        It is called in each launch, so it should cost as little as possible.
        """
        return None

    def current_stream(self, device: int) -> int | None:
        """The stream on which the library works now; None where it has no such thing."""
        ask = self.stream_getter()
        return None if ask is None else int(ask(device))

    def empty(self, like: Any, length: int, dtype: Any, device: int) -> Any:
        """A new vector on `device`, on the library's current stream, beside the array `like`."""
        from numba import cuda

        return cuda.device_array(length, dtype)

    def resolved(self, obj: Any, conj: bool) -> Any:
        """A contiguous copy of an array with lazy values, which most libraries do not have."""
        raise NotImplementedError

    @property
    def notes_writes(self) -> Callable[[Any], None] | None:
        """What to call with an array that was overwritten, if the library counts that."""
        return None

    def record(self, obj: Any, stream: int, device: int) -> bool:
        """Tell the allocator that `obj` is used on `stream`; False where it cannot be told."""
        return False


def imported(name: str) -> Any:
    """A library that the process has imported, or None."""
    return sys.modules.get(name)


def is_instance(obj: Any, module: str, name: str) -> bool:
    # A library in the middle of its own import lacks the name.
    known = getattr(imported(module), name, None)
    return isinstance(known, type) and isinstance(obj, known)
