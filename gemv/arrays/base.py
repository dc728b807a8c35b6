"""What the package knows of one array library: the interface :class:`Library`.

It says how an array is recognised, read, made, ordered and kept alive, in host memory as on a GPU.
Adopting a library is one file with a subclass of it, and an entry in
:data:`gemv.arrays.libraries.LIBRARIES`. None of the libraries is imported: where one of its arrays
was passed, the library is in ``sys.modules``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from gemv.core.dtypes import BFLOAT16, DTYPES

#: Where an array lies: in the memory of a CUDA GPU, or in the host's.
Place = Literal["device", "host"]


class View(NamedTuple):
    """What a library says about one of its device arrays."""

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


class Views(NamedTuple):
    """What a library says about many of its device arrays, all of one dtype.

    Each field has an element for each array, but for the dtype.
    """

    dtype: np.dtype
    shapes: list[tuple[int, ...]]
    strides: list[tuple[int, ...]]
    """In elements."""
    pointers: list[int]
    readonly: Sequence[bool]
    devices: Sequence[int | None] | None
    """Ordinals of their GPUs; None where only the pointers can tell."""
    conj: Sequence[bool]
    neg: Sequence[bool]
    keeps: Sequence[Any]
    """What else has to live as long as the view of each."""


def in_elements(byte_strides: list[tuple[int, ...]], dtype: np.dtype) -> list[tuple] | None:
    """Strides of arrays in elements; None if they differ in rank or are no whole elements."""
    if len(set(map(len, byte_strides))) != 1:
        return None
    steps, rest = np.divmod(np.array(byte_strides, np.int64), dtype.itemsize)
    return None if rest.any() else list(map(tuple, steps.tolist()))


class Refusal(TypeError):
    """An array of a kind that cannot be computed with; the text follows the argument's name."""


def element_type(dtype: Any) -> Any:
    """A NumPy dtype as this package names it: ml_dtypes' bfloat16 is ours."""
    if getattr(dtype, "isbuiltin", 0) == 1:  # one of NumPy's own, whose names take long to make
        return dtype
    return BFLOAT16 if getattr(dtype, "name", None) == "bfloat16" else dtype


def dtype_called(name: Any) -> np.dtype | None:
    """The dtype that a name, or the dtype of some library, stands for; None for no such."""
    try:
        text = getattr(name, "name", None) or getattr(name, "__name__", None) or str(name)
        text = text.removeprefix("torch.")
        for dtype in DTYPES.values():
            if text in (dtype.name, dtype.str) or name == dtype:
                return dtype
    except Exception:  # an array, which is equal to nothing as a whole, or an object's own error
        return None
    return BFLOAT16 if text == "bfloat16" else None


def plain_bfloat16(array: np.ndarray) -> np.ndarray:
    """The same memory, with our name for ml_dtypes' bfloat16."""
    return array.view(BFLOAT16) if element_type(array.dtype) is BFLOAT16 else array


class Library:
    """One source of arrays. What is not overridden is as with NumPy, in host memory."""

    name = "numpy"
    #: Its arrays never change, so y is always a new one.
    immutable = False
    #: Whether its allocator may be called while a stream is captured.
    allocates_in_capture = False
    #: Whether work on an array is ordered by asking the array itself, at each call.
    ordered_by_export = False
    #: Whether its arrays belong to CUDA's default stream where they name no other: work on them is
    #: enqueued there, and their memory is given back in its order.
    on_default_stream = False
    #: Whether a device array is held until the work on it is done, since neither its stream nor its
    #: allocator is known.
    held_until_done = False

    def place(self, obj: Any) -> Place | None:
        """Where `obj` lies, if it is an array of this library; None if it is none.

        Raises
        ------
        Refusal
            For an array that cannot be computed with.
        """
        return None

    # Host memory ---------------------------------------------------------------------------

    def as_numpy(self, obj: Any) -> Any:
        """A host array as NumPy's, sharing its memory where that can be; or what NumPy can read."""
        plain = ("__array__", "__array_interface__", "__array_struct__", "__len__")
        if hasattr(obj, "__dlpack__") and not any(hasattr(obj, name) for name in plain):
            return np.from_dlpack(obj)
        return obj

    def is_array(self, obj: Any) -> bool:
        """Whether a host operand is an array itself, and not a list or the like that was read."""
        return isinstance(obj, np.ndarray)

    def written_through(self, obj: Any) -> bool:
        """Whether writing to :meth:`as_numpy` of a host array changes that array."""
        return True

    def from_numpy(self, like: Any, result: np.ndarray) -> Any:
        """`result` as an array of this library, beside the host array `like`."""
        dtype = getattr(like, "dtype", None)
        return result.view(dtype) if result.dtype == BFLOAT16 and dtype is not None else result

    @property
    def notes_writes(self) -> Callable[[Any], None] | None:
        """What to call with an array that was overwritten, if the library counts that."""
        return None

    def notes_writes_to(self, arrays: Sequence[Any]) -> Callable[[], None] | None:
        """What to call each time after all of these arrays were overwritten, if that is counted."""
        note = self.notes_writes
        if note is None:
            return None
        count = note  # not None, as a type checker has to know inside of the function

        def written() -> None:
            for array in arrays:
                count(array)

        return written

    # Device memory -------------------------------------------------------------------------

    def read(self, obj: Any) -> View:
        """The metadata of a device array: nothing is copied, moved, launched or waited for."""
        raise NotImplementedError

    def read_all(self, arrays: Sequence[Any]) -> Views | None:
        """The metadata of many device arrays, found without a call of Python for each.

        It is what :meth:`read` gives for each of them. None where an array has to be looked at by
        itself: one that :meth:`place` or :meth:`read` would refuse, above all. The first one is
        known to be a device array of this library.
        """
        return None

    def parts(self, whole: Any, starts: Sequence[int], lengths: Sequence[int]) -> list[Any]:
        """The parts of a new vector from its element ``starts[k]`` on, which do not overlap."""
        return [whole[start : start + n] for start, n in zip(starts, lengths, strict=True)]

    def shared(self, array: Any, device: int) -> Any:
        """A device array of another library as one of this one, sharing its memory."""
        return array

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
        """A new vector on `device`, made on the library's current stream, like the array `like`.

        What it gives back is handed to :meth:`finished` once the work on it is enqueued.
        """
        from numba import cuda

        return cuda.device_array(length, dtype)

    def finished(self, made: Any, wait: Callable[[int], None]) -> Any:
        """The array that a caller gets for one from :meth:`empty`.

        ``wait(stream)`` lets a stream come after the work that writes to it.
        """
        return made

    def resolved(self, obj: Any, conj: bool) -> Any:
        """A contiguous copy with the values of a lazy view, their conjugates if `conj` is set."""
        raise NotImplementedError

    def record(self, obj: Any, behind: Callable[[], int], device: int) -> bool:
        """Tell the allocator that `obj` is used elsewhere; False where it cannot be told.

        ``behind()`` is a stream behind that use, which is never destroyed.
        """
        return False


def imported(name: str) -> Any:
    """A library that the process has imported, or None."""
    return sys.modules.get(name)


def is_instance(obj: Any, module: str, name: str) -> bool:
    # A library in the middle of its own import lacks the name.
    known = getattr(imported(module), name, None)
    return isinstance(known, type) and isinstance(obj, known)
